/* attention_prefill.cu - attention of many committed rows of a sequence, as a prompt has (attention.cuh).
 *
 * A block takes QUERIES queries of a run's: a query is a row and a head of one key-value head's group. Of a
 * split, each warp scores a chunk's positions against all queries, and then sums some components of some
 * queries over all chunks. A thread has EACH queries at a time in registers, four positions or WIDE
 * components of each, so that what it loads of a key or value is converted once for all of them.
 *
 * What has an order in a sum is one thread's chain, in the order of ops.h. */
#include "kernels/cuda/attention.cuh"

#include <assert.h>

#define QUERIES  64
#define EACH     8 /* queries of a thread at a time */
#define CHUNKS   ATTENTION_CHUNKS
#define FOUR     ATTENTION_FOUR
#define THREADS  (CHUNKS * DEVICE_LANES)
#define STRIDE   (OPS_SPLIT + 8) /* of weights: queries do not begin in the same bank */
#define AHEAD    8               /* values that are on their way while as many are added */
#define LANES    CPU_LANES
#define TILES    (OPS_SPLIT / OPS_TILE)
#define IN_CHUNK (OPS_CHUNK / OPS_TILE) /* tiles */
#define NOBODY   CUDA_LONG_RUN_ROWS     /* the row of a query that is not there, which sees nothing */
#define BLOCKS   2                      /* of a processor at once */
#define ONCE     8                      /* of attention_pace */

static_assert(OPS_CHUNK == DEVICE_LANES && CUDA_LONG_RUN_ROWS == DEVICE_LANES,
              "a lane for each position of a chunk, and for each row of a run");
static_assert(OPS_TILE == DEVICE_LANES * FOUR / EACH, "a warp scores a tile's positions at a time");
static_assert(THREADS == QUERIES / 2 * LANES, "a thread weighs for two queries");

typedef uint16_t element; /* the bits of an f16 */

/* What a kernel is made for: ROW elements of a row of the cache. */
template <int ROW_> struct prefill_plan {
  static constexpr int ROW = ROW_, UNITS = ROW / CUDA_KV_UNIT;
  static constexpr int WIDE = ROW / DEVICE_LANES; /* components of a thread */
};

/* --- memory of a block --- */

template <class P> struct prefill_memory {
  alignas(16) float queries[QUERIES][P::ROW + FOUR]; /* they do not begin in the same bank */
  alignas(16) float weights[QUERIES][STRIDE];        /* scores, and then exp(score - largest) */
  uint32_t seen[CUDA_LONG_RUN_ROWS + 1][CHUNKS];     /* a bit for each position */
  uint32_t any[CHUNKS], all[CHUNKS];                 /* what some of the block's rows see, and all of them */
  int32_t tiles[TILES]; /* the first row of each; undefined where nobody sees it */
  int32_t row_of[QUERIES];
  cpu_softmax split[QUERIES], whole[QUERIES]; /* of this split, and of all so far */
  cpu_factors factors[QUERIES];
  bool begun[QUERIES]; /* there is something in `whole` */
  int32_t arrived;
};

/* Nothing else may hold this pointer (attention.cu). */
template <class P> DEVICE_CODE prefill_memory<P> &prefill_shared() {
  CUDA_SHARED(shared);
  return *(prefill_memory<P> *)shared;
}

/* --- what a block works on --- */

struct prefill_job : attention_queries {
  int32_t rows, end; /* the block's rows of the run: [rows, end) */
  cache_area<element> area;
};

DEVICE_CODE prefill_job prefill_of(const attention_job &j, cuda_run run) {
  const int32_t kv_head = (int32_t)blockIdx.y % j.kv.kv_heads, group = j.heads / j.kv.kv_heads,
                first = (int32_t)blockIdx.y / j.kv.kv_heads * QUERIES,
                end = (first + QUERIES - 1) / group + 1;
  return {{j, run, kv_head, group, first, attention_run_begin(j, j.first_run)},
          first / group,
          end < run.count ? end : run.count,
          cache_area_of<element>(j.kv, false, j.layer, kv_head)};
}

