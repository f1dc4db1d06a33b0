/* attention_runs.cu - attention of some rows of a run, which share what they read (attention_run.cuh),
 * where blocks are few: each has little to do.
 *
 * A block takes QUERIES of a run's queries, and a warp a chunk of a split. Each lane scores a position
 * against all queries, and so reads each key once; then the warp sums all components of all queries over its
 * chunk, and so reads each value once. Where runs are few, each split is a block of its own, as in
 * attention.cu.
 *
 * What has an order in a sum is one thread's chain, in the order of ops.h. */
#include "kernels/cuda/attention_run.cuh"

#include <assert.h>

#define QUERIES 8
#define CHUNKS  ATTENTION_CHUNKS
#define THREADS (CHUNKS * DEVICE_LANES)
#define FOUR    ATTENTION_FOUR
#define STRIDE  ATTENTION_STRIDE
#define LANES   CPU_LANES
#define PARTS   (THREADS / (QUERIES * LANES)) /* threads for a lane of a query's sum */
#define EACH    (CHUNKS / PARTS)              /* chunks of such a thread */

static_assert(OPS_CHUNK == DEVICE_LANES, "a lane for each position of a chunk");
static_assert(PARTS * LANES <= DEVICE_LANES, "a warp adds a query's lanes");

typedef attention_element element;

/* What a kernel is made for: ROW elements of a row of the cache, and BLOCKS of a processor. */
template <int ROW_, int BLOCKS_> struct run_plan {
  static constexpr int ROW = ROW_, BLOCKS = BLOCKS_, UNITS = ROW / CUDA_KV_UNIT;
  static constexpr int WIDE = ROW / DEVICE_LANES;                                /* components of a lane */
  static constexpr int FLOATS = QUERIES * ROW;                                   /* of all values */
  static constexpr int QUADS = (FLOATS + FOUR * THREADS - 1) / (FOUR * THREADS); /* of a thread */
  static constexpr int KEYS = UNITS < 8 ? UNITS : 8;       /* units that are on their way at once */
  static constexpr int VALUES = WIDE == 2 ? OPS_CHUNK : 8; /* likewise */
  static_assert(UNITS % KEYS == 0 && OPS_CHUNK % VALUES == 0, "no rest");
};

/* --- memory of a block --- */

template <class P> struct run_memory : attention_run_memory {
  union {
    alignas(16) float queries[QUERIES][P::ROW];        /* until they are scored */
    alignas(16) float chunks[CHUNKS][QUERIES][P::ROW]; /* values of each chunk */
  };
  alignas(16) float weights[QUERIES][STRIDE]; /* scores, and then exp(score - largest) */
  alignas(16) float totals[QUERIES][P::ROW];  /* of all splits so far, where a block has them all */
  cpu_softmax all[QUERIES];                   /* likewise */
  cpu_factors factors[QUERIES];
  bool begun[QUERIES]; /* there is something in `all` */
};

/* Nothing else may hold this pointer (attention.cu). */
template <class P> DEVICE_CODE run_memory<P> &run_shared() {
  CUDA_SHARED(shared);
  return *(run_memory<P> *)shared;
}

/* --- scores --- */

template <class P> struct key_units { /* side by side */
  attention_unit of[P::KEYS];
};

/* From `unit` on. */
template <class P> DEVICE_CODE key_units<P> load_key(const element *key, int32_t unit) {
  key_units<P> units;
  DEVICE_UNROLL for (int u = 0; u < P::KEYS; u++) units.of[u] =
      device_load<attention_unit>(key + (unit + u) * (OPS_TILE * CUDA_KV_UNIT));
  return units;
}

template <class P>
DEVICE_CODE void add_unit(const attention_unit &k, int32_t unit, float (&scores)[QUERIES]) {
  const float *queries = run_shared<P>().queries[0] + unit * CUDA_KV_UNIT;
  DEVICE_UNROLL for (int c = 0; c < CUDA_KV_UNIT; c += FOUR) {
    const attention_quad key = attention_unit_quad(k, c);
    DEVICE_UNROLL for (int q = 0; q < QUERIES; q++) {
      const attention_quad x = device_load<attention_quad>(queries + q * P::ROW + c);
      DEVICE_UNROLL for (int e = 0; e < FOUR; e++) scores[q] = fmaf(x.x[e], key.x[e], scores[q]);
    }
  }
}

