#include "kernels/cpu/row_ops_c.h"
#include "kernels/cpu/rank.h"
#include "kernels/cpu/sample.h"
#include "kernels/cpu/cpu_math.h"
#include "kernels/cpu/linear_c.h"
#include "kernels/cpu/linear_step.h"

#include <assert.h>

#define INT8_MAX_F    127.0f
#define ALWAYS_INLINE inline __attribute__((always_inline))

static_assert(CPU_EIGHT * CPU_EIGHTS == OPS_NORM_CHUNK, "a chunk is summed in eights");

/* n > 0 inputs of a chunk. */
static float chunk_squares(const float *x, int32_t n) {
  float sums[CPU_EIGHTS] = {0};
  for (int32_t i = 0; i < n; i += CPU_EIGHT) {
    float eight[CPU_EIGHT] = {0};
    for (int32_t k = 0; k < CPU_EIGHT && i + k < n; k++) eight[k] = x[i + k];
    sums[i / CPU_EIGHT] = cpu_eight_squares(eight);
  }
  for (int32_t by = CPU_EIGHTS / 2; by > 0; by /= 2)
    for (int32_t i = 0; i < by; i++) sums[i] += sums[i + by];
  return sums[0];
}

void cpu_norm_c(float *y, const float *x, const float *w, int32_t n, float eps) {
  float squares = 0.0f;
  for (int32_t i = 0; i < n; i += OPS_NORM_CHUNK)
    squares += chunk_squares(x + i, n - i < OPS_NORM_CHUNK ? n - i : OPS_NORM_CHUNK);
  float scale = cpu_norm_scale(squares, n, eps);
  for (int32_t i = 0; i < n; i++) y[i] = x[i] * scale * w[i];
}

static void quantize_block(int8_t *q, float *scale, float *sum, cpu_total *total, const float *x) {
  float largest = 0.0f;
  int32_t sums[2] = {0};
  for (int32_t i = 0; i < OPS_BLOCK; i++) largest = cpu_larger(largest, x[i]);
  float inverse = largest > 0.0f ? INT8_MAX_F / largest : 0.0f;
  *scale = largest / INT8_MAX_F;
  for (int32_t i = 0; i < OPS_BLOCK; i++) {
    float v = x[i] * inverse; /* the guard bounds a NaN, and what a subnormal `largest` makes of the rest */
    v = v > -INT8_MAX_F ? v : -INT8_MAX_F;
    v = v < INT8_MAX_F ? v : INT8_MAX_F;
    q[i] = (int8_t)lrintf(v);
    sums[i / (OPS_BLOCK / 2)] += q[i];
  }
  *total = (cpu_total){sums[0] + sums[1], (int16_t)sums[0], (int16_t)sums[1]};
  *sum = *scale * (float)total->all;
}

void cpu_quantize_c(int8_t *q, float *scale, float *sum, cpu_total *total, const float *x, int32_t n) {
  for (int32_t b = 0; b < n / OPS_BLOCK; b++) {
    quantize_block(q + b * OPS_BLOCK, scale + b, sum + b, total + b, x + b * OPS_BLOCK);
  }
}

void cpu_rope_c(float *y, const float *x, const float *cosine, const float *sine, int32_t n) {
  for (int32_t i = 0; i < n; i += 2) {
    float even = x[i], odd = x[i + 1];
    y[i] = fmaf(odd, sine[i], even * cosine[i]);
    y[i + 1] = fmaf(even, sine[i + 1], odd * cosine[i + 1]);
  }
}

void cpu_store_c(ops_kv_type type, void *to, int32_t stride, const float *x, int32_t n) {
  for (int32_t i = 0; i < n; i++) {
    if (type == OPS_KV_F16)
      ((uint16_t *)to)[(size_t)i * (size_t)stride] = cpu_to_f16(x[i]);
    else
      ((float *)to)[(size_t)i * (size_t)stride] = x[i];
  }
}

static ALWAYS_INLINE float element(ops_kv_type type, const void *data, size_t i) {
  return type == OPS_KV_F16 ? cpu_f16(((const uint16_t *)data)[i]) : ((const float *)data)[i];
}

/* Where the row's logical position p is, in the cache or among the staged rows. */
static ALWAYS_INLINE size_t row_at(const cpu_row *r, int32_t p) {
  return p >= r->length ? (size_t)r->path[p - r->length] : cpu_row_at(r->kv, p);
}

static ALWAYS_INLINE float dot_with_key(const cpu_attention *a, const cpu_row *r, int32_t p, const float *q) {
  const void *keys = p >= r->length ? a->stage_keys : a->keys;
  size_t at = row_at(r, p), first = at / OPS_TILE * (size_t)a->head_dim * OPS_TILE + at % OPS_TILE;
  float dot = 0.0f;
  for (int32_t d = 0; d < a->head_dim; d++)
    dot = fmaf(q[d], element(a->type, keys, first + (size_t)d * OPS_TILE), dot);
  return dot;
}

