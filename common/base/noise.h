/* noise.h - the noise of sampling: a function of (seed, choice, position, token), the same on every device.
 *
 * Philox4x32-10 with key (low, high half of seed) and counter (token / 4, position, choice, 0), lane token %
 * 4 (rng.h); u = ((x >> 9) + 0.5) * 2^-23; g = -log(-log u) with noise_log. The token with the largest
 * logit / temperature + g is a draw from the softmax (Gumbel-max: Maddison et al. 2014). f32 operations only,
 * round to nearest, not contracted, in the order written: what computes it in another way gives these bits.
 */
#pragma once

#include "common/base/rng.h"

#include <float.h>
#include <stdint.h>
#include <string.h>

_Static_assert(FLT_EVAL_METHOD == 0, "f32 must be rounded after every operation: bits depend on it");

#define NOISE_MAX 16.64f /* above g of the largest u, 1 - 2^-24: 16.6355 */

/* x = 2^k (1 + f) with 1 + f in [sqrt 1/2, sqrt 2): log x = k ln 2 + f - f^2 / 2 + f^3 P(f). P is the minimax
 * polynomial for the relative error of the whole (6e-9, found by Remez exchange). ln 2 is split so that k
 * times its first part is exact. */
#define NOISE_LOG_LOW      0x3f3504f3 /* sqrt 1/2, its bits */
#define NOISE_LOG_LN2_HIGH 0.693359375f
#define NOISE_LOG_LN2_LOW  -0.000212194442f
#define NOISE_LOG_P7       -0.0766821355f
#define NOISE_LOG_P6       0.127736777f
#define NOISE_LOG_P5       -0.131538883f
#define NOISE_LOG_P4       0.141997546f
#define NOISE_LOG_P3       -0.166237473f
#define NOISE_LOG_P2       0.20001322f
#define NOISE_LOG_P1       -0.250008136f
#define NOISE_LOG_P0       0.333333313f

/* x > 0 and normal; error at most 2 ulp. */
PORTABLE float noise_log(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  int32_t k = (int32_t)(bits - (uint32_t)NOISE_LOG_LOW) >> 23;
  bits -= (uint32_t)k << 23;
  float f;
  memcpy(&f, &bits, sizeof f);
  f -= 1.0f;
  float p = NOISE_LOG_P7;
  p = p * f + NOISE_LOG_P6;
  p = p * f + NOISE_LOG_P5;
  p = p * f + NOISE_LOG_P4;
  p = p * f + NOISE_LOG_P3;
  p = p * f + NOISE_LOG_P2;
  p = p * f + NOISE_LOG_P1;
  p = p * f + NOISE_LOG_P0;
  float square = f * f;
  float small = square * f * p + (float)k * NOISE_LOG_LN2_LOW;
  small = small - 0.5f * square;
  return (float)k * NOISE_LOG_LN2_HIGH + (f + small);
}

/* g of the random bits x. */
PORTABLE float noise_gumbel(uint32_t x) {
  return -noise_log(-noise_log(philox_unit(x)));
}

/* A number not below g that costs a few operations: -log u is at least 1 - u, and the logarithm to base 2 of
 * 2^k (1 + f), 0 <= f < 1, is at least k + f, which is what the bits of a float say when read as an integer.
 * For g above 5 it is at most 0.07 too much. test_sampler.c holds it against g for every u. */
#define NOISE_BOUND_ONE  8388607.5f      /* minus x >> 9: (1 - u) * 2^23, exact */
#define NOISE_BOUND_TOP  103.9723f       /* (127 + 23) ln 2, and what rounding may cost */
#define NOISE_BOUND_STEP 8.26295829e-08f /* ln 2 * 2^-23 */

PORTABLE float noise_bound(uint32_t x) {
  float v = NOISE_BOUND_ONE - (float)(int32_t)(x >> 9);
  int32_t bits;
  memcpy(&bits, &v, sizeof bits);
  return NOISE_BOUND_TOP - (float)bits * NOISE_BOUND_STEP;
}

typedef struct noise_source {
  uint64_t seed;
  uint32_t choice, position; /* position: index in the whole sequence of the token being chosen */
} noise_source;

/* Random bits of the four tokens from 4 * block on. */
PORTABLE philox_block noise_block(const noise_source *n, int32_t block) {
  const uint32_t key[2] = {(uint32_t)n->seed, (uint32_t)(n->seed >> 32)};
  const uint32_t counter[4] = {(uint32_t)block, n->position, n->choice, 0};
  return philox4x32(counter, key);
}

/* The same of `blocks` blocks; x [4 * blocks]. For the host: several times as fast as one by one. */
static inline void noise_bits(const noise_source *n, int32_t block, int32_t blocks, uint32_t *x) {
  const uint32_t key[2] = {(uint32_t)n->seed, (uint32_t)(n->seed >> 32)};
  const uint32_t counter[4] = {(uint32_t)block, n->position, n->choice, 0};
  philox_run(counter, key, blocks, x);
}

/* g of one token. */
PORTABLE float noise_of(const noise_source *n, int32_t token) {
  return noise_gumbel(noise_block(n, token / 4).lane[token % 4]);
}
