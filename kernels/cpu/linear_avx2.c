#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/linear_256.h"

/* --- int8 activations: sums of pairs of products, in 16 bits where they fit --- */

INLINE __m256i dot_nibbles_first(__m256i w, __m256i four) {
  return _mm256_maddubs_epi16(w, four);
}

/* Eight sums of pairs of products fit 16 bits: 8 * 2 * 15 * 127 = 30480. */
INLINE __m256i dot_nibbles(__m256i sum, __m256i w, __m256i four) {
  return _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, four));
}

INLINE __m256i nibbles_sum(__m256i sum) {
  return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

INLINE bytes bytes_of(__m256i w) {
  return (bytes){_mm256_abs_epi8(w), w};
}

/* w * x as |w| * (x with w's sign). One sum of a pair of products is at most 2 * 128 * 127, which fits 16
 * bits; two are not, so each goes on to 32 bits by itself. */
INLINE __m256i dot_bytes(__m256i sum, bytes w, __m256i four) {
  __m256i pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(four, w.weights));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

INLINE __m256i bytes_sum(__m256i sum, int32_t total) {
  (void)total;
  return sum;
}

/* With one or two rows it costs a tenth on Zen 4, whose hardware looks far enough; with more it gains one. */
INLINE bool asks_ahead(const int T) {
  return T > 2;
}

LINEAR_256_INT8(avx2)

/* --- f32 activations --- */

/* One input: its 16 weights times each row's value. */
INLINE void tile_add(tile *a, __m256 w0, __m256 w1, const ops_act *x, int32_t row, size_t k, const int T) {
  UNROLL for (int t = 0; t < T; t++) {
    __m256 value = _mm256_set1_ps(x->f32[(size_t)(row + t) * (size_t)x->columns + k]);
    a->acc[t][0] = _mm256_fmadd_ps(w0, value, a->acc[t][0]);
    a->acc[t][1] = _mm256_fmadd_ps(w1, value, a->acc[t][1]);
  }
}

INLINE __m256 nibble_at(__m256i v, int shift) {
  return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(v, shift), _mm256_set1_epi32(15)));
}

INLINE __m256 q4_0_value(__m256i v, int shift, __m256 d, __m256 m) {
  (void)m;
  return _mm256_mul_ps(d, _mm256_sub_ps(nibble_at(v, shift), _mm256_set1_ps(8.0f)));
}
INLINE __m256 q4_1_value(__m256i v, int shift, __m256 d, __m256 m) {
  return _mm256_fmadd_ps(d, nibble_at(v, shift), m);
}

INLINE __m256 minima_at(const uint8_t *w, bool has) {
  return has ? load_f16(w + CPU_Q4_1_SCALES + CPU_Q4_1_MINIMA) : _mm256_setzero_ps();
}

/* Inputs in order: the low nibbles of all vectors, then the high ones. */
#define NIBBLES_F32(type, block_bytes, has_minima)                                                           \
  INLINE void type##_f32(const void *group, const ops_act *x, int32_t row, float *out, const int T) {        \
    const uint8_t *w = group;                                                                                \
    tile a;                                                                                                  \
    tile_zero(&a, T);                                                                                        \
    for (size_t k = 0; k < (size_t)x->columns; k += OPS_BLOCK, w += block_bytes) {                           \
      __m256 d0 = load_f16(w + CPU_Q4_1_SCALES), d1 = load_f16(w + CPU_Q4_1_SCALES + 16);                    \
      __m256 m0 = minima_at(w, has_minima), m1 = minima_at(w + 16, has_minima);                              \
      for (int i = 0; i < 8; i++) {                                                                          \
        __m256i v0 = load_weights(w + i % 4 * 64), v1 = load_weights(w + i % 4 * 64 + 32);                   \
        int high = i / 4 * 4;                                                                                \
        UNROLL for (int j = 0; j < 4; j++) {                                                                 \
          __m256 w0 = type##_value(v0, 8 * j + high, d0, m0), w1 = type##_value(v1, 8 * j + high, d1, m1);   \
          tile_add(&a, w0, w1, x, row, k + (size_t)(4 * i + j), T);                                          \
        }                                                                                                    \
      }                                                                                                      \
    }                                                                                                        \
    tile_store(&a, out, T);                                                                                  \
  }
NIBBLES_F32(q4_0, CPU_Q4_0_BLOCK, false)
NIBBLES_F32(q4_1, CPU_Q4_1_BLOCK, true)

INLINE __m256 int8_at(__m256i v, int j) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * j), 24));
}

INLINE void q8_0_f32(const void *group, const ops_act *x, int32_t row, float *out, const int T) {
  size_t blocks = (size_t)x->columns / OPS_BLOCK;
  const uint8_t *w = group;
  tile a;
  tile_zero(&a, T);
  for (size_t b = 0; b < blocks; b++, w += CPU_Q8_0_BLOCK) {
    __m256 d0 = load_f16(w + CPU_Q8_0_SCALES), d1 = load_f16(w + CPU_Q8_0_SCALES + 16);
    for (size_t v = 0; v < 8; v++) {
      __m256i v0 = load_weights(w + v * 64), v1 = load_weights(w + v * 64 + 32);
      UNROLL for (int j = 0; j < 4; j++) {
        __m256 w0 = _mm256_mul_ps(d0, int8_at(v0, j)), w1 = _mm256_mul_ps(d1, int8_at(v1, j));
        tile_add(&a, w0, w1, x, row, b * OPS_BLOCK + v * 4 + (size_t)j, T);
      }
    }
  }
  tile_store(&a, out, T);
}

INLINE __m256 f32_lanes(const void *w, size_t i) {
  return _mm256_load_ps((const float *)w + i);
}
INLINE __m256 f16_lanes(const void *w, size_t i) {
  return load_f16((const uint8_t *)w + 2 * i);
}
INLINE __m256 bf16_lanes(const void *w, size_t i) {
  __m128i h = _mm_load_si128((const __m128i *)((const uint8_t *)w + 2 * i));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

#define PLAIN(type)                                                                                          \
  INLINE void type##_f32(const void *group, const ops_act *x, int32_t row, float *out, const int T) {        \
    tile a;                                                                                                  \
    tile_zero(&a, T);                                                                                        \
    for (size_t k = 0; k < (size_t)x->columns; k++) {                                                        \
      __m256 w0 = type##_lanes(group, k * OPS_GROUP), w1 = type##_lanes(group, k * OPS_GROUP + HALF);        \
      tile_add(&a, w0, w1, x, row, k, T);                                                                    \
    }                                                                                                        \
    tile_store(&a, out, T);                                                                                  \
  }
PLAIN(f32)
PLAIN(f16)
PLAIN(bf16)

BY_ROWS(cpu_linear_q4_0_f32_avx2, q4_0_f32)
BY_ROWS(cpu_linear_q4_1_f32_avx2, q4_1_f32)
BY_ROWS(cpu_linear_q8_0_f32_avx2, q8_0_f32)
BY_ROWS(cpu_linear_f32_avx2, f32_f32)
BY_ROWS(cpu_linear_f16_avx2, f16_f32)
BY_ROWS(cpu_linear_bf16_avx2, bf16_f32)
#endif
