#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/linear_avx512.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

#define ROWS_MAX CPU_ROWS_MAX
#define VECTORS  CPU_VECTORS /* registers of one block: 16 outputs times 4 inputs each */

/* From so many rows on, so many bytes are asked of memory before they are needed. */
#define PREFETCH_ROWS 2
#define AHEAD         8192

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
    CASE(body, 6, __VA_ARGS__)                                                                               \
    CASE(body, 7, __VA_ARGS__)                                                                               \
    CASE(body, 8, __VA_ARGS__)                                                                               \
    CASE(body, 9, __VA_ARGS__)                                                                               \
    CASE(body, 10, __VA_ARGS__)                                                                              \
    CASE(body, 11, __VA_ARGS__)                                                                              \
    CASE(body, 12, __VA_ARGS__)                                                                              \
    CASE(body, 13, __VA_ARGS__)                                                                              \
    CASE(body, 14, __VA_ARGS__)                                                                              \
    CASE(body, 15, __VA_ARGS__)                                                                              \
  default:                                                                                                   \
    body(__VA_ARGS__, 16);                                                                                   \
    break;                                                                                                   \
  }
#define BY_ROWS(name, body)                                                                                  \
  void name(const void *group, const cpu_act *x, int32_t row, int32_t rows, int32_t parts, float *out) {     \
    ROWS_SWITCH(body, group, x, row, parts, out)                                                             \
  }

INLINE __m512 load_f16(const uint8_t *from) {
  return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)from));
}

/* One row waits for memory alone. A Zen then looks ahead far enough by itself, and a Xeon does not. */
INLINE void prefetch(const uint8_t *w, size_t bytes, const int T) {
  if (T < PREFETCH_ROWS && !__builtin_cpu_is("intel")) return;
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

/* The sums of the first two parts and of the third. */
typedef struct part_sums {
  float of[CPU_PARTS / 2][ROWS_MAX * OPS_GROUP];
} part_sums;

/* acc ends a part that others follow, and begins the next one. */
INLINE void end_part(part_sums *p, const int32_t part, __m512 *acc, const int T) {
  float *to = p->of[part / 2];
  if (part == 1) {
    UNROLL for (int t = 0; t < T; t++) acc[t] = _mm512_add_ps(_mm512_loadu_ps(to + t * OPS_GROUP), acc[t]);
  }
  store_tile(acc, to, T);
  UNROLL for (int t = 0; t < T; t++) acc[t] = _mm512_setzero_ps();
}

/* acc is the last part. */
INLINE void add_parts(const part_sums *p, __m512 *acc, const int T) {
  UNROLL for (int t = 0; t < T; t++) {
    const __m512 last = _mm512_add_ps(_mm512_loadu_ps(p->of[1] + t * OPS_GROUP), acc[t]);
    acc[t] = _mm512_add_ps(_mm512_loadu_ps(p->of[0] + t * OPS_GROUP), last);
  }
}

typedef struct half_totals {
  int16_t of[2];
} half_totals;

/* sum + of each lane's pair of int16 with the totals of the block's halves. */
INLINE __m512i dot_total(__m512i sum, __m512i pairs, const cpu_total *total) {
  __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(pairs), "m"(*(const half_totals *)&total->first));
  return sum;
}

/* --- a block's weights: u, input 4 v + j of output `lane` in byte 4 lane + j of register v --- */

INLINE __m512i load_vector(const uint8_t *w) {
  return _mm512_loadu_si512(w); /* units are no multiple of 64 bytes */
}

/* Bits of each byte moved up by `by`, or down where it is negative; across bytes, for a mask to follow. */
INLINE __m512i move_bits(__m512i v, const int by) {
  return by >= 0 ? _mm512_slli_epi16(v, (unsigned)by) : _mm512_srli_epi16(v, (unsigned)-by);
}

/* u | (plane & mask) */
INLINE __m512i add_plane(__m512i u, __m512i plane, int mask) {
  return _mm512_ternarylogic_epi32(u, plane, _mm512_set1_epi8((char)mask), 0xf8);
}

INLINE __m512i look_up(__m512i nibbles) {
  static const uint8_t table[16] = {CPU_TABLE};
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), nibbles);
}

