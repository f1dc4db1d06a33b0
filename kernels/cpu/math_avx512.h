/* math_avx512.h - cpu_math.h sixteen lanes at a time, bit for bit. Only for files built with AVX-512. */
#pragma once

#include "kernels/cpu/cpu_math.h"

#include <immintrin.h>

/* exp(x) is what is returned times 2 to the *power, for x in the range of cpu_exp. */
static inline __m512 cpu_exp_parts_avx512(__m512 x, __m512 *power) {
  __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(CPU_LOG2E)),
                                  _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(CPU_LN2_HIGH), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(CPU_LN2_LOW), r);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(CPU_EXP_C7), r, _mm512_set1_ps(CPU_EXP_C6));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(CPU_EXP_C5));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(CPU_EXP_C4));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(CPU_EXP_C3));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(CPU_EXP_C2));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  *power = n;
  return p;
}

/* cpu_exp of x <= 0, or of a NaN, for which it is 0. */
static inline __m512 cpu_exp_falling_avx512(__m512 x) {
  __mmask16 in_range = _mm512_cmp_ps_mask(x, _mm512_set1_ps(CPU_EXP_MIN), _CMP_GE_OQ);
  __m512 n, p = cpu_exp_parts_avx512(x, &n);
  return _mm512_maskz_scalef_ps(in_range, p, n);
}

static inline __m512 cpu_exp_avx512(__m512 x) {
  __mmask16 in_range = _mm512_cmp_ps_mask(x, _mm512_set1_ps(CPU_EXP_MIN), _CMP_GE_OQ);
  x = _mm512_maskz_min_ps(in_range, x, _mm512_set1_ps(CPU_EXP_MAX)); /* keeps the conversion below defined */
  __m512 n, p = cpu_exp_parts_avx512(x, &n);
  __m512i power = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
  return _mm512_maskz_mul_ps(in_range, p, _mm512_castsi512_ps(power));
}