/* Splits of which some row of the block may see something. */
DEVICE_CODE int32_t splits_seen(const prefill_job &b) {
  const int32_t r = b.rows + (int32_t)threadIdx.x % DEVICE_LANES;
  int32_t last = r < b.end ? b.j.rows.batch->rows[b.run.first + r].position : 0;
  DEVICE_UNROLL for (int by = DEVICE_LANES / 2; by > 0; by /= 2) {
    const int32_t other = __shfl_xor_sync(~0u, last, by);
    last = other > last ? other : last;
  }
  return last / OPS_SPLIT + 1;
}

/* --- what the rows see of a split --- */

/* Does some row see a position of this tile of a chunk? seen: a bit for each position of the chunk. */
DEVICE_CODE bool in_tile(uint32_t seen, int32_t tile) {
  return seen >> (tile * OPS_TILE) << (DEVICE_LANES - OPS_TILE) != 0;
}

/* A warp brings together what the block's rows see of its chunk, and finds where that lies. */
template <class P> DEVICE_CODE void look_together(const prefill_job &b, int32_t split, int32_t c) {
  prefill_memory<P> &memory = prefill_shared<P>();
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES;
  const bool mine = lane >= b.rows && lane < b.end;
  uint32_t any = mine ? memory.seen[lane][c] : 0, all = mine ? any : ~0u;
  DEVICE_UNROLL for (int by = DEVICE_LANES / 2; by > 0; by /= 2) {
    any |= __shfl_xor_sync(~0u, any, by);
    all &= __shfl_xor_sync(~0u, all, by);
  }
  if (lane == 0) memory.any[c] = any, memory.all[c] = all;
  if (lane < IN_CHUNK && in_tile(any, lane))
    memory.tiles[c * IN_CHUNK + lane] = cache_row(b.j.kv, b.j.rows.batch->rows[b.run.first].sequence,
                                                  split * OPS_SPLIT + c * OPS_CHUNK + lane * OPS_TILE);
}

/* Leaves what the rows see of a split. False: nothing. Ends with a barrier. */
template <class P> DEVICE_CODE bool look_at(const prefill_job &b, int32_t split) {
  prefill_memory<P> &memory = prefill_shared<P>();
  const int32_t t = (int32_t)threadIdx.x, r = t / CHUNKS, c = t % CHUNKS;
  uint32_t any = 0;
  memory.seen[r][c] = r < b.run.count ? attention_seen(attention_view_of(b.j, b.run.first + r),
                                                       split * OPS_SPLIT + c * OPS_CHUNK)
                                      : 0;
  __syncthreads();
  look_together<P>(b, split, t / DEVICE_LANES);
  __syncthreads();
  DEVICE_UNROLL for (int i = 0; i < CHUNKS; i++) any |= memory.any[i];
  return any != 0;
}

/* Does the row of this query see something of the split? */
template <class P> DEVICE_CODE bool sees_split(int32_t query) {
  const prefill_memory<P> &memory = prefill_shared<P>();
  return attention_sees_split(memory.seen[memory.row_of[query]]);
}

/* --- scores --- */

struct key_unit {
  alignas(16) uint32_t pairs[CUDA_KV_UNIT / 2];
};

struct key_units { /* of a lane's positions */
  key_unit of[FOUR];
};

DEVICE_CODE key_units load_keys(const element *keys, int32_t unit) {
  constexpr int32_t apart = DEVICE_LANES / EACH * CUDA_KV_UNIT;
  key_units k;
  DEVICE_UNROLL for (int i = 0; i < FOUR; i++) k.of[i] =
      device_load<key_unit>(keys + unit * (OPS_TILE * CUDA_KV_UNIT) + i * apart);
  return k;
}

