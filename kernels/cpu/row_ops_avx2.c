#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/attention_avx2.h"
#include "kernels/cpu/rank.h"
#include "kernels/cpu/sample.h"
#include "kernels/cpu/linear_avx2.h"
#include "kernels/cpu/linear_step.h"
#include "kernels/cpu/math_avx2.h"
#include "kernels/cpu/row_ops_avx2.h"
#include "kernels/cpu/row_ops_c.h"

#define LANES CPU_LANES

#define FOUR_EIGHTS (4 * CPU_EIGHT)

/* The squares of eight inputs, of which n are there. */
static __m256 squares_of(const float *x, int32_t n) {
  float eight[CPU_EIGHT] = {0};
  if (n <= 0) return _mm256_setzero_ps();
  if (n < CPU_EIGHT) x = memcpy(eight, x, (size_t)n * sizeof *x);
  const __m256 v = _mm256_loadu_ps(x);
  return _mm256_mul_ps(v, v);
}

/* Of four times eight inputs, of which n are there: the sum of each eight. */
static __m128 sum_eights(const float *x, int32_t n) {
  const __m256 a = squares_of(x, n), b = squares_of(x + CPU_EIGHT, n - CPU_EIGHT),
               c = squares_of(x + 2 * CPU_EIGHT, n - 2 * CPU_EIGHT),
               d = squares_of(x + 3 * CPU_EIGHT, n - 3 * CPU_EIGHT);
  const __m256 fours = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1));
}

/* n > 0 inputs of a chunk. */
static float chunk_squares(const float *x, int32_t n) {
  __m128 s[OPS_NORM_CHUNK / FOUR_EIGHTS];
  for (int32_t i = 0; i < OPS_NORM_CHUNK / FOUR_EIGHTS; i++)
    s[i] = n > i * FOUR_EIGHTS ? sum_eights(x + i * FOUR_EIGHTS, n - i * FOUR_EIGHTS) : _mm_setzero_ps();
  for (int32_t by = OPS_NORM_CHUNK / FOUR_EIGHTS / 2; by > 0; by /= 2)
    for (int32_t i = 0; i < by; i++) s[i] = _mm_add_ps(s[i], s[i + by]);
  s[0] = _mm_add_ps(s[0], _mm_movehl_ps(s[0], s[0]));
  return _mm_cvtss_f32(s[0]) + _mm_cvtss_f32(_mm_movehdup_ps(s[0]));
}

void cpu_norm_avx2(float *y, const float *x, const float *w, int32_t n, float eps) {
  float squares = 0.0f;
  for (int32_t i = 0; i < n; i += OPS_NORM_CHUNK)
    squares += chunk_squares(x + i, n - i < OPS_NORM_CHUNK ? n - i : OPS_NORM_CHUNK);
  float scale = cpu_norm_scale(squares, n, eps);
  int32_t k = 0;
  for (; k + LANES <= n; k += LANES) {
    __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + k), _mm256_set1_ps(scale));
    _mm256_storeu_ps(y + k, _mm256_mul_ps(v, _mm256_loadu_ps(w + k)));
  }
  for (; k < n; k++) y[k] = x[k] * scale * w[k];
}

/* As cpu_larger has it. */
static float largest_magnitude(const float *x) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i m = _mm256_setzero_si256();
  for (int i = 0; i < OPS_BLOCK; i += LANES)
    m = _mm256_max_epu32(_mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + i)), magnitude), m);
  m = _mm256_max_epu32(m, _mm256_permute2x128_si256(m, m, 1));
  m = _mm256_max_epu32(m, _mm256_shuffle_epi32(m, 0x4e));
  m = _mm256_max_epu32(m, _mm256_shuffle_epi32(m, 0xb1));
  return cpu_float_of((uint32_t)_mm256_cvtsi256_si32(m));
}

/* The sums of 16 numbers each; they fit 16 bits. */
static cpu_total sums_of(__m256i first, __m256i last) {
  __m256i s = _mm256_hadd_epi32(first, last);
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  half = _mm_hadd_epi32(half, half);
  int32_t a = _mm_cvtsi128_si32(half), b = _mm_extract_epi32(half, 1);
  return (cpu_total){a + b, (int16_t)a, (int16_t)b};
}

