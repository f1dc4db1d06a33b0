#include "common/base/rng.h"

static inline philox_block block_of(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0,
                                    uint32_t k1) {
  for (int round = 0; round < PHILOX_ROUNDS; round++) {
    uint64_t a = (uint64_t)PHILOX_M0 * c0, b = (uint64_t)PHILOX_M1 * c2;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)a;
    k0 += PHILOX_W0;
    k1 += PHILOX_W1;
  }
  return (philox_block){{c0, c1, c2, c3}};
}

philox_block philox4x32(const uint32_t counter[4], const uint32_t key[2]) {
  return block_of(counter[0], counter[1], counter[2], counter[3], key[0], key[1]);
}

void philox_run(const uint32_t counter[4], const uint32_t key[2], int32_t blocks, uint32_t *out) {
  for (int32_t b = 0; b < blocks; b++, out += 4) {
    philox_block x = block_of(counter[0] + (uint32_t)b, counter[1], counter[2], counter[3], key[0], key[1]);
    for (int i = 0; i < 4; i++) out[i] = x.lane[i];
  }
}
