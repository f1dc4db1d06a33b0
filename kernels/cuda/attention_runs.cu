/* attention_runs.cu - attention of some rows of a sequence, which share what they read (attention.cuh).
 *
 * A block takes QUERIES of a run's queries: a query is a row and a head of one key-value head's group. Each
 * lane scores two positions against all of them, and so reads each key once; then each warp sums all
 * components of all queries over a chunk, and so reads each value once. Where runs are few, each split is a
 * block of its own, as in attention.cu.
 *
 * What has an order in a sum is one thread's chain, in the order of ops.h. A chunk of committed positions
 * that every row sees needs no look at who sees them. Rows of a tree have the same staged rows as far as
 * their paths are one; where they part, a position is ragged, and each row reads its own key and value. */
#include "kernels/cuda/attention.cuh"

#include <assert.h>

#define CHUNKS  ATTENTION_CHUNKS
#define FOUR    ATTENTION_FOUR
#define WARPS   4
#define THREADS (WARPS * DEVICE_LANES)
#define TURNS   (CHUNKS / WARPS) /* chunks of a warp: WARPS apart */
#define STRIDE  (OPS_SPLIT + 8)  /* of weights: queries do not begin in the same bank */
#define AHEAD   8                /* values that are on their way while as many are added */
#define LANES   CPU_LANES
#define NOBODY  CUDA_RUN_ROWS /* the row of a query that is not there, which sees nothing */

static_assert(OPS_CHUNK == DEVICE_LANES, "a lane for each position of a chunk");

typedef uint16_t element; /* the bits of an f16 */

/* What a kernel is made for: QUERIES of a block, and ROW elements of a row of the cache. */
template <int QUERIES_, int ROW_> struct run_plan {
  static constexpr int QUERIES = QUERIES_, ROW = ROW_, UNITS = ROW / CUDA_KV_UNIT;
  static constexpr int BLOCKS = ROW > 128 ? 2 : QUERIES *ROW > 1024 ? 3 : 4; /* of a processor */
  static constexpr int PARTS = THREADS / (QUERIES * LANES);    /* threads for a lane of a query's sum */
  static constexpr int EACH = CHUNKS / PARTS;                  /* chunks of such a thread */
  static constexpr int WIDE = ROW / DEVICE_LANES;              /* components of a lane */
  static constexpr int QUADS = QUERIES * ROW / FOUR / THREADS; /* of a thread, of all values */
  static_assert(PARTS * LANES <= DEVICE_LANES, "a warp adds a query's lanes");
  static_assert(UNITS % 2 == 0 && QUADS * FOUR * THREADS == QUERIES * ROW, "no rest");
};

/* --- memory of a block --- */

/* Of a chunk, a bit for each position. ragged: rows that see it have it in different places, and each reads
 * its own; all: not so, and every row sees it; any: some row does. flat: none that rows share is staged. */
struct chunk_view {
  uint32_t ragged, all, any;
  bool flat;
};

template <class P> struct run_memory {
  union {
    alignas(16) float queries[P::QUERIES][P::ROW];       /* until they are scored */
    alignas(16) float chunks[WARPS][P::QUERIES][P::ROW]; /* values of a turn */
  };
  alignas(16) float weights[P::QUERIES][STRIDE]; /* scores, and then exp(score - largest) */
  ops_row rows[CUDA_RUN_ROWS];
  uint32_t seen[CUDA_RUN_ROWS + 1][CHUNKS]; /* a bit for each position */
  chunk_view views[CHUNKS];
  int32_t entries[OPS_SPLIT]; /* of each position for all rows that see it, unless it is ragged (entry_of) */
  int32_t row_of[P::QUERIES];
  cpu_softmax split[P::QUERIES], all[P::QUERIES]; /* of this split, and of all before it */
  cpu_factors factors[P::QUERIES];
  bool begun[P::QUERIES]; /* there is something in `all` */
  int32_t arrived;
};

/* Nothing else may hold this pointer (attention.cu). */
template <class P> DEVICE_CODE run_memory<P> &run_shared() {
  CUDA_SHARED(shared);
  return *(run_memory<P> *)shared;
}

/* Of all splits so far [QUERIES][ROW], where a block has them all. */
template <class P> DEVICE_CODE float *run_totals() {
  return (float *)(&run_shared<P>() + 1);
}

template <class P> static size_t run_bytes(bool spread) {
  return sizeof(run_memory<P>) + (spread ? 0 : sizeof(float) * P::QUERIES * P::ROW);
}

/* --- what a block works on --- */

struct run_job : attention_queries {
  int32_t old; /* positions before it were there before this forward */
  cache_area<element> committed, staged;
};

