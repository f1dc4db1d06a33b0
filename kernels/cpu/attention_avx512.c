#if defined(__x86_64__) /* elsewhere the C reference is all there is */
#include "kernels/cpu/attention_avx512.h"
#include "kernels/cpu/attention_avx2.h"
#include "kernels/cpu/math_avx512.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 24")

#define LANES           16
#define ACCUMULATORS    24 /* registers for sums, of 32 */
#define SCORE_TILES_MAX 8
#define VALUES_PIECE    64 /* positions */

/* A query is one head of one row. All of a batch go through the keys and values together: each is then loaded
 * and converted once for all of them. */
typedef struct batch {
  const cpu_attention *a;
  int32_t first, count; /* among the rows' heads in order */
  float *scores;        /* [count][a->stride] */
  float *packed;        /* [head_dim][count]: the queries */
} batch;

static const cpu_row *row_of(const batch *b, int32_t query) {
  return &b->a->row[(b->first + query) / b->a->heads];
}

/* Where a query begins in q, and its result in y. */
static size_t query_at(const batch *b, int32_t query) {
  int32_t i = b->first + query, heads = b->a->heads;
  return (size_t)(i / heads) * b->a->row_floats + (size_t)(i % heads) * (size_t)b->a->head_dim;
}

INLINE __m512 load_kv(const void *data, size_t i, const ops_kv_type type) {
  if (type == OPS_KV_F32) return _mm512_loadu_ps((const float *)data + i);
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)((const uint16_t *)data + i)));
}

/* --- scores --- */

/* Tiles that lie side by side, and what will be read after them: as many tiles of the sequence or head that
 * follows, or NULL. */
typedef struct run {
  const void *keys, *values;
  const char *next_keys, *next_values;
} run;

/* Where the values of some tiles lie, and the keys and values that come next: of the sequence or head that
 * follows, else of the next tiles. */
typedef struct ahead {
  const char *values, *next_keys, *next_values;
} ahead;

INLINE ahead ahead_of(const run *r, size_t first, size_t tiles, const ops_kv_type type) {
  const size_t size = type == OPS_KV_F32 ? 4 : 2, at = first * size;
  const char *values = (const char *)r->values + at, *keys = (const char *)r->keys + at;
  return (ahead){values, r->next_keys ? r->next_keys + at : keys + tiles * size,
                 r->next_values ? r->next_values + at : values};
}

/* Asks memory for them, line by line while scores are computed: with each pair of components as many lines as
 * tiles. */
INLINE void prefetch(const ahead *a, size_t d, const ops_kv_type type, const int K) {
  const size_t line = 2 * OPS_TILE * (type == OPS_KV_F32 ? 4 : 2), at = d / 2 * K * line;
  UNROLL for (int k = 0; k < K; k++) {
    if (d % 2) {
      _mm_prefetch(a->next_values + at + k * line, _MM_HINT_T1);
    } else {
      _mm_prefetch(a->values + at + k * line, _MM_HINT_T0);
      _mm_prefetch(a->next_keys + at + k * line, _MM_HINT_T1);
    }
  }
}

/* K tiles of sixteen keys against Q queries. */
INLINE void score_tiles(const batch *b, const run *r, size_t first, float *scores, const ops_kv_type type,
                        const int Q, const int K) {
  const size_t dim = (size_t)b->a->head_dim, stride = (size_t)b->a->stride;
  const void *keys = r->keys;
  const ahead soon = ahead_of(r, first, (size_t)K * dim * OPS_TILE, type);
  __m512 acc[ACCUMULATORS];
  UNROLL for (int i = 0; i < Q * K; i++) acc[i] = _mm512_setzero_ps();
  for (size_t d = 0; d < dim; d++) {
    prefetch(&soon, d, type, K);
    UNROLL for (int k = 0; k < K; k++) {
      __m512 key = load_kv(keys, first + ((size_t)k * dim + d) * OPS_TILE, type);
      UNROLL for (int q = 0; q < Q; q++) {
        __m512 value = _mm512_set1_ps(b->packed[d * (size_t)Q + (size_t)q]);
        acc[k * Q + q] = _mm512_fmadd_ps(value, key, acc[k * Q + q]);
      }
    }
  }
  UNROLL for (int k = 0; k < K; k++) {
    UNROLL for (int q = 0; q < Q; q++) {
      __m512 score = _mm512_mul_ps(acc[k * Q + q], _mm512_set1_ps(b->a->scale));
      _mm512_storeu_ps(scores + (size_t)q * stride + (size_t)k * OPS_TILE, score);
    }
  }
}

