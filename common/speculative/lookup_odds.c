#include "common/speculative/lookup_odds.h"

#include <math.h>

#define FLOOR 0.03 /* a candidate less probable than this is not worth sending */
#define PRIOR 8    /* the table counts as so many observations */
#define AGREE 3

int32_t lookup_odds_case(int32_t agree, int32_t others) {
  int32_t row = agree < AGREE ? agree : AGREE;
  return (row - 1) * 3 + (others > 0) + (others > agree);
}

bool lookup_odds_is_new(const lookup_candidate *list, int32_t count, int32_t token) {
  for (int32_t i = 0; i < count; i++)
    if (list[i].token == token) return false;
  return true;
}

void lookup_odds_learn(lookup_odds *o, const lookup_candidate *list, int32_t count, int32_t token) {
  for (int32_t i = 0; i < count; i++) {
    o->tries[list[i].row][list[i].kase]++;
    o->hits[list[i].row][list[i].kase] += list[i].token == token;
  }
}

static double probability(const lookup_odds *o, const lookup_odds_table *table, const lookup_candidate *x) {
  double hits = o->hits[x->row][x->kase], tries = o->tries[x->row][x->kase];
  return (hits + PRIOR * (double)(*table)[x->row][x->kase]) / (tries + PRIOR);
}

static void insert(draft_candidate *list, int32_t count, draft_candidate x) {
  for (; count > 0 && list[count - 1].score < x.score; count--) list[count] = list[count - 1];
  list[count] = x;
}

int32_t lookup_odds_rank(const lookup_odds *o, const lookup_odds_table *table, const lookup_candidate *list,
                         int32_t count, draft_candidate *out) {
  int32_t ranked = 0;
  for (int32_t i = 0; i < count; i++) {
    double p = probability(o, table, &list[i]);
    if (p < FLOOR) continue;
    insert(out, ranked++, (draft_candidate){.token = list[i].token, .score = (float)log(p)});
  }
  return ranked;
}