/* All queries against the key of the thread's position, unless it is ragged. next: its first units. */
template <class P>
DEVICE_CODE void score_split(const attention_run_job &b, const element *key, key_units<P> next) {
  run_memory<P> &memory = run_shared<P>();
  const int32_t at = (int32_t)threadIdx.x;
  float scores[QUERIES] = {};
  DEVICE_NO_UNROLL
  for (int32_t unit = 0; unit < P::UNITS; unit += P::KEYS) {
    const key_units<P> k = next;
    if (unit + P::KEYS < P::UNITS) next = load_key<P>(key, unit + P::KEYS);
    DEVICE_UNROLL for (int u = 0; u < P::KEYS; u++) add_unit<P>(k.of[u], unit + u, scores);
  }
  if (memory.views[at / OPS_CHUNK].ragged >> at % OPS_CHUNK & 1) return;
  DEVICE_UNROLL for (int q = 0; q < QUERIES; q++) memory.weights[q][at] = scores[q] * b.j.scale;
}

/* The score of one query against one key. */
template <class P>
DEVICE_CODE float score_one(const attention_run_job &b, int32_t query, const element *key) {
  const float *q = run_shared<P>().queries[query];
  float score = 0;
  DEVICE_UNROLL_BY(4)
  for (int32_t u = 0; u < P::UNITS; u++) {
    const attention_unit k = device_load<attention_unit>(key + u * (OPS_TILE * CUDA_KV_UNIT));
    DEVICE_UNROLL for (int c = 0; c < CUDA_KV_UNIT; c += FOUR) {
      const attention_quad x = attention_unit_quad(k, c);
      DEVICE_UNROLL for (int e = 0; e < FOUR; e++) score = fmaf(q[u * CUDA_KV_UNIT + c + e], x.x[e], score);
    }
  }
  return score * b.j.scale;
}

/* Each query against the keys of ragged positions. */
template <class P> DEVICE_CODE void score_ragged(const attention_run_job &b, int32_t split) {
  run_memory<P> &memory = run_shared<P>();
  DEVICE_NO_UNROLL
  for (int32_t c = 0; c < CHUNKS; c++) {
    const uint32_t ragged = memory.views[c].ragged;
    if (ragged == 0) continue;
    const int32_t query = (int32_t)threadIdx.x % QUERIES, p = (int32_t)threadIdx.x / QUERIES,
                  at = c * OPS_CHUNK + p, r = memory.row_of[query];
    static_assert(THREADS == OPS_CHUNK * QUERIES, "a thread for each score of a chunk");
    if (ragged & memory.seen[r][c] & 1u << p)
      memory.weights[query][at] = score_one<P>(
          b, query, attention_key_at<P::ROW>(b, attention_entry_of(b, r, split * OPS_SPLIT + at)));
  }
}

/* --- weights --- */

/* Lane i of a query's sum: positions i, i + 8, i + 16 and i + 24 of each chunk. PARTS threads have EACH
 * chunks of it, and what one of them has of the sum goes on to the next. */