/* A lane scores every EACH'th query from its first one on against every fourth position of the tile. */
template <class P> DEVICE_CODE void score_tile(const prefill_job &b, int32_t tile) {
  prefill_memory<P> &memory = prefill_shared<P>();
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, p = lane % FOUR;
  const float *queries = memory.queries[lane / FOUR];
  const element *keys = b.area.keys + (size_t)memory.tiles[tile] * P::ROW + (size_t)(p * CUDA_KV_UNIT);
  float scores[EACH][FOUR] = {};
  key_units next = load_keys(keys, 0);
  DEVICE_UNROLL_BY(2)
  for (int32_t unit = 0; unit < P::UNITS; unit++) {
    const key_units k = next;
    next = load_keys(keys, unit + 1 < P::UNITS ? unit + 1 : unit);
    DEVICE_UNROLL for (int c = 0; c < CUDA_KV_UNIT; c += FOUR) {
      float key[FOUR][FOUR];
      DEVICE_UNROLL for (int i = 0; i < FOUR; i++) {
        DEVICE_UNROLL for (int e = 0; e < FOUR; e += 2)
            device_halves(k.of[i].pairs[(c + e) / 2], &key[i][e], &key[i][e + 1]);
      }
      DEVICE_UNROLL for (int q = 0; q < EACH; q++) {
        const attention_quad x = device_load<attention_quad>(
            queries + q * (QUERIES / EACH) * (P::ROW + FOUR) + unit * CUDA_KV_UNIT + c);
        DEVICE_UNROLL for (int e = 0; e < FOUR; e++) {
          DEVICE_UNROLL for (int i = 0; i < FOUR; i++) scores[q][i] = fmaf(x.x[e], key[i][e], scores[q][i]);
        }
      }
    }
  }
  float *to = memory.weights[lane / FOUR] + tile * OPS_TILE + p;
  DEVICE_UNROLL for (int q = 0; q < EACH; q++) {
    DEVICE_UNROLL for (int i = 0; i < FOUR; i++) to[q * (QUERIES / EACH) * STRIDE + i * FOUR] =
        scores[q][i] * b.j.scale;
  }
}

/* Each warp its chunk. */
template <class P> DEVICE_CODE void score(const prefill_job &b) {
  const int32_t c = (int32_t)threadIdx.x / DEVICE_LANES;
  DEVICE_NO_UNROLL
  for (int32_t i = 0; i < IN_CHUNK; i++)
    if (in_tile(prefill_shared<P>().any[c], i)) score_tile<P>(b, c * IN_CHUNK + i);
}

/* --- weights --- */