/* Register i. */
INLINE __m512i weights_at(const uint8_t *w, const int i, const cpu_format f) {
  const int twos = f.bits & 4, ones = f.bits & 6; /* the lowest bit of each */
  __m512i u = _mm512_setzero_si512();
  if (f.bits & 8) return _mm512_xor_si512(load_vector(w + i * 64), _mm512_set1_epi8(-128));
  if (f.bits & 4)
    u = _mm512_and_si512(move_bits(load_vector(w + i % 4 * 64), i / 4 * -4), _mm512_set1_epi8(15));
  if (f.bits & 2)
    u = add_plane(u, move_bits(load_vector(w + cpu_twos_at(f) + i / 4 * 64), twos - 2 * (i % 4)), 3 << twos);
  if (f.bits & 1) u = add_plane(u, move_bits(load_vector(w + cpu_ones_at(f)), ones - i), 1 << ones);
  return f.table ? look_up(u) : u;
}

INLINE void load_weights(const uint8_t *w, __m512i v[VECTORS], const cpu_format f) {
  UNROLL for (int i = 0; i < VECTORS; i++) v[i] = weights_at(w, i, f);
}

/* --- its scales --- */

INLINE __m512 bytes_as_floats(const uint8_t *from) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)from)));
}

/* Pairs of int16, of the two halves of a block: scales, or minima. */
INLINE __m512i sub_pairs(const uint8_t *sub, const cpu_format f, const bool minima) {
  __m256i bytes = _mm256_load_si256((const __m256i *)sub);
  if (!f.minima) return _mm512_cvtepi8_epi16(bytes);
  bytes = minima ? _mm256_srli_epi16(bytes, 4) : bytes;
  return _mm512_cvtepu8_epi16(_mm256_and_si256(bytes, _mm256_set1_epi8(15)));
}
INLINE __m512i first_of(__m512i pairs) {
  return _mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16);
}
INLINE __m512i last_of(__m512i pairs) {
  return _mm512_srai_epi32(pairs, 16);
}

typedef struct scales { /* of a block, or of its two halves */
  __m512 d, m;          /* minima: what is added, without sub-scales, or else taken away */
  __m512i first, last;  /* sub = 16: the halves' scales */
  __m512i pairs;        /* sub = 16: the same as pairs of int16, */
  __m512i bias, minima; /* and what the halves' totals are multiplied with */
} scales;

INLINE scales load_scales(cpu_block k, const cpu_format f) {
  scales s = {.d = load_f16(k.scales)};
  if (f.minima) s.m = load_f16(k.scales + CPU_HALVES);
  if (f.sub == 32) {
    s.d = _mm512_mul_ps(s.d, bytes_as_floats(k.sub));
    s.m = _mm512_mul_ps(s.m, bytes_as_floats(k.sub + OPS_GROUP));
  }
  if (f.sub == 16) {
    s.pairs = sub_pairs(k.sub, f, false);
    s.first = first_of(s.pairs);
    s.last = last_of(s.pairs);
    s.bias = _mm512_mullo_epi16(s.pairs, _mm512_set1_epi16((short)-f.bias));
    if (f.minima) s.minima = sub_pairs(k.sub, f, true);
  }
  return s;
}

/* --- int8 activations --- */

/* sum + registers [first, first + count) times their activations */
INLINE __m512i dot_part(__m512i sum, const __m512i v[VECTORS], const int8_t *q, const int first,
                        const int count) {
  UNROLL for (int i = first; i < first + count; i++) sum = dot4(sum, v[i], q + 4 * i);
  return sum;
}

/* The sums of a block's halves, each times its scale. Up to three bits they fit 16 bits: 16 * 7 * 127. */
INLINE __m512i scaled_sum(__m512i first, __m512i last, const scales *s, const cpu_format f) {
  if (f.bits > 3)
    return _mm512_add_epi32(_mm512_mullo_epi32(s->first, first), _mm512_mullo_epi32(s->last, last));
  const __m512i pairs = _mm512_mask_blend_epi16(0xaaaaaaaa, first, _mm512_slli_epi32(last, 16));
  return _mm512_dpwssd_epi32(_mm512_setzero_si512(), pairs, s->pairs);
}

INLINE __m512i block_sum(const __m512i v[VECTORS], const scales *s, const int8_t *q, const cpu_total *total,
                         const cpu_format f) {
  const __m512i zero = _mm512_setzero_si512();
  if (f.sub == 16) {
    const __m512i first = dot_part(zero, v, q, 0, VECTORS / 2);
    const __m512i last = dot_part(zero, v, q, VECTORS / 2, VECTORS / 2);
    const __m512i sum = scaled_sum(first, last, s, f);
    return f.bias ? dot_total(sum, s->bias, total) : sum;
  }
  const __m512i sum = dot_part(zero, v, q, 0, VECTORS);
  if (!f.bias) return sum;
  return _mm512_sub_epi32(sum,
                          _mm512_slli_epi32(_mm512_set1_epi32(total->all), (unsigned)__builtin_ctz(f.bias)));
}