DEVICE_CODE run_job run_of(const attention_job &j, cuda_run run, int32_t queries) {
  const int32_t kv_head = (int32_t)blockIdx.y % j.kv.kv_heads;
  const int32_t first = (int32_t)blockIdx.y / j.kv.kv_heads * queries;
  return {{j, run, kv_head, j.heads / j.kv.kv_heads, first},
          0,
          cache_area_of<element>(j.kv, false, j.layer, kv_head),
          cache_area_of<element>(j.kv, true, j.layer, kv_head)};
}

/* Leaves the rows, and whose each query is. Ends with a barrier. */
template <class P> DEVICE_CODE void find_rows(run_job &b) {
  run_memory<P> &memory = run_shared<P>();
  const int32_t t = (int32_t)threadIdx.x, count = b.j.rows.batch->row_count;
  if (t < b.run.count) memory.rows[t] = b.j.rows.batch->rows[b.run.first + t];
  if (t < P::QUERIES) {
    const int32_t row = (b.first + t) / b.group;
    memory.row_of[t] = row < b.run.count ? row : NOBODY;
    memory.begun[t] = false;
  }
  if (t < (CUDA_RUN_ROWS + 1) * CHUNKS) memory.seen[t / CHUNKS][t % CHUNKS] = 0;
  __syncthreads();
  int32_t old = INT32_MAX;
  DEVICE_NO_UNROLL
  for (int32_t r = 0; r < b.run.count; r++) {
    const int32_t before = memory.rows[r].length - count;
    old = before < old ? before : old;
  }
  b.old = old;
}

/* --- what the rows see of a split --- */

/* A thread looks for one row at one chunk. */
template <class P> DEVICE_CODE void look(const run_job &b, int32_t split) {
  run_memory<P> &memory = run_shared<P>();
  const int32_t r = (int32_t)threadIdx.x / CHUNKS, c = (int32_t)threadIdx.x % CHUNKS;
  if (r >= b.run.count) return;
  memory.seen[r][c] =
      attention_seen(attention_view_of(b.j, b.run.first + r), split * OPS_SPLIT + c * OPS_CHUNK);
}

/* Where row r has a position: a committed row of the cache, or ~ a staged one. */
template <class P> DEVICE_CODE int32_t entry_of(const run_job &b, int32_t r, int32_t p) {
  const ops_row &row = run_shared<P>().rows[r];
  return p < row.length ? cache_row(b.j.kv, row.sequence, p)
                        : ~b.j.rows.batch->paths[row.path_at + p - row.length];
}

/* A warp brings together what all rows see of a chunk. A position that nobody sees is said to be at 0: what
 * comes of it is not read. */
template <class P> DEVICE_CODE void look_together(const run_job &b, int32_t split, int32_t c) {
  run_memory<P> &memory = run_shared<P>();
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, at = c * OPS_CHUNK + lane;
  int32_t entry = 0;
  bool any = false, all = true, ragged = false;
  DEVICE_NO_UNROLL
  for (int32_t r = 0; r < b.run.count; r++) {
    const bool sees = memory.seen[r][c] >> lane & 1;
    const int32_t p = split * OPS_SPLIT + at;
    const bool same = !sees || (any && entry >= 0 && p < memory.rows[r].length); /* committed for both */
    const int32_t here = same ? entry : entry_of<P>(b, r, p);
    ragged = ragged || (any && here != entry);
    entry = here;
    any = any || sees;
    all = all && sees;
  }
  memory.entries[at] = entry;
  const chunk_view v = {__ballot_sync(~0u, ragged), __ballot_sync(~0u, all && !ragged),
                        __ballot_sync(~0u, any), !__any_sync(~0u, entry < 0)};
  if (lane == 0) memory.views[c] = v;
}

/* Leaves what all rows see of a split. False: nothing. Ends with a barrier. */
template <class P> DEVICE_CODE bool look_at(const run_job &b, int32_t split) {
  uint32_t any = 0;
  look<P>(b, split);
  __syncthreads();
  DEVICE_NO_UNROLL
  for (int32_t c = (int32_t)threadIdx.x / DEVICE_LANES; c < CHUNKS; c += WARPS) look_together<P>(b, split, c);
  __syncthreads();
  DEVICE_UNROLL for (int c = 0; c < CHUNKS; c++) any |= run_shared<P>().views[c].any;
  return any != 0;
}

/* Does some row see the positions of this lane? */
template <class P> DEVICE_CODE bool is_seen() {
  bool seen = true;
  DEVICE_UNROLL for (int i = 0; i < TURNS; i++) {
    const int32_t at = i * THREADS + (int32_t)threadIdx.x;
    seen = seen && run_shared<P>().views[at / OPS_CHUNK].any >> at % OPS_CHUNK & 1;
  }
  return seen;
}

