/* linear_256.h - what the linear kernels with 256-bit vectors share, for their source files alone: the tile,
 * and the int8 kernels, written once for AVX2 and AVX-VNNI, which multiply bytes differently. A source file
 * includes this, defines the seven functions named below and then makes its kernels with LINEAR_256_INT8.
 *
 * A tile is 16 outputs (two registers) times T rows. Each broadcast of activations serves both registers.
 * With more rows than LINEAR_AVX2_ROWS a block's sums no longer fit the 16 registers. */
#pragma once

#include "kernels/cpu/linear_avx2.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
#define HALF   8    /* output rows of one register; a group has two */
#define AHEAD  2048 /* bytes asked of memory before they are needed: further than hardware looks */

/* A kernel body is written once with the number of rows T as its argument and made for each T by inlining. */
#define CASE(body, T)                                                                                        \
  case T:                                                                                                    \
    body(group, x, row, out, T);                                                                             \
    break;
#define BY_ROWS(name, body)                                                                                  \
  void name(const void *group, const ops_act *x, int32_t row, int32_t rows, float *out) {                    \
    switch (rows) {                                                                                          \
      CASE(body, 1)                                                                                          \
      CASE(body, 2)                                                                                          \
      CASE(body, 3)                                                                                          \
      CASE(body, 4)                                                                                          \
      CASE(body, 5)                                                                                          \
    default:                                                                                                 \
      body(group, x, row, out, LINEAR_AVX2_ROWS);                                                            \
      break;                                                                                                 \
    }                                                                                                        \
  }

typedef struct tile {
  __m256 acc[LINEAR_AVX2_ROWS][2];
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

INLINE __m256i load_weights(const uint8_t *w) {
  return _mm256_load_si256((const __m256i *)w);
}

INLINE __m256 load_f16(const uint8_t *from) {
  return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)from));
}

INLINE void prefetch(const uint8_t *w, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)w + AHEAD + i, _MM_HINT_T0);
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

/* Weights that were multiplied as weight + 2^bits: the sum is put right by total * 2^bits. */
INLINE __m256i unbias(__m256i isum, int32_t total, const int bits) {
  return _mm256_sub_epi32(isum, _mm256_slli_epi32(_mm256_set1_epi32(total), bits));
}

/* --- the source file's own --- */

typedef struct bytes { /* 32 int8 weights as `dot_bytes` takes them */
  __m256i magnitude, weights;
} bytes;

INLINE __m256i dot_nibbles_first(__m256i w, __m256i four);        /* w * four: what a sum begins with */
INLINE __m256i dot_nibbles(__m256i sum, __m256i w, __m256i four); /* sum + w * four, w in [0, 15] */
INLINE __m256i nibbles_sum(__m256i sum);                          /* eight of them, as int32 lanes */
INLINE bytes bytes_of(__m256i w);
INLINE __m256i dot_bytes(__m256i sum, bytes w, __m256i four); /* int32 lanes; begins with 0 */
INLINE __m256i bytes_sum(__m256i sum, int32_t total);         /* of a whole block */

INLINE bool asks_ahead(const int T); /* does prefetching pay with T rows */

/* --- int8 activations --- */

/* A block's integer sums, of every row. */
typedef struct sums {
  __m256i of[LINEAR_AVX2_ROWS][2];
} sums;

/* One register of weights a half, times four activations of each row. */
INLINE void add_nibbles(sums *s, __m256i w0, __m256i w1, const int8_t *q, size_t columns, const int T,
                        const bool first) {
  UNROLL for (int t = 0; t < T; t++) {
    __m256i four = broadcast4(q + (size_t)t * columns), *of = s->of[t];
    of[0] = first ? dot_nibbles_first(w0, four) : dot_nibbles(of[0], w0, four);
    of[1] = first ? dot_nibbles_first(w1, four) : dot_nibbles(of[1], w1, four);
    /* Sums now, not later: else the compiler keeps all products in wait, and spills. */
    __asm__("" : "+x"(of[0]), "+x"(of[1]));
  }
}

INLINE void nibble_sums(sums *s, const uint8_t *w, const int8_t *q, size_t columns, const int T) {
  UNROLL for (int v = 0; v < 4; v++) {
    __m256i pair0 = load_weights(w + v * 64), pair1 = load_weights(w + v * 64 + 32);
    add_nibbles(s, low_nibbles(pair0), low_nibbles(pair1), q + 4 * v, columns, T, v == 0);
    add_nibbles(s, high_nibbles(pair0), high_nibbles(pair1), q + 16 + 4 * v, columns, T, false);
  }
  UNROLL for (int t = 0; t < T; t++) {
    s->of[t][0] = nibbles_sum(s->of[t][0]);
    s->of[t][1] = nibbles_sum(s->of[t][1]);
  }
}

