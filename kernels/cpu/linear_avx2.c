#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/linear_256.h"

/* --- int8 activations: sums of pairs of products, in 16 bits as far as they fit --- */

/* A sum of a pair of products is at most 2 * 127 * u: 3810 with four bits, 7874 with five, 16002 with six. */
INLINE int run_length(const cpu_format f) {
  return f.bits == 6 ? 2 : f.bits == 5 || f.sub == 16 ? 4 : 8;
}

INLINE __m256i run_first(__m256i u, __m256i four) {
  return _mm256_maddubs_epi16(u, four);
}

INLINE __m256i run_more(__m256i run, __m256i u, __m256i four) {
  return _mm256_add_epi16(run, _mm256_maddubs_epi16(u, four));
}

INLINE __m256i widen(__m256i run) {
  return _mm256_madd_epi16(run, _mm256_set1_epi16(1));
}

INLINE __m256i widen_scaled(__m256i run, __m256i factors) {
  return _mm256_madd_epi16(run, factors);
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

INLINE int bytes_bias(void) {
  return 0;
}

/* With one row it costs a tenth on Zen 4, whose hardware looks far enough; with more it gains one. */
INLINE bool asks_ahead(const int T) {
  return T > 1;
}

#define INT8(name, ...) BY_ROWS(cpu_linear_##name##_int8_avx2, name##_int8)
CPU_FORMATS(INT8)

/* --- f32 activations --- */

/* One input: its 16 weights times each row's value. */
INLINE void tile_add(tile *a, __m256 w0, __m256 w1, const cpu_act *x, int32_t row, size_t k, const int T) {
  UNROLL for (int t = 0; t < T; t++) {
    __m256 value = _mm256_set1_ps(x->f32[(size_t)(row + t) * (size_t)x->columns + k]);
    a->acc[t][0] = _mm256_fmadd_ps(w0, value, a->acc[t][0]);
    a->acc[t][1] = _mm256_fmadd_ps(w1, value, a->acc[t][1]);
  }
}

/* Byte j of every lane: u, with its bias off where there are no minima. */
INLINE __m256 number_at(__m256i v, const int j, const cpu_format f) {
  if (is_signed(f)) return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * j), 24));
  __m256i u = _mm256_and_si256(_mm256_srli_epi32(v, 8 * j), _mm256_set1_epi32(255));
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(u, _mm256_set1_epi32(f.bias)));
}

INLINE __m256 high_as_floats(__m256i pairs) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(pairs, 16));
}

/* The weights of vector i in half h of a group: [4][OPS_GROUP]. */
INLINE void vector_values(cpu_block k, const scales *s, const int i, const int h, const cpu_format f,
                          float *w) {
  const __m256i v = weights_at(k.planes, i, h, f);
  __m256 d = s->d[h], m = s->m[h];
  if (f.sub == 16) {
    __m256i pairs = sub_pairs(k.sub, h, f, false);
    d = _mm256_mul_ps(d, high_as_floats(i < CPU_VECTORS / 2 ? first_of(pairs) : pairs));
    if (f.minima)
      m = _mm256_mul_ps(m, high_as_floats(i < CPU_VECTORS / 2 ? first_of(s->minima[h]) : s->minima[h]));
  }
  UNROLL for (int j = 0; j < 4; j++) {
    __m256 u = number_at(v, j, f), value = _mm256_mul_ps(d, u);
    if (f.minima) value = f.sub ? _mm256_fmsub_ps(d, u, m) : _mm256_fmadd_ps(d, u, m);
    _mm256_store_ps(w + j * OPS_GROUP + h * HALF, value);
  }
}

/* w [OPS_BLOCK][OPS_GROUP] times the inputs from k on of each row. */
INLINE void add_values(const float *w, const cpu_act *x, int32_t row, size_t k, float *out, const int T) {
  tile a;
  UNROLL for (int t = 0; t < T; t++) {
    a.acc[t][0] = _mm256_loadu_ps(out + t * OPS_GROUP);
    a.acc[t][1] = _mm256_loadu_ps(out + t * OPS_GROUP + HALF);
  }
  for (size_t i = 0; i < OPS_BLOCK; i++, w += OPS_GROUP)
    tile_add(&a, _mm256_load_ps(w), _mm256_load_ps(w + HALF), x, row, k + i, T);
  tile_store(&a, out, T);
}