static ALWAYS_INLINE void add_value(const cpu_attention *a, const cpu_row *r, int32_t p, float weight,
                                    float *y) {
  const void *values = p >= r->length ? a->stage_values : a->values;
  size_t first = row_at(r, p) * (size_t)a->head_dim;
  for (int32_t d = 0; d < a->head_dim; d++)
    y[d] = fmaf(weight, element(a->type, values, first + (size_t)d), y[d]);
}

/* The chunk's positions up to `to`: e become their exp(score - largest), y their values, weighted by it. */
static ALWAYS_INLINE void attention_chunk(const cpu_attention *a, int32_t row, int32_t from, int32_t to,
                                          float largest, float *e, float *y) {
  for (int32_t i = 0; i < OPS_CHUNK; i++) e[i] = 0.0f;
  for (int32_t d = 0; d < a->head_dim; d++) y[d] = 0.0f;
  for (int32_t p = from; (p = cpu_seen(a, row, p, to).first) < to; p++) {
    e[p - from] = cpu_exp(a->scores[p % OPS_SPLIT] - largest);
    add_value(a, &a->row[row], p, e[p - from], y);
  }
}

/* The positions [from, to) of a split: y becomes their values, weighted by exp(score - largest). */
static ALWAYS_INLINE cpu_softmax attention_split(const cpu_attention *a, int32_t row, const float *q,
                                                 int32_t from, int32_t to, float *y) {
  float lane[CPU_LANES] = {0}, e[OPS_CHUNK], values[OPS_HEAD_DIM_MAX];
  cpu_softmax s = {.largest = -INFINITY};
  for (int32_t p = from; (p = cpu_seen(a, row, p, to).first) < to; p++) {
    const float score = dot_with_key(a, &a->row[row], p, q) * a->scale;
    a->scores[p % OPS_SPLIT] = score;
    s.largest = score > s.largest ? score : s.largest;
  }
  for (int32_t d = 0; d < a->head_dim; d++) y[d] = 0.0f;
  for (int32_t p = from; p < to; p += OPS_CHUNK) {
    attention_chunk(a, row, p, p + OPS_CHUNK < to ? p + OPS_CHUNK : to, s.largest, e, values);
    for (int32_t i = 0; i < CPU_LANES; i++)
      lane[i] += (e[i] + e[i + 2 * CPU_LANES]) + (e[i + CPU_LANES] + e[i + 3 * CPU_LANES]);
    for (int32_t d = 0; d < a->head_dim; d++) y[d] += values[d];
  }
  s.sum = cpu_lane_sum(lane);
  return s;
}

/* y = the splits so far, which come to *all, and one more. */
static ALWAYS_INLINE void attention_add(float *y, cpu_softmax *all, const float *values, cpu_softmax split,
                                        int32_t dim) {
  if (all->sum < 0) {
    *all = split;
    memmove(y, values, (size_t)dim * sizeof *y);
    return;
  }
  const cpu_factors f = cpu_softmax_join(all, split);
  for (int32_t d = 0; d < dim; d++) y[d] = fmaf(values[d], f.split, y[d] * f.before);
}

static ALWAYS_INLINE void attention_head(const cpu_attention *a, int32_t query, const float *q, float *y) {
  float values[OPS_HEAD_DIM_MAX];
  cpu_softmax all = CPU_SEES_NOTHING;
  const int32_t row = query / a->heads, dim = a->head_dim, end = cpu_keys_end(a, row);
  for (int32_t s = a->split; s < a->split_end; s++) {
    const int32_t from = s * OPS_SPLIT, to = end - from < OPS_SPLIT ? end : from + OPS_SPLIT;
    const bool sees = from < to && cpu_seen(a, row, from, to).first < to;
    const size_t part = a->split_sums ? cpu_split_at(a, query, s) : 0;
    float *into = a->split_sums ? a->split_values + part * (size_t)dim : values;
    cpu_softmax split = sees ? attention_split(a, row, q, from, to, into) : CPU_SEES_NOTHING;
    if (a->split_sums)
      a->split_sums[part] = split;
    else if (sees)
      attention_add(y, &all, values, split, dim);
  }
  for (int32_t d = 0; d < dim && !a->split_sums; d++) y[d] *= 1.0f / all.sum;
}

static ALWAYS_INLINE void attention_queries(const cpu_attention *a) {
  for (int32_t i = 0; i < a->rows * a->heads; i++)
    attention_head(a, i, a->q + cpu_query_at(a, i), a->y + cpu_query_at(a, i));
}