INLINE void byte_sums(sums *s, const uint8_t *w, const int8_t *q, size_t columns, const int T) {
  UNROLL for (int t = 0; t < T; t++) s->of[t][0] = s->of[t][1] = _mm256_setzero_si256();
  _Pragma("GCC unroll 1") for (int v = 0; v < 8; v++) { /* unrolled, the compiler would spill what it gains */
    bytes w0 = bytes_of(load_weights(w + v * 64)), w1 = bytes_of(load_weights(w + v * 64 + 32));
    UNROLL for (int t = 0; t < T; t++) {
      __m256i four = broadcast4(q + (size_t)t * columns + 4 * v);
      s->of[t][0] = dot_bytes(s->of[t][0], w0, four);
      s->of[t][1] = dot_bytes(s->of[t][1], w1, four);
    }
  }
}

/* acc = fma(d * dx, isum, acc) */
INLINE __m256 add_block(__m256 acc, __m256 d, __m256 dx, __m256i isum) {
  return _mm256_fmadd_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(isum), acc);
}

/* A block: weights w, and of row t the activations' block first + t * blocks. */
INLINE void q4_0_block(tile *a, const uint8_t *w, const ops_act *x, size_t first, const int T) {
  const size_t columns = (size_t)x->columns, blocks = columns / OPS_BLOCK;
  sums s;
  nibble_sums(&s, w, x->q8 + first * OPS_BLOCK, columns, T);
  __m256 d0 = load_f16(w + CPU_Q4_1_SCALES), d1 = load_f16(w + CPU_Q4_1_SCALES + 16);
  UNROLL for (int t = 0; t < T; t++) {
    size_t i = first + (size_t)t * blocks;
    __m256 dx = _mm256_set1_ps(x->scale[i]);
    a->acc[t][0] = add_block(a->acc[t][0], d0, dx, unbias(s.of[t][0], x->total[i], 3));
    a->acc[t][1] = add_block(a->acc[t][1], d1, dx, unbias(s.of[t][1], x->total[i], 3));
  }
}

INLINE void q4_1_block(tile *a, const uint8_t *w, const ops_act *x, size_t first, const int T) {
  const size_t columns = (size_t)x->columns, blocks = columns / OPS_BLOCK;
  const uint8_t *scales = w + CPU_Q4_1_SCALES, *minima = scales + CPU_Q4_1_MINIMA;
  sums s;
  nibble_sums(&s, w, x->q8 + first * OPS_BLOCK, columns, T);
  __m256 d0 = load_f16(scales), d1 = load_f16(scales + 16), m0 = load_f16(minima), m1 = load_f16(minima + 16);
  UNROLL for (int t = 0; t < T; t++) {
    size_t i = first + (size_t)t * blocks;
    __m256 dx = _mm256_set1_ps(x->scale[i]), sum_dx = _mm256_set1_ps(x->sum[i]);
    a->acc[t][0] = _mm256_fmadd_ps(m0, sum_dx, add_block(a->acc[t][0], d0, dx, s.of[t][0]));
    a->acc[t][1] = _mm256_fmadd_ps(m1, sum_dx, add_block(a->acc[t][1], d1, dx, s.of[t][1]));
  }
}

INLINE void q8_0_block(tile *a, const uint8_t *w, const ops_act *x, size_t first, const int T) {
  const size_t columns = (size_t)x->columns, blocks = columns / OPS_BLOCK;
  sums s;
  byte_sums(&s, w, x->q8 + first * OPS_BLOCK, columns, T);
  __m256 d0 = load_f16(w + CPU_Q8_0_SCALES), d1 = load_f16(w + CPU_Q8_0_SCALES + 16);
  UNROLL for (int t = 0; t < T; t++) {
    size_t i = first + (size_t)t * blocks;
    __m256 dx = _mm256_set1_ps(x->scale[i]);
    a->acc[t][0] = add_block(a->acc[t][0], d0, dx, bytes_sum(s.of[t][0], x->total[i]));
    a->acc[t][1] = add_block(a->acc[t][1], d1, dx, bytes_sum(s.of[t][1], x->total[i]));
  }
}

#define INT8_KERNEL(type, block_bytes)                                                                       \
  INLINE void type##_int8(const void *group, const ops_act *x, int32_t row, float *out, const int T) {       \
    const size_t blocks = (size_t)x->columns / OPS_BLOCK;                                                    \
    const uint8_t *w = group;                                                                                \
    tile a;                                                                                                  \
    tile_zero(&a, T);                                                                                        \
    for (size_t b = 0; b < blocks; b++, w += block_bytes) {                                                  \
      if (asks_ahead(T)) prefetch(w, block_bytes);                                                           \
      type##_block(&a, w, x, (size_t)row *blocks + b, T);                                                    \
    }                                                                                                        \
    tile_store(&a, out, T);                                                                                  \
  }
INT8_KERNEL(q4_0, CPU_Q4_0_BLOCK)
INT8_KERNEL(q4_1, CPU_Q4_1_BLOCK)
INT8_KERNEL(q8_0, CPU_Q8_0_BLOCK)

#define LINEAR_256_INT8(isa)                                                                                 \
  BY_ROWS(cpu_linear_q4_0_int8_##isa, q4_0_int8)                                                             \
  BY_ROWS(cpu_linear_q4_1_int8_##isa, q4_1_int8)                                                             \
  BY_ROWS(cpu_linear_q8_0_int8_##isa, q8_0_int8)
