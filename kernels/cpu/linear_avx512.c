#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/linear_avx512.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

#define ROWS_MAX CPU_ROWS_MAX
#define VECTORS  8 /* registers of one block: 16 outputs times 4 inputs each */

/* From so many rows on, so many bytes are asked of memory before they are needed. */
#define PREFETCH_ROWS 3
#define AHEAD         8192

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
      CASE(body, 6)                                                                                          \
      CASE(body, 7)                                                                                          \
      CASE(body, 8)                                                                                          \
      CASE(body, 9)                                                                                          \
      CASE(body, 10)                                                                                         \
      CASE(body, 11)                                                                                         \
      CASE(body, 12)                                                                                         \
      CASE(body, 13)                                                                                         \
      CASE(body, 14)                                                                                         \
      CASE(body, 15)                                                                                         \
    default:                                                                                                 \
      body(group, x, row, out, 16);                                                                          \
      break;                                                                                                 \
    }                                                                                                        \
  }

INLINE __m512 load_f16(const uint8_t *from) {
  return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)from));
}

/* One or two rows wait for memory alone, and hardware then looks ahead far enough by itself. */
INLINE void prefetch(const uint8_t *w, size_t bytes, const int T) {
  if (T < PREFETCH_ROWS) return;
  for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)w + AHEAD + i, _MM_HINT_T1);
}

typedef struct four {
  int8_t q[4];
} four;

/* sum += w * (four activations, for every lane). Written out because the compiler loads the broadcast with an
 * instruction of its own, and this kernel is short of instructions. */
INLINE __m512i dot4(__m512i sum, __m512i w, const int8_t *q) {
  __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*(const four *)q));
  return sum;
}

INLINE void store_tile(const __m512 *acc, float *out, const int T) {
  UNROLL for (int t = 0; t < T; t++) _mm512_storeu_ps(out + t * OPS_GROUP, acc[t]);
}

/* --- int8 activations --- */

/* The block's weights, unsigned: input 4 v + j of output `lane` is byte 4 lane + j of register v. */
INLINE void load_nibbles(const uint8_t *w, __m512i v[VECTORS]) {
  const __m512i low = _mm512_set1_epi8(15);
  UNROLL for (int i = 0; i < VECTORS / 2; i++) {
    __m512i pair = _mm512_loadu_si512(w + i * 64); /* blocks of Q4_0 are no multiple of 64 bytes */
    v[i] = _mm512_and_si512(pair, low);
    v[i + VECTORS / 2] = _mm512_and_si512(_mm512_srli_epi16(pair, 4), low);
  }
}

/* w + 128 */
INLINE void load_bytes(const uint8_t *w, __m512i v[VECTORS]) {
  const __m512i sign = _mm512_set1_epi8(-128);
  UNROLL for (int i = 0; i < VECTORS; i++) v[i] =
      _mm512_xor_si512(_mm512_loadu_si512(w + i * 64), sign); /* a block is no multiple of 64 bytes */
}

INLINE __m512i dot_block(const __m512i v[VECTORS], const int8_t *q) {
  __m512i sum = _mm512_setzero_si512();
  UNROLL for (int i = 0; i < VECTORS; i++) sum = dot4(sum, v[i], q + 4 * i);
  return sum;
}

/* acc = fma(d * dx, isum, acc) */
INLINE __m512 add_block(__m512 acc, __m512 d, float dx, __m512i isum) {
  return _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(dx)), _mm512_cvtepi32_ps(isum), acc);
}

/* Where block b of row `row` begins, in blocks. */
INLINE size_t block_at(const ops_act *x, int32_t row, size_t b) {
  return (size_t)row * ((size_t)x->columns / OPS_BLOCK) + b;
}

