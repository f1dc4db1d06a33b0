/* attention_wide.cu - attention of some rows of a run, which share what they read (attention_run.cuh),
 * where blocks are many, so that products are what takes time.
 *
 * A block takes QUERIES of a run's queries, and a warp EACH of them, in one split. All warps bring keys, and
 * then values, into shared memory as floats, stage by stage: each number is converted once for the block.
 * Against a stage of keys a lane has the sums of EACH queries and EACH positions in registers, so that four
 * loads of 16 bytes serve 64 products; against a stage of values, a chunk, those of EACH queries and some
 * components. What a warp scores and weighs is its own queries', so that warps meet for the stages alone.
 *
 * What has an order in a sum is one thread's chain, in the order of ops.h. */
#include "kernels/cuda/attention_run.cuh"

#define EACH     8 /* queries of a warp, and positions of a lane */
#define STAGES   2
#define UNITS_IN 2 /* units of all keys that are a stage */
#define CHUNKS   ATTENTION_CHUNKS
#define FOUR     ATTENTION_FOUR
#define LANES    CPU_LANES
#define HALF     (OPS_SPLIT / 2)
#define IN_CHUNK (OPS_CHUNK / OPS_TILE) /* tiles */

static_assert(DEVICE_LANES * EACH == OPS_SPLIT && HALF == DEVICE_LANES * FOUR,
              "a lane has a quad of each half");
static_assert(DEVICE_LANES == FOUR * LANES && EACH % FOUR == 0, "a warp weighs for four queries at once");

typedef attention_element element;

/* What a kernel is made for: QUERIES of a block, ROW elements of a row of the cache, BLOCKS of a processor.
 */
template <int QUERIES_, int ROW_, int BLOCKS_> struct wide_plan {
  static constexpr int QUERIES = QUERIES_, ROW = ROW_, BLOCKS = BLOCKS_, UNITS = ROW / CUDA_KV_UNIT;
  static constexpr int THREADS = QUERIES / EACH * DEVICE_LANES;
  static constexpr int WIDE = ROW / DEVICE_LANES;                     /* components of a lane */
  static constexpr int KEYS = (OPS_SPLIT + THREADS - 1) / THREADS;    /* that a thread brings */
  static constexpr int PIECES = OPS_TILE * UNITS;                     /* units of a tile of values */
  static constexpr int BRINGS = (PIECES + THREADS - 1) / THREADS;     /* of them, a thread */
  static constexpr int QUADS = QUERIES * ROW / FOUR / THREADS;        /* of the queries, a thread */
  static constexpr int OF_KEYS = UNITS_IN * CUDA_KV_UNIT * OPS_SPLIT; /* floats of a stage */
  static constexpr int OF_VALUES = OPS_CHUNK * ROW;
  static constexpr int STAGE = OF_KEYS > OF_VALUES ? OF_KEYS : OF_VALUES;
  static_assert(QUERIES <= ATTENTION_RUN_QUERIES && UNITS % UNITS_IN == 0, "they fit");
  static_assert(QUADS * FOUR * THREADS == QUERIES * ROW, "no rest");
  static_assert(THREADS >= (CUDA_RUN_ROWS + 1) * CHUNKS, "a thread for what each row sees of a chunk");
};

/* --- memory of a block --- */

template <class P> struct wide_memory : attention_run_memory {
  alignas(16) float queries[P::ROW][P::QUERIES];
  alignas(16) float stages[STAGES][P::STAGE];
  alignas(16) float weights[P::QUERIES][ATTENTION_STRIDE]; /* scores, and then exp(score - largest) */
};

/* Nothing else may hold this pointer (attention.cu). */
template <class P> DEVICE_CODE wide_memory<P> &wide_shared() {
  CUDA_SHARED(shared);
  return *(wide_memory<P> *)shared;
}

DEVICE_CODE int32_t lane_of() {
  return (int32_t)threadIdx.x % DEVICE_LANES;
}

/* The first of the warp's queries. */
DEVICE_CODE int32_t query_of() {
  return (int32_t)threadIdx.x / DEVICE_LANES * EACH;
}

/* Thing i of the thread: has it one, where threads have not all as many? */
template <class P> DEVICE_CODE bool is_there(int i, int32_t count) {
  return P::THREADS * (i + 1) <= count || i * P::THREADS + (int32_t)threadIdx.x < count;
}

