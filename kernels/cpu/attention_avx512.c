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

/* A query is one head of one row. All of a batch go through the keys and values together: each is then loaded
 * and converted once for all of them. */
typedef struct batch {
  const cpu_attention *a;
  int32_t first, count;           /* among the rows' heads in order */
  float *scores;                  /* [count][a->stride] */
  float *packed;                  /* [head_dim][count]: the queries */
  int32_t from;                   /* where the split begins at which the batch is */
  uint32_t sees;                  /* the queries that see keys of it */
  float *values[CPU_QUERIES_MAX]; /* to which such a query's values are added */
  float *chains;                  /* [count][head_dim]: of a chunk that is added in several pieces */
} batch;

static int32_t row_index(const batch *b, int32_t query) {
  return (b->first + query) / b->a->heads;
}

static const cpu_row *row_of(const batch *b, int32_t query) {
  return &b->a->row[row_index(b, query)];
}

/* The first query of the next row. */
static int32_t next_row(const batch *b, int32_t query) {
  int32_t next = (row_index(b, query) + 1) * b->a->heads - b->first;
  return next < b->count ? next : b->count;
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

/* Positions [first, end) of a chunk, or the whole of one. */
typedef struct piece {
  int32_t first, end;
} piece;

static bool is_chunk(piece p) {
  return p.end - p.first == OPS_CHUNK;
}

/* Positions [p, end) whose values lie side by side. */
static int32_t side_by_side(const cpu_row *r, int32_t p, int32_t end) {
  return p < r->length ? cpu_run_end(r->kv, p, end < r->length ? end : r->length) : p + 1;
}

/* V registers of components from d on for Q queries of rows that share the positions. A whole chunk: its
 * chain starts at zero and is added to the queries' values. A piece: its chunk's chain, in b->chains, is
 * continued. */
INLINE void add_values(const batch *b, int32_t query, piece at, size_t d, const ops_kv_type type, const int Q,
                       const int V) {
  const cpu_attention *a = b->a;
  const cpu_row *r = row_of(b, query);
  const size_t dim = (size_t)a->head_dim, stride = (size_t)a->stride;
  const float *scores = b->scores + (size_t)query * stride - b->from;
  float *chains = b->chains + (size_t)query * dim + d;
  const bool whole = is_chunk(at);
  __m512 acc[ACCUMULATORS];
  UNROLL for (int q = 0; q < Q; q++) {
    UNROLL for (int v = 0; v < V; v++) acc[q * V + v] =
        whole ? _mm512_setzero_ps() : _mm512_loadu_ps(chains + (size_t)q * dim + v * LANES);
  }
  for (int32_t p = at.first, end; p < at.end; p = end) {
    end = side_by_side(r, p, at.end);
    const bool committed = p < r->length;
    const void *values = committed ? a->values : a->stage_values;
    size_t from = (committed ? cpu_row_at(r->kv, p) : (size_t)r->path[p - r->length]) * dim + d;
    for (int32_t i = p; i < end; i++, from += dim) {
      UNROLL for (int v = 0; v < V; v++) {
        __m512 value = load_kv(values, from + (size_t)v * LANES, type);
        UNROLL for (int q = 0; q < Q; q++) {
          __m512 weight = _mm512_set1_ps(scores[(size_t)q * stride + (size_t)i]);
          acc[q * V + v] = _mm512_fmadd_ps(weight, value, acc[q * V + v]);
        }
      }
    }
  }
  UNROLL for (int q = 0; q < Q; q++) {
    float *y = b->values[query + q] + d;
    UNROLL for (int v = 0; v < V; v++) {
      if (whole)
        _mm512_storeu_ps(y + v * LANES, _mm512_add_ps(_mm512_loadu_ps(y + v * LANES), acc[q * V + v]));
      else
        _mm512_storeu_ps(chains + (size_t)q * dim + v * LANES, acc[q * V + v]);
    }
  }
}

/* Positions [p, end) of one chunk, or of several whole ones. Registers hold only some of the components at a
 * time, so a chunk's values are passed several times. */
INLINE void add_range(const batch *b, int32_t query, int32_t p, int32_t end, const ops_kv_type type,
                      const int Q) {
  const int V = Q <= 6 ? 4 : 2;
  const size_t dim = (size_t)b->a->head_dim, wide = (size_t)V * LANES;
  for (int32_t to; p < end; p = to) {
    to = end - p < OPS_CHUNK ? end : p + OPS_CHUNK;
    size_t d = 0;
    for (; d + wide <= dim; d += wide) add_values(b, query, (piece){p, to}, d, type, Q, V);
    for (; d < dim; d += LANES) add_values(b, query, (piece){p, to}, d, type, Q, 1);
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

/* The staging area's tiles; before the splits, which take the scores of the rows' paths from there. */
static void score_staged(const batch *b, const passes *with) {
  const cpu_attention *a = b->a;
  int32_t tiles = 0;
  for (int32_t q = 0; q < b->count; q = next_row(b, q)) {
    int32_t need = cpu_stage_tiles(row_of(b, q));
    tiles = need > tiles ? need : tiles;
  }
  if (tiles == 0) return;
  run r = {.keys = a->stage_keys, .values = a->stage_values};
  follow(a, 0, tiles, &r);
  with->score(b, &r, tiles, b->scores + (a->stride - a->stage));
}

/* Committed tiles [t, to), all in the split. */
static void score_committed(const batch *b, const passes *with, int32_t t, int32_t to) {
  for (int32_t end; t < to; t = end) {
    run r;
    end = run_at(b->a, t, to, &r);
    with->score(b, &r, end - t, b->scores + (size_t)(t - b->from / OPS_TILE) * OPS_TILE);
  }
}

/* All queries against all of the split's committed tiles in which one of them sees keys. What its row does
 * not see is later overwritten with the scores of its path, or with -infinity. */
static void score_split(const batch *b, const passes *with) {
  const cpu_attention *a = b->a;
  const int32_t first = b->from / OPS_TILE;
  uint64_t tiles = 0;
  for (int32_t q = 0; q < b->count; q = next_row(b, q)) tiles |= cpu_tiles_seen(a, row_index(b, q), b->from);
  for (int32_t t = 0, to; tiles >> t; t = to) {
    t += __builtin_ctzll(tiles >> t);
    to = t + __builtin_ctzll(~(tiles >> t));
    score_committed(b, with, first + t, first + to);
  }
}

/* The first stretch of [p, to) that all rows see and have committed; if there is none, {to, to}. */
static ops_span seen_by_all(const batch *b, int32_t p, int32_t to) {
  ops_span all = {p, to};
  for (int32_t q = 0, next; q < b->count; q = next) {
    int32_t committed = row_of(b, q)->length < to ? row_of(b, q)->length : to;
    ops_span s = cpu_seen(b->a, row_index(b, q), all.first, committed);
    if (s.first >= s.end) return (ops_span){to, to};
    next = s.first > all.first ? 0 : next_row(b, q); /* the rows before may not see that far */
    if (s.first > all.first || s.end < all.end) all = s;
  }
  return all;
}

/* What each row sees of [from, to) by itself. */
static void add_own(const batch *b, const passes *with, int32_t from, int32_t to) {
  for (int32_t q = 0, next; q < b->count; q = next) {
    next = next_row(b, q);
    const int32_t row = row_index(b, q), end = cpu_keys_end(b->a, row) < to ? cpu_keys_end(b->a, row) : to;
    for (ops_span s = cpu_seen(b->a, row, from, end); s.first < s.end; s = cpu_seen(b->a, row, s.end, end))
      with[next - q].add(b, q, s.first, s.end);
  }
}

/* y += x */
static void add_chain(float *y, const float *x, int32_t dim) {
  for (int32_t d = 0; d < dim; d += LANES)
    _mm512_storeu_ps(y + d, _mm512_add_ps(_mm512_loadu_ps(y + d), _mm512_loadu_ps(x + d)));
}

/* A chunk that not all rows see whole. What all rows see and have committed is added for all at once; before
 * and after it each row adds its own. Positions ascend. */
static void add_chunk(const batch *b, const passes *with, int32_t p) {
  const int32_t to = p + OPS_CHUNK, dim = b->a->head_dim;
  memset(b->chains, 0, (size_t)(b->count * dim) * sizeof(float));
  while (p < to) {
    ops_span all = seen_by_all(b, p, to);
    if (all.first > p) add_own(b, with, p, all.first);
    if (all.first < all.end) with[b->count].add(b, 0, all.first, all.end);
    p = all.end;
  }
  for (uint32_t left = b->sees; left; left &= left - 1) {
    int32_t q = __builtin_ctz(left);
    add_chain(b->values[q], b->chains + q * dim, dim);
  }
}

/* Positions [b->from, to). Chunks that all rows see whole and have committed are added in one go. */
static void add_split(const batch *b, const passes *with, int32_t to) {
  for (int32_t p = b->from; p < to;) {
    const ops_span all = seen_by_all(b, p, b->from + OPS_SPLIT);
    const int32_t end = all.end / OPS_CHUNK * OPS_CHUNK;
    const bool whole = all.first == p && p < end;
    if (whole)
      with[b->count].add(b, 0, p, end);
    else
      add_chunk(b, with, p);
    p = whole ? end : p + OPS_CHUNK;
  }
}

/* The scores of a split's whole chunks [at.first, at.end) become exp(score - largest). */
static cpu_softmax softmax(float *scores, ops_span at) {
  __m512 largest = _mm512_set1_ps(-INFINITY), others = largest; /* two: one would wait for itself */
  for (int32_t p = at.first; p < at.end; p += OPS_CHUNK) {
    largest = _mm512_max_ps(_mm512_loadu_ps(scores + p), largest);
    others = _mm512_max_ps(_mm512_loadu_ps(scores + p + LANES), others);
  }
  const float m = _mm512_reduce_max_ps(_mm512_max_ps(largest, others));
  largest = _mm512_set1_ps(m);
  __m256 sum = _mm256_setzero_ps();
  for (int32_t p = at.first; p < at.end; p += OPS_CHUNK) {
    __m512 low = cpu_exp_avx512(_mm512_sub_ps(_mm512_loadu_ps(scores + p), largest));
    __m512 high = cpu_exp_avx512(_mm512_sub_ps(_mm512_loadu_ps(scores + p + LANES), largest));
    _mm512_storeu_ps(scores + p, low);
    _mm512_storeu_ps(scores + p + LANES, high);
    const __m512 both = _mm512_add_ps(low, high);
    sum = _mm256_add_ps(sum, _mm256_add_ps(_mm512_castps512_ps256(both), _mm512_extractf32x8_ps(both, 1)));
  }
  float lane[CPU_LANES];
  _mm256_storeu_ps(lane, sum);
  return (cpu_softmax){m, cpu_lane_sum(lane)};
}

/* A split's scores of query q, whose row sees some of [b->from, to), become exp(score - largest). */
static cpu_softmax weigh(const batch *b, int32_t q, int32_t to) {
  const cpu_attention *a = b->a;
  const cpu_row *r = row_of(b, q);
  float *scores = b->scores + (size_t)q * (size_t)a->stride;
  const float *staged = scores + (a->stride - a->stage);
  for (int32_t p = r->length > b->from ? r->length : b->from; p < to; p++)
    scores[p - b->from] = staged[r->path[p - r->length]];
  return softmax(scores, cpu_hide_unseen(a, row_index(b, q), b->from, to, scores));
}

/* What the queries have come to over the splits. */
typedef struct progress {
  cpu_softmax all[CPU_QUERIES_MAX];
  uint32_t begun; /* the queries that have seen a key */
  float *later;   /* [count][head_dim]: a split's values, if it is not the query's first */
} progress;

/* y = fma(later, f.split, y * f.before) */
static void join_values(float *y, const float *later, cpu_factors f, int32_t dim) {
  const __m512 before = _mm512_set1_ps(f.before), split = _mm512_set1_ps(f.split);
  for (int32_t d = 0; d < dim; d += LANES) {
    __m512 old = _mm512_mul_ps(_mm512_loadu_ps(y + d), before);
    _mm512_storeu_ps(y + d, _mm512_fmadd_ps(_mm512_loadu_ps(later + d), split, old));
  }
}

/* Takes the split's values into those before it, of the queries that have seen keys before. */
static void join(const batch *b, progress *g, uint32_t queries, const cpu_softmax *split) {
  cpu_factors f[CPU_QUERIES_MAX];
  for (uint32_t left = queries; left; left &= left - 1) {
    int32_t q = __builtin_ctz(left);
    f[q] = cpu_softmax_join(&g->all[q], split[q]);
  }
  for (uint32_t left = queries; left; left &= left - 1) {
    int32_t q = __builtin_ctz(left);
    join_values(b->a->y + query_at(b, q), b->values[q], f[q], b->a->head_dim);
  }
}

/* Where a query's values of the split are added up, from zero. */
static float *values_begin(const batch *b, const progress *g, int32_t q) {
  const int32_t dim = b->a->head_dim;
  float *values = g->begun & 1u << q ? g->later + q * dim : b->a->y + query_at(b, q);
  for (int32_t d = 0; d < dim; d += LANES) _mm512_storeu_ps(values + d, _mm512_setzero_ps());
  return values;
}

static void attend_split(batch *b, const passes *with, progress *g) {
  const cpu_attention *a = b->a;
  cpu_softmax split[CPU_QUERIES_MAX];
  int32_t last = b->from;
  b->sees = 0;
  score_split(b, &with[b->count]);
  for (int32_t q = 0; q < b->count; q++) {
    int32_t row = row_index(b, q), end = cpu_keys_end(a, row), to = b->from + OPS_SPLIT;
    to = end < to ? end : to;
    if (cpu_seen(a, row, b->from, to).first >= to) continue;
    *(g->begun & 1u << q ? &split[q] : &g->all[q]) = weigh(b, q, to);
    b->values[q] = values_begin(b, g, q);
    b->sees |= 1u << q;
    last = to > last ? to : last;
  }
  add_split(b, with, last);
  join(b, g, b->sees & g->begun, split);
  g->begun |= b->sees;
}

static void attend(batch *b) {
  const cpu_attention *a = b->a;
  const passes *with = passes_by_queries[a->type];
  float later[CPU_QUERIES_MAX * OPS_HEAD_DIM_MAX], chains[CPU_QUERIES_MAX * OPS_HEAD_DIM_MAX];
  progress g = {.later = later};
  int32_t begin = INT32_MAX, end = 0;
  for (int32_t q = 0; q < b->count; q = next_row(b, q)) {
    int32_t row = row_index(b, q), first = cpu_keys_begin(a, row), last = cpu_keys_end(a, row);
    begin = first < begin ? first : begin;
    end = last > end ? last : end;
  }
  b->chains = chains;
  pack_queries(b);
  score_staged(b, &with[b->count]);
  for (b->from = begin / OPS_SPLIT * OPS_SPLIT; b->from < end; b->from += OPS_SPLIT)
    attend_split(b, with, &g);
  for (int32_t q = 0; q < b->count; q++) {
    const float inverse = 1.0f / g.all[q].sum;
    float *y = a->y + query_at(b, q);
    for (int32_t d = 0; d < a->head_dim; d++) y[d] *= inverse;
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
    batch b = {.a = a, .first = i, .count = count, .scores = a->scores, .packed = packed};
    attend(&b);
  }
}
#endif
