/* linear_256.h - what the linear kernels with 256-bit vectors share, for their source files alone: the tile,
 * and the int8 kernels, which are written once for AVX2 and AVX-VNNI although these multiply bytes
 * differently. A source file includes this header, defines the functions that are declared below, and then
 * makes its kernels from the bodies.
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
#define AHEAD  2048 /* bytes ahead to prefetch: further than the hardware looks */

/* A kernel body is written once with the number of rows T as its last argument and made for each T by
 * inlining. */
#define CASE(body, T, ...)                                                                                   \
  case T:                                                                                                    \
    body(__VA_ARGS__, T);                                                                                    \
    break;
#define ROWS_SWITCH(body, ...)                                                                               \
  switch (rows) {                                                                                            \
    CASE(body, 1, __VA_ARGS__)                                                                               \
    CASE(body, 2, __VA_ARGS__)                                                                               \
    CASE(body, 3, __VA_ARGS__)                                                                               \
    CASE(body, 4, __VA_ARGS__)                                                                               \
    CASE(body, 5, __VA_ARGS__)                                                                               \
  default:                                                                                                   \
    body(__VA_ARGS__, LINEAR_AVX2_ROWS);                                                                     \
    break;                                                                                                   \
  }
#define BY_ROWS(name, body)                                                                                  \
  void name(const void *group, const cpu_act *x, int32_t row, int32_t rows, int32_t parts, float *out) {     \
    ROWS_SWITCH(body, group, x, row, parts, out)                                                             \
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

/* The sums of the first two parts and of the third. */
typedef struct part_sums {
  float of[CPU_PARTS / 2][LINEAR_AVX2_ROWS * OPS_GROUP];
} part_sums;

INLINE void tile_add_saved(tile *a, const float *saved, const int T) {
  UNROLL for (int t = 0; t < T; t++) {
    UNROLL for (int h = 0; h < 2; h++) a->acc[t][h] =
        _mm256_add_ps(_mm256_loadu_ps(saved + t * OPS_GROUP + h * HALF), a->acc[t][h]);
  }
}

/* The tile ends a part that others follow, and begins the next one. */
INLINE void end_part(part_sums *p, const int32_t part, tile *a, const int T) {
  if (part == 1) tile_add_saved(a, p->of[0], T);
  tile_store(a, p->of[part / 2], T);
  tile_zero(a, T);
}

/* The tile is the last part. */
INLINE void add_parts(const part_sums *p, tile *a, const int T) {
  tile_add_saved(a, p->of[1], T);
  tile_add_saved(a, p->of[0], T);
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

/* Adds to each lane of `sum` the dot product of its pair of int16 with the totals of the block's two halves.
 */
INLINE __m256i dot_total(__m256i sum, __m256i pairs, const cpu_total *total) {
  int32_t both;
  memcpy(&both, &total->first, sizeof both);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_set1_epi32(both), pairs));
}

/* --- a block's weights: vector i of half a group, as int8 where they have a sign of their own, else u --- */

INLINE bool is_signed(const cpu_format f) {
  return f.bits & 8 || f.table;
}

/* Shifts the bits of each byte up by `by`, or down if it is negative, and masks them. */
INLINE __m256i move_bits(__m256i v, const int by, const int mask) {
  v = by >= 0 ? _mm256_slli_epi16(v, by) : _mm256_srli_epi16(v, -by);
  return _mm256_and_si256(v, _mm256_set1_epi8((char)mask));
}

INLINE __m256i look_up(__m256i nibbles) {
  static const uint8_t table[16] = {CPU_TABLE};
  __m128i numbers = _mm_xor_si128(_mm_loadu_si128((const __m128i *)table), _mm_set1_epi8(-128));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(numbers), nibbles);
}

INLINE __m256i load_vector(const uint8_t *w) {
  return _mm256_load_si256((const __m256i *)w);
}

INLINE __m256i weights_at(const uint8_t *planes, const int i, const int half, const cpu_format f) {
  const int twos = f.bits & 4, ones = f.bits & 6; /* the lowest bit of each */
  const uint8_t *w = planes + half * 32;
  __m256i u = _mm256_setzero_si256();
  if (f.bits & 8) return load_vector(w + i * 64);
  if (f.bits & 4) u = move_bits(load_vector(w + i % 4 * 64), i / 4 * -4, 15);
  if (f.bits & 2)
    u = _mm256_or_si256(
        u, move_bits(load_vector(w + cpu_twos_at(f) + i / 4 * 64), twos - 2 * (i % 4), 3 << twos));
  if (f.bits & 1) u = _mm256_or_si256(u, move_bits(load_vector(w + cpu_ones_at(f)), ones - i, 1 << ones));
  return f.table ? look_up(u) : u;
}

/* --- its scales, of half a group --- */

INLINE __m256 bytes_as_floats(const uint8_t *from) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from)));
}