static void quantize_block(int8_t *q, float *scale, float *sum, cpu_total *total, const float *x) {
  float largest = largest_magnitude(x);
  __m256 inverse = _mm256_set1_ps(largest > 0.0f ? 127.0f / largest : 0.0f);
  __m256i v[4];
  for (int i = 0; i < 4; i++) {
    __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + i * LANES), inverse);
    scaled = _mm256_max_ps(scaled, _mm256_set1_ps(-127.0f));
    v[i] = _mm256_cvtps_epi32(_mm256_min_ps(scaled, _mm256_set1_ps(127.0f)));
  }
  __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
  bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256((__m256i *)q, bytes);
  *scale = largest / 127.0f;
  *total = sums_of(_mm256_add_epi32(v[0], v[1]), _mm256_add_epi32(v[2], v[3]));
  *sum = *scale * (float)total->all;
}

void cpu_quantize_avx2(int8_t *q, float *scale, float *sum, cpu_total *total, const float *x, int32_t n) {
  for (int32_t b = 0; b < n / OPS_BLOCK; b++) {
    quantize_block(q + b * OPS_BLOCK, scale + b, sum + b, total + b, x + b * OPS_BLOCK);
  }
}

void cpu_rope_avx2(float *y, const float *x, const float *cosine, const float *sine, int32_t n) {
  int32_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    __m256 v = _mm256_loadu_ps(x + i), swapped = _mm256_permute_ps(v, 0xb1);
    __m256 product = _mm256_mul_ps(v, _mm256_loadu_ps(cosine + i));
    _mm256_storeu_ps(y + i, _mm256_fmadd_ps(swapped, _mm256_loadu_ps(sine + i), product));
  }
  cpu_rope_c(y + i, x + i, cosine + i, sine + i, n - i);
}

/* As cpu_to_f16: infinities become NaNs. */
static __m128i to_f16(__m256 x) {
  __m128i h = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
  __m128i magnitude = _mm_and_si128(h, _mm_set1_epi16(0x7fff));
  __m128i infinite = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7c00));
  return _mm_or_si128(h, _mm_and_si128(infinite, _mm_set1_epi16(0x0200)));
}

static void store_f16_avx2(uint16_t *to, size_t stride, const float *x, int32_t n) {
  for (int32_t i = 0; i < n; i += LANES) {
    __m128i h = to_f16(_mm256_loadu_ps(x + i));
    if (stride == 1) {
      _mm_storeu_si128((__m128i *)(to + i), h);
      continue;
    }
    uint16_t lane[LANES];
    _mm_storeu_si128((__m128i *)lane, h);
    for (int k = 0; k < LANES; k++) to[((size_t)i + (size_t)k) * stride] = lane[k];
  }
}

void cpu_store_avx2(ops_kv_type type, void *to, int32_t stride, const float *x, int32_t n) {
  if (type == OPS_KV_F16 && n % LANES == 0)
    store_f16_avx2(to, (size_t)stride, x, n);
  else
    cpu_store_c(type, to, stride, x, n);
}

void cpu_swiglu_avx2(float *y, const float *gate, const float *up, int32_t n) {
  const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
  int32_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    __m256 x = _mm256_loadu_ps(gate + i);
    __m256 silu = _mm256_div_ps(x, _mm256_add_ps(one, cpu_exp_avx2(_mm256_xor_ps(x, sign))));
    _mm256_storeu_ps(y + i, _mm256_mul_ps(silu, _mm256_loadu_ps(up + i)));
  }
  cpu_swiglu_c(y + i, gate + i, up + i, n - i);
}

#define INT8_KERNEL(name, TYPE, ...) [OPS_##TYPE] = cpu_linear_##name##_int8_avx2,
#define F32_KERNEL(name, TYPE, ...)  [OPS_##TYPE] = cpu_linear_##name##_f32_avx2,
const cpu_kernels cpu_kernels_avx2 = {
    .name = "avx2",
    .rows_max = LINEAR_AVX2_ROWS,
    .linear_int8 = {CPU_FORMATS(INT8_KERNEL)},
    .linear_f32 = {[OPS_F32] = cpu_linear_f32_avx2,
                   [OPS_F16] = cpu_linear_f16_avx2,
                   [OPS_BF16] = cpu_linear_bf16_avx2,
                   CPU_FORMATS(F32_KERNEL)},
    .linear_step = cpu_linear_step_avx2,
    .norm = cpu_norm_avx2,
    .quantize = cpu_quantize_avx2,
    .rope = cpu_rope_avx2,
    .store = cpu_store_avx2,
    .attention = cpu_attention_avx2,
    .attention_join = cpu_attention_join_avx2,
    .mass = cpu_mass_avx2,
    .swiglu = cpu_swiglu_avx2,
    .sample = cpu_sample_avx2,
    .rank = cpu_rank_outputs_avx2,
};
#endif
