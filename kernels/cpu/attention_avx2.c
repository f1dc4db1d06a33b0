#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/attention_avx2.h"
#include "kernels/cpu/math_avx2.h"
#include "kernels/cpu/row_ops_c.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

#define HEADS_MAX 4 /* query heads that share one pass over the keys */
#define LANES     CPU_LANES

INLINE __m256 load_kv(const void *data, size_t i, const ops_kv_type type) {
  if (type == OPS_KV_F32) return _mm256_loadu_ps((const float *)data + i);
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)data + i)));
}

/* Sixteen keys [head_dim][OPS_TILE] against H heads; scores are written to scores[h * stride ..+ 16). */
INLINE void score_tile(const cpu_attention *a, const float *q, const void *keys, size_t first, float *scores,
                       const ops_kv_type type, const int H) {
  size_t dim = (size_t)a->head_dim;
  __m256 acc[HEADS_MAX][2];
  UNROLL for (int h = 0; h < H; h++) acc[h][0] = acc[h][1] = _mm256_setzero_ps();
  for (size_t d = 0; d < dim; d++) {
    __m256 k0 = load_kv(keys, first + d * OPS_TILE, type),
           k1 = load_kv(keys, first + d * OPS_TILE + LANES, type);
    UNROLL for (int h = 0; h < H; h++) {
      __m256 value = _mm256_broadcast_ss(q + (size_t)h * dim + d);
      acc[h][0] = _mm256_fmadd_ps(value, k0, acc[h][0]);
      acc[h][1] = _mm256_fmadd_ps(value, k1, acc[h][1]);
    }
  }
  __m256 scale = _mm256_set1_ps(a->scale);
  UNROLL for (int h = 0; h < H; h++) {
    _mm256_storeu_ps(scores + h * a->stride, _mm256_mul_ps(acc[h][0], scale));
    _mm256_storeu_ps(scores + h * a->stride + LANES, _mm256_mul_ps(acc[h][1], scale));
  }
}

/* The staging area's tiles; before the splits, which take the scores of the row's path from there. */
INLINE void score_staged(const cpu_attention *a, const cpu_row *r, const float *q, const ops_kv_type type,
                         const int H) {
  float *staged = a->scores + (a->stride - a->stage);
  for (int32_t t = 0; t < cpu_stage_tiles(r); t++) {
    size_t first = (size_t)(t * OPS_TILE) * (size_t)a->head_dim;
    score_tile(a, q, a->stage_keys, first, staged + t * OPS_TILE, type, H);
  }
}

/* The split's committed tiles that the row sees; what the last one holds past `length` is overwritten with
 * the scores of the path. */
INLINE void score_split(const cpu_attention *a, int32_t row, const float *q, int32_t from, int32_t to,
                        const ops_kv_type type, const int H) {
  const cpu_row *r = &a->row[row];
  const float *staged = a->scores + (a->stride - a->stage);
  for (uint32_t tiles = cpu_tiles_seen(a, row, from); tiles; tiles &= tiles - 1) {
    int32_t p = __builtin_ctz(tiles) * OPS_TILE;
    score_tile(a, q, a->keys, cpu_row_at(r->kv, from + p) * (size_t)a->head_dim, a->scores + p, type, H);
  }
  for (int h = 0; h < H; h++) {
    float *scores = a->scores + h * a->stride;
    for (int32_t p = r->length > from ? r->length : from; p < to; p++)
      scores[p - from] = staged[h * a->stride + r->path[p - r->length]];
  }
}

/* The four vectors of a chunk's scores become exp(score - largest). Returns their sum by lanes. */
INLINE __m256 weigh_chunk(float *scores, __m256 largest) {
  __m256 e[OPS_CHUNK / LANES];
  UNROLL for (int i = 0; i < OPS_CHUNK / LANES; i++) {
    e[i] = cpu_exp_avx2(_mm256_sub_ps(_mm256_loadu_ps(scores + i * LANES), largest));
    _mm256_storeu_ps(scores + i * LANES, e[i]);
  }
  return _mm256_add_ps(_mm256_add_ps(e[0], e[2]), _mm256_add_ps(e[1], e[3]));
}