/* Lane i of a query's sum: positions i, i + 8, i + 16 and i + 24 of each chunk. */
template <class P> DEVICE_CODE void weigh(int32_t query) {
  prefill_memory<P> &memory = prefill_shared<P>();
  const int32_t i = (int32_t)threadIdx.x % LANES;
  const uint32_t *seen = memory.seen[memory.row_of[query]];
  float *scores = memory.weights[query] + i, most = -INFINITY, sum = 0;
  DEVICE_UNROLL for (int c = 0; c < CHUNKS; c++) {
    DEVICE_UNROLL for (int k = 0; k < FOUR; k++) {
      const float x = scores[c * OPS_CHUNK + k * LANES];
      most = seen[c] >> (i + k * LANES) & 1 ? attention_larger(x, most) : most;
    }
  }
  most = attention_largest(most, LANES);
  DEVICE_UNROLL for (int c = 0; c < CHUNKS; c++) sum +=
      attention_weigh_chunk(scores + c * OPS_CHUNK, seen[c] >> i, most);
  for (int by = LANES / 2; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (i == 0) memory.split[query] = {most, sum};
}

template <class P> DEVICE_CODE void weigh_all() {
  DEVICE_NO_UNROLL
  for (int32_t i = 0; i < QUERIES; i += THREADS / LANES) weigh<P>(i + (int32_t)threadIdx.x / LANES);
}

/* --- values --- */

/* Queries [query, query + EACH) and components [component, component + WIDE) of a thread. */
struct prefill_part {
  int32_t query, component;
};

template <class P> DEVICE_CODE prefill_part part_of() {
  constexpr int32_t side = DEVICE_LANES / 2; /* lanes that share their queries */
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, warp = (int32_t)threadIdx.x / DEVICE_LANES;
  return {(warp / 2 * 2 + lane / side) * EACH, (warp % 2 * side + lane % side) * P::WIDE};
}

template <class P> struct value_part { /* a thread's components of a value */
  alignas(P::WIDE * sizeof(element)) uint32_t pairs[P::WIDE / 2];
};

template <class P> struct value_floats { alignas(P::WIDE * sizeof(float)) float x[P::WIDE]; };

template <class P> DEVICE_CODE value_floats<P> load_value(const value_part<P> &v) {
  value_floats<P> f;
  DEVICE_UNROLL for (int d = 0; d < P::WIDE; d += 2) device_halves(v.pairs[d / 2], &f.x[d], &f.x[d + 1]);
  return f;
}

template <class P> struct value_sums { float of[EACH][P::WIDE]; };

template <class P>
DEVICE_CODE void add_value(float weight, const value_floats<P> &v, float (&sums)[P::WIDE]) {
  DEVICE_UNROLL for (int c = 0; c < P::WIDE; c++) sums[c] = fmaf(weight, v.x[c], sums[c]);
}

/* Positions of a tile that every row sees. weights: of the first query, for the tile. */
template <class P>
DEVICE_CODE void add_whole(const element *values, const float *weights, value_sums<P> &sums) {
  DEVICE_UNROLL_BY(2)
  for (int32_t first = 0; first < OPS_TILE; first += AHEAD) {
    value_part<P> v[AHEAD];
    DEVICE_UNROLL for (int i = 0; i < AHEAD; i++) v[i] =
        device_load<value_part<P>>(values + (first + i) * P::ROW);
    DEVICE_UNROLL for (int i = 0; i < AHEAD; i += FOUR) {
      value_floats<P> x[FOUR];
      DEVICE_UNROLL for (int p = 0; p < FOUR; p++) x[p] = load_value<P>(v[i + p]);
      DEVICE_UNROLL for (int q = 0; q < EACH; q++) {
        const attention_quad w = device_load<attention_quad>(weights + q * STRIDE + first + i);
        DEVICE_UNROLL for (int p = 0; p < FOUR; p++) add_value<P>(w.x[p], x[p], sums.of[q]);
      }
    }
  }
}

/* Positions of a tile of which some row does not see some. seen: of each query, the tile's first position
 * first. */
template <class P>
DEVICE_CODE void add_some(const element *values, const float *weights, const uint32_t (&seen)[EACH],
                          value_sums<P> &sums) {
  DEVICE_NO_UNROLL
  for (int32_t p = 0; p < OPS_TILE; p++) {
    const value_floats<P> v = load_value<P>(device_load<value_part<P>>(values + p * P::ROW));
    DEVICE_UNROLL for (int q = 0; q < EACH; q++) if (seen[q] >> p & 1)
        add_value<P>(weights[q * STRIDE + p], v, sums.of[q]);
  }
}

template <class P> DEVICE_CODE value_sums<P> sum_chunk(const prefill_job &b, prefill_part at, int32_t c) {
  const prefill_memory<P> &memory = prefill_shared<P>();
  value_sums<P> sums = {};
  DEVICE_NO_UNROLL
  for (int32_t i = 0; i < IN_CHUNK; i++) {
    const int32_t tile = c * IN_CHUNK + i;
    if (!in_tile(memory.any[c], i)) continue;
    const element *values = b.area.values + (size_t)memory.tiles[tile] * P::ROW + (size_t)at.component;
    const float *weights = memory.weights[at.query] + tile * OPS_TILE;
    if (memory.all[c] == ~0u) {
      add_whole<P>(values, weights, sums);
    } else {
      uint32_t seen[EACH];
      DEVICE_UNROLL for (int q = 0; q < EACH; q++) seen[q] =
          memory.seen[memory.row_of[at.query + q]][c] >> (i * OPS_TILE);
      add_some<P>(values, weights, seen, sums);
    }
  }
  return sums;
}

template <class P> DEVICE_CODE value_sums<P> sum_split(const prefill_job &b, prefill_part at) {
  value_sums<P> all = {};
  DEVICE_NO_UNROLL
  for (int32_t c = 0; c < CHUNKS; c++) {
    if (prefill_shared<P>().any[c] == 0) continue;
    const value_sums<P> sums = sum_chunk<P>(b, at, c);
    DEVICE_UNROLL for (int q = 0; q < EACH; q++) {
      DEVICE_UNROLL for (int d = 0; d < P::WIDE; d++) all.of[q][d] += sums.of[q][d];
    }
  }
  return all;
}

/* --- splits together --- */

template <class P> DEVICE_CODE value_floats<P> floats_of(const float (&sums)[P::WIDE]) {
  value_floats<P> v;
  DEVICE_UNROLL for (int d = 0; d < P::WIDE; d++) v.x[d] = sums[d];
  return v;
}

/* What the block leaves of its split. */
template <class P>
DEVICE_CODE void leave(const prefill_job &b, int32_t split, prefill_part at, const value_sums<P> &sums) {
  const prefill_memory<P> &memory = prefill_shared<P>();
  const attention_job &j = b.j;
  const int32_t t = (int32_t)threadIdx.x;
  if (t < QUERIES && memory.row_of[t] != NOBODY)
    j.partials[b.part_at(t, split)] = {memory.split[t], sees_split<P>(t)};
  DEVICE_UNROLL for (int q = 0; q < EACH; q++) {
    const int32_t query = at.query + q;
    if (memory.row_of[query] == NOBODY) break;
    device_store(j.values + b.part_at(query, split) * P::ROW + at.component, floats_of<P>(sums.of[q]));
  }
}

/* The split becomes part of what was before it, which is in y meanwhile. Ends with a barrier. */
template <class P>
DEVICE_CODE void add_to_whole(const prefill_job &b, prefill_part at, const value_sums<P> &sums) {
  prefill_memory<P> &memory = prefill_shared<P>();
  const int32_t t = (int32_t)threadIdx.x;
  const bool mine = t < QUERIES && sees_split<P>(t);
  if (mine && memory.begun[t]) memory.factors[t] = cpu_softmax_join(&memory.whole[t], memory.split[t]);
  if (mine && !memory.begun[t]) memory.whole[t] = memory.split[t];
  __syncthreads();
  DEVICE_UNROLL for (int q = 0; q < EACH; q++) {
    const int32_t query = at.query + q;
    if (memory.row_of[query] == NOBODY || !sees_split<P>(query)) continue;
    float *y = b.j.y + b.at(query) * P::ROW + at.component;
    value_floats<P> v = floats_of<P>(sums.of[q]);
    if (memory.begun[query]) {
      const value_floats<P> before = device_load<value_floats<P>>(y);
      DEVICE_UNROLL for (int d = 0; d < P::WIDE; d++) v.x[d] =
          attention_joined(before.x[d], v.x[d], memory.factors[query]);
    }
    device_store(y, v);
  }
  __syncthreads();
  if (mine) memory.begun[t] = true;
}

template <class P> DEVICE_CODE void divide(const prefill_job &b, prefill_part at) {
  const prefill_memory<P> &memory = prefill_shared<P>();
  DEVICE_UNROLL for (int q = 0; q < EACH; q++) {
    const int32_t query = at.query + q;
    if (memory.row_of[query] == NOBODY) break;
    float *y = b.j.y + b.at(query) * P::ROW + at.component;
    value_floats<P> v = device_load<value_floats<P>>(y);
    DEVICE_UNROLL for (int d = 0; d < P::WIDE; d++) v.x[d] *= 1.0f / memory.whole[query].sum;
    device_store(y, v);
  }
}

/* --- blocks --- */

/* Leaves whose each query is, and the queries. */
template <class P> DEVICE_CODE void keep_queries(const prefill_job &b) {
  constexpr int32_t quads = P::ROW / FOUR;
  prefill_memory<P> &memory = prefill_shared<P>();
  const int32_t t = (int32_t)threadIdx.x;
  if (t < QUERIES) {
    const int32_t row = (b.first + t) / b.group;
    memory.row_of[t] = row < b.run.count ? row : NOBODY;
    memory.begun[t] = false;
  }
  if (t < CHUNKS) memory.seen[NOBODY][t] = 0;
  DEVICE_UNROLL for (int i = 0; i < QUERIES * quads; i += THREADS) {
    const int32_t query = (i + t) / quads, c = (i + t) % quads * FOUR;
    attention_quad x = {};
    if ((b.first + query) / b.group < b.run.count)
      x = device_load<attention_quad>(b.j.q + b.at(query) * P::ROW + c);
    device_store(&memory.queries[query][c], x);
  }
}

/* Splits [first, end) of `count`. */
template <class P>
DEVICE_CODE void attend_splits(const prefill_job &b, int32_t first, int32_t end, int32_t count) {
  const prefill_part at = part_of<P>();
  bool begun = false;
  DEVICE_NO_UNROLL
  for (int32_t split = first; split < end; split++) {
    if (!look_at<P>(b, split)) continue;
    score<P>(b);
    __syncthreads();
    weigh_all<P>();
    __syncthreads();
    const value_sums<P> sums = sum_split<P>(b, at);
    if (b.j.spread)
      leave<P>(b, split, at, sums);
    else
      add_to_whole<P>(b, at, sums);
    begun = true;
  }
  if (!b.j.spread) {
    divide<P>(b, at);
    return;
  }
  prefill_memory<P> &memory = prefill_shared<P>();
  const int32_t t = (int32_t)threadIdx.x;
  if (!begun) attention_leave_nothing(b, t < QUERIES && memory.row_of[t] != NOBODY, first);
  attention_meet<QUERIES, P::ROW>(b, count, memory.row_of, NOBODY, &memory.arrived);
}

template <class P> static __global__ void __launch_bounds__(THREADS, BLOCKS) attend_prefill(attention_job j) {
  const cuda_batch *batch = j.rows.batch;
  device_wait_for_previous();
  const int32_t run = j.first_run + (int32_t)blockIdx.x;
  if (run >= batch->long_run_count) return;
  const prefill_job b = prefill_of(j, batch->long_runs[run]);
  if (b.rows >= b.end) return;
  const int32_t count = splits_seen(b), split = (int32_t)blockIdx.z;
  if (split >= count) return;
  device_let_next_begin();
  keep_queries<P>(b);
  __syncthreads();
  attend_splits<P>(b, split, j.spread ? split + 1 : count, count);
}

/* --- launches --- */

template <class P> static void launch(cudaStream_t stream, const attention_job &j, dim3 grid) {
  launch_early(attend_prefill<P>, grid, dim3(THREADS), sizeof(prefill_memory<P>), stream, j);
}

typedef struct prefill_kernel {
  int32_t row, wave; /* wave: of attention_pace */
  size_t bytes;
  void (*launch)(cudaStream_t stream, const attention_job &j, dim3 grid);
} prefill_kernel;

#define KERNEL(ROW, WAVE)                                                                                    \
  { ROW, WAVE, sizeof(prefill_memory<prefill_plan<ROW>>), launch<prefill_plan<ROW>> }
static const prefill_kernel kernels[] = {KERNEL(64, 48), KERNEL(128, 71)};

static const prefill_kernel *kernel_of(const cuda_kv &kv) {
  for (const prefill_kernel &k : kernels)
    if (kv.type == OPS_KV_F16 && k.row == kv.head_dim && k.bytes <= (size_t)launch_shared_max()) return &k;
  return NULL;
}

/* Of a run and a split. */
static int32_t blocks_of(const cuda_kv &kv, cuda_runs runs, int32_t heads) {
  return kv.kv_heads * ((runs.rows * (heads / kv.kv_heads) + QUERIES - 1) / QUERIES);
}

bool attention_prefill_fits(const cuda_kv &kv) {
  return kernel_of(kv) != NULL;
}

attention_plan attention_prefill_plan(const cuda_kv &kv, cuda_runs runs, int32_t heads, int32_t splits) {
  return attention_plan_of(kv, runs, heads, splits, blocks_of(kv, runs, heads), true,
                           {BLOCKS, ONCE, kernel_of(kv)->wave});
}

void attention_put_prefill(cudaStream_t stream, const attention_job &j, cuda_runs runs) {
  assert(runs.rows <= CUDA_LONG_RUN_ROWS);
  const attention_plan plan = attention_prefill_plan(j.kv, runs, j.heads, j.splits);
  assert(plan.spread == j.spread);
  attention_put_plan(stream, j, runs, plan, [&](const attention_job &of, int32_t count) {
    kernel_of(j.kv)->launch(
        stream, of,
        dim3((unsigned)count, (unsigned)blocks_of(j.kv, runs, j.heads), (unsigned)(j.spread ? j.splits : 1)));
  });
}