/* The run's first `tiles`; several at once where few queries would leave the multipliers waiting for sums. */
INLINE void score_run(const batch *b, const run *r, int32_t tiles, float *scores, const ops_kv_type type,
                      const int Q) {
  int32_t t = 0;
  const int K = Q > 6 ? 1 : ACCUMULATORS / Q < SCORE_TILES_MAX ? ACCUMULATORS / Q : SCORE_TILES_MAX;
  const size_t tile = (size_t)b->a->head_dim * OPS_TILE;
  for (; t + K <= tiles; t += K)
    score_tiles(b, r, (size_t)t * tile, scores + (size_t)t * OPS_TILE, type, Q, K);
  for (; t < tiles; t++) score_tiles(b, r, (size_t)t * tile, scores + (size_t)t * OPS_TILE, type, Q, 1);
}

/* --- values --- */

/* V registers of components from d on for Q queries of rows that share positions [p, end): y += their values,
 * by position ascending. The committed ones of them lie side by side. */
INLINE void add_values(const batch *b, int32_t query, int32_t p, int32_t end, size_t d,
                       const ops_kv_type type, const int Q, const int V) {
  const cpu_attention *a = b->a;
  const cpu_row *r = row_of(b, query);
  const size_t dim = (size_t)a->head_dim, stride = (size_t)a->stride;
  const float *scores = b->scores + (size_t)query * stride;
  float *y[CPU_QUERIES_MAX];
  __m512 acc[ACCUMULATORS];
  UNROLL for (int q = 0; q < Q; q++) {
    y[q] = a->y + query_at(b, query + q) + d;
    UNROLL for (int v = 0; v < V; v++) acc[q * V + v] = _mm512_loadu_ps(y[q] + v * LANES);
  }
  const size_t shift = p < r->length ? cpu_row_at(r->kv, p) - (size_t)p : 0; /* from a position to its row */
  for (; p < end; p++) {
    bool committed = p < r->length;
    const void *values = committed ? a->values : a->stage_values;
    size_t at = (committed ? (size_t)p + shift : (size_t)r->path[p - r->length]) * dim + d;
    UNROLL for (int v = 0; v < V; v++) {
      __m512 value = load_kv(values, at + (size_t)v * LANES, type);
      UNROLL for (int q = 0; q < Q; q++) {
        __m512 weight = _mm512_set1_ps(scores[(size_t)q * stride + (size_t)p]);
        acc[q * V + v] = _mm512_fmadd_ps(weight, value, acc[q * V + v]);
      }
    }
  }
  UNROLL for (int q = 0; q < Q; q++) {
    UNROLL for (int v = 0; v < V; v++) _mm512_storeu_ps(y[q] + v * LANES, acc[q * V + v]);
  }
}

/* Registers hold a part of the components alone, so values are passed several times: by pieces that stay in
 * the nearest cache. */
INLINE void add_range(const batch *b, int32_t query, int32_t p, int32_t end, const ops_kv_type type,
                      const int Q) {
  const int V = Q <= 6 ? 4 : 2;
  const size_t dim = (size_t)b->a->head_dim, wide = (size_t)V * LANES;
  const cpu_row *r = row_of(b, query);
  for (int32_t to; p < end; p = to) {
    to = end - p < VALUES_PIECE ? end : p + VALUES_PIECE;
    if (p < r->length) to = cpu_run_end(r->kv, p, to);
    size_t d = 0;
    for (; d + wide <= dim; d += wide) add_values(b, query, p, to, d, type, Q, V);
    for (; d < dim; d += LANES) add_values(b, query, p, to, d, type, Q, 1);
  }
}

/* --- both, made for each number of queries --- */

typedef struct passes {
  void (*score)(const batch *b, const run *r, int32_t tiles, float *scores);
  void (*add)(const batch *b, int32_t query, int32_t p, int32_t end);
} passes;

