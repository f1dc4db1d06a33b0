/* attention_vectors.h - attention of some rows of a sequence, written once for vectors of 8 and of 16 floats;
 * equal to cpu_attention_c bit for bit: a key's dot product takes one lane (its slot in the tile), and so
 * does a value's component. For the two source files alone, each of which first defines
 * - LANES, the type `vector` of so many floats, and the functions vector_* on it;
 * - ACCUMULATORS: registers for sums; VALUE_VECTORS: components that are added at a time, in vectors, at
 * most;
 * - BATCH: queries that go through the keys together, at most CPU_BATCH_MAX, and attention_each(type, DO),
 * which is DO(type, 1) to DO(type, BATCH);
 * - weigh_chunk().
 *
 * The splits are the outer loop and batches of queries the inner one, so that a split's keys and values come
 * from memory for the first batch, and from a near cache for the others. */
#pragma once

#include "kernels/cpu/cpu_kernels.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 24")

#define TILE_VECTORS (OPS_TILE / LANES)
#define SPLIT_TILES  (OPS_SPLIT / OPS_TILE)
#define BLOCK        8    /* components of a key that are multiplied without a loop; a head has whole ones */
#define LINE         64   /* bytes that memory gives at once */
#define AHEAD        4096 /* bytes, of what memory is asked for while keys or values are multiplied */
#define SCORE_CHAINS 6    /* of products, which do not wait for each other: enough of them */

/* Some of a's queries. Each key and value is loaded and converted once for all of them. */
typedef struct attention_batch {
  const cpu_attention *a;
  int32_t first, count;   /* among the queries of a */
  float *scores;          /* [count][CPU_SCORES] */
  float *packed;          /* [head_dim][count]: the queries */
  cpu_softmax *sums;      /* [count]: of the splits so far */
  int32_t from;           /* where the split begins at which the batch is */
  bool lone;              /* there are no other batches */
  int32_t line, line_end; /* else: of a BLOCK of keys, those that this batch asks memory for */
  uint32_t sees;          /* the queries that see keys of it */
  float *values[BATCH];   /* to which such a query's values are added */
  float *chains;          /* [count][head_dim]: of a chunk that is added in several pieces */
} attention_batch;

static int32_t attention_row_index(const attention_batch *b, int32_t query) {
  return (b->first + query) / b->a->heads;
}

static const cpu_row *attention_row_of(const attention_batch *b, int32_t query) {
  return &b->a->row[attention_row_index(b, query)];
}

/* The first query of the next row. */
static int32_t attention_next_row(const attention_batch *b, int32_t query) {
  int32_t next = (attention_row_index(b, query) + 1) * b->a->heads - b->first;
  return next < b->count ? next : b->count;
}

INLINE vector attention_load_kv(const void *data, size_t i, const ops_kv_type type) {
  return type == OPS_KV_F32 ? vector_load((const float *)data + i)
                            : vector_of_f16((const uint16_t *)data + i);
}

/* V vectors of keys or values, from element `at` on, times Q floats that lie `stride` apart: acc[v * Q + q]
 * += ... Vectors that fill a tile's width lie side by side, and those of the next tile `step` elements on.
 * Whichever is fewer stays in registers. */
INLINE void attention_add_products(vector *acc, const float *factors, size_t stride, const void *data,
                                   size_t at, size_t step, const ops_kv_type type, const int Q, const int V) {
#define OF_VECTOR(v)                                                                                         \
  attention_load_kv(data, at + (size_t)((v) / TILE_VECTORS) * step + (size_t)((v) % TILE_VECTORS) * LANES,   \
                    type)
  vector kept[ACCUMULATORS];
  if (V <= Q) {
    UNROLL for (int v = 0; v < V; v++) kept[v] = OF_VECTOR(v);
    UNROLL for (int q = 0; q < Q; q++) {
      const vector factor = vector_all(factors[(size_t)q * stride]);
      UNROLL for (int v = 0; v < V; v++) acc[v * Q + q] = vector_fma(factor, kept[v], acc[v * Q + q]);
    }
    UNROLL for (int i = 0; i < Q * V; i++) __asm__("" : "+v"(acc[i]));
    return;
  }
  UNROLL for (int q = 0; q < Q; q++) kept[q] = vector_all(factors[(size_t)q * stride]);
  UNROLL for (int v = 0; v < V; v++) {
    const vector x = OF_VECTOR(v);
    UNROLL for (int q = 0; q < Q; q++) acc[v * Q + q] = vector_fma(kept[q], x, acc[v * Q + q]);
  }
#undef OF_VECTOR
}

