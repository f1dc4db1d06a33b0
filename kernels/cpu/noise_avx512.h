/* noise_avx512.h - what the kernels that choose a token and those that list some share. */
#pragma once

#include "common/base/noise.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

/* noise_bound */
INLINE __m512 noise_bounds(__m512i bits) {
  __m512 v = _mm512_cvtepi32_ps(_mm512_srli_epi32(bits, 9));
  v = _mm512_sub_ps(_mm512_set1_ps(NOISE_BOUND_ONE), v);
  v = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_castps_si512(v)), _mm512_set1_ps(NOISE_BOUND_STEP));
  return _mm512_sub_ps(_mm512_set1_ps(NOISE_BOUND_TOP), v);
}

/* Lanes that are not below this, which a NaN is not either. */
INLINE uint32_t noise_reaching(__m512 values, float least) {
  return _mm512_cmp_ps_mask(values, _mm512_set1_ps(least), _CMP_NLT_UQ);
}
