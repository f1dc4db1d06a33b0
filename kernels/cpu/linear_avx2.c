#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/linear_avx2.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
#define ROLLED _Pragma("GCC unroll 1") /* unrolled, the compiler would spill what it gains */

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

/* A tile is 16 outputs (two registers) times T rows. Each broadcast of activations serves both registers:
 * loads, not multiplications, are what the kernels run short of. */
typedef struct tile {
  __m256 acc[CPU_ROWS_MAX][2];
} tile;

INLINE void tile_zero(tile *a, const int T) {
  UNROLL for (int t = 0; t < T; t++) a->acc[t][0] = a->acc[t][1] = _mm256_setzero_ps();
}

INLINE void tile_store(const tile *a, float *out, const int T) {
  UNROLL for (int t = 0; t < T; t++) {
    _mm256_storeu_ps(out + t * OPS_GROUP, a->acc[t][0]);
    _mm256_storeu_ps(out + t * OPS_GROUP + HALF, a->acc[t][1]);
  }
}

/* acc = fma(d * dx, isum, acc) */
INLINE __m256 add_block(__m256 acc, __m256 d, __m256 dx, __m256i isum) {
  return _mm256_fmadd_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(isum), acc);
}

/* --- int8 activations --- */

/* sum += w * (four activations of each row), in 16 bits. */
INLINE void dot4_q4(__m256i sum[][2], __m256i w0, __m256i w1, const int8_t *q, size_t columns, const int T) {
  UNROLL for (int t = 0; t < T; t++) {
    __m256i four = broadcast4(q + (size_t)t * columns);
    sum[t][0] = _mm256_add_epi16(sum[t][0], _mm256_maddubs_epi16(w0, four));
    sum[t][1] = _mm256_add_epi16(sum[t][1], _mm256_maddubs_epi16(w1, four));
    /* Sums now, not later: else the compiler keeps all products in wait, and spills. */
    __asm__("" : "+x"(sum[t][0]), "+x"(sum[t][1]));
  }
}

/* Eight sums of pairs of products fit 16 bits: 8 * 2 * 15 * 127 = 30480. */
INLINE void q4_1_block(tile *a, const uint8_t *w, const ops_act *x, size_t first, const int T) {
  const size_t columns = (size_t)x->columns, blocks = columns / OPS_BLOCK;
  const int8_t *q = x->q8 + first * OPS_BLOCK;
  __m256i sum[CPU_ROWS_MAX][2];
  UNROLL for (int t = 0; t < T; t++) sum[t][0] = sum[t][1] = _mm256_setzero_si256();
  ROLLED for (int v = 0; v < 4; v++) {
    __m256i pair0 = load_weights(w + v * 64), pair1 = load_weights(w + v * 64 + 32);
    dot4_q4(sum, low_nibbles(pair0), low_nibbles(pair1), q + 4 * v, columns, T);
    dot4_q4(sum, high_nibbles(pair0), high_nibbles(pair1), q + 16 + 4 * v, columns, T);
  }
  const uint8_t *scales = w + CPU_Q4_1_SCALES, *minima = scales + CPU_Q4_1_MINIMA;
  __m256 d0 = load_f16(scales), d1 = load_f16(scales + 16), m0 = load_f16(minima), m1 = load_f16(minima + 16);
  const __m256i ones = _mm256_set1_epi16(1);
  UNROLL for (int t = 0; t < T; t++) {
    size_t i = first + (size_t)t * blocks;
    __m256 dx = _mm256_set1_ps(x->scale[i]), sum_dx = _mm256_set1_ps(x->sum[i]);
    __m256 acc0 = add_block(a->acc[t][0], d0, dx, _mm256_madd_epi16(sum[t][0], ones));
    __m256 acc1 = add_block(a->acc[t][1], d1, dx, _mm256_madd_epi16(sum[t][1], ones));
    a->acc[t][0] = _mm256_fmadd_ps(m0, sum_dx, acc0);
    a->acc[t][1] = _mm256_fmadd_ps(m1, sum_dx, acc1);
  }
}

INLINE void q4_1_int8(const void *group, const ops_act *x, int32_t row, float *out, const int T) {
  const size_t blocks = (size_t)x->columns / OPS_BLOCK;
  const uint8_t *w = group;
  tile a;
  tile_zero(&a, T);
  for (size_t b = 0; b < blocks; b++, w += CPU_Q4_1_BLOCK) q4_1_block(&a, w, x, (size_t)row * blocks + b, T);
  tile_store(&a, out, T);
}

/* w * x as |w| * (x with w's sign). One sum of a pair of products is at most 2 * 128 * 127, which fits 16
 * bits; two are not, so each goes on to 32 bits by itself. */
INLINE __m256i dot4_q8(__m256i sum, __m256i magnitude, __m256i w, __m256i four) {
  __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(four, w));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

INLINE void q8_0_block(tile *a, const uint8_t *w, const ops_act *x, size_t first, const int T) {
  const size_t columns = (size_t)x->columns, blocks = columns / OPS_BLOCK;
  const int8_t *q = x->q8 + first * OPS_BLOCK;
  __m256i sum[CPU_ROWS_MAX][2];
  UNROLL for (int t = 0; t < T; t++) sum[t][0] = sum[t][1] = _mm256_setzero_si256();
  ROLLED for (int v = 0; v < 8; v++) {
    __m256i w0 = load_weights(w + v * 64), w1 = load_weights(w + v * 64 + 32);
    __m256i magnitude0 = _mm256_abs_epi8(w0), magnitude1 = _mm256_abs_epi8(w1);
    UNROLL for (int t = 0; t < T; t++) {
      __m256i four = broadcast4(q + (size_t)t * columns + 4 * v);
      sum[t][0] = dot4_q8(sum[t][0], magnitude0, w0, four);
      sum[t][1] = dot4_q8(sum[t][1], magnitude1, w1, four);
    }
  }
  __m256 d0 = load_f16(w + CPU_Q8_0_SCALES), d1 = load_f16(w + CPU_Q8_0_SCALES + 16);
  UNROLL for (int t = 0; t < T; t++) {
    __m256 dx = _mm256_set1_ps(x->scale[first + (size_t)t * blocks]);
    a->acc[t][0] = add_block(a->acc[t][0], d0, dx, sum[t][0]);
    a->acc[t][1] = add_block(a->acc[t][1], d1, dx, sum[t][1]);
  }
}

INLINE void q8_0_int8(const void *group, const ops_act *x, int32_t row, float *out, const int T) {
  const size_t blocks = (size_t)x->columns / OPS_BLOCK;
  const uint8_t *w = group;
  tile a;
  tile_zero(&a, T);
  for (size_t b = 0; b < blocks; b++, w += CPU_Q8_0_BLOCK) q8_0_block(&a, w, x, (size_t)row * blocks + b, T);
  tile_store(&a, out, T);
}

BY_ROWS(cpu_linear_q4_1_int8_avx2, q4_1_int8)
BY_ROWS(cpu_linear_q8_0_int8_avx2, q8_0_int8)

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

BY_ROWS(cpu_linear_q4_1_f32_avx2, q4_1_f32)
BY_ROWS(cpu_linear_q8_0_f32_avx2, q8_0_f32)
BY_ROWS(cpu_linear_f32_avx2, f32_f32)
BY_ROWS(cpu_linear_f16_avx2, f16_f32)
BY_ROWS(cpu_linear_bf16_avx2, bf16_f32)
#endif