/* --- scores --- */

/* Tiles that lie side by side, and as many that will be attended to a split later: keys, and their values. */
typedef struct attention_run {
  const void *keys;
  const char *soon_keys, *soon_values;
  size_t stride; /* from the scores of a query to those of the next */
} attention_run;

/* Asks memory for what follows, line by line while scores are computed: with BLOCK components, from d on, of
 * K tiles from element `first` on. A lone batch asks for the keys AHEAD of them, another for its share. */
INLINE void attention_prefetch(const attention_batch *b, const attention_run *r, size_t first, size_t d,
                               const ops_kv_type type, const int K) {
  const size_t size = type == OPS_KV_F32 ? 4 : 2, tile = (size_t)b->a->head_dim * OPS_TILE;
  const size_t at = (first + d * OPS_TILE) * size;
  const char *ahead = (const char *)r->keys + at + AHEAD;
  if (b->lone) {
    UNROLL for (size_t line = 0; line < BLOCK * OPS_TILE * size; line += LINE) {
      UNROLL for (int k = 0; k < K; k++) _mm_prefetch(ahead + (size_t)k * tile * size + line, _MM_HINT_T1);
    }
    return;
  }
  for (int32_t line = b->line; line < b->line_end; line++) {
    UNROLL for (int k = 0; k < K; k++) {
      const size_t to = at + (size_t)k * tile * size + (size_t)line * LINE;
      _mm_prefetch(r->soon_keys + to, _MM_HINT_T1);
      _mm_prefetch(r->soon_values + to, _MM_HINT_T1);
    }
  }
}

/* K tiles of sixteen keys against Q queries. */
INLINE void attention_score_tiles(const attention_batch *b, const attention_run *r, size_t first,
                                  float *scores, const ops_kv_type type, const int Q, const int K) {
  const size_t dim = (size_t)b->a->head_dim, stride = r->stride, tile = dim * OPS_TILE;
  const vector scale = vector_all(b->a->scale);
  const int V = K * TILE_VECTORS;
  const float *packed = b->packed;
  vector acc[ACCUMULATORS];
  UNROLL for (int i = 0; i < Q * V; i++) acc[i] = vector_zero();
  for (size_t d = 0; d < dim; d += BLOCK) { /* few enough turns that the processor foresees the last */
    attention_prefetch(b, r, first, d, type, K);
    for (int i = 0; i < BLOCK; i++, packed += Q) {
      attention_add_products(acc, packed, 1, r->keys, first + (d + (size_t)i) * OPS_TILE, tile, type, Q, V);
    }
  }
  UNROLL for (int v = 0; v < V; v++) {
    UNROLL for (int q = 0; q < Q; q++)
        vector_store(scores + (size_t)q * stride + (size_t)v * LANES, vector_multiply(acc[v * Q + q], scale));
  }
}

/* Tiles at a time for Q queries: one, or as many as make enough chains. */
INLINE int attention_score_tiles_of(const int Q) {
  const int tiles = SCORE_CHAINS / (Q * TILE_VECTORS);
  return tiles > 1 ? tiles : 1;
}

/* The run's first `tiles`; several at once where few queries would leave the multipliers waiting for sums. */
INLINE void attention_score_run(const attention_batch *b, const attention_run *r, int32_t tiles,
                                float *scores, const ops_kv_type type, const int Q) {
  int32_t t = 0;
  const int K = attention_score_tiles_of(Q);
  const size_t tile = (size_t)b->a->head_dim * OPS_TILE;
  for (; t + K <= tiles; t += K)
    attention_score_tiles(b, r, (size_t)t * tile, scores + (size_t)t * OPS_TILE, type, Q, K);
  for (; t < tiles; t++)
    attention_score_tiles(b, r, (size_t)t * tile, scores + (size_t)t * OPS_TILE, type, Q, 1);
}