static ALWAYS_INLINE void join_queries(const cpu_attention *a) {
  for (int32_t i = 0; i < a->rows * a->heads; i++) {
    float *y = a->y + cpu_query_at(a, i);
    cpu_softmax all = CPU_SEES_NOTHING;
    for (int32_t s = a->split; s < a->split_end; s++) {
      const size_t part = cpu_split_at(a, i, s);
      if (a->split_sums[part].sum < 0) continue;
      attention_add(y, &all, a->split_values + part * (size_t)a->head_dim, a->split_sums[part], a->head_dim);
    }
    for (int32_t d = 0; d < a->head_dim; d++) y[d] *= 1.0f / all.sum;
  }
}

/* What a split comes to for one query; tiles [CPU_SPLIT_TILES]. */
static ALWAYS_INLINE cpu_softmax mass_split(const cpu_attention *a, const float *q, int32_t from, int32_t end,
                                            float *tiles) {
  cpu_softmax s = {-INFINITY, 0.0f};
  const int32_t to = end < from + OPS_SPLIT ? end : from + OPS_SPLIT;
  for (int32_t p = from; p < to; p++) {
    a->scores[p - from] = dot_with_key(a, a->row, p, q) * a->scale;
    s.largest = a->scores[p - from] > s.largest ? a->scores[p - from] : s.largest;
  }
  for (int32_t t = 0; t < CPU_SPLIT_TILES; t++) {
    float e[OPS_TILE] = {0};
    for (int32_t i = 0; i < OPS_TILE && from + t * OPS_TILE + i < to; i++)
      e[i] = cpu_exp(a->scores[t * OPS_TILE + i] - s.largest);
    tiles[t] = cpu_tile_sum(e);
    s.sum += tiles[t];
  }
  return s;
}

static ALWAYS_INLINE void mass_heads(const cpu_attention *a, const cpu_mass *m) {
  for (int32_t h = 0; h < a->heads; h++) {
    for (int32_t s = a->split; s < a->split_end; s++) {
      const size_t part = (size_t)h * (size_t)m->splits + (size_t)s;
      m->sums[part] = mass_split(a, a->q + cpu_query_at(a, h), s * OPS_SPLIT, cpu_keys_end(a, 0),
                                 m->tiles + part * CPU_SPLIT_TILES);
    }
  }
}

/* The same C twice: where the processor has it, fmaf is an instruction and no call, which each start waits
 * for in the self-test. The bits are those of fmaf. */
#define WITH_FMA __attribute__((target("avx2,fma")))

WITH_FMA static void attention_queries_fma(const cpu_attention *a) {
  attention_queries(a);
}

WITH_FMA static void join_queries_fma(const cpu_attention *a) {
  join_queries(a);
}

WITH_FMA static void mass_heads_fma(const cpu_attention *a, const cpu_mass *m) {
  mass_heads(a, m);
}

static bool has_fma(void) {
  return __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
}

void cpu_attention_c(const cpu_attention *a) {
  if (has_fma())
    attention_queries_fma(a);
  else
    attention_queries(a);
}

void cpu_attention_join_c(const cpu_attention *a) {
  if (has_fma())
    join_queries_fma(a);
  else
    join_queries(a);
}

void cpu_mass_c(const cpu_attention *a, const cpu_mass *m) {
  if (has_fma())
    mass_heads_fma(a, m);
  else
    mass_heads(a, m);
}

void cpu_swiglu_c(float *y, const float *gate, const float *up, int32_t n) {
  for (int32_t i = 0; i < n; i++) y[i] = cpu_silu(gate[i]) * up[i];
}

#define INT8_KERNEL(name, TYPE, ...) [OPS_##TYPE] = cpu_linear_##name##_int8_c,
#define F32_KERNEL(name, TYPE, ...)  [OPS_##TYPE] = cpu_linear_##name##_f32_c,
const cpu_kernels cpu_kernels_c = {
    .name = "c",
    .rows_max = CPU_ROWS_MAX,
    .linear_int8 = {CPU_FORMATS(INT8_KERNEL)},
    .linear_f32 = {[OPS_F32] = cpu_linear_f32_c,
                   [OPS_F16] = cpu_linear_f16_c,
                   [OPS_BF16] = cpu_linear_bf16_c,
                   CPU_FORMATS(F32_KERNEL)},
    .linear_step = cpu_linear_step_c,
    .norm = cpu_norm_c,
    .quantize = cpu_quantize_c,
    .rope = cpu_rope_c,
    .store = cpu_store_c,
    .attention = cpu_attention_c,
    .attention_join = cpu_attention_join_c,
    .mass = cpu_mass_c,
    .swiglu = cpu_swiglu_c,
    .sample = cpu_sample_c,
    .rank = cpu_rank_outputs_c,
};
