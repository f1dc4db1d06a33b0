#include "common/base/rng.h"

void philox_run(const uint32_t counter[4], const uint32_t key[2], int32_t blocks, uint32_t *out) {
  for (int32_t b = 0; b < blocks; b++, out += 4) {
    const uint32_t c[4] = {counter[0] + (uint32_t)b, counter[1], counter[2], counter[3]};
    philox_block x = philox4x32(c, key);
    for (int i = 0; i < 4; i++) out[i] = x.lane[i];
  }
}