/* --- values --- */

/* Positions [first, end) of a chunk, or the whole of one. */
typedef struct attention_piece {
  int32_t first, end;
} attention_piece;

static bool attention_is_chunk(attention_piece p) {
  return p.end - p.first == OPS_CHUNK;
}

/* Positions [p, end) whose values lie side by side. */
static int32_t attention_side_by_side(const cpu_row *r, int32_t p, int32_t end) {
  return p < r->length ? cpu_run_end(r->kv, p, end < r->length ? end : r->length) : p + 1;
}

/* V registers of components from d on for Q queries of rows that share the positions. A whole chunk: its
 * chain starts at zero and is added to the queries' values. A piece: its chunk's chain, in b->chains, is
 * continued. */
INLINE void attention_add_values(const attention_batch *b, int32_t query, attention_piece at, size_t d,
                                 const ops_kv_type type, const int Q, const int V) {
  const cpu_attention *a = b->a;
  const cpu_row *r = attention_row_of(b, query);
  const size_t dim = (size_t)a->head_dim;
  const float *scores = b->scores + query * CPU_SCORES - b->from;
  float *chains = b->chains + (size_t)query * dim + d;
  const bool whole = attention_is_chunk(at);
  vector acc[ACCUMULATORS];
  UNROLL for (int q = 0; q < Q; q++) {
    UNROLL for (int v = 0; v < V; v++) acc[v * Q + q] =
        whole ? vector_zero() : vector_load(chains + (size_t)q * dim + v * LANES);
  }
  for (int32_t p = at.first, end; p < at.end; p = end) {
    end = attention_side_by_side(r, p, at.end);
    const bool committed = p < r->length;
    const void *values = committed ? a->values : a->stage_values;
    size_t from = (committed ? cpu_row_at(r->kv, p) : (size_t)r->path[p - r->length]) * dim + d;
    for (int32_t i = p; i < end; i++, from += dim) {
      attention_add_products(acc, scores + i, CPU_SCORES, values, from, OPS_TILE, type, Q, V);
    }
  }
  UNROLL for (int q = 0; q < Q; q++) {
    float *y = b->values[query + q] + d;
    UNROLL for (int v = 0; v < V; v++) {
      if (whole)
        vector_store(y + v * LANES, vector_add(vector_load(y + v * LANES), acc[v * Q + q]));
      else
        vector_store(chains + (size_t)q * dim + v * LANES, acc[v * Q + q]);
    }
  }
}

/* The same of a whole chunk whose values lie side by side, from element `from` on. */
INLINE void attention_add_whole(const attention_batch *b, int32_t query, const float *scores, size_t from,
                                size_t d, const ops_kv_type type, const int Q, const int V) {
  const size_t dim = (size_t)b->a->head_dim, size = type == OPS_KV_F32 ? 4 : 2;
  const char *values = b->a->values;
  vector acc[ACCUMULATORS];
  UNROLL for (int i = 0; i < Q * V; i++) acc[i] = vector_zero();
  from += d;
  for (int32_t i = 0; i < OPS_CHUNK; i += BLOCK) {
    for (int k = 0; k < BLOCK; k++, from += dim) {
      if (b->lone) {
        UNROLL for (size_t line = 0; line < (size_t)(V * LANES) * size; line += LINE)
            _mm_prefetch(values + from * size + AHEAD + line, _MM_HINT_T1);
      } else {
        _mm_prefetch(values + (from + OPS_CHUNK * dim) * size, _MM_HINT_T0);
      }
      attention_add_products(acc, scores + i + k, CPU_SCORES, values, from, OPS_TILE, type, Q, V);
    }
  }
  UNROLL for (int q = 0; q < Q; q++) {
    float *y = b->values[query + q] + d;
    UNROLL for (int v = 0; v < V; v++)
        vector_store(y + v * LANES, vector_add(vector_load(y + v * LANES), acc[v * Q + q]));
  }
}

