#include "common/grammar/grammar.h"

#include <stdlib.h>

void grammar_free(grammar *g) {
  if (!g) return;
  free(g->elements);
  free(g->alternatives);
  free(g->rules);
  free(g->classes);
  free(g->ranges);
  free(g);
}

bool grammar_class_meets(const grammar *g, int32_t class, uint32_t first, uint32_t last) {
  const grammar_class *k = &g->classes[class];
  int32_t low = k->first, high = k->first + k->count;
  while (low < high) { /* the first range that ends at `first` or behind it */
    int32_t middle = low + (high - low) / 2;
    if (g->ranges[middle].last < first)
      low = middle + 1;
    else
      high = middle;
  }
  return low < k->first + k->count && g->ranges[low].first <= last;
}

bool grammar_class_has(const grammar *g, int32_t class, uint32_t c) {
  if (c < 128) return g->classes[class].ascii[c / 64] >> c % 64 & 1;
  return grammar_class_meets(g, class, c, c);
}
