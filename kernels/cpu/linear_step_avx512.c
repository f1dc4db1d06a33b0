#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/linear_step.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* A step of a group's weights: as f32, and the fields of their exponents. */
typedef struct step {
  _Alignas(64) float values[TENSOR_STEP][OPS_GROUP];
  int32_t fields[TENSOR_STEP][OPS_GROUP];
} step;

INLINE __m512i field_of(__m512i bits) {
  return _mm512_srli_epi32(_mm512_slli_epi32(bits, 1), 24);
}

INLINE __m512i load_bf16(const uint16_t *from) {
  return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)), 16);
}

INLINE void load_weights(const uint16_t *from, step *s) {
  UNROLL for (int i = 0; i < TENSOR_STEP; i++) {
    __m512i bits = load_bf16(from + i * OPS_GROUP);
    _mm512_store_ps(s->values[i], _mm512_castsi512_ps(bits));
    _mm512_store_si512(s->fields[i], field_of(bits));
  }
}

INLINE void load_inputs(const uint16_t *from, linear_step_inputs *x) {
  __m512i bits = load_bf16(from), fields = field_of(bits);
  __mmask16 zero = _mm512_cmp_ps_mask(_mm512_castsi512_ps(bits), _mm512_setzero_ps(), _CMP_EQ_OQ);
  _mm512_store_ps(x->values, _mm512_castsi512_ps(bits));
  _mm512_store_si512(x->fields, _mm512_mask_set1_epi32(fields, zero, LINEAR_STEP_ZERO));
  __mmask16 other = _mm512_cmpge_epi32_mask(fields, _mm512_set1_epi32(LINEAR_STEP_INPUT_MAX + 127));
  x->ordinary = (other | (_mm512_testn_epi32_mask(fields, fields) & ~zero)) == 0;
}

/* The largest exponent's field, of products (two biases, of which one is taken off) and the sum. */
INLINE __m512i largest_field(const step *s, const linear_step_inputs *x, __m512 sum) {
  __m512i largest = _mm512_setzero_si512();
  UNROLL for (int i = 0; i < TENSOR_STEP; i++) largest = _mm512_max_epi32(
      largest, _mm512_add_epi32(_mm512_load_si512(s->fields[i]), _mm512_set1_epi32(x->fields[i])));
  return _mm512_max_epi32(_mm512_sub_epi32(largest, _mm512_set1_epi32(127)),
                          field_of(_mm512_castps_si512(sum)));
}

/* 2^(exponent) of a field. */
INLINE __m512 power(__m512i field) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(field, 23));
}

/* products + sum, cut off to f32. */
INLINE __m512 add_cut_off(__m512i products, __m512i sum) {
  __m512d low = _mm512_add_pd(_mm512_cvtepi32_pd(_mm512_castsi512_si256(products)),
                              _mm512_cvtepi32_pd(_mm512_castsi512_si256(sum)));
  __m512d high = _mm512_add_pd(_mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(products, 1)),
                               _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(sum, 1)));
  const int mode = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvt_roundpd_ps(low, mode)),
                            _mm512_cvt_roundpd_ps(high, mode), 1);
}

INLINE __m512 add_step(const uint16_t *weights, const uint16_t *from, const step *s,
                       const linear_step_inputs *x, __m512 sum) {
  __m512i largest = largest_field(s, x, sum);
  __m512 scale = power(_mm512_sub_epi32(_mm512_set1_epi32(2 * 127 + TENSOR_FRACTION), largest));
  __m512i products = _mm512_setzero_si512();
  UNROLL for (int i = 0; i < TENSOR_STEP; i++) {
    __m512 product = _mm512_mul_ps(_mm512_load_ps(s->values[i]), _mm512_set1_ps(x->values[i]));
    products = _mm512_add_epi32(products, _mm512_cvttps_epi32(_mm512_mul_ps(product, scale)));
  }
  __m512 total = add_cut_off(products, _mm512_cvttps_epi32(_mm512_mul_ps(sum, scale)));
  total = _mm512_mul_ps(total, power(_mm512_sub_epi32(largest, _mm512_set1_epi32(TENSOR_FRACTION))));
  __mmask16 other = _mm512_cmplt_epi32_mask(largest, _mm512_set1_epi32(127 + LINEAR_STEP_EXPONENT_MIN)) |
                    _mm512_cmpgt_epi32_mask(largest, _mm512_set1_epi32(127 + LINEAR_STEP_EXPONENT_MAX));
  if (__builtin_expect(!x->ordinary, 0)) other = 0xffff;
  if (__builtin_expect(other == 0, 1)) return total;
  _Alignas(64) float sums[OPS_GROUP];
  _mm512_store_ps(sums, sum);
  linear_step_exact(weights, from, other, sums);
  return _mm512_mask_load_ps(total, other, sums);
}

static void add_part(const uint16_t *weights, const uint16_t *x, size_t columns, int32_t rows, size_t from,
                     size_t to, float *out) {
  step s;
  linear_step_inputs in;
  memset(out, 0, (size_t)rows * OPS_GROUP * sizeof *out);
  for (size_t k = from; k < to; k += TENSOR_STEP) {
    load_weights(weights + k * OPS_GROUP, &s);
    for (size_t t = 0; t < (size_t)rows; t++) {
      const uint16_t *row = x + t * columns + k;
      float *sum = out + t * OPS_GROUP;
      load_inputs(row, &in);
      _mm512_storeu_ps(sum, add_step(weights + k * OPS_GROUP, row, &s, &in, _mm512_loadu_ps(sum)));
    }
  }
}

void cpu_linear_step_avx512(const void *group, const cpu_act *x, int32_t row, int32_t rows, int32_t parts,
                            float *out) {
  linear_step_parts(add_part, group, x, row, rows, parts, out);
}
#endif
