/* calibration.h - how often a model's candidates are what the target chooses, learnt from what it chose. Pure
 * and deterministic.
 *
 * A candidate's case is its rank and the share of exp(value) that it has among the candidates of its place
 * (value: what the target's choice goes by, noise included). Before anything is known the share is taken as
 * the rate. */
#pragma once

#include "draft_worker/drafters/batch.h"

#define CALIBRATION_RANKS  4 /* first, second, third, others */
#define CALIBRATION_SHARES 12
#define CALIBRATION_CASES  (CALIBRATION_RANKS * CALIBRATION_SHARES)

typedef struct calibration_table {
  float tries[CALIBRATION_CASES], hits[CALIBRATION_CASES]; /* all zero at the start */
} calibration_table;

/* Case of each candidate of an answer. */
void calibration_cases(const draft_answer *a, uint8_t *cases);
/* Log of the rate of a case, <= 0; table NULL: as if nothing were known. */
float calibration_score(const calibration_table *t, int32_t kase);
/* Of a place with these candidates the target chose `token`. */
void calibration_learn(calibration_table *t, const draft_candidate *list, const uint8_t *cases, int32_t count,
                       int32_t token);