#define PASSES(type, Q)                                                                                      \
  static void score_##type##_##Q(const batch *b, const run *r, int32_t tiles, float *scores) {               \
    score_run(b, r, tiles, scores, OPS_KV_##type, Q);                                                        \
  }                                                                                                          \
  static void add_##type##_##Q(const batch *b, int32_t query, int32_t p, int32_t end) {                      \
    add_range(b, query, p, end, OPS_KV_##type, Q);                                                           \
  }
#define BY_QUERIES(type, DO)                                                                                 \
  DO(type, 1)                                                                                                \
  DO(type, 2)                                                                                                \
  DO(type, 3)                                                                                                \
  DO(type, 4)                                                                                                \
  DO(type, 5)                                                                                                \
  DO(type, 6)                                                                                                \
  DO(type, 7)                                                                                                \
  DO(type, 8)                                                                                                \
  DO(type, 9)                                                                                                \
  DO(type, 10)                                                                                               \
  DO(type, 11)                                                                                               \
  DO(type, 12)
BY_QUERIES(F32, PASSES)
BY_QUERIES(F16, PASSES)

#define ENTRY(type, Q) [Q] = {score_##type##_##Q, add_##type##_##Q},
static const passes passes_by_queries[2][CPU_QUERIES_MAX + 1] = {
    [OPS_KV_F32] = {BY_QUERIES(F32, ENTRY)},
    [OPS_KV_F16] = {BY_QUERIES(F16, ENTRY)},
};

/* --- one batch --- */

static void pack_queries(const batch *b) {
  for (int32_t q = 0; q < b->count; q++) {
    const float *from = b->a->q + query_at(b, q);
    for (int32_t d = 0; d < b->a->head_dim; d++) b->packed[d * b->count + q] = from[d];
  }
}

static const char *tile_at(const cpu_attention *a, const void *data, int32_t block) {
  size_t elements = (size_t)block * OPS_TILE * (size_t)a->head_dim;
  return (const char *)data + elements * (a->type == OPS_KV_F32 ? 4 : 2);
}

/* What follows the run, at the same place of its sequence: up to which tile, at most `end`, it lies side by
 * side. */
static int32_t follow(const cpu_attention *a, int32_t t, int32_t end, run *r) {
  if (!a->next || t >= a->next->map_count) return end;
  const cpu_kv_block *next = &a->next->map[t];
  r->next_keys = tile_at(a, a->next_keys, next->at);
  r->next_values = tile_at(a, a->next_values, next->at);
  return next->run < end - t ? t + next->run : end;
}

/* The sequence's tiles [t, returned), at most those before `tiles`. */
static int32_t run_at(const cpu_attention *a, int32_t t, int32_t tiles, run *r) {
  const cpu_kv *kv = a->row->kv;
  int32_t end = cpu_run_end(kv, t * OPS_TILE, tiles * OPS_TILE) / OPS_TILE;
  *r = (run){.keys = tile_at(a, a->keys, kv->map[t].at), .values = tile_at(a, a->values, kv->map[t].at)};
  return follow(a, t, end, r);
}

/* All queries against all tiles that one of them needs: what lies past a row's own length is overwritten by
 * the scores of its path, or never looked at. */
static void score_all(const batch *b, const passes *with) {
  const cpu_attention *a = b->a;
  float *staged = b->scores + (a->stride - a->stage);
  int32_t first = INT32_MAX, tiles = 0, stage_tiles = 0;
  for (int32_t q = 0; q < b->count; q++) {
    const cpu_row *r = row_of(b, q);
    int32_t need = (r->length + OPS_TILE - 1) / OPS_TILE;
    int32_t stage_need = cpu_stage_tiles(r), begin = cpu_keys_begin(a, r) / OPS_TILE;
    first = begin < first ? begin : first;
    tiles = need > tiles ? need : tiles;
    stage_tiles = stage_need > stage_tiles ? stage_need : stage_tiles;
  }
  for (int32_t t = first, end; t < tiles; t = end) {
    run r;
    end = run_at(a, t, tiles, &r);
    with->score(b, &r, end - t, b->scores + (size_t)t * OPS_TILE);
  }
  if (stage_tiles > 0) {
    run r = {.keys = a->stage_keys, .values = a->stage_values};
    follow(a, 0, stage_tiles, &r);
    with->score(b, &r, stage_tiles, staged);
  }
  for (int32_t q = 0; q < b->count; q++) {
    const cpu_row *r = row_of(b, q);
    const float *from = staged + (size_t)q * (size_t)a->stride;
    float *to = b->scores + (size_t)q * (size_t)a->stride + r->length;
    for (int32_t i = 0; i < r->path_count; i++) to[i] = from[r->path[i]];
  }
}

