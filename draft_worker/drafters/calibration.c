#include "draft_worker/drafters/calibration.h"

#include <math.h>

#define PRIOR 8.0f    /* so many observations is the share itself worth */
#define TRIES 4096.0f /* then the older half is forgotten */

/* Where the bins of the share begin. */
static const float shares[CALIBRATION_SHARES] = {0,    0.02f, 0.05f, 0.1f, 0.2f,  0.3f,
                                                 0.4f, 0.5f,  0.65f, 0.8f, 0.92f, 0.98f};

static float middle(int32_t share) {
  return (shares[share] + (share + 1 < CALIBRATION_SHARES ? shares[share + 1] : 1)) / 2;
}

static int32_t share_bin(float share) {
  int32_t bin = CALIBRATION_SHARES - 1;
  while (bin > 0 && !(share >= shares[bin])) bin--;
  return bin;
}

static float score_of(const calibration_table *t, int32_t bin) {
  static const calibration_table unknown = {{0}, {0}};
  if (!t) t = &unknown;
  return logf((t->hits[bin] + PRIOR * middle(bin % CALIBRATION_SHARES)) / (t->tries[bin] + PRIOR));
}

void calibration_candidates(const calibration_table *t, const sampler_ranked *ranked, int32_t count,
                            draft_candidate *out) {
  float weights[DRAFTER_CANDIDATES_MAX], sum = 0;
  for (int32_t i = 0; i < count; i++) sum += weights[i] = expf(ranked[i].value - ranked[0].value);
  for (int32_t i = 0; i < count; i++) {
    int32_t rank = i < CALIBRATION_RANKS ? i : CALIBRATION_RANKS - 1;
    int32_t bin = rank * CALIBRATION_SHARES + share_bin(weights[i] / sum);
    out[i] = (draft_candidate){.token = ranked[i].token, .score = score_of(t, bin), .bin = (uint8_t)bin};
  }
}

void calibration_learn(calibration_table *t, const draft_candidate *list, int32_t count, int32_t token) {
  for (int32_t i = 0; i < count; i++) {
    int32_t bin = list[i].bin;
    if (t->tries[bin] >= TRIES) {
      t->tries[bin] /= 2;
      t->hits[bin] /= 2;
    }
    t->tries[bin]++;
    t->hits[bin] += list[i].token == token;
  }
}