/* Does the row of this query see something of the split? */
template <class P> DEVICE_CODE bool sees_split(int32_t query) {
  const run_memory<P> &memory = run_shared<P>();
  return attention_sees_split(memory.seen[memory.row_of[query]]);
}

/* --- scores --- */

struct key_unit {
  alignas(16) uint32_t pairs[CUDA_KV_UNIT / 2];
};

/* Four components of it. */
DEVICE_CODE attention_quad key_quad(const key_unit &k, int c) {
  attention_quad x;
  DEVICE_UNROLL for (int e = 0; e < FOUR; e += 2) device_halves(k.pairs[(c + e) / 2], &x.x[e], &x.x[e + 1]);
  return x;
}

template <class P> struct key_units { /* of all keys of a lane */
  key_unit of[TURNS];
};

template <class P> struct key_pointers { const element *of[TURNS]; };

template <class P> DEVICE_CODE const element *key_at(const cache_area<element> &area, int32_t row) {
  return area.keys + (size_t)(row / OPS_TILE) * (OPS_TILE * P::ROW) + row % OPS_TILE * CUDA_KV_UNIT;
}

/* Of a position that is not ragged. */
template <class P> DEVICE_CODE const element *key_of(const run_job &b, int32_t entry) {
  return entry < 0 ? key_at<P>(b.staged, ~entry) : key_at<P>(b.committed, entry);
}

template <class P> DEVICE_CODE key_pointers<P> find_keys(const run_job &b) {
  key_pointers<P> k;
  DEVICE_UNROLL for (int i = 0; i < TURNS; i++) k.of[i] =
      key_of<P>(b, run_shared<P>().entries[i * THREADS + (int32_t)threadIdx.x]);
  return k;
}

/* Instead of one after the last, the last one again. */
template <class P> DEVICE_CODE key_units<P> load_keys(const key_pointers<P> &k, int32_t unit) {
  key_units<P> units;
  const int32_t at = unit < P::UNITS ? unit : P::UNITS - 1;
  DEVICE_UNROLL for (int i = 0; i < TURNS; i++) units.of[i] =
      device_load<key_unit>(k.of[i] + at * (OPS_TILE * CUDA_KV_UNIT));
  return units;
}

template <class P>
DEVICE_CODE void add_unit(const key_units<P> &k, int32_t unit, float (&scores)[TURNS][P::QUERIES]) {
  const float *queries = run_shared<P>().queries[0] + unit * CUDA_KV_UNIT;
  DEVICE_UNROLL for (int c = 0; c < CUDA_KV_UNIT; c += FOUR) {
    attention_quad key[TURNS];
    DEVICE_UNROLL for (int i = 0; i < TURNS; i++) key[i] = key_quad(k.of[i], c);
    DEVICE_UNROLL for (int q = 0; q < P::QUERIES; q++) {
      const attention_quad x = device_load<attention_quad>(queries + q * P::ROW + c);
      DEVICE_UNROLL for (int e = 0; e < FOUR; e++) {
        DEVICE_UNROLL for (int i = 0; i < TURNS; i++) scores[i][q] = fmaf(x.x[e], key[i].x[e], scores[i][q]);
      }
    }
  }
}

template <class P> struct keys_ahead { /* two units */
  key_units<P> even, odd;
};

/* All queries against the keys of all positions that are not ragged. */
template <class P>
DEVICE_CODE void score_split(const run_job &b, const key_pointers<P> &keys, keys_ahead<P> next) {
  run_memory<P> &memory = run_shared<P>();
  float scores[TURNS][P::QUERIES] = {};
  DEVICE_NO_UNROLL
  for (int32_t unit = 0; unit < P::UNITS; unit += 2) {
    const keys_ahead<P> k = next;
    next.even = load_keys<P>(keys, unit + 2);
    add_unit<P>(k.even, unit, scores);
    next.odd = load_keys<P>(keys, unit + 3);
    add_unit<P>(k.odd, unit + 1, scores);
  }
  DEVICE_UNROLL for (int i = 0; i < TURNS; i++) {
    const int32_t at = i * THREADS + (int32_t)threadIdx.x;
    if (memory.views[at / OPS_CHUNK].ragged >> at % OPS_CHUNK & 1) continue;
    DEVICE_UNROLL for (int q = 0; q < P::QUERIES; q++) memory.weights[q][at] = scores[i][q] * b.j.scale;
  }
}

