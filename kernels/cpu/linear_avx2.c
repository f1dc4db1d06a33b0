#include "kernels/cpu/linear_avx2.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

#define HALF 8 /* output rows of one register; a group has two */

/* A kernel body is written once with the number of rows T as its argument and made for each T by inlining. */
#define BY_ROWS(name, body)                                                                                  \
  void name(const void *group, const ops_act *x, int32_t row, int32_t rows, float *out) {                    \
    switch (rows) {                                                                                          \
    case 1:                                                                                                  \
      body(group, x, row, out, 1);                                                                           \
      break;                                                                                                 \
    case 2:                                                                                                  \
      body(group, x, row, out, 2);                                                                           \
      break;                                                                                                 \
    case 3:                                                                                                  \
      body(group, x, row, out, 3);                                                                           \
      break;                                                                                                 \
    default:                                                                                                 \
      body(group, x, row, out, 4);                                                                           \
      break;                                                                                                 \
    }                                                                                                        \
  }

INLINE __m256i load_weights(const uint8_t *w) {
  return _mm256_load_si256((const __m256i *)w);
}

INLINE __m256 load_f16(const uint8_t *from) {
  return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)from));
}

/* Four activations, for every lane. */
INLINE __m256i broadcast4(const int8_t *q) {
  int32_t four;
  memcpy(&four, q, 4);
  return _mm256_set1_epi32(four);
}

INLINE __m256i low_nibbles(__m256i v) {
  return _mm256_and_si256(v, _mm256_set1_epi8(15));
}
INLINE __m256i high_nibbles(__m256i v) {
  return low_nibbles(_mm256_srli_epi16(v, 4));
}

/* Sum of 32 products of nibbles and activations, for 8 rows. Eight pair sums fit 16 bits: 8 * 2 * 15 * 127.
 */
INLINE __m256i dot_q4(const __m256i w[8], const int8_t *q) {
  __m256i even = _mm256_maddubs_epi16(w[0], broadcast4(q));
  __m256i odd = _mm256_maddubs_epi16(w[1], broadcast4(q + 4));
  UNROLL for (int i = 2; i < 8; i += 2) {
    even = _mm256_add_epi16(even, _mm256_maddubs_epi16(w[i], broadcast4(q + 4 * i)));
    odd = _mm256_add_epi16(odd, _mm256_maddubs_epi16(w[i + 1], broadcast4(q + 4 * i + 4)));
  }
  return _mm256_madd_epi16(_mm256_add_epi16(even, odd), _mm256_set1_epi16(1));
}

INLINE void q4_1_half(const uint8_t *w, int half, const ops_act *x, int32_t row, size_t b, __m256 *acc,
                      const int T) {
  size_t blocks = (size_t)x->columns / OPS_BLOCK;
  __m256i n[8];
  UNROLL for (int v = 0; v < 4; v++) {
    __m256i pair = load_weights(w + v * 64 + half * 32);
    n[v] = low_nibbles(pair);
    n[v + 4] = high_nibbles(pair);
  }
  const uint8_t *scales = w + CPU_Q4_1_SCALES + half * 16;
  __m256 d = load_f16(scales), m = load_f16(scales + CPU_Q4_1_MINIMA);
  UNROLL for (int t = 0; t < T; t++) {
    size_t i = (size_t)(row + t) * blocks + b;
    __m256 sum = _mm256_cvtepi32_ps(dot_q4(n, x->q8 + i * OPS_BLOCK));
    acc[t] = _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_set1_ps(x->scale[i])), sum, acc[t]);
    acc[t] = _mm256_fmadd_ps(m, _mm256_set1_ps(x->sum[i]), acc[t]);
  }
}

INLINE void store_half(float *out, int half, const __m256 *acc, const int T) {
  UNROLL for (int t = 0; t < T; t++) _mm256_storeu_ps(out + t * OPS_GROUP + half * HALF, acc[t]);
}

