#include "draft_worker/drafters/calibration.h"

#include <math.h>

#define PRIOR 8.0f    /* so many observations is the share itself worth */
#define TRIES 4096.0f /* then the older half is forgotten */

/* Where the bins of the share begin. */
static const float shares[CALIBRATION_SHARES] = {0,    0.02f, 0.05f, 0.1f, 0.2f,  0.3f,
                                                 0.4f, 0.5f,  0.65f, 0.8f, 0.92f, 0.98f};

static float middle(int32_t bin) {
  return (shares[bin] + (bin + 1 < CALIBRATION_SHARES ? shares[bin + 1] : 1)) / 2;
}

static int32_t bin_of(float share) {
  int32_t bin = CALIBRATION_SHARES - 1;
  while (bin > 0 && !(share >= shares[bin])) bin--;
  return bin;
}

void calibration_cases(const draft_answer *a, uint8_t *cases) {
  float weights[DRAFTER_CANDIDATES_MAX], sum = 0;
  for (int32_t i = 0; i < a->count; i++) sum += weights[i] = expf(a->list[i].value - a->list[0].value);
  for (int32_t i = 0; i < a->count; i++) {
    int32_t rank = i < CALIBRATION_RANKS ? i : CALIBRATION_RANKS - 1;
    cases[i] = (uint8_t)(rank * CALIBRATION_SHARES + bin_of(weights[i] / sum));
  }
}

float calibration_score(const calibration_table *t, int32_t kase) {
  static const calibration_table unknown = {{0}, {0}};
  if (!t) t = &unknown;
  return logf((t->hits[kase] + PRIOR * middle(kase % CALIBRATION_SHARES)) / (t->tries[kase] + PRIOR));
}

void calibration_learn(calibration_table *t, const draft_candidate *list, const uint8_t *cases, int32_t count,
                       int32_t token) {
  for (int32_t i = 0; i < count; i++) {
    int32_t k = cases[i];
    if (t->tries[k] >= TRIES) {
      t->tries[k] /= 2;
      t->hits[k] /= 2;
    }
    t->tries[k]++;
    t->hits[k] += list[i].token == token;
  }
}
