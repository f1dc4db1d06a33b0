/* match.h - how often a model's candidates are what the target chooses, learnt from what it chose. Pure and
 * deterministic.
 *
 * A candidate's case is its rank and the share of exp(value) that it has among the candidates of its place
 * (value: what the target's choice goes by, noise included). Before anything is known the share is taken as
 * the rate. */
#pragma once

#include "draft_worker/batch.h"

#define MATCH_RANKS  4 /* first, second, third, others */
#define MATCH_SHARES 12
#define MATCH_CASES  (MATCH_RANKS * MATCH_SHARES)

typedef struct match_table {
  float tries[MATCH_CASES], hits[MATCH_CASES]; /* all zero at the start */
} match_table;

/* Case of each candidate of an answer. */
void match_cases(const draft_answer *a, uint8_t *cases);
/* Log of the rate of a case, <= 0; table NULL: as if nothing were known. */
float match_score(const match_table *t, int32_t kase);
/* Of a place with these candidates the target chose `token`. */
void match_learn(match_table *t, const draft_candidate *list, const uint8_t *cases, int32_t count,
                 int32_t token);