/* Pairs of int16, of the two halves of a block: scales, or minima. */
INLINE __m256i sub_pairs(const uint8_t *sub, const int half, const cpu_format f, const bool minima) {
  __m128i both = _mm_load_si128((const __m128i *)(sub + half * 16));
  if (!f.minima) return _mm256_cvtepi8_epi16(both);
  both = minima ? _mm_srli_epi16(both, 4) : both;
  return _mm256_cvtepu8_epi16(_mm_and_si128(both, _mm_set1_epi8(15)));
}
/* The first element of each pair twice; the last element of each pair twice. */
INLINE __m256i first_of(__m256i pairs) {
  return _mm256_blend_epi16(_mm256_slli_epi32(pairs, 16), pairs, 0x55);
}
INLINE __m256i last_of(__m256i pairs) {
  return _mm256_blend_epi16(pairs, _mm256_srli_epi32(pairs, 16), 0x55);
}

typedef struct scales {       /* by half */
  __m256 d[2], m[2];          /* minima: what is added, without sub-scales, or else taken away */
  __m256i bias[2], minima[2]; /* of sub = 16: pairs for the totals of the block's halves */
} scales;

INLINE scales load_scales(cpu_block k, const int bias, const cpu_format f) {
  scales s;
  UNROLL for (int h = 0; h < 2; h++) {
    s.d[h] = load_f16(k.scales + 16 * h);
    if (f.minima) s.m[h] = load_f16(k.scales + CPU_HALVES + 16 * h);
    if (f.sub == 32) {
      s.d[h] = _mm256_mul_ps(s.d[h], bytes_as_floats(k.sub + 8 * h));
      s.m[h] = _mm256_mul_ps(s.m[h], bytes_as_floats(k.sub + OPS_GROUP + 8 * h));
    } else if (f.sub == 16) {
      s.bias[h] = _mm256_mullo_epi16(_mm256_set1_epi16((short)-bias), sub_pairs(k.sub, h, f, false));
      if (f.minima) s.minima[h] = sub_pairs(k.sub, h, f, true);
    }
  }
  return s;
}

/* --- the source file's own --- */

typedef struct bytes { /* 32 int8 weights as `dot_bytes` takes them */
  __m256i magnitude, weights;
} bytes;

/* How many vectors of a block may be added up before they are widened: at most 8, or half a block if its
 * halves have scales of their own. */
INLINE int run_length(const cpu_format f);
INLINE __m256i run_first(__m256i u, __m256i four);             /* u * four: what a run begins with */
INLINE __m256i run_more(__m256i run, __m256i u, __m256i four); /* run + u * four */
INLINE __m256i widen(__m256i run);                             /* eight sums, as int32 lanes */
INLINE __m256i widen_scaled(__m256i run, __m256i factors); /* times a scale of each lane, twice an int16 */
INLINE bytes bytes_of(__m256i w);
INLINE __m256i dot_bytes(__m256i sum, bytes w, __m256i four); /* int32 lanes; begins with 0 */
INLINE int bytes_bias(void); /* the factor that dot_bytes multiplies by, minus the weight */

INLINE bool asks_ahead(const int T); /* does prefetching pay with T rows? */

/* --- int8 activations --- */

/* A block's integer sums, of every row. */
typedef struct sums {
  __m256i of[LINEAR_AVX2_ROWS][2];
} sums;

/* Vector i times four activations of each row. */
INLINE void add_vector(sums *run, const uint8_t *planes, const int i, const int8_t *q, size_t columns,
                       const cpu_format f, const bool first, const int T) {
  __m256i w0 = weights_at(planes, i, 0, f), w1 = weights_at(planes, i, 1, f);
  UNROLL for (int t = 0; t < T; t++) {
    __m256i four = broadcast4(q + 4 * i + (size_t)t * columns), *of = run->of[t];
    of[0] = first ? run_first(w0, four) : run_more(of[0], w0, four);
    of[1] = first ? run_first(w1, four) : run_more(of[1], w1, four);
    /* Forces the sums to be made now: otherwise the compiler keeps all products in registers and spills them.
     */
    __asm__("" : "+x"(of[0]), "+x"(of[1]));
  }
}

INLINE void add_run(sums *s, const sums *run, const uint8_t *sub, const int i, const cpu_format f,
                    const int T) {
  const bool first = i == 0, low = i < CPU_VECTORS / 2;
  __m256i scale[2];
  UNROLL for (int h = 0; h < 2; h++) {
    if (f.sub != 16) continue;
    __m256i pairs = sub_pairs(sub, h, f, false);
    scale[h] = low ? first_of(pairs) : last_of(pairs);
  }
  UNROLL for (int t = 0; t < T; t++) {
    UNROLL for (int h = 0; h < 2; h++) {
      __m256i sum = f.sub == 16 ? widen_scaled(run->of[t][h], scale[h]) : widen(run->of[t][h]);
      s->of[t][h] = first ? sum : _mm256_add_epi32(s->of[t][h], sum);
    }
  }
}

