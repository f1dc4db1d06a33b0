/* filter_math.h - the arithmetic of sampling's penalties and filters (common/base/sampler.h), the same on
 * every device: f32 operations, rounded to nearest, not contracted, in the order written, and sums of
 * integers. */
#pragma once

#include "common/base/noise.h"

/* A token below this is too improbable to count: x of filter_exp. */
#define FILTER_EXP_MIN      (-25.0f)
#define FILTER_WEIGHT_SCALE 0x1p36f /* sums over 2^17 tokens are exact in a double too */

/* The logit of a token of the history, which is `count` times in the output. */
PORTABLE float filter_penalised(float logit, float repeat, float frequency, float presence, int32_t count) {
  float x = logit > 0 ? logit / repeat : logit * repeat;
  if (count == 0) return x;
  x = x - frequency * (float)count;
  return x - presence;
}

/* x in [-80, 0]; at most 2 ulp. x = n ln 2 + r with |r| <= ln 2 / 2: exp x = 2^n (1 + r + r^2 Q(r)), Q
 * minimax as in noise.h (3e-9). Adding and subtracting 1.5 * 2^23 rounds to the nearest integer. */
PORTABLE float filter_exp(float x) {
  const float round = 0x1.8p23f;
  float n = (x * 1.44269504f + round) - round;
  float r = (x - n * 0.693359375f) - n * -0.000212194442f;
  float q = 0.00138065242f;
  q = q * r + 0.00836876221f;
  q = q * r + 0.041668497f;
  q = q * r + 0.166665196f;
  q = q * r + 0.49999994f;
  float y = 1.0f + (r + r * r * q), power;
  uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
  memcpy(&power, &bits, sizeof power);
  return y * power;
}

/* Grows with the logit; -0 and 0 are one. */
PORTABLE uint32_t filter_key(float logit) {
  uint32_t b;
  logit += 0.0f;
  memcpy(&b, &logit, sizeof b);
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}

/* The probability of a token relative to the best one's, which has 1 even when its z overflows. */
PORTABLE float filter_probability(float logit, float best, float scale) {
  float d = logit * scale - best * scale;
  d = d > FILTER_EXP_MIN ? d : FILTER_EXP_MIN;
  float p = d > FILTER_EXP_MIN ? filter_exp(d) : 0;
  return logit == best ? 1 : p;
}

PORTABLE uint64_t filter_weight(float probability) {
  return (uint64_t)(probability * FILTER_WEIGHT_SCALE);
}

/* The sum of weights that top-p wants, of `total`. */
PORTABLE uint64_t filter_target(float top_p, uint64_t total) {
  double x = (double)top_p * (double)total;
  uint64_t n = (uint64_t)x;
  n = (double)n < x ? n + 1 : n;
  return n < total ? n : total;
}

/* What min-p compares z - z of the best with. */
PORTABLE float filter_least(float min_p) {
  return noise_log(min_p > FLT_MIN ? min_p : FLT_MIN);
}
