/* noise_avx2.h - what the kernels that choose a token and those that list some share. */
#pragma once

#include "common/base/noise.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

/* noise_bound */
INLINE __m256 noise_bounds(__m256i bits) {
  __m256 v = _mm256_cvtepi32_ps(_mm256_srli_epi32(bits, 9));
  v = _mm256_sub_ps(_mm256_set1_ps(NOISE_BOUND_ONE), v);
  v = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_castps_si256(v)), _mm256_set1_ps(NOISE_BOUND_STEP));
  return _mm256_sub_ps(_mm256_set1_ps(NOISE_BOUND_TOP), v);
}

/* Lanes that are not below this, which a NaN is not either. */
INLINE __m256 noise_reach(__m256 values, float least) {
  return _mm256_cmp_ps(values, _mm256_set1_ps(least), _CMP_NLT_UQ);
}

INLINE uint32_t noise_reaching(__m256 values, float least) {
  return (uint32_t)_mm256_movemask_ps(noise_reach(values, least));
}