template <class P> DEVICE_CODE void weigh() {
  run_memory<P> &memory = run_shared<P>();
  const int32_t t = (int32_t)threadIdx.x, query = t / (PARTS * LANES), i = t % LANES;
  const int32_t part = t / LANES % PARTS, first = part * EACH;
  const uint32_t *seen = memory.seen[memory.row_of[query]] + first;
  float *scores = memory.weights[query] + first * OPS_CHUNK + i, most = -INFINITY, sums[EACH], sum = 0;
  DEVICE_UNROLL for (int c = 0; c < EACH; c++) {
    DEVICE_UNROLL for (int k = 0; k < FOUR; k++) {
      const float score = scores[c * OPS_CHUNK + k * LANES];
      most = seen[c] >> (i + k * LANES) & 1 ? attention_larger(score, most) : most;
    }
  }
  most = attention_largest(most, PARTS * LANES);
  DEVICE_UNROLL for (int c = 0; c < EACH; c++) sums[c] =
      attention_weigh_chunk(scores + c * OPS_CHUNK, seen[c] >> i, most);
  DEVICE_UNROLL for (int turn = 0; turn < PARTS; turn++) {
    const float before = __shfl_up_sync(~0u, sum, LANES);
    if (turn != part) continue;
    sum = turn > 0 ? before : 0;
    DEVICE_UNROLL for (int c = 0; c < EACH; c++) sum += sums[c];
  }
  for (int by = LANES / 2; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (i == 0 && part == PARTS - 1) memory.split[query] = {most, sum};
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
  value_part<P> of[P::VALUES];
};

template <class P> struct value_sums { float of[QUERIES][P::WIDE]; };

template <class P> DEVICE_CODE value_part<P> load_value(const attention_run_job &b, int32_t entry) {
  const int32_t d = (int32_t)threadIdx.x % DEVICE_LANES * P::WIDE;
  return device_load<value_part<P>>(attention_value_at<P::ROW>(b, entry) + d);
}

/* Where the lane's components of a whole chunk lie: the values of a tile side by side. */
struct value_tiles {
  const element *of[OPS_CHUNK / OPS_TILE];
};

/* Positions of the chunk from `first` on. */
template <class P> DEVICE_CODE value_parts<P> load_values(const value_tiles &tiles, int32_t first) {
  value_parts<P> v;
  DEVICE_UNROLL for (int i = 0; i < P::VALUES; i++) {
    const element *tile = first + i < OPS_TILE ? tiles.of[0] : tiles.of[1];
    v.of[i] = device_load<value_part<P>>(tile + (first + i) % OPS_TILE * P::ROW);
  }
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
  DEVICE_UNROLL for (int q = 0; q < QUERIES; q++) {
    const attention_quad w = device_load<attention_quad>(weights + q * STRIDE);
    DEVICE_UNROLL for (int p = 0; p < FOUR; p++) add_value<P>(w.x[p], x[p], sums.of[q]);
  }
}

/* The value of a position for one row: that which rows share, its own, or zeros where it sees none: a weight
 * of zero times zero adds nothing. */
template <class P>
DEVICE_CODE value_part<P> value_for(const attention_run_job &b, const value_part<P> &shared, int32_t r,
                                    int32_t split, int32_t at) {
  const run_memory<P> &memory = run_shared<P>();
  const uint32_t bit = 1u << at % OPS_CHUNK;
  if (!(memory.seen[r][at / OPS_CHUNK] & bit)) return {};
  if (!(memory.views[at / OPS_CHUNK].ragged & bit)) return shared;
  return load_value<P>(b, attention_entry_of(b, r, split * OPS_SPLIT + at));
}

/* Four positions that some row does not see, or has its own values of. Queries of a row follow each other. */
template <class P>
DEVICE_CODE void add_some(const attention_run_job &b, const value_part<P> *v, int32_t split, int32_t at,
                          value_sums<P> &sums) {
  const run_memory<P> &memory = run_shared<P>();
  const int32_t last = memory.row_of[QUERIES - 1];
  DEVICE_NO_UNROLL
  for (int32_t r = memory.row_of[0]; r < b.run.count && r <= last; r++) {
    value_floats<P> mine[FOUR];
    DEVICE_UNROLL for (int p = 0; p < FOUR; p++) mine[p] =
        floats_of<P>(value_for<P>(b, v[p], r, split, at + p));
    DEVICE_UNROLL for (int q = 0; q < QUERIES; q++) {
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

/* If it is a whole chunk, its first values begin to come. */
template <class P> DEVICE_CODE values_ahead<P> begin_chunk(const attention_run_job &b, int32_t c) {
  const run_memory<P> &memory = run_shared<P>();
  const int32_t d = (int32_t)threadIdx.x % DEVICE_LANES * P::WIDE;
  values_ahead<P> v = {};
  if (!attention_is_whole(memory.views[c])) return v;
  DEVICE_UNROLL for (int i = 0; i < OPS_CHUNK / OPS_TILE; i++) v.tiles.of[i] =
      attention_value_at<P::ROW>(b, memory.entries[c * OPS_CHUNK + i * OPS_TILE]) + d;
  v.first = load_values<P>(v.tiles, 0);
  return v;
}

template <class P> DEVICE_CODE void sum_whole(const values_ahead<P> &begun, int32_t c, value_sums<P> &sums) {
  const float *weights = run_shared<P>().weights[0] + c * OPS_CHUNK;
  value_parts<P> next = begun.first;
  DEVICE_NO_UNROLL
  for (int32_t first = 0; first < OPS_CHUNK; first += P::VALUES) {
    const value_parts<P> v = next;
    if (first + P::VALUES < OPS_CHUNK) next = load_values<P>(begun.tiles, first + P::VALUES);
    DEVICE_UNROLL for (int i = 0; i < P::VALUES; i += FOUR) add_four<P>(v.of + i, weights + first + i, sums);
  }
}

/* A chunk of which some row sees some positions, or has some elsewhere. */
template <class P>
DEVICE_CODE void sum_some(const attention_run_job &b, int32_t split, int32_t c, value_sums<P> &sums) {
  const run_memory<P> &memory = run_shared<P>();
  const attention_chunk_view view = memory.views[c];
  DEVICE_NO_UNROLL
  for (int32_t first = 0; first < OPS_CHUNK; first += FOUR) {
    if (!(view.any >> first & 15)) continue;
    const int32_t at = c * OPS_CHUNK + first;
    value_part<P> v[FOUR];
    DEVICE_UNROLL for (int p = 0; p < FOUR; p++) v[p] = load_value<P>(b, memory.entries[at + p]);
    if ((view.all >> first & 15) == 15)
      add_four<P>(v, memory.weights[0] + at, sums);
    else
      add_some<P>(b, v, split, at, sums);
  }
}

template <class P> struct value_quads { /* of the thread: every THREADS'th one of [QUERIES][ROW] */
  attention_quad of[P::QUADS];
};

/* Where quad i of the thread begins. Where it has none, because there are fewer than threads, this is behind
 * the last one. */
template <class P> DEVICE_CODE int32_t quad_at(int i) {
  return (i * THREADS + (int32_t)threadIdx.x) * FOUR;
}

/* Adds what all warps have, in their order. */
template <class P> DEVICE_CODE value_quads<P> add_chunks(const value_sums<P> &sums) {
  run_memory<P> &memory = run_shared<P>();
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, warp = (int32_t)threadIdx.x / DEVICE_LANES;
  value_quads<P> totals = {};
  DEVICE_UNROLL for (int q = 0; q < QUERIES; q++) {
    DEVICE_UNROLL for (int c = 0; c < P::WIDE; c += 2) {
      const float2 pair = {sums.of[q][c], sums.of[q][c + 1]};
      device_store(&memory.chunks[warp][q][lane * P::WIDE + c], pair);
    }
  }
  __syncthreads();
  DEVICE_UNROLL for (int i = 0; i < P::QUADS; i++) {
    const int32_t at = quad_at<P>(i);
    if (at >= P::FLOATS) break;
    DEVICE_UNROLL for (int c = 0; c < CHUNKS; c++) {
      const attention_quad x = device_load<attention_quad>(&memory.chunks[c][0][0] + at);
      DEVICE_UNROLL for (int e = 0; e < FOUR; e++) totals.of[i].x[e] += x.x[e];
    }
  }
  return totals;
}

/* --- one split --- */

template <class P> DEVICE_CODE void keep_queries(const attention_run_job &b) {
  run_memory<P> &memory = run_shared<P>();
  DEVICE_UNROLL for (int i = 0; i < P::QUADS; i++) {
    const int32_t at = quad_at<P>(i), query = at / P::ROW;
    if (at >= P::FLOATS) break;
    attention_quad x = {};
    if (memory.row_of[query] != ATTENTION_NOBODY)
      x = device_load<attention_quad>(b.j.q + b.at(query) * P::ROW + (size_t)(at % P::ROW));
    device_store(&memory.queries[0][0] + at, x);
  }
}

/* Leaves the sums of weights; returns the values. Keys that were there before this forward begin to come
 * before the wait. */
template <class P>
DEVICE_CODE value_quads<P> attend_split(const attention_run_job &b, int32_t split, bool first) {
  const int32_t c = (int32_t)threadIdx.x / DEVICE_LANES;
  const element *key = attention_key_at<P::ROW>(b, run_shared<P>().entries[threadIdx.x]);
  const bool early = attention_is_old(b, split);
  key_units<P> begun = {};
  DEVICE_NO_UNROLL
  for (int later = 0; later < 2; later++) { /* one text for both */
    if (first && later) device_wait_for_previous();
    if (early != later) begun = load_key<P>(key, 0);
  }
  if (first) device_let_next_begin();
  keep_queries<P>(b);
  __syncthreads();
  score_ragged<P>(b, split);
  score_split<P>(b, key, begun);
  const values_ahead<P> values = begin_chunk<P>(b, c);
  __syncthreads();
  weigh<P>();
  __syncthreads();
  value_sums<P> sums = {};
  if (attention_is_whole(run_shared<P>().views[c]))
    sum_whole<P>(values, c, sums);
  else
    sum_some<P>(b, split, c, sums);
  return add_chunks<P>(sums);
}

/* --- splits together --- */

/* What the block leaves of its split. */
template <class P>
DEVICE_CODE void leave(const attention_run_job &b, int32_t split, const value_quads<P> &values) {
  const run_memory<P> &memory = run_shared<P>();
  const attention_job &j = b.j;
  const int32_t t = (int32_t)threadIdx.x;
  if (t < QUERIES && memory.row_of[t] != ATTENTION_NOBODY)
    j.partials[b.part_at(t, split)] = {memory.split[t], attention_query_sees(t)};
  DEVICE_UNROLL for (int i = 0; i < P::QUADS; i++) {
    const int32_t at = quad_at<P>(i), query = at / P::ROW;
    if (at >= P::FLOATS || memory.row_of[query] == ATTENTION_NOBODY) break;
    device_store(j.values + b.part_at(query, split) * P::ROW + at % P::ROW, values.of[i]);
  }
}

/* The split becomes part of what was before it. Ends with a barrier. */
template <class P> DEVICE_CODE void add_to_all(const value_quads<P> &values) {
  run_memory<P> &memory = run_shared<P>();
  const int32_t t = (int32_t)threadIdx.x;
  const bool mine = t < QUERIES && attention_query_sees(t);
  if (mine && memory.begun[t]) memory.factors[t] = cpu_softmax_join(&memory.all[t], memory.split[t]);
  if (mine && !memory.begun[t]) memory.all[t] = memory.split[t];
  __syncthreads();
  DEVICE_UNROLL for (int i = 0; i < P::QUADS; i++) {
    const int32_t at = quad_at<P>(i), query = at / P::ROW;
    if (at >= P::FLOATS || !attention_query_sees(query)) continue;
    attention_quad all = device_load<attention_quad>(&memory.totals[0][0] + at);
    DEVICE_UNROLL for (int c = 0; c < FOUR; c++) all.x[c] =
        memory.begun[query] ? attention_joined(all.x[c], values.of[i].x[c], memory.factors[query])
                            : values.of[i].x[c];
    device_store(&memory.totals[0][0] + at, all);
  }
  __syncthreads();
  if (mine) memory.begun[t] = true;
}

template <class P> DEVICE_CODE void put_all(const attention_run_job &b) {
  const run_memory<P> &memory = run_shared<P>();
  DEVICE_UNROLL for (int i = 0; i < P::QUADS; i++) {
    const int32_t at = quad_at<P>(i), query = at / P::ROW;
    if (at >= P::FLOATS || memory.row_of[query] == ATTENTION_NOBODY) break;
    attention_quad y = device_load<attention_quad>(&memory.totals[0][0] + at);
    DEVICE_UNROLL for (int c = 0; c < FOUR; c++) y.x[c] *= 1.0f / memory.all[query].sum;
    device_store(b.j.y + b.at(query) * P::ROW + (size_t)(at % P::ROW), y);
  }
}

/* --- blocks --- */

/* The block's split, or all of them. */
template <class P> DEVICE_CODE void attend_splits(const attention_run_job &b) {
  run_memory<P> &memory = run_shared<P>();
  bool begun = false;
  if (threadIdx.x < QUERIES) memory.begun[threadIdx.x] = false;
  DEVICE_NO_UNROLL
  for (int32_t split = b.split; split < (b.j.spread ? b.split + 1 : b.count); split++) {
    if (!attention_look_at(b, split)) continue;
    const value_quads<P> values = attend_split<P>(b, split, !begun);
    if (b.j.spread)
      leave<P>(b, split, values);
    else
      add_to_all<P>(values);
    begun = true;
  }
  if (!begun) attention_run_leave_nothing(b, QUERIES);
  if (b.j.spread)
    attention_meet<QUERIES, P::ROW>(b, b.count, memory.row_of, ATTENTION_NOBODY, &memory.arrived);
  else
    put_all<P>(b);
}

template <class P> static __global__ void __launch_bounds__(THREADS, P::BLOCKS) attend_runs(attention_job j) {
  attention_run_job b = attention_run_of(j, QUERIES);
  if (!attention_has_queries(b)) {
    device_wait_for_previous();
    return;
  }
  attention_find_rows(b, QUERIES);
  if (b.split < 0) {
    device_wait_for_previous();
    return;
  }
  attend_splits<P>(b);
}

/* --- launches --- */

template <class P> static void launch(cudaStream_t stream, const attention_job &j, dim3 grid) {
  launch_early(attend_runs<P>, grid, dim3(THREADS), sizeof(run_memory<P>), stream, j);
}

#define KERNEL(ROW, BLOCKS, ONCE, WAVE)                                                                      \
  {                                                                                                          \
    QUERIES, ROW, {BLOCKS, ONCE, WAVE}, true, sizeof(run_memory<run_plan<ROW, BLOCKS>>),                     \
        launch<run_plan<ROW, BLOCKS>>                                                                        \
  }
static const attention_run_kernel kernels[] = {KERNEL(64, 3, 8, 12), KERNEL(128, 2, 3, 15),
                                               KERNEL(256, 1, 7, 16)};

static bool fits(const attention_run_kernel &k, const cuda_kv &kv) {
  return kv.type == OPS_KV_F16 && k.row == kv.head_dim && k.bytes <= (size_t)launch_shared_max();
}

/* Of a run of so many rows and a split. */
static int32_t blocks_of(const attention_run_kernel &k, const cuda_kv &kv, int32_t rows, int32_t heads) {
  return kv.kv_heads * ((rows * (heads / kv.kv_heads) + k.queries - 1) / k.queries);
}

/* All of them are one launch. Blocks without queries are not counted: they leave at once. */
static attention_plan plan_of_splits(const attention_run_kernel &k, const cuda_kv &kv, cuda_runs runs,
                                     int32_t heads, int32_t splits) {
  const int64_t own = (int64_t)runs.bucket * blocks_of(k, kv, runs.rows, heads),
                shared = (int64_t)runs.shared * blocks_of(k, kv, runs.shared_rows, heads);
  const int32_t join = splits <= ATTENTION_MEET_SPLITS ? ATTENTION_JOIN_ONCE : 0;
  return {true, runs.bucket + runs.shared, k.pace.once + attention_waves(own + shared, k.pace) + join};
}

static attention_plan plan_of(const attention_run_kernel &k, const cuda_kv &kv, cuda_runs runs, int32_t heads,
                              int32_t splits) {
  if (runs.shared > 0) return plan_of_splits(k, kv, runs, heads, splits);
  return attention_plan_of(kv, runs, heads, splits, blocks_of(k, kv, runs.rows, heads), k.whole, k.pace);
}

/* The better one. best: NULL where there is none yet. */
static const attention_run_kernel *better_of(const attention_run_kernel *best, const attention_run_kernel *k,
                                             const cuda_kv &kv, cuda_runs runs, int32_t heads,
                                             int32_t splits) {
  if (!fits(*k, kv)) return best;
  const int64_t cost = plan_of(*k, kv, runs, heads, splits).cost;
  if (cost == 0) return best;
  return !best || cost < plan_of(*best, kv, runs, heads, splits).cost ? k : best;
}

/* Where runs fit there is one. */
static const attention_run_kernel *kernel_of(const cuda_kv &kv, cuda_runs runs, int32_t heads,
                                             int32_t splits) {
  const attention_run_kernel *best = NULL;
  for (const attention_run_kernel &k : kernels) best = better_of(best, &k, kv, runs, heads, splits);
  for (const attention_run_kernel &k : attention_wide_kernels)
    best = better_of(best, &k, kv, runs, heads, splits);
  return best;
}

bool attention_runs_fit(const cuda_kv &kv) {
  for (const attention_run_kernel &k : kernels)
    if (fits(k, kv)) return true;
  return false;
}

attention_plan attention_runs_plan(const cuda_kv &kv, cuda_runs runs, int32_t heads, int32_t splits) {
  return plan_of(*kernel_of(kv, runs, heads, splits), kv, runs, heads, splits);
}

void attention_put_runs(cudaStream_t stream, const attention_job &j, cuda_runs runs) {
  assert(runs.rows <= CUDA_RUN_ROWS);
  const attention_run_kernel &k = *kernel_of(j.kv, runs, j.heads, j.splits);
  const attention_plan plan = plan_of(k, j.kv, runs, j.heads, j.splits);
  const int32_t rows = runs.shared_rows > runs.rows ? runs.shared_rows : runs.rows;
  const unsigned blocks = (unsigned)blocks_of(k, j.kv, rows, j.heads);
  assert(plan.spread == j.spread);
  if (j.split_runs) {
    k.launch(stream, j, dim3((unsigned)plan.runs, blocks));
    attention_put_join(stream, j, j.rows.bucket);
    return;
  }
  attention_put_plan(stream, j, runs, plan, [&](const attention_job &of, int32_t count) {
    k.launch(stream, of, dim3((unsigned)count, blocks, (unsigned)(j.spread ? j.splits : 1)));
  });
}