/* Positions [p, end) of one chunk, or of several whole ones. Registers hold only some of the components at a
 * time, so a chunk's values are passed several times. */
INLINE void attention_add_range(const attention_batch *b, int32_t query, int32_t p, int32_t end,
                                const ops_kv_type type, const int Q) {
  const int V = 2 * Q > ACCUMULATORS                        ? 1
                : 4 * Q > ACCUMULATORS                      ? 2
                : 8 * Q > ACCUMULATORS || VALUE_VECTORS < 8 ? 4
                                                            : 8;
  const size_t dim = (size_t)b->a->head_dim, wide = (size_t)V * LANES;
  const cpu_row *r = attention_row_of(b, query);
  for (int32_t to; p < end; p = to) {
    to = end - p < OPS_CHUNK ? end : p + OPS_CHUNK;
    size_t d = 0;
    if (p + OPS_CHUNK <= r->length && attention_side_by_side(r, p, to) == p + OPS_CHUNK) {
      const float *scores = b->scores + query * CPU_SCORES + (p - b->from);
      const size_t from = cpu_row_at(r->kv, p) * dim;
      for (; d + wide <= dim; d += wide) attention_add_whole(b, query, scores, from, d, type, Q, V);
      for (; d < dim; d += LANES) attention_add_whole(b, query, scores, from, d, type, Q, 1);
      continue;
    }
    for (; d + wide <= dim; d += wide)
      attention_add_values(b, query, (attention_piece){p, to}, d, type, Q, V);
    for (; d < dim; d += LANES) attention_add_values(b, query, (attention_piece){p, to}, d, type, Q, 1);
  }
}

/* --- both, made for each number of queries --- */

typedef struct attention_passes {
  void (*score)(const attention_batch *b, const attention_run *r, int32_t tiles, float *scores);
  void (*add)(const attention_batch *b, int32_t query, int32_t p, int32_t end);
} attention_passes;

