/* calibration.h - turns the values by which a draft model ranks its candidates into match probabilities, and
 * learns from what the target chose. Pure and deterministic.
 *
 * A softmax over the candidates of a reply and "none of them" with the utilities
 *
 *   candidate i: sharpness * gap(i) - step * i - excess * (g(i) - g(0))
 *   none:        other + tail * gap(last) + lead * g(0)
 *
 * where i is the rank, gap(i) <= 0 is the value minus the first one's, and g is the noise that the value
 * contains at T > 0. A candidate that owes its rank to its noise is chosen less often than its value says,
 * because the noise is exact, and the draft's logit is not. So the weights differ at T = 0 and at T > 0. They
 * are measured for a head and kept in its file (head_config.h), and every observation moves them a little, by
 * a step along the gradient of its log-probability. */
#pragma once

#include "common/base/sampler.h"
#include "draft_worker/drafters/drafter.h"

typedef enum { CALIBRATION_GREEDY, CALIBRATION_SAMPLED, CALIBRATION_KINDS } calibration_kind;

typedef enum {
  CALIBRATION_SHARPNESS,
  CALIBRATION_STEP,
  CALIBRATION_EXCESS,
  CALIBRATION_OTHER,
  CALIBRATION_TAIL,
  CALIBRATION_LEAD,
  CALIBRATION_WEIGHTS
} calibration_weight;

typedef struct calibration {
  float weights[CALIBRATION_KINDS][CALIBRATION_WEIGHTS];
  int32_t
      seen[CALIBRATION_KINDS]; /* observations that the weights rest on: the more, the less one moves them */
} calibration;

/* A query's choice: how it is made, and the index in the whole sequence of the token that is chosen. */
typedef struct calibration_choice {
  const sampler_options *sampling;
  int32_t position;
} calibration_choice;

/* From measured weights; NULL: from those of the head that comes with the program, to be unlearnt quickly. */
void calibration_init(calibration *c, const float (*measured)[CALIBRATION_WEIGHTS]);
/* Makes candidates of ranked values, the best score first. */
void calibration_candidates(const calibration *c, const calibration_choice *choice,
                            const ranking_token *ranked, int32_t count, draft_candidate *out);
/* Learns that the target chose `token`, which may be none of these candidates, all of one reply. */
void calibration_learn(calibration *c, const draft_candidate *list, int32_t count, int32_t token);