/* acc = fma(d * dx, isum, acc), and what minima add */
INLINE __m512 add_block(__m512 acc, const __m512i v[VECTORS], const scales *s, const cpu_act *x, size_t i,
                        const cpu_format f) {
  const __m512i sum = block_sum(v, s, x->q8 + i * OPS_BLOCK, &x->total[i], f);
  const __m512 dx = _mm512_set1_ps(x->scale[i]);
  acc = _mm512_fmadd_ps(_mm512_mul_ps(s->d, dx), _mm512_cvtepi32_ps(sum), acc);
  if (!f.minima) return acc;
  if (f.sub == 0) return _mm512_fmadd_ps(s->m, _mm512_set1_ps(x->sum[i]), acc);
  if (f.sub == 32) return _mm512_fnmadd_ps(s->m, _mm512_set1_ps(x->sum[i]), acc);
  const __m512i least = dot_total(_mm512_setzero_si512(), s->minima, &x->total[i]);
  return _mm512_fnmadd_ps(_mm512_mul_ps(s->m, dx), _mm512_cvtepi32_ps(least), acc);
}

INLINE void linear_int8(const void *group, const cpu_act *x, int32_t row, int32_t parts, float *out,
                        const cpu_format f, const int T) {
  const size_t blocks = (size_t)x->columns / OPS_BLOCK, step = cpu_unit_bytes(f) / cpu_unit_blocks(f);
  size_t end = cpu_part_at(x->columns, parts, 1) / OPS_BLOCK;
  int32_t part = 0;
  part_sums p;
  __m512 acc[ROWS_MAX];
  UNROLL for (int t = 0; t < T; t++) acc[t] = _mm512_setzero_ps();
  for (size_t b = 0; b < blocks; b++) {
    __m512i v[VECTORS];
    const cpu_block k = cpu_block_at(group, f, b);
    if (__builtin_expect(b == end, 0)) {
      end_part(&p, part++, acc, T);
      end = cpu_part_at(x->columns, parts, part + 1) / OPS_BLOCK;
    }
    prefetch((const uint8_t *)group + b * step, step, T);
    load_weights(k.planes, v, f);
    const scales s = load_scales(k, f);
    UNROLL for (int t = 0; t < T; t++) acc[t] =
        add_block(acc[t], v, &s, x, (size_t)(row + t) * blocks + b, f);
  }
  if (parts > 1) add_parts(&p, acc, T);
  store_tile(acc, out, T);
}

#define INT8(name, TYPE, ...)                                                                                \
  INLINE void name##_int8(const void *group, const cpu_act *x, int32_t row, int32_t parts, float *out,       \
                          const int T) {                                                                     \
    linear_int8(group, x, row, parts, out, (cpu_format){__VA_ARGS__}, T);                                    \
  }                                                                                                          \
  BY_ROWS(cpu_linear_##name##_int8_avx512, name##_int8)
CPU_FORMATS(INT8)

/* --- f32 activations --- */

/* One input: its 16 weights times each row's value. */
INLINE void add_input(__m512 *acc, __m512 w, const cpu_act *x, int32_t row, size_t k, const int T) {
  UNROLL for (int t = 0; t < T; t++) {
    __m512 value = _mm512_set1_ps(x->f32[(size_t)(row + t) * (size_t)x->columns + k]);
    acc[t] = _mm512_fmadd_ps(w, value, acc[t]);
  }
}

/* The weights of byte j of a register, in half `half` of a block. */
INLINE __m512 weight_values(__m512i v, const int j, const scales *s, const int half, const cpu_format f) {
  __m512i u = _mm512_and_si512(_mm512_srli_epi32(v, 8 * (unsigned)j), _mm512_set1_epi32(255));
  __m512 d = s->d, m = s->m;
  if (f.sub == 16) d = _mm512_mul_ps(d, _mm512_cvtepi32_ps(half ? s->last : s->first));
  if (!f.minima) return _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_sub_epi32(u, _mm512_set1_epi32(f.bias))));
  if (f.sub == 0) return _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(u), m);
  if (f.sub == 16) m = _mm512_mul_ps(m, _mm512_cvtepi32_ps(half ? last_of(s->minima) : first_of(s->minima)));
  return _mm512_fmsub_ps(d, _mm512_cvtepi32_ps(u), m);
}