/* scores[first..n) become exp(score - largest); returns 1 / sum. */
static float softmax(float *scores, int32_t first, int32_t n) {
  const int32_t begin = first / LANES * LANES;             /* a lane is a position mod LANES */
  _mm512_storeu_ps(scores + n, _mm512_set1_ps(-INFINITY)); /* adds exactly zero */
  for (int32_t p = begin; p < first; p++) scores[p] = -INFINITY;
  __m512 largest = _mm512_set1_ps(-INFINITY);
  for (int32_t p = begin; p < n; p += LANES) largest = _mm512_max_ps(_mm512_loadu_ps(scores + p), largest);
  largest = _mm512_set1_ps(_mm512_reduce_max_ps(largest));
  __m256 sum = _mm256_setzero_ps();
  for (int32_t p = begin; p < n; p += LANES) {
    __m512 e = cpu_exp_avx512(_mm512_sub_ps(_mm512_loadu_ps(scores + p), largest));
    _mm512_storeu_ps(scores + p, e);
    sum = _mm256_add_ps(sum, _mm512_castps512_ps256(e));
    sum = _mm256_add_ps(sum, _mm512_extractf32x8_ps(e, 1));
  }
  float lane[CPU_LANES];
  _mm256_storeu_ps(lane, sum);
  return 1.0f / cpu_lane_sum(lane);
}

/* Every row's own positions [from, to), cut to those that it sees. */
static void add_own(const batch *b, const passes *with, int32_t from, int32_t to) {
  for (int32_t q = 0, next; q < b->count; q = next) {
    const cpu_row *r = row_of(b, q);
    int32_t begin = cpu_keys_begin(b->a, r), end = cpu_keys_end(r);
    for (next = q + 1; next < b->count && row_of(b, next) == r;) next++;
    begin = begin > from ? begin : from;
    end = end < to ? end : to;
    if (begin < end) with[next - q].add(b, q, begin, end);
  }
}

/* What all rows see and have committed in one go, before and after it each row's own: values are added by
 * position ascending. */
static void add_all(const batch *b, const passes *with) {
  int32_t first = 0, common = INT32_MAX;
  for (int32_t q = 0; q < b->count; q++) {
    const cpu_row *r = row_of(b, q);
    int32_t begin = cpu_keys_begin(b->a, r);
    first = begin > first ? begin : first;
    common = r->length < common ? r->length : common;
  }
  if (first >= common) {
    add_own(b, with, 0, INT32_MAX);
    return;
  }
  if (first > 0) add_own(b, with, 0, first);
  with[b->count].add(b, 0, first, common);
  add_own(b, with, common, INT32_MAX);
}

static void attend(const batch *b) {
  const cpu_attention *a = b->a;
  const passes *with = passes_by_queries[a->type];
  const size_t bytes = (size_t)a->head_dim * sizeof(float);
  float inverse[CPU_QUERIES_MAX];
  pack_queries(b);
  score_all(b, &with[b->count]);
  for (int32_t q = 0; q < b->count; q++) {
    const cpu_row *r = row_of(b, q);
    inverse[q] = softmax(b->scores + (size_t)q * (size_t)a->stride, cpu_keys_begin(a, r), cpu_keys_end(r));
    memset(a->y + query_at(b, q), 0, bytes);
  }
  add_all(b, with);
  for (int32_t q = 0; q < b->count; q++) {
    float *y = a->y + query_at(b, q);
    for (int32_t d = 0; d < a->head_dim; d++) y[d] *= inverse[q];
  }
}

void cpu_attention_avx512(const cpu_attention *a) {
  if (a->head_dim % LANES != 0) {
    cpu_attention_avx2(a);
    return;
  }
  _Alignas(64) float packed[OPS_HEAD_DIM_MAX * CPU_QUERIES_MAX];
  int32_t all = a->rows * a->heads;
  for (int32_t i = 0; i < all; i += CPU_QUERIES_MAX) {
    int32_t count = all - i < CPU_QUERIES_MAX ? all - i : CPU_QUERIES_MAX;
    attend(&(batch){.a = a, .first = i, .count = count, .scores = a->scores, .packed = packed});
  }
}
#endif