INLINE void q4_1_int8(const void *group, const ops_act *x, int32_t row, float *out, const int T) {
  const size_t blocks = (size_t)x->columns / OPS_BLOCK;
  const uint8_t *w = group;
  __m512 acc[ROWS_MAX];
  UNROLL for (int t = 0; t < T; t++) acc[t] = _mm512_setzero_ps();
  for (size_t b = 0; b < blocks; b++, w += CPU_Q4_1_BLOCK) {
    __m512i v[VECTORS];
    prefetch(w, CPU_Q4_1_BLOCK, T);
    load_nibbles(w, v);
    __m512 d = load_f16(w + CPU_Q4_1_SCALES), m = load_f16(w + CPU_Q4_1_SCALES + CPU_Q4_1_MINIMA);
    UNROLL for (int t = 0; t < T; t++) {
      size_t i = block_at(x, row + t, b);
      acc[t] = add_block(acc[t], d, x->scale[i], dot_block(v, x->q8 + i * OPS_BLOCK));
      acc[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(x->sum[i]), acc[t]);
    }
  }
  store_tile(acc, out, T);
}

/* An unsigned weight is its value plus 2^bits: the sum is put right by total * 2^bits. */
INLINE __m512i unbias(__m512i isum, int32_t total, const int bits) {
  return _mm512_sub_epi32(isum, _mm512_slli_epi32(_mm512_set1_epi32(total), (unsigned)bits));
}

INLINE void q4_0_int8(const void *group, const ops_act *x, int32_t row, float *out, const int T) {
  const size_t blocks = (size_t)x->columns / OPS_BLOCK;
  const uint8_t *w = group;
  __m512 acc[ROWS_MAX];
  UNROLL for (int t = 0; t < T; t++) acc[t] = _mm512_setzero_ps();
  for (size_t b = 0; b < blocks; b++, w += CPU_Q4_0_BLOCK) {
    __m512i v[VECTORS];
    prefetch(w, CPU_Q4_0_BLOCK, T);
    load_nibbles(w, v);
    __m512 d = load_f16(w + CPU_Q4_1_SCALES);
    UNROLL for (int t = 0; t < T; t++) {
      size_t i = block_at(x, row + t, b);
      __m512i isum = unbias(dot_block(v, x->q8 + i * OPS_BLOCK), x->total[i], 3);
      acc[t] = add_block(acc[t], d, x->scale[i], isum);
    }
  }
  store_tile(acc, out, T);
}

INLINE void q8_0_int8(const void *group, const ops_act *x, int32_t row, float *out, const int T) {
  const size_t blocks = (size_t)x->columns / OPS_BLOCK;
  const uint8_t *w = group;
  __m512 acc[ROWS_MAX];
  UNROLL for (int t = 0; t < T; t++) acc[t] = _mm512_setzero_ps();
  for (size_t b = 0; b < blocks; b++, w += CPU_Q8_0_BLOCK) {
    __m512i v[VECTORS];
    prefetch(w, CPU_Q8_0_BLOCK, T);
    load_bytes(w, v);
    __m512 d = load_f16(w + CPU_Q8_0_SCALES);
    UNROLL for (int t = 0; t < T; t++) {
      size_t i = block_at(x, row + t, b);
      __m512i isum = unbias(dot_block(v, x->q8 + i * OPS_BLOCK), x->total[i], 7);
      acc[t] = add_block(acc[t], d, x->scale[i], isum);
    }
  }
  store_tile(acc, out, T);
}

BY_ROWS(cpu_linear_q4_0_int8_avx512, q4_0_int8)
BY_ROWS(cpu_linear_q4_1_int8_avx512, q4_1_int8)
BY_ROWS(cpu_linear_q8_0_int8_avx512, q8_0_int8)

/* --- f32 activations --- */

/* One input: its 16 weights times each row's value. */
INLINE void add_input(__m512 *acc, __m512 w, const ops_act *x, int32_t row, size_t k, const int T) {
  UNROLL for (int t = 0; t < T; t++) {
    __m512 value = _mm512_set1_ps(x->f32[(size_t)(row + t) * (size_t)x->columns + k]);
    acc[t] = _mm512_fmadd_ps(w, value, acc[t]);
  }
}

/* The weights of one input, of 16 outputs; `shift`: its bits' place in the packed 32. */
INLINE __m512 q4_1_value(__m512i v, int shift, __m512 d, __m512 m) {
  __m512i nibble = _mm512_and_si512(_mm512_srli_epi32(v, (unsigned)shift), _mm512_set1_epi32(15));
  return _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(nibble), m);
}
INLINE __m512 q4_0_value(__m512i v, int shift, __m512 d, __m512 m) {
  (void)m;
  __m512i nibble = _mm512_and_si512(_mm512_srli_epi32(v, (unsigned)shift), _mm512_set1_epi32(15));
  return _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_sub_epi32(nibble, _mm512_set1_epi32(8))));
}
INLINE __m512 q8_0_value(__m512i v, int shift, __m512 d) {
  return _mm512_mul_ps(
      d, _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, (unsigned)(24 - shift)), 24)));
}