#define PASSES(type, Q)                                                                                      \
  static void score_##type##_##Q(const attention_batch *b, const attention_run *r, int32_t tiles,            \
                                 float *scores) {                                                            \
    attention_score_run(b, r, tiles, scores, OPS_KV_##type, Q);                                              \
  }                                                                                                          \
  static void add_##type##_##Q(const attention_batch *b, int32_t query, int32_t p, int32_t end) {            \
    attention_add_range(b, query, p, end, OPS_KV_##type, Q);                                                 \
  }
attention_each(F32, PASSES) attention_each(F16, PASSES)

#define ENTRY(type, Q) [Q] = {score_##type##_##Q, add_##type##_##Q},
    static const attention_passes passes_by_count[2][BATCH + 1] = {
        [OPS_KV_F32] = {attention_each(F32, ENTRY)},
        [OPS_KV_F16] = {attention_each(F16, ENTRY)},
};

/* --- one batch --- */

static void attention_pack_queries(const attention_batch *b) {
  for (int32_t q = 0; q < b->count; q++) {
    const float *from = b->a->q + cpu_query_at(b->a, b->first + q);
    for (int32_t d = 0; d < b->a->head_dim; d++) b->packed[d * b->count + q] = from[d];
  }
}

static const char *attention_tile_at(const cpu_attention *a, const void *data, int32_t block) {
  size_t elements = (size_t)block * OPS_TILE * (size_t)a->head_dim;
  return (const char *)data + elements * (a->type == OPS_KV_F32 ? 4 : 2);
}

/* What is attended to a split after the tiles from t on: up to which tile, at most `end`, it lies side by
 * side. */
static int32_t attention_follow(const cpu_attention *a, int32_t t, int32_t end, attention_run *r) {
  const int32_t soon = t + SPLIT_TILES, past = soon - a->split_end * SPLIT_TILES;
  const bool own = past < 0 || !a->next;
  const cpu_kv *kv = own ? a->row->kv : a->next;
  const int32_t at = own ? soon : a->next_tile + past;
  if (at >= kv->map_count) return end;
  r->soon_keys = attention_tile_at(a, own ? a->keys : a->next_keys, kv->map[at].at);
  r->soon_values = attention_tile_at(a, own ? a->values : a->next_values, kv->map[at].at);
  return kv->map[at].run < end - t ? t + kv->map[at].run : end;
}

/* The sequence's tiles [t, returned), at most those before `tiles`. */
static int32_t attention_run_at(const cpu_attention *a, int32_t t, int32_t tiles, attention_run *r) {
  const cpu_kv *kv = a->row->kv;
  const char *keys = attention_tile_at(a, a->keys, kv->map[t].at);
  *r = (attention_run){keys, keys, keys, CPU_SCORES};
  return attention_follow(a, t, cpu_run_end(kv, t * OPS_TILE, tiles * OPS_TILE) / OPS_TILE, r);
}

/* The staging area's tiles, from which the rows' paths take their scores, if a path reaches into the split.
 */
static void attention_score_staged(const attention_batch *b, const attention_passes *with) {
  const cpu_attention *a = b->a;
  int32_t tiles = 0;
  for (int32_t q = 0; q < b->count; q = attention_next_row(b, q)) {
    const cpu_row *r = attention_row_of(b, q);
    if (r->length >= b->from + OPS_SPLIT || r->length + r->path_count <= b->from) continue;
    int32_t need = cpu_stage_tiles(r);
    tiles = need > tiles ? need : tiles;
  }
  if (tiles == 0) return;
  attention_run r = {a->stage_keys, a->stage_keys, a->stage_keys, (size_t)a->stage};
  with->score(b, &r, tiles, b->scores + CPU_BATCH_MAX * CPU_SCORES);
}

/* Committed tiles [t, to), all in the split. */
static void attention_score_committed(const attention_batch *b, const attention_passes *with, int32_t t,
                                      int32_t to) {
  for (int32_t end; t < to; t = end) {
    attention_run r;
    end = attention_run_at(b->a, t, to, &r);
    with->score(b, &r, end - t, b->scores + (size_t)(t - b->from / OPS_TILE) * OPS_TILE);
  }
}

/* All queries against all of the split's committed tiles in which one of them sees keys. What its row does
 * not see is later overwritten with the scores of its path, or with -infinity. */
static void attention_score_split(const attention_batch *b, const attention_passes *with) {
  const cpu_attention *a = b->a;
  const int32_t first = b->from / OPS_TILE;
  uint64_t tiles = 0;
  for (int32_t q = 0; q < b->count; q = attention_next_row(b, q))
    tiles |= cpu_tiles_seen(a, attention_row_index(b, q), b->from);
  for (int32_t t = 0, to; tiles >> t; t = to) {
    t += __builtin_ctzll(tiles >> t);
    to = t + __builtin_ctzll(~(tiles >> t));
    attention_score_committed(b, with, first + t, first + to);
  }
}

/* The first stretch of [p, to) that all rows see and have committed; if there is none, {to, to}. */
static ops_span attention_seen_by_all(const attention_batch *b, int32_t p, int32_t to) {
  ops_span all = {p, to};
  for (int32_t q = 0, next; q < b->count; q = next) {
    int32_t committed = attention_row_of(b, q)->length < to ? attention_row_of(b, q)->length : to;
    ops_span s = cpu_seen(b->a, attention_row_index(b, q), all.first, committed);
    if (s.first >= s.end) return (ops_span){to, to};
    next = s.first > all.first ? 0 : attention_next_row(b, q); /* the rows before may not see that far */
    if (s.first > all.first || s.end < all.end) all = s;
  }
  return all;
}

/* What each row sees of [from, to) by itself. */
static void attention_add_own(const attention_batch *b, const attention_passes *with, int32_t from,
                              int32_t to) {
  for (int32_t q = 0, next; q < b->count; q = next) {
    next = attention_next_row(b, q);
    const int32_t row = attention_row_index(b, q),
                  end = cpu_keys_end(b->a, row) < to ? cpu_keys_end(b->a, row) : to;
    for (ops_span s = cpu_seen(b->a, row, from, end); s.first < s.end; s = cpu_seen(b->a, row, s.end, end))
      with[next - q].add(b, q, s.first, s.end);
  }
}

/* y += x */
static void attention_add_chain(float *y, const float *x, int32_t dim) {
  for (int32_t d = 0; d < dim; d += LANES)
    vector_store(y + d, vector_add(vector_load(y + d), vector_load(x + d)));
}

/* A chunk that not all rows see whole. What all rows see and have committed is added for all at once; before
 * and after it each row adds its own. Positions ascend. */
static void attention_add_chunk(const attention_batch *b, const attention_passes *with, int32_t p) {
  const int32_t to = p + OPS_CHUNK, dim = b->a->head_dim;
  memset(b->chains, 0, (size_t)(b->count * dim) * sizeof(float));
  while (p < to) {
    ops_span all = attention_seen_by_all(b, p, to);
    if (all.first > p) attention_add_own(b, with, p, all.first);
    if (all.first < all.end) with[b->count].add(b, 0, all.first, all.end);
    p = all.end;
  }
  for (uint32_t left = b->sees; left; left &= left - 1) {
    int32_t q = __builtin_ctz(left);
    attention_add_chain(b->values[q], b->chains + q * dim, dim);
  }
}

/* Positions [b->from, to). Chunks that all rows see whole and have committed are added in one go. */
static void attention_add_split(const attention_batch *b, const attention_passes *with, int32_t to) {
  for (int32_t p = b->from; p < to;) {
    const ops_span all = attention_seen_by_all(b, p, b->from + OPS_SPLIT);
    const int32_t end = all.end / OPS_CHUNK * OPS_CHUNK;
    const bool whole = all.first == p && p < end;
    if (whole)
      with[b->count].add(b, 0, p, end);
    else
      attention_add_chunk(b, with, p);
    p = whole ? end : p + OPS_CHUNK;
  }
}

/* Of a query and a split: the whole chunks that its row sees, and their largest score. */
typedef struct attention_seen {
  ops_span at;
  float largest;
} attention_seen;

/* Of the scores of the split's whole chunks [at.first, at.end). */
static float attention_largest(const float *scores, ops_span at) {
  vector largest[OPS_CHUNK / LANES]; /* several: one would wait for itself */
  UNROLL for (int i = 0; i < OPS_CHUNK / LANES; i++) largest[i] = vector_all(-INFINITY);
  for (int32_t p = at.first; p < at.end; p += OPS_CHUNK) {
    UNROLL for (int i = 0; i < OPS_CHUNK / LANES; i++) largest[i] =
        vector_max(vector_load(scores + p + i * LANES), largest[i]);
  }
  UNROLL for (int i = 1; i < OPS_CHUNK / LANES; i++) largest[0] = vector_max(largest[i], largest[0]);
  return vector_largest(largest[0]);
}

/* A split's scores of query q, whose row sees some of [b->from, to), become complete. */
static attention_seen attention_see(const attention_batch *b, int32_t q, int32_t to) {
  const cpu_attention *a = b->a;
  const cpu_row *r = attention_row_of(b, q);
  float *scores = b->scores + q * CPU_SCORES;
  const float *staged = b->scores + CPU_BATCH_MAX * CPU_SCORES + (size_t)q * (size_t)a->stage;
  for (int32_t p = r->length > b->from ? r->length : b->from; p < to; p++)
    scores[p - b->from] = staged[r->path[p - r->length]];
  const ops_span at = cpu_hide_unseen(a, attention_row_index(b, q), b->from, to, scores);
  return (attention_seen){at, attention_largest(scores, at)};
}

/* And then exp(score - largest). */
static cpu_softmax attention_weigh(const attention_batch *b, int32_t q, attention_seen seen) {
  float *scores = b->scores + q * CPU_SCORES, lane[CPU_LANES];
  const vector largest = vector_all(seen.largest);
  __m256 sum = _mm256_setzero_ps();
  for (int32_t p = seen.at.first; p < seen.at.end; p += OPS_CHUNK)
    sum = _mm256_add_ps(sum, weigh_chunk(scores + p, largest));
  _mm256_storeu_ps(lane, sum);
  return (cpu_softmax){seen.largest, cpu_lane_sum(lane)};
}

/* y = fma(split, f.split, y * f.before) */
static void attention_join_values(float *y, const float *split, cpu_factors f, int32_t dim) {
  const vector before = vector_all(f.before), later = vector_all(f.split);
  for (int32_t d = 0; d < dim; d += LANES) {
    vector old = vector_multiply(vector_load(y + d), before);
    vector_store(y + d, vector_fma(vector_load(split + d), later, old));
  }
}

static void attention_finish(float *y, cpu_softmax all, int32_t dim) {
  const vector inverse = vector_all(1.0f / all.sum);
  for (int32_t d = 0; d < dim; d += LANES) vector_store(y + d, vector_multiply(vector_load(y + d), inverse));
}

/* Where a query's values of the split are added up: left as a part, or the first in y, or `later`. */
static float *attention_values_begin(const attention_batch *b, int32_t q, float *later) {
  const cpu_attention *a = b->a;
  const int32_t dim = a->head_dim, query = b->first + q;
  float *values = b->sums[q].sum < 0 ? a->y + cpu_query_at(a, query) : later + q * dim;
  if (a->split_sums) values = a->split_values + cpu_split_at(a, query, b->from / OPS_SPLIT) * (size_t)dim;
  for (int32_t d = 0; d < dim; d += LANES) vector_store(values + d, vector_zero());
  return values;
}

/* A query has come to *split: a part of its own, or taken into those before it. */
static void attention_values_end(const attention_batch *b, int32_t q, cpu_softmax split) {
  const cpu_attention *a = b->a;
  const int32_t query = b->first + q;
  const bool sees = b->sees & 1u << q;
  if (a->split_sums)
    a->split_sums[cpu_split_at(a, query, b->from / OPS_SPLIT)] = sees ? split : CPU_SEES_NOTHING;
  else if (sees && b->sums[q].sum < 0)
    b->sums[q] = split;
  else if (sees)
    attention_join_values(a->y + cpu_query_at(a, query), b->values[q], cpu_softmax_join(&b->sums[q], split),
                          a->head_dim);
}

static void attention_attend_split(attention_batch *b, const attention_passes *with) {
  const cpu_attention *a = b->a;
  float later[BATCH * OPS_HEAD_DIM_MAX], chains[BATCH * OPS_HEAD_DIM_MAX];
  cpu_softmax split[BATCH];
  attention_seen seen[BATCH];
  int32_t last = b->from;
  b->chains = chains;
  b->sees = 0;
  attention_score_staged(b, &with[b->count]);
  attention_score_split(b, &with[b->count]);
  for (int32_t q = 0; q < b->count; q++) {
    int32_t row = attention_row_index(b, q), end = cpu_keys_end(a, row), to = b->from + OPS_SPLIT;
    to = end < to ? end : to;
    if (cpu_seen(a, row, b->from, to).first >= to) continue;
    seen[q] = attention_see(b, q, to);
    b->values[q] = attention_values_begin(b, q, later);
    b->sees |= 1u << q;
    last = to > last ? to : last;
  }
  for (uint32_t left = b->sees; left; left &= left - 1) {
    const int32_t q = __builtin_ctz(left);
    split[q] = attention_weigh(b, q, seen[q]);
  }
  attention_add_split(b, with, last);
  for (int32_t q = 0; q < b->count; q++) attention_values_end(b, q, split[q]);
}

/* Batch i of n of nearly equal size, which share the lines of what follows. A lone batch reads as fast as
 * memory gives: it asks for what it reads itself, in the same order. */
static attention_batch attention_batch_at(const cpu_attention *a, int32_t i, int32_t n) {
  const int32_t all = a->rows * a->heads, first = all * i / n;
  const int32_t lines = BLOCK * OPS_TILE * (a->type == OPS_KV_F32 ? 4 : 2) / LINE, each = (lines + n - 1) / n;
  return (attention_batch){.a = a,
                           .lone = n == 1,
                           .line = i * each < lines ? i * each : lines,
                           .line_end = (i + 1) * each < lines ? (i + 1) * each : lines,
                           .first = first,
                           .count = all * (i + 1) / n - first,
                           .scores = a->scores,
                           .packed = a->queries + (size_t)first * (size_t)a->head_dim,
                           .sums = a->sums ? a->sums + first : NULL};
}

static void attention_attend(const cpu_attention *a) {
  const int32_t all = a->rows * a->heads, batches = (all + BATCH - 1) / BATCH;
  for (int32_t q = 0; q < all; q++) a->sums[q] = CPU_SEES_NOTHING;
  for (int32_t i = 0; i < batches; i++) {
    attention_batch b = attention_batch_at(a, i, batches);
    attention_pack_queries(&b);
  }
  for (int32_t s = a->split; s < a->split_end; s++) {
    for (int32_t i = 0; i < batches; i++) {
      attention_batch b = attention_batch_at(a, i, batches);
      b.from = s * OPS_SPLIT;
      attention_attend_split(&b, passes_by_count[a->type]);
    }
  }
  for (int32_t q = 0; q < all && !a->split_sums; q++)
    attention_finish(a->y + cpu_query_at(a, q), a->sums[q], a->head_dim);
}

/* The split of one query: its scores become weights, whose sums by tile go to tiles[CPU_SPLIT_TILES]. */
static cpu_softmax attention_weigh_tiles(const attention_batch *b, int32_t q, float *tiles) {
  const int32_t end = cpu_keys_end(b->a, 0), to = end < b->from + OPS_SPLIT ? end : b->from + OPS_SPLIT;
  const float *scores = b->scores + q * CPU_SCORES;
  cpu_softmax s = attention_weigh(b, q, attention_see(b, q, to));
  s.sum = 0;
  for (int32_t t = 0; t < CPU_SPLIT_TILES; t++) {
    const bool seen = b->from + t * OPS_TILE < to; /* scores are weights up to the end of the chunk */
    tiles[t] = seen ? cpu_tile_sum(scores + t * OPS_TILE) : 0.0f;
    s.sum += tiles[t];
  }
  return s;
}

static void attention_mass(const cpu_attention *a, const cpu_mass *m) {
  const int32_t batches = (a->heads + BATCH - 1) / BATCH;
  for (int32_t i = 0; i < batches; i++) {
    attention_batch b = attention_batch_at(a, i, batches);
    attention_pack_queries(&b);
  }
  for (int32_t s = a->split; s < a->split_end; s++) {
    for (int32_t i = 0; i < batches; i++) {
      attention_batch b = attention_batch_at(a, i, batches);
      b.from = s * OPS_SPLIT;
      attention_score_split(&b, &passes_by_count[a->type][b.count]);
      for (int32_t q = 0; q < b.count; q++) {
        const size_t part = (size_t)(b.first + q) * (size_t)m->splits + (size_t)s;
        m->sums[part] = attention_weigh_tiles(&b, q, m->tiles + part * CPU_SPLIT_TILES);
      }
    }
  }
}

static void attention_join_splits(const cpu_attention *a) {
  const size_t dim = (size_t)a->head_dim;
  for (int32_t q = 0; q < a->rows * a->heads; q++) {
    float *y = a->y + cpu_query_at(a, q);
    cpu_softmax all = CPU_SEES_NOTHING;
    for (int32_t s = a->split; s < a->split_end; s++) {
      const size_t part = cpu_split_at(a, q, s);
      const cpu_softmax split = a->split_sums[part];
      if (split.sum < 0) continue;
      if (all.sum < 0)
        all = split, memcpy(y, a->split_values + part * dim, dim * sizeof *y);
      else
        attention_join_values(y, a->split_values + part * dim, cpu_softmax_join(&all, split), a->head_dim);
    }
    attention_finish(y, all, a->head_dim);
  }
}