/* Queries lie component by component, so that one load has four of them. */
template <class P> DEVICE_CODE void keep_queries(const attention_run_job &b) {
  wide_memory<P> &memory = wide_shared<P>();
  attention_quad x[P::QUADS] = {};
  DEVICE_UNROLL for (int i = 0; i < P::QUADS; i++) {
    const int32_t at = i * P::THREADS + (int32_t)threadIdx.x, query = at % P::QUERIES;
    if (memory.row_of[query] != ATTENTION_NOBODY)
      x[i] = device_load<attention_quad>(b.j.q + b.at(query) * P::ROW + (size_t)(at / P::QUERIES * FOUR));
  }
  DEVICE_UNROLL for (int i = 0; i < P::QUADS; i++) {
    const int32_t at = i * P::THREADS + (int32_t)threadIdx.x;
    DEVICE_UNROLL for (int e = 0; e < FOUR; e++) memory.queries[at / P::QUERIES * FOUR + e][at % P::QUERIES] =
        x[i].x[e];
  }
}

/* --- scores --- */

template <class P> struct wide_pointers { const element *of[P::KEYS]; };

template <class P> struct wide_keys { /* what a thread brings of a stage */
  attention_unit of[P::KEYS][UNITS_IN];
};

template <class P> DEVICE_CODE wide_pointers<P> find_keys(const attention_run_job &b) {
  wide_pointers<P> keys;
  DEVICE_UNROLL for (int i = 0; i < P::KEYS; i++) {
    const int32_t at = is_there<P>(i, OPS_SPLIT) ? i * P::THREADS + (int32_t)threadIdx.x : 0;
    keys.of[i] = attention_key_at<P::ROW>(b, wide_shared<P>().entries[at]);
  }
  return keys;
}

template <class P> DEVICE_CODE wide_keys<P> load_keys(const wide_pointers<P> &keys, int32_t unit) {
  wide_keys<P> k;
  DEVICE_UNROLL for (int i = 0; i < P::KEYS; i++) {
    if (!is_there<P>(i, OPS_SPLIT)) break;
    DEVICE_UNROLL for (int u = 0; u < UNITS_IN; u++) k.of[i][u] =
        device_load<attention_unit>(keys.of[i] + (unit + u) * (OPS_TILE * CUDA_KV_UNIT));
  }
  return k;
}

/* Keys lie component by component, like the queries. */
template <class P> DEVICE_CODE void put_keys(const wide_keys<P> &k, float *stage) {
  DEVICE_UNROLL for (int i = 0; i < P::KEYS; i++) {
    if (!is_there<P>(i, OPS_SPLIT)) break;
    float *to = stage + i * P::THREADS + (int32_t)threadIdx.x;
    DEVICE_UNROLL for (int c = 0; c < UNITS_IN * CUDA_KV_UNIT; c += FOUR) {
      const attention_quad x = attention_unit_quad(k.of[i][c / CUDA_KV_UNIT], c % CUDA_KV_UNIT);
      DEVICE_UNROLL for (int e = 0; e < FOUR; e++) to[(c + e) * OPS_SPLIT] = x.x[e];
    }
  }
}

/* Adds a unit of the keys. keys, queries: of its first component, and of the warp's first query. */
template <class P>
DEVICE_CODE void add_unit(const float *keys, const float *queries, float (&scores)[EACH][EACH]) {
  DEVICE_UNROLL for (int c = 0; c < CUDA_KV_UNIT; c++) {
    attention_quad q[EACH / FOUR], k[EACH / FOUR];
    DEVICE_UNROLL for (int i = 0; i < EACH / FOUR; i++) q[i] =
        device_load<attention_quad>(queries + c * P::QUERIES + i * FOUR);
    DEVICE_UNROLL for (int i = 0; i < EACH / FOUR; i++) k[i] =
        device_load<attention_quad>(keys + c * OPS_SPLIT + i * HALF + lane_of() * FOUR);
    DEVICE_UNROLL for (int i = 0; i < EACH; i++) {
      DEVICE_UNROLL for (int p = 0; p < EACH; p++) scores[i][p] =
          fmaf(q[i / FOUR].x[i % FOUR], k[p / FOUR].x[p % FOUR], scores[i][p]);
    }
  }
}

