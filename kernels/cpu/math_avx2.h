/* math_avx2.h - cpu_math.h eight lanes at a time, bit for bit. Only for files built with AVX2 and FMA. */
#pragma once

#include "kernels/cpu/cpu_math.h"

#include <immintrin.h>

static inline __m256 cpu_exp_avx2(__m256 x) {
  __m256 in_range = _mm256_cmp_ps(x, _mm256_set1_ps(CPU_EXP_MIN), _CMP_GE_OQ);
  x = _mm256_min_ps(x, _mm256_set1_ps(CPU_EXP_MAX));
  x = _mm256_and_ps(x, in_range); /* keeps the conversion below defined */
  __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(CPU_LOG2E)),
                             _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(CPU_LN2_HIGH), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(CPU_LN2_LOW), r);
  __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(CPU_EXP_C7), r, _mm256_set1_ps(CPU_EXP_C6));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(CPU_EXP_C5));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(CPU_EXP_C4));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(CPU_EXP_C3));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(CPU_EXP_C2));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_and_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(power)), in_range);
}