/* The score of one query against one key. */
template <class P> DEVICE_CODE float score_one(const run_job &b, int32_t query, const element *key) {
  const float *q = run_shared<P>().queries[query];
  float score = 0;
  DEVICE_UNROLL_BY(4)
  for (int32_t u = 0; u < P::UNITS; u++) {
    const key_unit k = device_load<key_unit>(key + u * (OPS_TILE * CUDA_KV_UNIT));
    DEVICE_UNROLL for (int c = 0; c < CUDA_KV_UNIT; c += FOUR) {
      const attention_quad x = key_quad(k, c);
      DEVICE_UNROLL for (int e = 0; e < FOUR; e++) score = fmaf(q[u * CUDA_KV_UNIT + c + e], x.x[e], score);
    }
  }
  return score * b.j.scale;
}

/* Each query against the keys of ragged positions. */
template <class P> DEVICE_CODE void score_ragged(const run_job &b, int32_t split) {
  run_memory<P> &memory = run_shared<P>();
  DEVICE_NO_UNROLL
  for (int32_t c = 0; c < CHUNKS; c++) {
    const uint32_t ragged = memory.views[c].ragged;
    DEVICE_NO_UNROLL
    for (int32_t i = (int32_t)threadIdx.x; ragged && i < OPS_CHUNK * P::QUERIES; i += THREADS) {
      const int32_t query = i % P::QUERIES, p = i / P::QUERIES, at = c * OPS_CHUNK + p,
                    r = memory.row_of[query];
      if (ragged & memory.seen[r][c] & 1u << p)
        memory.weights[query][at] =
            score_one<P>(b, query, key_of<P>(b, entry_of<P>(b, r, split * OPS_SPLIT + at)));
    }
  }
}

/* --- weights --- */

/* Lane i of a query's sum: positions i, i + 8, i + 16 and i + 24 of each chunk. PARTS threads have EACH
 * chunks of it, and what one of them has of the sum goes on to the next. */
