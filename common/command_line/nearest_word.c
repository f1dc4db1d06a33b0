#include "common/command_line/nearest_word.h"

#include "common/base/min.h"
#include <stdbool.h>
#include <string.h>

#define NAME_MAX_BYTES 40 /* a longer word is near to none */

/* Letters to insert, drop, change or swap with their neighbour (optimal string alignment). */
static int distance(const char *a, const char *b) {
  int rows[3][NAME_MAX_BYTES + 1], la = (int)strlen(a), lb = (int)strlen(b);
  if (la > NAME_MAX_BYTES || lb > NAME_MAX_BYTES) return NAME_MAX_BYTES;
  for (int j = 0; j <= lb; j++) rows[0][j] = j;
  for (int i = 1; i <= la; i++) {
    int *row = rows[i % 3];
    const int *above = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
    row[0] = i;
    for (int j = 1; j <= lb; j++) {
      row[j] = min_i32(min_i32(above[j], row[j - 1]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = min_i32(row[j], before[j - 2] + 1);
    }
  }
  return rows[la % 3][lb];
}

const char *nearest_word(const char *wrong, const char *const *words, int count) {
  const char *best = NULL;
  int allowed = 1 + (int)strlen(wrong) / 4;
  for (int i = 0; i < count; i++) {
    int d = distance(wrong, words[i]);
    if (d > allowed || (best && d == allowed)) continue;
    best = words[i];
    allowed = d;
  }
  return best;
}
