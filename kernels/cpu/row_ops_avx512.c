#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/attention_avx512.h"
#include "kernels/cpu/rank.h"
#include "kernels/cpu/sample.h"
#include "kernels/cpu/linear_avx512.h"
#include "kernels/cpu/linear_step.h"
#include "kernels/cpu/math_avx512.h"
#include "kernels/cpu/row_ops_avx2.h"
#include "kernels/cpu/row_ops_c.h"

#define LANES 16

/* --- quantize: blocks in batches, so that what is one number a block is done for sixteen of them at once ---
 */

#define BATCH LANES

static inline __m512i magnitude(const float *x) {
  return _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi32(0x7fffffff));
}

/* As cpu_larger has it. */
static void largest_of(const float *x, int32_t blocks, float *out) {
  for (int32_t b = 0; b < blocks; b++, x += OPS_BLOCK)
    out[b] = cpu_float_of(_mm512_reduce_max_epu32(_mm512_max_epu32(magnitude(x), magnitude(x + LANES))));
}

/* 32 inputs as bytes. */
static inline void quantize_block(int8_t *q, const float *x, float inverse) {
  const __m512 limit = _mm512_set1_ps(127.0f), least = _mm512_set1_ps(-127.0f),
               scale = _mm512_set1_ps(inverse);
  for (int i = 0; i < OPS_BLOCK; i += LANES) {
    __m512 v = _mm512_max_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), scale), least);
    __m512i whole = _mm512_cvtps_epi32(_mm512_min_ps(v, limit));
    _mm_storeu_si128((__m128i *)(q + i), _mm512_cvtepi32_epi8(whole));
  }
}

/* The sums of one or two blocks: bytes + 128, eight at a time, then two and four of these. */
static inline void sum_blocks(cpu_total *total, const int8_t *q, int32_t blocks) {
  const __mmask16 used = blocks > 1 ? 0xffff : 0xff;
  __m512i v = _mm512_xor_si512(_mm512_maskz_loadu_epi32(used, q), _mm512_set1_epi8(-128));
  v = _mm512_sad_epu8(v, _mm512_setzero_si512());
  v = _mm512_add_epi64(v, _mm512_shuffle_epi32(v, _MM_PERM_BADC));
  /* Each 128 bits: a half's sum + 2048, twice; the other half of its block beside it. */
  const __m512i off = _mm512_set1_epi64(128 * OPS_BLOCK / 2);
  v = _mm512_sub_epi64(v, off);
  const __m512i other = _mm512_shuffle_i64x2(v, v, _MM_SHUFFLE(2, 3, 0, 1));
  const __m512i all = _mm512_add_epi64(v, other);
  const __m512i halves = _mm512_or_si512(
      _mm512_slli_epi64(_mm512_and_si512(v, _mm512_set1_epi64(0xffff)), 32), _mm512_slli_epi64(other, 48));
  const __m512i both = _mm512_or_si512(_mm512_and_si512(all, _mm512_set1_epi64(0xffffffff)), halves);
  const int64_t first = _mm_cvtsi128_si64(_mm512_castsi512_si128(both));
  const int64_t second = _mm_cvtsi128_si64(_mm512_extracti32x4_epi32(both, 2));
  memcpy(total, &first, sizeof *total);
  if (blocks > 1) memcpy(total + 1, &second, sizeof *total);
}

static void quantize_batch(int8_t *q, float *scale, float *sum, cpu_total *total, const float *x,
                           int32_t blocks) {
  _Alignas(64) float largest[BATCH] = {0}, inverse[BATCH];
  const __mmask16 used = (__mmask16)((1u << blocks) - 1);
  largest_of(x, blocks, largest);
  const __m512 m = _mm512_load_ps(largest), limit = _mm512_set1_ps(127.0f);
  const __mmask16 some = _mm512_cmp_ps_mask(m, _mm512_setzero_ps(), _CMP_GT_OQ);
  const __m512 step = _mm512_div_ps(m, limit);
  _mm512_store_ps(inverse, _mm512_maskz_div_ps(some, limit, m));
  for (int32_t b = 0; b < blocks; b++) quantize_block(q + b * OPS_BLOCK, x + b * OPS_BLOCK, inverse[b]);
  for (int32_t b = 0; b < blocks; b += 2) sum_blocks(total + b, q + b * OPS_BLOCK, blocks - b);
  _Alignas(64) int32_t all[BATCH] = {0};
  for (int32_t b = 0; b < blocks; b++) all[b] = total[b].all;
  _mm512_mask_storeu_ps(scale, used, step);
  _mm512_mask_storeu_ps(sum, used, _mm512_mul_ps(step, _mm512_cvtepi32_ps(_mm512_load_si512(all))));
}

static void quantize_avx512(int8_t *q, float *scale, float *sum, cpu_total *total, const float *x,
                            int32_t n) {
  for (int32_t b = 0, blocks = n / OPS_BLOCK; b < blocks; b += BATCH) {
    int32_t count = blocks - b < BATCH ? blocks - b : BATCH;
    quantize_batch(q + b * OPS_BLOCK, scale + b, sum + b, total + b, x + b * OPS_BLOCK, count);
  }
}

static void swiglu_avx512(float *y, const float *gate, const float *up, int32_t n) {
  const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
  int32_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    __m512 x = _mm512_loadu_ps(gate + i);
    __m512 silu = _mm512_div_ps(x, _mm512_add_ps(one, cpu_exp_avx512(_mm512_xor_ps(x, sign))));
    _mm512_storeu_ps(y + i, _mm512_mul_ps(silu, _mm512_loadu_ps(up + i)));
  }
  cpu_swiglu_c(y + i, gate + i, up + i, n - i);
}

#define INT8_KERNEL(name, TYPE, ...) [OPS_##TYPE] = cpu_linear_##name##_int8_avx512,
#define F32_KERNEL(name, TYPE, ...)  [OPS_##TYPE] = cpu_linear_##name##_f32_avx512,
const cpu_kernels cpu_kernels_avx512 = {
    .name = "avx512",
    .rows_max = CPU_ROWS_MAX,
    .linear_int8 = {CPU_FORMATS(INT8_KERNEL)},
    .linear_f32 = {[OPS_F32] = cpu_linear_f32_avx512,
                   [OPS_F16] = cpu_linear_f16_avx512,
                   [OPS_BF16] = cpu_linear_bf16_avx512,
                   CPU_FORMATS(F32_KERNEL)},
    .linear_step = cpu_linear_step_avx512,
    .norm = cpu_norm_avx2,
    .quantize = quantize_avx512,
    .rope = cpu_rope_avx2,
    .store = cpu_store_avx2,
    .attention = cpu_attention_avx512,
    .attention_join = cpu_attention_join_avx512,
    .mass = cpu_mass_avx512,
    .swiglu = swiglu_avx512,
    .sample = cpu_sample_avx512,
    .rank = cpu_rank_outputs_avx512,
};
#endif