INLINE void q4_1_int8(const void *group, const ops_act *x, int32_t row, float *out, const int T) {
  size_t blocks = (size_t)x->columns / OPS_BLOCK;
  if (T == 1) { /* both halves at once: two chains of additions instead of one */
    __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    const uint8_t *w = group;
    for (size_t b = 0; b < blocks; b++, w += CPU_Q4_1_BLOCK) {
      q4_1_half(w, 0, x, row, b, acc, 1);
      q4_1_half(w, 1, x, row, b, acc + 1, 1);
    }
    store_half(out, 0, acc, 1);
    store_half(out, 1, acc + 1, 1);
    return;
  }
  for (int half = 0; half < 2; half++) {
    __m256 acc[CPU_ROWS_MAX];
    const uint8_t *w = group;
    UNROLL for (int t = 0; t < T; t++) acc[t] = _mm256_setzero_ps();
    for (size_t b = 0; b < blocks; b++, w += CPU_Q4_1_BLOCK) q4_1_half(w, half, x, row, b, acc, T);
    store_half(out, half, acc, T);
  }
}

/* Sum of 32 products of int8 weights and activations, for 8 rows: |w| * (x with w's sign); one pair sum is at
 * most 2 * 128 * 127, which fits 16 bits, two do not. */
INLINE __m256i dot_q8(const uint8_t *w, const __m256i magnitude[8], const int8_t *q) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  UNROLL for (int v = 0; v < 8; v++) {
    __m256i pairs =
        _mm256_maddubs_epi16(magnitude[v], _mm256_sign_epi8(broadcast4(q + 4 * v), load_weights(w + v * 64)));
    sum[v % 2] = _mm256_add_epi32(sum[v % 2], _mm256_madd_epi16(pairs, ones));
  }
  return _mm256_add_epi32(sum[0], sum[1]);
}

INLINE void q8_0_half(const uint8_t *w, const uint8_t *scales, const ops_act *x, int32_t row, size_t b,
                      __m256 *acc, const int T) {
  size_t blocks = (size_t)x->columns / OPS_BLOCK;
  __m256i magnitude[8];
  UNROLL for (int v = 0; v < 8; v++) magnitude[v] = _mm256_abs_epi8(load_weights(w + v * 64));
  __m256 d = load_f16(scales);
  UNROLL for (int t = 0; t < T; t++) {
    size_t i = (size_t)(row + t) * blocks + b;
    __m256 sum = _mm256_cvtepi32_ps(dot_q8(w, magnitude, x->q8 + i * OPS_BLOCK));
    acc[t] = _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_set1_ps(x->scale[i])), sum, acc[t]);
  }
}

INLINE void q8_0_int8(const void *group, const ops_act *x, int32_t row, float *out, const int T) {
  size_t blocks = (size_t)x->columns / OPS_BLOCK;
  const uint8_t *w = group, *scales = w + blocks * CPU_Q8_0_BLOCK;
  if (T == 1) {
    __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (size_t b = 0; b < blocks; b++) {
      q8_0_half(w + b * CPU_Q8_0_BLOCK, scales + b * 32, x, row, b, acc, 1);
      q8_0_half(w + b * CPU_Q8_0_BLOCK + 32, scales + b * 32 + 16, x, row, b, acc + 1, 1);
    }
    store_half(out, 0, acc, 1);
    store_half(out, 1, acc + 1, 1);
    return;
  }
  for (int half = 0; half < 2; half++) {
    __m256 acc[CPU_ROWS_MAX];
    UNROLL for (int t = 0; t < T; t++) acc[t] = _mm256_setzero_ps();
    for (size_t b = 0; b < blocks; b++) {
      q8_0_half(w + b * CPU_Q8_0_BLOCK + half * 32, scales + b * 32 + half * 16, x, row, b, acc, T);
    }
    store_half(out, half, acc, T);
  }
}