/* Inputs in order: the low nibbles of all vectors, then the high ones. */
#define NIBBLES_F32(type, block_bytes, minima)                                                               \
  INLINE void type##_f32(const void *group, const ops_act *x, int32_t row, float *out, const int T) {        \
    const uint8_t *w = group;                                                                                \
    __m512 acc[ROWS_MAX];                                                                                    \
    UNROLL for (int t = 0; t < T; t++) acc[t] = _mm512_setzero_ps();                                         \
    for (size_t k = 0; k < (size_t)x->columns; k += OPS_BLOCK, w += block_bytes) {                           \
      __m512 d = load_f16(w + CPU_Q4_1_SCALES);                                                              \
      __m512 m = minima ? load_f16(w + CPU_Q4_1_SCALES + CPU_Q4_1_MINIMA) : _mm512_setzero_ps();             \
      for (int i = 0; i < VECTORS; i++) {                                                                    \
        __m512i v = _mm512_loadu_si512(w + i % 4 * 64);                                                      \
        for (int j = 0; j < 4; j++)                                                                          \
          add_input(acc, type##_value(v, 8 * j + i / 4 * 4, d, m), x, row, k + (size_t)(4 * i + j), T);      \
      }                                                                                                      \
    }                                                                                                        \
    store_tile(acc, out, T);                                                                                 \
  }
NIBBLES_F32(q4_0, CPU_Q4_0_BLOCK, false)
NIBBLES_F32(q4_1, CPU_Q4_1_BLOCK, true)

INLINE void q8_0_f32(const void *group, const ops_act *x, int32_t row, float *out, const int T) {
  const uint8_t *w = group;
  __m512 acc[ROWS_MAX];
  UNROLL for (int t = 0; t < T; t++) acc[t] = _mm512_setzero_ps();
  for (size_t k = 0; k < (size_t)x->columns; k += OPS_BLOCK, w += CPU_Q8_0_BLOCK) {
    __m512 d = load_f16(w + CPU_Q8_0_SCALES);
    for (int i = 0; i < VECTORS; i++) {
      __m512i v = _mm512_loadu_si512(w + i * 64);
      for (int j = 0; j < 4; j++) add_input(acc, q8_0_value(v, 8 * j, d), x, row, k + (size_t)(4 * i + j), T);
    }
  }
  store_tile(acc, out, T);
}

INLINE __m512 f32_lanes(const uint8_t *w, size_t k) {
  return _mm512_load_ps(w + k * OPS_GROUP * 4);
}
INLINE __m512 f16_lanes(const uint8_t *w, size_t k) {
  return load_f16(w + k * OPS_GROUP * 2);
}
INLINE __m512 bf16_lanes(const uint8_t *w, size_t k) {
  __m256i h = _mm256_load_si256((const __m256i *)(w + k * OPS_GROUP * 2));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

#define PLAIN(type)                                                                                          \
  INLINE void type##_f32(const void *group, const ops_act *x, int32_t row, float *out, const int T) {        \
    __m512 acc[ROWS_MAX];                                                                                    \
    UNROLL for (int t = 0; t < T; t++) acc[t] = _mm512_setzero_ps();                                         \
    for (size_t k = 0; k < (size_t)x->columns; k++) add_input(acc, type##_lanes(group, k), x, row, k, T);    \
    store_tile(acc, out, T);                                                                                 \
  }
PLAIN(f32)
PLAIN(f16)
PLAIN(bf16)

BY_ROWS(cpu_linear_q4_0_f32_avx512, q4_0_f32)
BY_ROWS(cpu_linear_q4_1_f32_avx512, q4_1_f32)
BY_ROWS(cpu_linear_q8_0_f32_avx512, q8_0_f32)
BY_ROWS(cpu_linear_f32_avx512, f32_f32)
BY_ROWS(cpu_linear_f16_avx512, f16_f32)
BY_ROWS(cpu_linear_bf16_avx512, bf16_f32)
#endif