static void add_rows(const float *w, const cpu_act *x, int32_t row, size_t k, int32_t rows, float *out) {
  ROWS_SWITCH(add_values, w, x, row, k, out);
}

/* Block by block, through memory of the nearest cache: the loop over rows is one for all types. */
INLINE void add_blocks(const void *group, const cpu_act *x, int32_t row, int32_t rows, size_t k, size_t end,
                       float *out, const cpu_format f) {
  _Alignas(32) float w[OPS_BLOCK * OPS_GROUP];
  memset(out, 0, (size_t)rows * OPS_GROUP * sizeof *out);
  for (; k < end; k += OPS_BLOCK) {
    const cpu_block b = cpu_block_at(group, f, k / OPS_BLOCK);
    const scales s = load_scales(b, 0, f);
    UNROLL for (int i = 0; i < CPU_VECTORS; i++) {
      UNROLL for (int h = 0; h < 2; h++) vector_values(b, &s, i, h, f, w + 4 * i * OPS_GROUP);
    }
    add_rows(w, x, row, k, rows, out);
  }
}

INLINE void linear_f32(const void *group, const cpu_act *x, int32_t row, int32_t rows, int32_t parts,
                       float *out, const cpu_format f) {
  float sum[CPU_PARTS][LINEAR_AVX2_ROWS * OPS_GROUP];
  for (int32_t i = 0; i < parts; i++) {
    add_blocks(group, x, row, rows, cpu_part_at(x->columns, parts, i), cpu_part_at(x->columns, parts, i + 1),
               parts == 1 ? out : sum[i], f);
  }
  for (int32_t i = 0; i < rows * OPS_GROUP && parts > 1; i++)
    out[i] = (sum[0][i] + sum[1][i]) + (sum[2][i] + sum[3][i]);
}

#define F32(name, TYPE, ...)                                                                                 \
  void cpu_linear_##name##_f32_avx2(const void *group, const cpu_act *x, int32_t row, int32_t rows,          \
                                    int32_t parts, float *out) {                                             \
    linear_f32(group, x, row, rows, parts, out, (cpu_format){__VA_ARGS__});                                  \
  }
CPU_FORMATS(F32)

/* Plain weights. */

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
  INLINE void type##_f32(const void *group, const cpu_act *x, int32_t row, int32_t parts, float *out,        \
                         const int T) {                                                                      \
    size_t end = cpu_part_at(x->columns, parts, 1);                                                          \
    int32_t part = 0;                                                                                        \
    part_sums p;                                                                                             \
    tile a;                                                                                                  \
    tile_zero(&a, T);                                                                                        \
    for (size_t k = 0; k < (size_t)x->columns; k++) {                                                        \
      if (__builtin_expect(k == end, 0)) {                                                                   \
        end_part(&p, part++, &a, T);                                                                         \
        end = cpu_part_at(x->columns, parts, part + 1);                                                      \
      }                                                                                                      \
      __m256 w0 = type##_lanes(group, k * OPS_GROUP), w1 = type##_lanes(group, k * OPS_GROUP + HALF);        \
      tile_add(&a, w0, w1, x, row, k, T);                                                                    \
    }                                                                                                        \
    if (parts > 1) add_parts(&p, &a, T);                                                                     \
    tile_store(&a, out, T);                                                                                  \
  }
PLAIN(f32)
PLAIN(f16)
PLAIN(bf16)

BY_ROWS(cpu_linear_f32_avx2, f32_f32)
BY_ROWS(cpu_linear_f16_avx2, f16_f32)
BY_ROWS(cpu_linear_bf16_avx2, bf16_f32)
#endif
