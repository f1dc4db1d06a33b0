/* calibration.h - how often a model's candidates are what the target chooses, learnt from what it chose. Pure
 * and deterministic.
 *
 * A candidate's bin is its rank and the share of exp(value) that it has among the candidates of its reply
 * (value: what the target's choice goes by, noise included). Before anything is known the share is taken as
 * the rate. */
#pragma once

#include "common/speculative/sampler.h"
#include "draft_worker/drafters/drafter.h"

#define CALIBRATION_RANKS  4 /* first, second, third, others */
#define CALIBRATION_SHARES 12
#define CALIBRATION_BINS   (CALIBRATION_RANKS * CALIBRATION_SHARES)

typedef struct calibration_table {
  float tries[CALIBRATION_BINS], hits[CALIBRATION_BINS]; /* all zero at the start */
} calibration_table;

/* Candidates with the bins of ranked values, and the log of each bin's rate as score. Table NULL: as if
 * nothing were known. */
void calibration_candidates(const calibration_table *t, const sampler_ranked *ranked, int32_t count,
                            draft_candidate *out);
/* Of these candidates the target chose `token`, or none. */
void calibration_learn(calibration_table *t, const draft_candidate *list, int32_t count, int32_t token);
