#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/linear_step.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define HALF   8 /* outputs of a register; a group has two */

/* A step of weights of half a group: as f32, and the fields of their exponents. */
typedef struct step {
  _Alignas(32) float values[TENSOR_STEP][HALF];
  int32_t fields[TENSOR_STEP][HALF];
} step;

INLINE __m256i field_of(__m256i bits) {
  return _mm256_srli_epi32(_mm256_slli_epi32(bits, 1), 24);
}

INLINE __m256i load_bf16(const uint16_t *from) {
  return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16);
}

INLINE void load_weights(const uint16_t *from, step *s) {
  UNROLL for (int i = 0; i < TENSOR_STEP; i++) {
    __m256i bits = load_bf16(from + i * OPS_GROUP);
    _mm256_store_ps(s->values[i], _mm256_castsi256_ps(bits));
    _mm256_store_si256((__m256i *)s->fields[i], field_of(bits));
  }
}

INLINE void load_inputs(const uint16_t *from, linear_step_inputs *x) {
  __m256i other = _mm256_setzero_si256();
  UNROLL for (int i = 0; i < TENSOR_STEP; i += HALF) {
    __m256i bits = load_bf16(from + i), fields = field_of(bits), nothing = _mm256_setzero_si256();
    __m256i zero = _mm256_cmpeq_epi32(_mm256_slli_epi32(bits, 1), nothing);
    _mm256_store_ps(x->values + i, _mm256_castsi256_ps(bits));
    _mm256_store_si256((__m256i *)(x->fields + i),
                       _mm256_blendv_epi8(fields, _mm256_set1_epi32(LINEAR_STEP_ZERO), zero));
    __m256i large = _mm256_cmpgt_epi32(fields, _mm256_set1_epi32(LINEAR_STEP_INPUT_MAX + 126));
    __m256i small = _mm256_andnot_si256(zero, _mm256_cmpeq_epi32(fields, nothing));
    other = _mm256_or_si256(other, _mm256_or_si256(large, small));
  }
  x->ordinary = _mm256_testz_si256(other, other);
}

/* The largest exponent's field, of products (two biases, of which one is taken off) and the sum. */
INLINE __m256i largest_field(const step *s, const linear_step_inputs *x, __m256 sum) {
  __m256i largest = _mm256_setzero_si256();
  UNROLL for (int i = 0; i < TENSOR_STEP; i++) {
    __m256i fields = _mm256_load_si256((const __m256i *)s->fields[i]);
    largest = _mm256_max_epi32(largest, _mm256_add_epi32(fields, _mm256_set1_epi32(x->fields[i])));
  }
  return _mm256_max_epi32(_mm256_sub_epi32(largest, _mm256_set1_epi32(127)),
                          field_of(_mm256_castps_si256(sum)));
}

/* 2^(exponent) of a field. */
INLINE __m256 power(__m256i field) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(field, 23));
}

/* Four of products + sum, without the bits that an f32 has no room for. */
INLINE __m128 add_four(__m128i products, __m128i sum) {
  __m256d exact = _mm256_add_pd(_mm256_cvtepi32_pd(products), _mm256_cvtepi32_pd(sum));
  __m256d kept = _mm256_castsi256_pd(_mm256_set1_epi64x(-(1LL << 29)));
  return _mm256_cvtpd_ps(_mm256_and_pd(exact, kept));
}

/* products + sum, cut off to f32. */
INLINE __m256 add_cut_off(__m256i products, __m256i sum) {
  __m128 low = add_four(_mm256_castsi256_si128(products), _mm256_castsi256_si128(sum));
  __m128 high = add_four(_mm256_extracti128_si256(products, 1), _mm256_extracti128_si256(sum, 1));
  return _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
}

/* weights: those of output 0 of the group; first: of the half. */
INLINE __m256 add_exactly(const uint16_t *weights, const uint16_t *from, int first, __m256i other, __m256 sum,
                          __m256 total) {
  _Alignas(32) float sums[OPS_GROUP] = {0};
  _mm256_store_ps(sums + first, sum);
  linear_step_exact(weights, from, (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(other)) << first, sums);
  return _mm256_blendv_ps(total, _mm256_load_ps(sums + first), _mm256_castsi256_ps(other));
}

INLINE __m256 add_step(const uint16_t *weights, const uint16_t *from, int first, const step *s,
                       const linear_step_inputs *x, __m256 sum) {
  __m256i largest = largest_field(s, x, sum);
  __m256 scale = power(_mm256_sub_epi32(_mm256_set1_epi32(2 * 127 + TENSOR_FRACTION), largest));
  __m256i products = _mm256_setzero_si256();
  UNROLL for (int i = 0; i < TENSOR_STEP; i++) {
    __m256 product = _mm256_mul_ps(_mm256_load_ps(s->values[i]), _mm256_set1_ps(x->values[i]));
    products = _mm256_add_epi32(products, _mm256_cvttps_epi32(_mm256_mul_ps(product, scale)));
  }
  __m256 total = add_cut_off(products, _mm256_cvttps_epi32(_mm256_mul_ps(sum, scale)));
  total = _mm256_mul_ps(total, power(_mm256_sub_epi32(largest, _mm256_set1_epi32(TENSOR_FRACTION))));
  __m256i other =
      _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(127 + LINEAR_STEP_EXPONENT_MIN), largest),
                      _mm256_cmpgt_epi32(largest, _mm256_set1_epi32(127 + LINEAR_STEP_EXPONENT_MAX)));
  if (__builtin_expect(!x->ordinary, 0)) other = _mm256_set1_epi32(-1);
  if (__builtin_expect(_mm256_testz_si256(other, other), 1)) return total;
  return add_exactly(weights, from, first, other, sum, total);
}

static void add_part(const uint16_t *weights, const uint16_t *x, size_t columns, int32_t rows, size_t from,
                     size_t to, float *out) {
  step s[2];
  linear_step_inputs in;
  memset(out, 0, (size_t)rows * OPS_GROUP * sizeof *out);
  for (size_t k = from; k < to; k += TENSOR_STEP) {
    const uint16_t *w = weights + k * OPS_GROUP;
    for (int h = 0; h < 2; h++) load_weights(w + h * HALF, &s[h]);
    for (size_t t = 0; t < (size_t)rows; t++) {
      const uint16_t *row = x + t * columns + k;
      float *sum = out + t * OPS_GROUP;
      load_inputs(row, &in);
      for (int h = 0; h < 2; h++, sum += HALF)
        _mm256_storeu_ps(sum, add_step(w, row, h * HALF, &s[h], &in, _mm256_loadu_ps(sum)));
    }
  }
}

void cpu_linear_step_avx2(const void *group, const cpu_act *x, int32_t row, int32_t rows, int32_t parts,
                          float *out) {
  linear_step_parts(add_part, group, x, row, rows, parts, out);
}
#endif