INLINE void block_values(cpu_block k, const cpu_format f, float *w) {
  __m512i v[VECTORS];
  load_weights(k.planes, v, f);
  const scales s = load_scales(k, f);
  UNROLL for (int i = 0; i < VECTORS; i++) {
    UNROLL for (int j = 0; j < 4; j++)
        _mm512_store_ps(w + (4 * i + j) * OPS_GROUP, weight_values(v[i], j, &s, i / (VECTORS / 2), f));
  }
}

/* w [OPS_BLOCK][OPS_GROUP] times the inputs from k on of each row. */
INLINE void add_values(const float *w, const cpu_act *x, int32_t row, size_t k, float *out, const int T) {
  __m512 acc[ROWS_MAX];
  UNROLL for (int t = 0; t < T; t++) acc[t] = _mm512_loadu_ps(out + t * OPS_GROUP);
  for (size_t i = 0; i < OPS_BLOCK; i++) add_input(acc, _mm512_load_ps(w + i * OPS_GROUP), x, row, k + i, T);
  store_tile(acc, out, T);
}

static void add_rows(const float *w, const cpu_act *x, int32_t row, size_t k, int32_t rows, float *out) {
  ROWS_SWITCH(add_values, w, x, row, k, out);
}

/* Block by block, through memory of the nearest cache: the loop over rows is one for all types. */
INLINE void add_blocks(const void *group, const cpu_act *x, int32_t row, int32_t rows, size_t k, size_t end,
                       float *out, const cpu_format f) {
  _Alignas(64) float w[OPS_BLOCK * OPS_GROUP];
  memset(out, 0, (size_t)rows * OPS_GROUP * sizeof *out);
  for (; k < end; k += OPS_BLOCK) {
    block_values(cpu_block_at(group, f, k / OPS_BLOCK), f, w);
    add_rows(w, x, row, k, rows, out);
  }
}

INLINE void linear_f32(const void *group, const cpu_act *x, int32_t row, int32_t rows, int32_t parts,
                       float *out, const cpu_format f) {
  float sum[CPU_PARTS][ROWS_MAX * OPS_GROUP];
  for (int32_t i = 0; i < parts; i++) {
    add_blocks(group, x, row, rows, cpu_part_at(x->columns, parts, i), cpu_part_at(x->columns, parts, i + 1),
               parts == 1 ? out : sum[i], f);
  }
  for (int32_t i = 0; i < rows * OPS_GROUP && parts > 1; i++)
    out[i] = (sum[0][i] + sum[1][i]) + (sum[2][i] + sum[3][i]);
}

#define F32(name, TYPE, ...)                                                                                 \
  void cpu_linear_##name##_f32_avx512(const void *group, const cpu_act *x, int32_t row, int32_t rows,        \
                                      int32_t parts, float *out) {                                           \
    linear_f32(group, x, row, rows, parts, out, (cpu_format){__VA_ARGS__});                                  \
  }
CPU_FORMATS(F32)

/* Plain weights. */
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
  INLINE void type##_f32(const void *group, const cpu_act *x, int32_t row, int32_t parts, float *out,        \
                         const int T) {                                                                      \
    size_t end = cpu_part_at(x->columns, parts, 1);                                                          \
    int32_t part = 0;                                                                                        \
    part_sums p;                                                                                             \
    __m512 acc[ROWS_MAX];                                                                                    \
    UNROLL for (int t = 0; t < T; t++) acc[t] = _mm512_setzero_ps();                                         \
    for (size_t k = 0; k < (size_t)x->columns; k++) {                                                        \
      if (__builtin_expect(k == end, 0)) {                                                                   \
        end_part(&p, part++, acc, T);                                                                        \
        end = cpu_part_at(x->columns, parts, part + 1);                                                      \
      }                                                                                                      \
      add_input(acc, type##_lanes(group, k), x, row, k, T);                                                  \
    }                                                                                                        \
    if (parts > 1) add_parts(&p, acc, T);                                                                    \
    store_tile(acc, out, T);                                                                                 \
  }
PLAIN(f32)
PLAIN(f16)
PLAIN(bf16)

BY_ROWS(cpu_linear_f32_avx512, f32_f32)
BY_ROWS(cpu_linear_f16_avx512, f16_f32)
BY_ROWS(cpu_linear_bf16_avx512, bf16_f32)
#endif