BY_ROWS(cpu_linear_q4_1_int8_avx2, q4_1_int8)
BY_ROWS(cpu_linear_q8_0_int8_avx2, q8_0_int8)

/* --- f32 activations --- */

typedef struct tile {
  __m256 acc[2][CPU_ROWS_MAX];
} tile;

INLINE void tile_zero(tile *a, const int T) {
  UNROLL for (int t = 0; t < T; t++) a->acc[0][t] = a->acc[1][t] = _mm256_setzero_ps();
}

/* One input: its 16 weights times each row's value. */
INLINE void tile_add(tile *a, __m256 w0, __m256 w1, const ops_act *x, int32_t row, size_t k, const int T) {
  UNROLL for (int t = 0; t < T; t++) {
    __m256 value = _mm256_set1_ps(x->f32[(size_t)(row + t) * (size_t)x->columns + k]);
    a->acc[0][t] = _mm256_fmadd_ps(w0, value, a->acc[0][t]);
    a->acc[1][t] = _mm256_fmadd_ps(w1, value, a->acc[1][t]);
  }
}

INLINE void tile_store(const tile *a, float *out, const int T) {
  store_half(out, 0, a->acc[0], T);
  store_half(out, 1, a->acc[1], T);
}

INLINE __m256 nibble_at(__m256i v, int shift) {
  return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(v, shift), _mm256_set1_epi32(15)));
}

INLINE void q4_1_f32(const void *group, const ops_act *x, int32_t row, float *out, const int T) {
  const uint8_t *w = group;
  tile a;
  tile_zero(&a, T);
  for (size_t k = 0; k < (size_t)x->columns; k += OPS_BLOCK, w += CPU_Q4_1_BLOCK) {
    const uint8_t *scales = w + CPU_Q4_1_SCALES;
    __m256 d0 = load_f16(scales), d1 = load_f16(scales + 16);
    __m256 m0 = load_f16(scales + CPU_Q4_1_MINIMA), m1 = load_f16(scales + CPU_Q4_1_MINIMA + 16);
    for (int i = 0; i < 8; i++) { /* inputs in order: the low nibbles of all vectors, then the high ones */
      __m256i v0 = load_weights(w + i % 4 * 64), v1 = load_weights(w + i % 4 * 64 + 32);
      int high = i / 4 * 4;
      UNROLL for (int j = 0; j < 4; j++) {
        __m256 w0 = _mm256_fmadd_ps(d0, nibble_at(v0, 8 * j + high), m0);
        __m256 w1 = _mm256_fmadd_ps(d1, nibble_at(v1, 8 * j + high), m1);
        tile_add(&a, w0, w1, x, row, k + (size_t)(4 * i + j), T);
      }
    }
  }
  tile_store(&a, out, T);
}

INLINE __m256 int8_at(__m256i v, int j) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * j), 24));
}

INLINE void q8_0_f32(const void *group, const ops_act *x, int32_t row, float *out, const int T) {
  size_t blocks = (size_t)x->columns / OPS_BLOCK;
  const uint8_t *w = group, *scales = w + blocks * CPU_Q8_0_BLOCK;
  tile a;
  tile_zero(&a, T);
  for (size_t b = 0; b < blocks; b++, scales += 32) {
    __m256 d0 = load_f16(scales), d1 = load_f16(scales + 16);
    for (size_t v = 0; v < 8; v++, w += 64) {
      __m256i v0 = load_weights(w), v1 = load_weights(w + 32);
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

BY_ROWS(cpu_linear_q4_1_f32_avx2, q4_1_f32)
BY_ROWS(cpu_linear_q8_0_f32_avx2, q8_0_f32)
BY_ROWS(cpu_linear_f32_avx2, f32_f32)
BY_ROWS(cpu_linear_f16_avx2, f16_f32)
BY_ROWS(cpu_linear_bf16_avx2, bf16_f32)