template <class P> DEVICE_CODE void weigh() {
  run_memory<P> &memory = run_shared<P>();
  const int32_t t = (int32_t)threadIdx.x, query = t / (P::PARTS * LANES), i = t % LANES;
  const int32_t part = t / LANES % P::PARTS, first = part * P::EACH;
  const uint32_t *seen = memory.seen[memory.row_of[query]] + first;
  float *scores = memory.weights[query] + first * OPS_CHUNK + i, most = -INFINITY, sums[P::EACH], sum = 0;
  DEVICE_UNROLL for (int c = 0; c < P::EACH; c++) {
    DEVICE_UNROLL for (int k = 0; k < FOUR; k++) {
      const float score = scores[c * OPS_CHUNK + k * LANES];
      most = seen[c] >> (i + k * LANES) & 1 ? attention_larger(score, most) : most;
    }
  }
  most = attention_largest(most, P::PARTS * LANES);
  DEVICE_UNROLL for (int c = 0; c < P::EACH; c++) sums[c] =
      attention_weigh_chunk(scores + c * OPS_CHUNK, seen[c] >> i, most);
  DEVICE_UNROLL for (int turn = 0; turn < P::PARTS; turn++) {
    const float before = __shfl_up_sync(~0u, sum, LANES);
    if (turn != part) continue;
    sum = turn > 0 ? before : 0;
    DEVICE_UNROLL for (int c = 0; c < P::EACH; c++) sum += sums[c];
  }
  for (int by = LANES / 2; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (i == 0 && part == P::PARTS - 1) memory.split[query] = {most, sum};
}

/* --- values --- */

template <class P> struct value_part { /* a lane's components of a value */
  alignas(P::WIDE * sizeof(element)) uint32_t pairs[P::WIDE / 2];
};

template <class P> struct value_floats { float x[P::WIDE]; };

template <class P> DEVICE_CODE value_floats<P> floats_of(const value_part<P> &v) {
  value_floats<P> f;
  DEVICE_UNROLL for (int d = 0; d < P::WIDE; d += 2) device_halves(v.pairs[d / 2], &f.x[d], &f.x[d + 1]);
  return f;
}

template <class P> struct value_parts { /* of positions side by side */
  value_part<P> of[AHEAD];
};

template <class P> struct value_sums { float of[P::QUERIES][P::WIDE]; };

template <class P> DEVICE_CODE const element *value_at(const run_job &b, int32_t entry) {
  const element *from =
      entry < 0 ? b.staged.values + (size_t)~entry * P::ROW : b.committed.values + (size_t)entry * P::ROW;
  return from + (int32_t)threadIdx.x % DEVICE_LANES * P::WIDE;
}

/* Where the values of a chunk lie that every row sees, all of it committed: those of a tile side by side. */
struct value_tiles {
  const element *of[OPS_CHUNK / OPS_TILE];
};

/* Positions [first, first + AHEAD) of the chunk. */
template <class P> DEVICE_CODE value_parts<P> load_values(const value_tiles &tiles, int32_t first) {
  const element *from = (first < OPS_TILE ? tiles.of[0] : tiles.of[1]) + first % OPS_TILE * P::ROW;
  value_parts<P> v;
  DEVICE_UNROLL for (int i = 0; i < AHEAD; i++) v.of[i] = device_load<value_part<P>>(from + i * P::ROW);
  return v;
}

template <class P>
DEVICE_CODE void add_value(float weight, const value_floats<P> &v, float (&sums)[P::WIDE]) {
  DEVICE_UNROLL for (int c = 0; c < P::WIDE; c++) sums[c] = fmaf(weight, v.x[c], sums[c]);
}

/* Four positions that every row sees. weights: of the first query. */
template <class P>
DEVICE_CODE void add_four(const value_part<P> *v, const float *weights, value_sums<P> &sums) {
  value_floats<P> x[FOUR];
  DEVICE_UNROLL for (int p = 0; p < FOUR; p++) x[p] = floats_of<P>(v[p]);
  DEVICE_UNROLL for (int q = 0; q < P::QUERIES; q++) {
    const attention_quad w = device_load<attention_quad>(weights + q * STRIDE);
    DEVICE_UNROLL for (int p = 0; p < FOUR; p++) add_value<P>(w.x[p], x[p], sums.of[q]);
  }
}

/* The value of a position for one row: that which rows share, its own, or zeros where it sees none: a weight
 * of zero times zero adds nothing. */
template <class P>
DEVICE_CODE value_part<P> value_for(const run_job &b, const value_part<P> &shared, int32_t r, int32_t split,
                                    int32_t at) {
  const run_memory<P> &memory = run_shared<P>();
  const uint32_t bit = 1u << at % OPS_CHUNK;
  if (!(memory.seen[r][at / OPS_CHUNK] & bit)) return {};
  if (!(memory.views[at / OPS_CHUNK].ragged & bit)) return shared;
  return device_load<value_part<P>>(value_at<P>(b, entry_of<P>(b, r, split * OPS_SPLIT + at)));
}

/* Four positions that some row does not see, or has its own values of. Queries of a row follow each other. */
template <class P>
DEVICE_CODE void add_some(const run_job &b, const value_part<P> *v, int32_t split, int32_t at,
                          value_sums<P> &sums) {
  const run_memory<P> &memory = run_shared<P>();
  const int32_t last = memory.row_of[P::QUERIES - 1];
  DEVICE_NO_UNROLL
  for (int32_t r = memory.row_of[0]; r < b.run.count && r <= last; r++) {
    value_floats<P> mine[FOUR];
    DEVICE_UNROLL for (int p = 0; p < FOUR; p++) mine[p] =
        floats_of<P>(value_for<P>(b, v[p], r, split, at + p));
    DEVICE_UNROLL for (int q = 0; q < P::QUERIES; q++) {
      if (memory.row_of[q] != r) continue;
      const attention_quad w = device_load<attention_quad>(memory.weights[q] + at);
      DEVICE_UNROLL for (int p = 0; p < FOUR; p++) add_value<P>(w.x[p], mine[p], sums.of[q]);
    }
  }
}

template <class P> struct values_ahead { /* of a chunk */
  value_tiles tiles;
  value_parts<P> first;
};

DEVICE_CODE bool is_whole(const chunk_view &v) {
  return v.all == ~0u && v.flat;
}

/* If it is a whole chunk, its first values begin to come. */
template <class P> DEVICE_CODE values_ahead<P> begin_chunk(const run_job &b, int32_t c) {
  const run_memory<P> &memory = run_shared<P>();
  values_ahead<P> v = {};
  if (!is_whole(memory.views[c])) return v;
  DEVICE_UNROLL for (int i = 0; i < OPS_CHUNK / OPS_TILE; i++) v.tiles.of[i] =
      value_at<P>(b, memory.entries[c * OPS_CHUNK + i * OPS_TILE]);
  v.first = load_values<P>(v.tiles, 0);
  return v;
}

template <class P> DEVICE_CODE void sum_whole(const values_ahead<P> &begun, int32_t c, value_sums<P> &sums) {
  const float *weights = run_shared<P>().weights[0] + c * OPS_CHUNK;
  value_parts<P> next = begun.first;
  DEVICE_NO_UNROLL
  for (int32_t first = 0; first < OPS_CHUNK; first += AHEAD) {
    const value_parts<P> v = next;
    next = load_values<P>(begun.tiles, first + AHEAD < OPS_CHUNK ? first + AHEAD : first);
    DEVICE_UNROLL for (int i = 0; i < AHEAD; i += FOUR) add_four<P>(v.of + i, weights + first + i, sums);
  }
}

/* A chunk of which some row sees some positions, or has some elsewhere. */
template <class P>
DEVICE_CODE void sum_some(const run_job &b, int32_t split, int32_t c, value_sums<P> &sums) {
  const run_memory<P> &memory = run_shared<P>();
  const chunk_view view = memory.views[c];
  DEVICE_NO_UNROLL
  for (int32_t first = 0; first < OPS_CHUNK; first += FOUR) {
    if (!(view.any >> first & 15)) continue;
    const int32_t at = c * OPS_CHUNK + first;
    value_part<P> v[FOUR];
    DEVICE_UNROLL for (int p = 0; p < FOUR; p++) v[p] =
        device_load<value_part<P>>(value_at<P>(b, memory.entries[at + p]));
    if ((view.all >> first & 15) == 15)
      add_four<P>(v, memory.weights[0] + at, sums);
    else
      add_some<P>(b, v, split, at, sums);
  }
}

template <class P> struct value_quads { /* of the thread: every THREADS'th one of [QUERIES][ROW] */
  attention_quad of[P::QUADS];
};

/* Adds what all warps have of a turn, in their order. Begins with a barrier. */
template <class P> DEVICE_CODE void add_turn(const value_sums<P> &sums, value_quads<P> &totals) {
  run_memory<P> &memory = run_shared<P>();
  const int32_t t = (int32_t)threadIdx.x;
  __syncthreads();
  DEVICE_UNROLL for (int q = 0; q < P::QUERIES; q++) {
    DEVICE_UNROLL for (int c = 0; c < P::WIDE; c += 2) {
      const float2 pair = {sums.of[q][c], sums.of[q][c + 1]};
      device_store(&memory.chunks[t / DEVICE_LANES][q][t % DEVICE_LANES * P::WIDE + c], pair);
    }
  }
  __syncthreads();
  DEVICE_UNROLL for (int i = 0; i < P::QUADS; i++) {
    DEVICE_UNROLL for (int w = 0; w < WARPS; w++) {
      const attention_quad x =
          device_load<attention_quad>(&memory.chunks[w][0][0] + (i * THREADS + t) * FOUR);
      DEVICE_UNROLL for (int c = 0; c < FOUR; c++) totals.of[i].x[c] += x.x[c];
    }
  }
}

/* --- one split --- */

template <class P> DEVICE_CODE void keep_queries(const run_job &b) {
  run_memory<P> &memory = run_shared<P>();
  const size_t dim = P::ROW;
  DEVICE_UNROLL for (int i = 0; i < P::QUADS; i++) {
    const int32_t at = (i * THREADS + (int32_t)threadIdx.x) * FOUR, query = at / P::ROW;
    attention_quad x = {};
    if (memory.row_of[query] != NOBODY)
      x = device_load<attention_quad>(b.j.q + b.at(query) * dim + (size_t)(at % P::ROW));
    device_store(&memory.queries[0][0] + at, x);
  }
}

/* Leaves the sums of weights; returns the values. Keys that were there before this forward begin to come
 * before the wait. */
template <class P> DEVICE_CODE value_quads<P> attend_split(const run_job &b, int32_t split, bool first) {
  const int32_t warp = (int32_t)threadIdx.x / DEVICE_LANES;
  const key_pointers<P> keys = find_keys<P>(b);
  const bool early = (split + 1) * OPS_SPLIT <= b.old && is_seen<P>();
  keys_ahead<P> begun = {};
  DEVICE_NO_UNROLL
  for (int later = 0; later < 2; later++) {
    if (first && later) device_wait_for_previous();
    if (early != later) begun = {load_keys<P>(keys, 0), load_keys<P>(keys, 1)};
  }
  if (first) device_let_next_begin();
  keep_queries<P>(b);
  __syncthreads();
  score_ragged<P>(b, split);
  score_split<P>(b, keys, begun);
  values_ahead<P> next = begin_chunk<P>(b, warp);
  __syncthreads();
  weigh<P>();
  __syncthreads();
  value_quads<P> totals = {};
  DEVICE_NO_UNROLL
  for (int turn = 0; turn < TURNS; turn++) {
    const int32_t c = turn * WARPS + warp;
    value_sums<P> sums = {};
    if (is_whole(run_shared<P>().views[c]))
      sum_whole<P>(next, c, sums);
    else
      sum_some<P>(b, split, c, sums);
    if (turn + 1 < TURNS) next = begin_chunk<P>(b, c + WARPS);
    add_turn<P>(sums, totals);
  }
  return totals;
}

/* --- splits together --- */

/* What the block leaves for the last one. */
template <class P> DEVICE_CODE void leave(const run_job &b, int32_t split, const value_quads<P> &values) {
  const run_memory<P> &memory = run_shared<P>();
  const attention_job &j = b.j;
  const int32_t t = (int32_t)threadIdx.x;
  if (t < P::QUERIES && memory.row_of[t] != NOBODY)
    j.partials[b.at(t) * (size_t)j.splits + (size_t)split] = {memory.split[t], sees_split<P>(t)};
  DEVICE_UNROLL for (int i = 0; i < P::QUADS; i++) {
    const int32_t at = (i * THREADS + t) * FOUR, query = at / P::ROW;
    if (memory.row_of[query] == NOBODY) break;
    device_store(j.values + (b.at(query) * (size_t)j.splits + (size_t)split) * P::ROW + at % P::ROW,
                 values.of[i]);
  }
}

template <class P> DEVICE_CODE void leave_nothing(const run_job &b, int32_t split) {
  const int32_t t = (int32_t)threadIdx.x;
  device_wait_for_previous();
  device_let_next_begin();
  attention_leave_nothing(b, t < P::QUERIES && run_shared<P>().row_of[t] != NOBODY, split);
}

/* The split becomes part of what was before it. Ends with a barrier. */
template <class P> DEVICE_CODE void add_to_all(const value_quads<P> &values) {
  run_memory<P> &memory = run_shared<P>();
  const int32_t t = (int32_t)threadIdx.x;
  const bool mine = t < P::QUERIES && sees_split<P>(t);
  if (mine && memory.begun[t]) memory.factors[t] = cpu_softmax_join(&memory.all[t], memory.split[t]);
  if (mine && !memory.begun[t]) memory.all[t] = memory.split[t];
  __syncthreads();
  DEVICE_UNROLL for (int i = 0; i < P::QUADS; i++) {
    const int32_t at = (i * THREADS + t) * FOUR, query = at / P::ROW;
    if (!sees_split<P>(query)) continue;
    attention_quad all = device_load<attention_quad>(run_totals<P>() + at);
    DEVICE_UNROLL for (int c = 0; c < FOUR; c++) all.x[c] =
        memory.begun[query] ? attention_joined(all.x[c], values.of[i].x[c], memory.factors[query])
                            : values.of[i].x[c];
    device_store(run_totals<P>() + at, all);
  }
  __syncthreads();
  if (mine) memory.begun[t] = true;
}

template <class P> DEVICE_CODE void put_all(const run_job &b) {
  const run_memory<P> &memory = run_shared<P>();
  DEVICE_UNROLL for (int i = 0; i < P::QUADS; i++) {
    const int32_t at = (i * THREADS + (int32_t)threadIdx.x) * FOUR, query = at / P::ROW;
    if (memory.row_of[query] == NOBODY) break;
    attention_quad y = device_load<attention_quad>(run_totals<P>() + at);
    DEVICE_UNROLL for (int c = 0; c < FOUR; c++) y.x[c] *= 1.0f / memory.all[query].sum;
    device_store(b.j.y + b.at(query) * P::ROW + (size_t)(at % P::ROW), y);
  }
}

/* --- blocks --- */

template <class P> DEVICE_CODE int32_t splits_seen(const run_job &b) {
  int32_t last = 0;
  DEVICE_NO_UNROLL
  for (int32_t r = 0; r < b.run.count; r++) {
    const int32_t position = run_shared<P>().rows[r].position;
    last = position > last ? position : last;
  }
  return last / OPS_SPLIT + 1;
}

/* Splits [first, end) of `count`. */
template <class P> DEVICE_CODE void attend_splits(run_job &b, int32_t first, int32_t end, int32_t count) {
  bool begun = false;
  DEVICE_NO_UNROLL
  for (int32_t split = first; split < end; split++) {
    if (!look_at<P>(b, split)) continue;
    const value_quads<P> values = attend_split<P>(b, split, !begun);
    if (b.j.spread)
      leave<P>(b, split, values);
    else
      add_to_all<P>(values);
    begun = true;
  }
  if (!begun) leave_nothing<P>(b, first);
  run_memory<P> &memory = run_shared<P>();
  if (b.j.spread)
    attention_meet<P::QUERIES, P::ROW>(b, count, memory.row_of, NOBODY, &memory.arrived);
  else
    put_all<P>(b);
}

template <class P> static __global__ void __launch_bounds__(THREADS, P::BLOCKS) attend_runs(attention_job j) {
  const cuda_batch *batch = j.rows.batch;
  if ((int32_t)blockIdx.x >= batch->run_count) {
    device_wait_for_previous();
    return;
  }
  run_job b = run_of(j, batch->runs[blockIdx.x], P::QUERIES);
  find_rows<P>(b);
  const int32_t count = splits_seen<P>(b), split = (int32_t)blockIdx.z;
  if (b.first >= b.run.count * b.group || split >= count) {
    device_wait_for_previous();
    return;
  }
  attend_splits<P>(b, split, j.spread ? split + 1 : count, count);
}

/* --- launches --- */

template <class P> static void launch(cudaStream_t stream, const attention_job &j, dim3 grid) {
  launch_early(attend_runs<P>, grid, dim3(THREADS), run_bytes<P>(j.spread), stream, j);
}

typedef struct run_kernel {
  int32_t queries, row, blocks; /* blocks: of a processor at once */
  int32_t cost;                 /* of that many blocks, measured */
  size_t (*bytes)(bool spread);
  void (*launch)(cudaStream_t stream, const attention_job &j, dim3 grid);
} run_kernel;

#define KERNEL(QUERIES, ROW, COST)                                                                           \
  {                                                                                                          \
    QUERIES, ROW, run_plan<QUERIES, ROW>::BLOCKS, COST, run_bytes<run_plan<QUERIES, ROW>>,                   \
        launch<run_plan<QUERIES, ROW>>                                                                       \
  }
/* Those with fewer queries first. */
static const run_kernel kernels[] = {KERNEL(8, 64, 5), KERNEL(16, 64, 7), KERNEL(8, 128, 5),
                                     KERNEL(16, 128, 7), KERNEL(8, 256, 5)};

static bool fits(const run_kernel &k, const cuda_kv &kv) {
  return kv.type == OPS_KV_F16 && k.row == kv.head_dim && k.bytes(false) <= (size_t)launch_shared_max();
}

/* Blocks for one split. */
static int32_t blocks_of(const run_kernel &k, const cuda_kv &kv, cuda_runs runs, int32_t heads) {
  return runs.bucket * kv.kv_heads * ((runs.rows * (heads / kv.kv_heads) + k.queries - 1) / k.queries);
}

static bool spreads(const run_kernel &k, const cuda_kv &kv, cuda_runs runs, int32_t heads) {
  return attention_may_spread(kv, runs, heads, blocks_of(k, kv, runs, heads));
}

static int64_t cost_of(const run_kernel &k, const cuda_kv &kv, cuda_runs runs, int32_t heads,
                       int32_t splits) {
  const int64_t blocks = blocks_of(k, kv, runs, heads);
  return spreads(k, kv, runs, heads) ? attention_cost(blocks * splits, k.blocks, k.cost)
                                     : attention_cost(blocks, k.blocks, k.cost) * splits;
}

/* One that has a block for each split comes before one that has not, and then the faster one. Where runs fit
 * there is one. */
static const run_kernel *kernel_of(const cuda_kv &kv, cuda_runs runs, int32_t heads, int32_t splits) {
  const run_kernel *best = NULL;
  for (const run_kernel &k : kernels) {
    if (!fits(k, kv)) continue;
    const bool better = best && spreads(k, kv, runs, heads) == spreads(*best, kv, runs, heads)
                            ? cost_of(k, kv, runs, heads, splits) < cost_of(*best, kv, runs, heads, splits)
                            : !best || spreads(k, kv, runs, heads);
    if (better) best = &k;
  }
  return best;
}

bool attention_runs_fit(const cuda_kv &kv) {
  for (const run_kernel &k : kernels)
    if (fits(k, kv)) return true;
  return false;
}

int64_t attention_runs_cost(const cuda_kv &kv, cuda_runs runs, int32_t heads, int32_t splits) {
  return cost_of(*kernel_of(kv, runs, heads, splits), kv, runs, heads, splits);
}

bool attention_runs_spread(const cuda_kv &kv, cuda_runs runs, int32_t heads, int32_t splits) {
  return spreads(*kernel_of(kv, runs, heads, splits), kv, runs, heads);
}

void attention_put_runs(cudaStream_t stream, const attention_job &j, cuda_runs runs) {
  assert(runs.rows <= CUDA_RUN_ROWS);
  const run_kernel &k = *kernel_of(j.kv, runs, j.heads, j.splits);
  const dim3 grid((unsigned)runs.bucket, (unsigned)(blocks_of(k, j.kv, runs, j.heads) / runs.bucket),
                  (unsigned)(j.spread ? j.splits : 1));
  k.launch(stream, j, grid);
}
