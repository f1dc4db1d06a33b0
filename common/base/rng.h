/* rng.h - Philox4x32-10, a counter-based generator: random numbers are a function, there is no state to lose.
 *
 * Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11); answers checked against
 * Random123's published known-answer vectors. */
#pragma once

#include "common/base/portable.h"

#include <stdint.h>

#define PHILOX_ROUNDS 10
#define PHILOX_M0     0xD2511F53u /* multipliers of the counter's words 0 and 2 */
#define PHILOX_M1     0xCD9E8D57u
#define PHILOX_W0     0x9E3779B9u /* what the key grows by: the golden ratio */
#define PHILOX_W1     0xBB67AE85u /* sqrt(3) - 1 */

typedef struct philox_block {
  uint32_t lane[4];
} philox_block;

PORTABLE philox_block philox4x32(const uint32_t counter[4], const uint32_t key[2]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
  for (int round = 0; round < PHILOX_ROUNDS; round++) {
    uint64_t a = (uint64_t)PHILOX_M0 * c0, b = (uint64_t)PHILOX_M1 * c2;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)a;
    k0 += PHILOX_W0;
    k1 += PHILOX_W1;
  }
  philox_block out = {{c0, c1, c2, c3}};
  return out;
}

PORTABLE_C_BEGIN
/* The same for `blocks` counters that differ in counter[0] alone, which counts up by one (and wraps). Writes
 * their lanes, 4 a block, to out [4 * blocks]. Several times as fast as one by one. */
void philox_run(const uint32_t counter[4], const uint32_t key[2], int32_t blocks, uint32_t *out);
PORTABLE_C_END

/* Uniform in (0, 1), exact in f32: the 2^23 midpoints. Here, so that loops over it become vector code. */
PORTABLE float philox_unit(uint32_t x) {
  return ((float)(int32_t)(x >> 9) + 0.5f) * 0x1p-23f;
}