/* The scores of a split's whole chunks [at.first, at.end) become exp(score - largest). */
static cpu_softmax softmax(float *scores, ops_span at) {
  __m256 largest = _mm256_set1_ps(-INFINITY), sum = _mm256_setzero_ps();
  for (int32_t p = at.first; p < at.end; p += LANES)
    largest = _mm256_max_ps(_mm256_loadu_ps(scores + p), largest);
  largest = _mm256_max_ps(largest, _mm256_permute2f128_ps(largest, largest, 1));
  largest = _mm256_max_ps(largest, _mm256_permute_ps(largest, 0x4e));
  largest = _mm256_max_ps(largest, _mm256_permute_ps(largest, 0xb1));
  for (int32_t p = at.first; p < at.end; p += OPS_CHUNK)
    sum = _mm256_add_ps(sum, weigh_chunk(scores + p, largest));
  float lane[LANES];
  _mm256_storeu_ps(lane, sum);
  return (cpu_softmax){_mm256_cvtss_f32(largest), cpu_lane_sum(lane)};
}

/* Positions of a chunk that the row sees and whose values lie side by side. */
typedef struct stretch {
  const void *values;  /* committed or staged ones, */
  size_t at;           /* index of the first position's first element */
  const float *scores; /* of the first position; a head's lie `stride` apart */
  int32_t count;
} stretch;

typedef struct chunk {
  int32_t count;
  stretch stretches[OPS_CHUNK];
} chunk;

/* The first positions of [p, end), which the row sees. */
static stretch stretch_at(const cpu_attention *a, const cpu_row *r, int32_t p, int32_t end,
                          const float *scores) {
  const size_t dim = (size_t)a->head_dim;
  if (p >= r->length) return (stretch){a->stage_values, (size_t)r->path[p - r->length] * dim, scores, 1};
  const int32_t run = cpu_run_end(r->kv, p, end < r->length ? end : r->length);
  return (stretch){a->values, cpu_row_at(r->kv, p) * dim, scores, run - p};
}

/* Of the positions [from, to); scores: of `from`. */
static void find_values(const cpu_attention *a, int32_t row, int32_t from, int32_t to, const float *scores,
                        chunk *c) {
  c->count = 0;
  for (ops_span s = cpu_seen(a, row, from, to); s.first < s.end; s = cpu_seen(a, row, s.end, to)) {
    for (int32_t p = s.first; p < s.end; p += c->stretches[c->count++].count)
      c->stretches[c->count] = stretch_at(a, &a->row[row], p, s.end, scores + (p - from));
  }
}

/* V registers of components from d for H heads: y += the chain of the chunk's values. */
INLINE void add_values(const cpu_attention *a, const chunk *c, size_t d, float *y, const ops_kv_type type,
                       const int H, const int V) {
  const size_t dim = (size_t)a->head_dim, stride = (size_t)a->stride;
  __m256 acc[HEADS_MAX][4];
  UNROLL for (int h = 0; h < H; h++) {
    UNROLL for (int v = 0; v < V; v++) acc[h][v] = _mm256_setzero_ps();
  }
  for (const stretch *s = c->stretches; s < c->stretches + c->count; s++) {
    for (int32_t i = 0; i < s->count; i++) {
      __m256 weight[HEADS_MAX];
      UNROLL for (int h = 0; h < H; h++) weight[h] = _mm256_broadcast_ss(s->scores + (size_t)h * stride + i);
      UNROLL for (int v = 0; v < V; v++) {
        __m256 value = load_kv(s->values, s->at + (size_t)i * dim + d + (size_t)v * LANES, type);
        UNROLL for (int h = 0; h < H; h++) acc[h][v] = _mm256_fmadd_ps(weight[h], value, acc[h][v]);
      }
    }
  }
  UNROLL for (int h = 0; h < H; h++) {
    UNROLL for (int v = 0; v < V; v++) {
      float *to = y + (size_t)h * dim + d + (size_t)v * LANES;
      _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), acc[h][v]));
    }
  }
}

