/* min.h - the smaller of two values. */
#pragma once

#include <stdint.h>

static inline int32_t min_i32(int32_t a, int32_t b) {
  return a < b ? a : b;
}
static inline uint64_t min_u64(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}