template <class P>
DEVICE_CODE void keep_scores(const attention_run_job &b, const float (&scores)[EACH][EACH]) {
  wide_memory<P> &memory = wide_shared<P>();
  DEVICE_UNROLL for (int i = 0; i < EACH; i++) {
    DEVICE_UNROLL for (int half = 0; half < EACH / FOUR; half++) {
      attention_quad x;
      DEVICE_UNROLL for (int e = 0; e < FOUR; e++) x.x[e] = scores[i][half * FOUR + e] * b.j.scale;
      device_store(&memory.weights[query_of() + i][half * HALF + lane_of() * FOUR], x);
    }
  }
}

/* All queries against all keys; what comes of ragged positions is not used. next: the first stage. Ends with
 * a barrier, but for the scores. */
template <class P>
DEVICE_CODE void score_split(const attention_run_job &b, const wide_pointers<P> &keys, wide_keys<P> next) {
  wide_memory<P> &memory = wide_shared<P>();
  float scores[EACH][EACH] = {};
  put_keys<P>(next, memory.stages[0]);
  next = load_keys<P>(keys, UNITS_IN);
  __syncthreads();
  DEVICE_NO_UNROLL
  for (int32_t unit = 0; unit < P::UNITS; unit += UNITS_IN) {
    const int32_t stage = unit / UNITS_IN % STAGES;
    if (unit + UNITS_IN < P::UNITS) put_keys<P>(next, memory.stages[(stage + 1) % STAGES]);
    if (unit + 2 * UNITS_IN < P::UNITS) next = load_keys<P>(keys, unit + 2 * UNITS_IN);
    DEVICE_NO_UNROLL
    for (int u = 0; u < UNITS_IN; u++)
      add_unit<P>(memory.stages[stage] + u * (CUDA_KV_UNIT * OPS_SPLIT),
                  memory.queries[(unit + u) * CUDA_KV_UNIT] + query_of(), scores);
    __syncthreads();
  }
  keep_scores<P>(b, scores);
}

/* The score of one query against one key. */
template <class P>
DEVICE_CODE float score_one(const attention_run_job &b, int32_t query, const element *key) {
  const wide_memory<P> &memory = wide_shared<P>();
  float score = 0;
  DEVICE_UNROLL_BY(4)
  for (int32_t u = 0; u < P::UNITS; u++) {
    const attention_unit k = device_load<attention_unit>(key + u * (OPS_TILE * CUDA_KV_UNIT));
    DEVICE_UNROLL for (int c = 0; c < CUDA_KV_UNIT; c += FOUR) {
      const attention_quad x = attention_unit_quad(k, c);
      DEVICE_UNROLL for (int e = 0; e < FOUR; e++) score =
          fmaf(memory.queries[u * CUDA_KV_UNIT + c + e][query], x.x[e], score);
    }
  }
  return score * b.j.scale;
}

/* Each query against the keys of ragged positions, in place of what all have been scored against. Has
 * barriers around it where there are any. */
template <class P> DEVICE_CODE void score_ragged(const attention_run_job &b) {
  wide_memory<P> &memory = wide_shared<P>();
  uint32_t some = 0; /* a bit for each chunk */
  DEVICE_UNROLL for (int c = 0; c < CHUNKS; c++) some |= memory.views[c].ragged ? 1u << c : 0;
  if (some == 0) return;
  __syncthreads();
  DEVICE_NO_UNROLL
  for (int32_t i = (int32_t)threadIdx.x; i < OPS_SPLIT * P::QUERIES; i += P::THREADS) {
    const int32_t query = i % P::QUERIES, at = i / P::QUERIES, c = at / OPS_CHUNK, r = memory.row_of[query];
    if (!(some >> c & 1) || !(memory.views[c].ragged & memory.seen[r][c] & 1u << at % OPS_CHUNK)) continue;
    memory.weights[query][at] = score_one<P>(
        b, query, attention_key_at<P::ROW>(b, attention_entry_of(b, r, b.split * OPS_SPLIT + at)));
  }
  __syncthreads();
}

/* --- weights --- */

/* Lane i of the sum of a query, of which the warp has one for every LANES lanes: positions i, i + 8, i + 16
 * and i + 24 of each chunk. */