INLINE void block_sums(sums *s, cpu_block k, const int8_t *q, size_t columns, const cpu_format f,
                       const int T) {
  const int length = run_length(f);
  UNROLL for (int first = 0; first < CPU_VECTORS; first += length) {
    sums run;
    UNROLL for (int n = 0; n < length; n++) {
      int i = length == CPU_VECTORS ? n % 2 * 4 + n / 2 : first + n; /* both nibbles while they are at hand */
      add_vector(&run, k.planes, i, q, columns, f, n == 0, T);
    }
    add_run(s, &run, k.sub, first, f, T);
  }
}

INLINE void byte_sums(sums *s, const uint8_t *planes, const int8_t *q, size_t columns, const cpu_format f,
                      const int T) {
  UNROLL for (int t = 0; t < T; t++) s->of[t][0] = s->of[t][1] = _mm256_setzero_si256();
  _Pragma("GCC unroll 1") for (int i = 0; i < 8; i++) { /* unrolled, the compiler would spill what it gains */
    bytes w0 = bytes_of(weights_at(planes, i, 0, f)), w1 = bytes_of(weights_at(planes, i, 1, f));
    UNROLL for (int t = 0; t < T; t++) {
      __m256i four = broadcast4(q + (size_t)t * columns + 4 * i);
      s->of[t][0] = dot_bytes(s->of[t][0], w0, four);
      s->of[t][1] = dot_bytes(s->of[t][1], w1, four);
    }
  }
}

/* acc = fma(d * dx, isum, acc), and what minima add; of half h. */
INLINE __m256 add_block(__m256 acc, __m256i sum, const scales *s, const int h, const cpu_act *x, size_t i,
                        const int bias, const cpu_format f) {
  const __m256 dx = _mm256_set1_ps(x->scale[i]);
  if (bias && f.sub == 16)
    sum = dot_total(sum, s->bias[h], &x->total[i]);
  else if (bias)
    sum = _mm256_sub_epi32(
        sum, _mm256_slli_epi32(_mm256_set1_epi32(x->total[i].all), __builtin_ctz((unsigned)bias)));
  acc = _mm256_fmadd_ps(_mm256_mul_ps(s->d[h], dx), _mm256_cvtepi32_ps(sum), acc);
  if (!f.minima) return acc;
  if (f.sub == 0) return _mm256_fmadd_ps(s->m[h], _mm256_set1_ps(x->sum[i]), acc);
  if (f.sub == 32) return _mm256_fnmadd_ps(s->m[h], _mm256_set1_ps(x->sum[i]), acc);
  const __m256i least = dot_total(_mm256_setzero_si256(), s->minima[h], &x->total[i]);
  return _mm256_fnmadd_ps(_mm256_mul_ps(s->m[h], dx), _mm256_cvtepi32_ps(least), acc);
}

/* A block k, and of row t the activations' block first + t * blocks. */
INLINE void linear_block(tile *a, cpu_block k, const cpu_act *x, size_t first, const cpu_format f,
                         const int T) {
  const size_t columns = (size_t)x->columns, blocks = columns / OPS_BLOCK;
  const int8_t *q = x->q8 + first * OPS_BLOCK;
  const int bias = is_signed(f) ? bytes_bias() : f.bias;
  sums s;
  if (is_signed(f))
    byte_sums(&s, k.planes, q, columns, f, T);
  else
    block_sums(&s, k, q, columns, f, T);
  const scales c = load_scales(k, bias, f);
  UNROLL for (int t = 0; t < T; t++) {
    UNROLL for (int h = 0; h < 2; h++) a->acc[t][h] =
        add_block(a->acc[t][h], s.of[t][h], &c, h, x, first + (size_t)t * blocks, bias, f);
  }
}

INLINE void linear_int8(const void *group, const cpu_act *x, int32_t row, int32_t parts, float *out,
                        const cpu_format f, const int T) {
  const size_t blocks = (size_t)x->columns / OPS_BLOCK, step = cpu_unit_bytes(f) / cpu_unit_blocks(f);
  size_t end = cpu_part_at(x->columns, parts, 1) / OPS_BLOCK;
  int32_t part = 0;
  part_sums p;
  tile a;
  tile_zero(&a, T);
  for (size_t b = 0; b < blocks; b++) {
    if (__builtin_expect(b == end, 0)) {
      end_part(&p, part++, &a, T);
      end = cpu_part_at(x->columns, parts, part + 1) / OPS_BLOCK;
    }
    if (asks_ahead(T)) prefetch((const uint8_t *)group + b * step, step);
    linear_block(&a, cpu_block_at(group, f, b), x, (size_t)row * blocks + b, f, T);
  }
  if (parts > 1) add_parts(&p, &a, T);
  tile_store(&a, out, T);
}

#define INT8_BODY(name, TYPE, ...)                                                                           \
  INLINE void name##_int8(const void *group, const cpu_act *x, int32_t row, int32_t parts, float *out,       \
                          const int T) {                                                                     \
    linear_int8(group, x, row, parts, out, (cpu_format){__VA_ARGS__}, T);                                    \
  }
CPU_FORMATS(INT8_BODY)
