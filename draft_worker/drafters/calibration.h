/* calibration.h - learns how often the target chooses the candidates that a draft model ranks. Pure and
 * deterministic.
 *
 * A candidate's bin is given by its rank and by its share of the sum of exp(value) over the candidates of its
 * reply (value: the quantity whose maximum the target would choose, noise included). Before anything is
 * known, the share is taken as the rate. */
#pragma once

#include "common/base/sampler.h"
#include "draft_worker/drafters/drafter.h"

#define CALIBRATION_RANKS  4 /* first, second, third, others */
#define CALIBRATION_SHARES 12
#define CALIBRATION_BINS   (CALIBRATION_RANKS * CALIBRATION_SHARES)

typedef struct calibration_table {
  float tries[CALIBRATION_BINS], hits[CALIBRATION_BINS]; /* all zero at the start */
} calibration_table;

/* Turns ranked values into candidates, with their bins and with the log of each bin's rate as score. Table
 * NULL: as if nothing were known. */
void calibration_candidates(const calibration_table *t, const sampler_ranked *ranked, int32_t count,
                            draft_candidate *out);
/* Learns that the target chose `token`, which may be none of these candidates. */
void calibration_learn(calibration_table *t, const draft_candidate *list, int32_t count, int32_t token);