template <class P> DEVICE_CODE void weigh(int32_t query) {
  wide_memory<P> &memory = wide_shared<P>();
  const int32_t i = lane_of() % LANES;
  const uint32_t *seen = memory.seen[memory.row_of[query]];
  float *scores = memory.weights[query] + i, most = -INFINITY, sum = 0;
  DEVICE_UNROLL for (int c = 0; c < CHUNKS; c++) {
    DEVICE_UNROLL for (int k = 0; k < FOUR; k++) {
      const float x = scores[c * OPS_CHUNK + k * LANES];
      most = seen[c] >> (i + k * LANES) & 1 ? attention_larger(x, most) : most;
    }
  }
  most = attention_largest(most, LANES);
  DEVICE_UNROLL_BY(4)
  for (int c = 0; c < CHUNKS; c++) sum += attention_weigh_chunk(scores + c * OPS_CHUNK, seen[c] >> i, most);
  for (int by = LANES / 2; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (i == 0) memory.split[query] = {most, sum};
}

template <class P> DEVICE_CODE void weigh_all() {
  __syncwarp();
  DEVICE_NO_UNROLL
  for (int32_t q = 0; q < EACH; q += FOUR) weigh<P>(query_of() + q + lane_of() / LANES);
  __syncwarp();
}

/* --- values --- */

template <class P> struct wide_values { /* what a thread brings of a chunk */
  attention_unit of[IN_CHUNK][P::BRINGS];
};

template <class P> struct wide_sums { float of[EACH][P::WIDE]; };

template <class P> struct wide_floats { alignas(P::WIDE * sizeof(float)) float x[P::WIDE]; };

/* Where a chunk's values lie: those of a tile are side by side where it is whole. */
template <class P> DEVICE_CODE wide_values<P> load_values(const attention_run_job &b, int32_t c, bool whole) {
  const wide_memory<P> &memory = wide_shared<P>();
  wide_values<P> v;
  DEVICE_UNROLL for (int tile = 0; tile < IN_CHUNK; tile++) {
    const int32_t *entries = memory.entries + c * OPS_CHUNK + tile * OPS_TILE;
    DEVICE_UNROLL for (int i = 0; i < P::BRINGS; i++) {
      if (!is_there<P>(i, P::PIECES)) break;
      const int32_t at = i * P::THREADS + (int32_t)threadIdx.x, row = at / P::UNITS;
      const element *value = attention_value_at<P::ROW>(b, whole ? entries[0] + row : entries[row]);
      v.of[tile][i] = device_load<attention_unit>(value + at % P::UNITS * CUDA_KV_UNIT);
    }
  }
  return v;
}

template <class P> DEVICE_CODE void put_values(const wide_values<P> &v, float *stage) {
  DEVICE_UNROLL for (int tile = 0; tile < IN_CHUNK; tile++) {
    DEVICE_UNROLL for (int i = 0; i < P::BRINGS; i++) {
      if (!is_there<P>(i, P::PIECES)) break;
      float *to = stage + tile * (OPS_TILE * P::ROW) + (i * P::THREADS + (int32_t)threadIdx.x) * CUDA_KV_UNIT;
      DEVICE_UNROLL for (int c = 0; c < CUDA_KV_UNIT; c += FOUR)
          device_store(to + c, attention_unit_quad(v.of[tile][i], c));
    }
  }
}

/* A tile that every row sees. values: the lane's first component of its first position; weights: of that and
 * the warp's first query. */
template <class P> DEVICE_CODE void add_tile(const float *values, const float *weights, wide_sums<P> &sums) {
  DEVICE_UNROLL for (int p = 0; p < OPS_TILE; p += FOUR) {
    wide_floats<P> v[FOUR];
    DEVICE_UNROLL for (int i = 0; i < FOUR; i++) v[i] =
        device_load<wide_floats<P>>(values + (p + i) * P::ROW);
    DEVICE_UNROLL for (int q = 0; q < EACH; q++) {
      const attention_quad w = device_load<attention_quad>(weights + q * ATTENTION_STRIDE + p);
      DEVICE_UNROLL for (int i = 0; i < FOUR; i++) {
        DEVICE_UNROLL for (int d = 0; d < P::WIDE; d++) sums.of[q][d] =
            fmaf(w.x[i], v[i].x[d], sums.of[q][d]);
      }
    }
  }
}

/* A position for the queries that see it, a bit of `sees` each. */
template <class P>
DEVICE_CODE void add_position(const wide_floats<P> &v, const float *weights, uint32_t sees,
                              wide_sums<P> &sums) {
  DEVICE_UNROLL for (int q = 0; q < EACH; q++) {
    const float w = weights[q * ATTENTION_STRIDE];
    DEVICE_UNROLL for (int d = 0; d < P::WIDE; d++) sums.of[q][d] =
        sees >> q & 1 ? fmaf(w, v.x[d], sums.of[q][d]) : sums.of[q][d];
  }
}

/* The lane's components of position p as row r has it. */
template <class P> DEVICE_CODE wide_floats<P> own_value(const attention_run_job &b, int32_t r, int32_t p) {
  const element *value = attention_value_at<P::ROW>(b, attention_entry_of(b, r, p)) + lane_of() * P::WIDE;
  wide_floats<P> v;
  DEVICE_UNROLL for (int d = 0; d < P::WIDE; d += 2)
      device_halves(device_load<uint32_t>(value + d), &v.x[d], &v.x[d + 1]);
  return v;
}

/* A ragged position: each row its own. Queries of a row follow each other. */
template <class P>
DEVICE_CODE void add_ragged(const attention_run_job &b, int32_t p, const float *weights, uint32_t sees,
                            wide_sums<P> &sums) {
  const wide_memory<P> &memory = wide_shared<P>();
  const int32_t last = memory.row_of[query_of() + EACH - 1];
  DEVICE_NO_UNROLL
  for (int32_t r = memory.row_of[query_of()]; r < b.run.count && r <= last; r++) {
    uint32_t mine = 0;
    DEVICE_UNROLL for (int q = 0; q < EACH; q++) mine |= memory.row_of[query_of() + q] == r ? 1u << q : 0;
    if (sees & mine) add_position<P>(own_value<P>(b, r, p), weights, sees & mine, sums);
  }
}

/* A chunk of which some row does not see some position, or has it elsewhere. values: the lane's first
 * component of its first position. */
template <class P>
DEVICE_CODE void add_some(const attention_run_job &b, int32_t c, const float *values, wide_sums<P> &sums) {
  const wide_memory<P> &memory = wide_shared<P>();
  const attention_chunk_view view = memory.views[c];
  uint32_t seen[EACH];
  DEVICE_UNROLL for (int q = 0; q < EACH; q++) seen[q] = memory.seen[memory.row_of[query_of() + q]][c];
  DEVICE_NO_UNROLL
  for (int32_t p = 0; p < OPS_CHUNK; p++) {
    if (!(view.any >> p & 1)) continue;
    const float *weights = memory.weights[query_of()] + c * OPS_CHUNK + p;
    uint32_t sees = 0;
    DEVICE_UNROLL for (int q = 0; q < EACH; q++) sees |= (seen[q] >> p & 1) << q;
    if (view.ragged >> p & 1)
      add_ragged<P>(b, b.split * OPS_SPLIT + c * OPS_CHUNK + p, weights, sees, sums);
    else
      add_position<P>(device_load<wide_floats<P>>(values + p * P::ROW), weights, sees, sums);
  }
}

/* The first whole chunk from c on; CHUNKS or more: none. */
template <class P> DEVICE_CODE int32_t whole_from(int32_t c) {
  while (c < CHUNKS && !attention_is_whole(wide_shared<P>().views[c])) c++;
  return c;
}

/* A chunk from its stage, by all of a warp's lanes. */
template <class P> DEVICE_CODE void add_whole(int32_t c, const float *stage, wide_sums<P> &sums) {
  const float *weights = wide_shared<P>().weights[query_of()] + c * OPS_CHUNK;
  DEVICE_NO_UNROLL
  for (int32_t p = 0; p < OPS_CHUNK; p += OPS_TILE)
    add_tile<P>(stage + p * P::ROW + lane_of() * P::WIDE, weights + p, sums);
}

/* All chunks, ascending. Whole ones take turns at the stages: while one is added the next one is put, and
 * that after it is on its way. Others, which are few, are brought when it is their turn. next: the first
 * whole one. */
template <class P> DEVICE_CODE wide_sums<P> sum_split(const attention_run_job &b, wide_values<P> next) {
  wide_memory<P> &memory = wide_shared<P>();
  wide_sums<P> all = {};
  int32_t whole = whole_from<P>(0), after = whole_from<P>(whole + 1), stage = 0;
  if (whole < CHUNKS) put_values<P>(next, memory.stages[0]);
  if (after < CHUNKS) next = load_values<P>(b, after, true);
  __syncthreads();
  DEVICE_NO_UNROLL
  for (int32_t c = 0; c < CHUNKS; c++) {
    if (memory.views[c].any == 0) continue;
    wide_sums<P> sums = {};
    float *other = memory.stages[(stage + 1) % STAGES];
    if (c == whole) {
      if (after < CHUNKS) put_values<P>(next, other);
      whole = after;
      after = whole_from<P>(after + 1);
      if (after < CHUNKS) next = load_values<P>(b, after, true);
      add_whole<P>(c, memory.stages[stage], sums);
      stage = (stage + 1) % STAGES;
    } else {
      put_values<P>(load_values<P>(b, c, false), other);
      __syncthreads();
      add_some<P>(b, c, other + lane_of() * P::WIDE, sums);
    }
    __syncthreads();
    DEVICE_UNROLL for (int q = 0; q < EACH; q++) {
      DEVICE_UNROLL for (int d = 0; d < P::WIDE; d++) all.of[q][d] += sums.of[q][d];
    }
  }
  return all;
}

/* --- blocks --- */

template <class P> DEVICE_CODE void leave(const attention_run_job &b, const wide_sums<P> &sums) {
  const wide_memory<P> &memory = wide_shared<P>();
  const attention_job &j = b.j;
  const int32_t t = (int32_t)threadIdx.x;
  if (t < P::QUERIES && memory.row_of[t] != ATTENTION_NOBODY)
    j.partials[b.part_at(t, b.split)] = {memory.split[t], attention_query_sees(t)};
  DEVICE_UNROLL for (int q = 0; q < EACH; q++) {
    const int32_t query = query_of() + q;
    if (memory.row_of[query] == ATTENTION_NOBODY) break;
    wide_floats<P> v;
    DEVICE_UNROLL for (int d = 0; d < P::WIDE; d++) v.x[d] = sums.of[q][d];
    device_store(j.values + b.part_at(query, b.split) * P::ROW + lane_of() * P::WIDE, v);
  }
}

/* Keys that were there before this forward begin to come before the wait. */
template <class P> DEVICE_CODE void attend_split(const attention_run_job &b) {
  const wide_pointers<P> keys = find_keys<P>(b);
  const bool early = attention_is_old(b, b.split);
  wide_keys<P> begun = {};
  DEVICE_NO_UNROLL
  for (int later = 0; later < 2; later++) { /* one text for both */
    if (later) device_wait_for_previous();
    if (early != later) begun = load_keys<P>(keys, 0);
  }
  device_let_next_begin();
  keep_queries<P>(b);
  score_split<P>(b, keys, begun);
  const int32_t whole = whole_from<P>(0);
  wide_values<P> values = {};
  if (whole < CHUNKS) values = load_values<P>(b, whole, true);
  score_ragged<P>(b);
  weigh_all<P>();
  leave<P>(b, sum_split<P>(b, values));
}

template <class P>
static __global__ void __launch_bounds__(P::THREADS, P::BLOCKS) attend_wide(attention_job j) {
  attention_run_job b = attention_run_of(j, P::QUERIES);
  if (!attention_has_queries(b)) {
    device_wait_for_previous();
    return;
  }
  attention_find_rows(b, P::QUERIES);
  if (b.split < 0) {
    device_wait_for_previous();
    return;
  }
  wide_memory<P> &memory = wide_shared<P>();
  if (attention_look_at(b, b.split))
    attend_split<P>(b);
  else
    attention_run_leave_nothing(b, P::QUERIES);
  attention_meet<P::QUERIES, P::ROW>(b, b.count, memory.row_of, ATTENTION_NOBODY, &memory.arrived);
}

/* --- launches --- */

template <class P> static void launch(cudaStream_t stream, const attention_job &j, dim3 grid) {
  launch_early(attend_wide<P>, grid, dim3(P::THREADS), sizeof(wide_memory<P>), stream, j);
}

#define KERNEL(QUERIES, ROW, BLOCKS, ONCE, WAVE)                                                             \
  {                                                                                                          \
    QUERIES, ROW, {BLOCKS, ONCE, WAVE}, false, sizeof(wide_memory<wide_plan<QUERIES, ROW, BLOCKS>>),         \
        launch<wide_plan<QUERIES, ROW, BLOCKS>>                                                              \
  }
const attention_run_kernel attention_wide_kernels[ATTENTION_WIDE_KERNELS] = {
    KERNEL(24, 64, 3, 6, 32), KERNEL(32, 64, 2, 6, 29), KERNEL(32, 128, 2, 6, 40),
    KERNEL(48, 128, 2, 15, 51)};
