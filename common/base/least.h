/* least.h - the smaller of two, of the types that are asked for it. */
#pragma once

#include <stdint.h>

static inline int32_t least_i32(int32_t a, int32_t b) {
  return a < b ? a : b;
}
static inline uint64_t least_u64(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}