/* Registers hold only some of the components at a time, so a chunk's values are passed several times. */
INLINE void add_chunk(const cpu_attention *a, const chunk *c, float *y, const ops_kv_type type, const int H) {
  const size_t dim = (size_t)a->head_dim, wide = (H <= 3 ? 4 : 2) * LANES; /* fits 16 registers */
  size_t d = 0;
  for (; d + wide <= dim; d += wide) add_values(a, c, d, y, type, H, wide / LANES);
  for (; d < dim; d += LANES) add_values(a, c, d, y, type, H, 1);
}

/* The positions [from, to) of a split: y becomes their values, weighted by exp(score - largest). */
INLINE void attend_split(const cpu_attention *a, int32_t row, const float *q, int32_t from, int32_t to,
                         float *y, cpu_softmax *split, const ops_kv_type type, const int H) {
  score_split(a, row, q, from, to, type, H);
  for (int h = 0; h < H; h++) {
    float *scores = a->scores + h * a->stride;
    split[h] = softmax(scores, cpu_hide_unseen(a, row, from, to, scores));
  }
  memset(y, 0, H * (size_t)a->head_dim * sizeof *y);
  for (int32_t p = from; p < to; p += OPS_CHUNK) {
    chunk c;
    find_values(a, row, p, p + OPS_CHUNK < to ? p + OPS_CHUNK : to, a->scores + (p - from), &c);
    if (c.count > 0) add_chunk(a, &c, y, type, H);
  }
}

INLINE void attend(const cpu_attention *a, int32_t row, const float *q, float *y, const ops_kv_type type,
                   const int H) {
  const int32_t dim = a->head_dim, end = cpu_keys_end(a, row);
  float later[HEADS_MAX * OPS_HEAD_DIM_MAX];
  cpu_softmax all[HEADS_MAX], split[HEADS_MAX];
  bool begun = false;
  score_staged(a, &a->row[row], q, type, H);
  for (int32_t from = cpu_keys_begin(a, row) / OPS_SPLIT * OPS_SPLIT; from < end; from += OPS_SPLIT) {
    const int32_t to = end - from < OPS_SPLIT ? end : from + OPS_SPLIT;
    if (cpu_seen(a, row, from, to).first == to) continue;
    attend_split(a, row, q, from, to, begun ? later : y, begun ? split : all, type, H);
    for (int32_t h = 0; h < H && begun; h++) {
      cpu_factors f = cpu_softmax_join(&all[h], split[h]);
      for (int32_t d = h * dim; d < (h + 1) * dim; d++) y[d] = fmaf(later[d], f.split, y[d] * f.before);
    }
    begun = true;
  }
  for (int32_t h = 0; h < H; h++) {
    const float inverse = 1.0f / all[h].sum;
    for (int32_t d = h * dim; d < (h + 1) * dim; d++) y[d] *= inverse;
  }
}

typedef void attend_function(const cpu_attention *a, int32_t row, const float *q, float *y);
#define ATTEND(type, H)                                                                                      \
  static void attend_##type##_##H(const cpu_attention *a, int32_t row, const float *q, float *y) {           \
    attend(a, row, q, y, OPS_KV_##type, H);                                                                  \
  }
ATTEND(F32, 1)
ATTEND(F32, 2)
ATTEND(F32, 3)
ATTEND(F32, 4)
ATTEND(F16, 1)
ATTEND(F16, 2)
ATTEND(F16, 3)
ATTEND(F16, 4)

static attend_function *const attend_by_heads[2][HEADS_MAX] = {
    [OPS_KV_F32] = {attend_F32_1, attend_F32_2, attend_F32_3, attend_F32_4},
    [OPS_KV_F16] = {attend_F16_1, attend_F16_2, attend_F16_3, attend_F16_4},
};

void cpu_attention_avx2(const cpu_attention *a) {
  if (a->head_dim % LANES != 0) {
    cpu_attention_c(a);
    return;
  }
  for (int32_t i = 0; i < a->rows; i++) {
    for (int32_t h = 0; h < a->heads; h += HEADS_MAX) {
      int32_t heads = a->heads - h < HEADS_MAX ? a->heads - h : HEADS_MAX;
      size_t at = (size_t)i * a->row_floats + (size_t)h * (size_t)a->head_dim;
      attend_by_heads[a->type][heads - 1](a, i, a->q + at, a->y + at);
    }
  }
}
#endif
