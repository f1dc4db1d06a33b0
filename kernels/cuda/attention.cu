/* attention.cu - attention in splits of OPS_SPLIT logical positions (ops.h).
 *
 * A block takes one row and PACK query heads of one key-value head, and a warp a chunk of a split's
 * positions: each lane scores one of them, and then sums a few components of the chunk's values. Where rows
 * and heads alone do not fill the device, each split is a block of its own, and the last of a row's blocks
 * combines what they leave; otherwise a block goes through its splits in their order.
 *
 * What has an order in a sum: a score is one lane's chain over the components, a component of a chunk's
 * values one lane's chain over the positions. A position that the row does not see stands there with a weight
 * and a value of zero. That may turn a -0 into +0, which the sum over the chunks does in any case. */
#include "kernels/cuda/attention.cuh"

#define THREADS  ATTENTION_THREADS
#define WARPS    ATTENTION_CHUNKS
#define PACK_MAX 4
static_assert(OPS_CHUNK == DEVICE_LANES, "a lane for each position of a chunk");
static_assert(ATTENTION_MEET_SPLITS <= DEVICE_LANES, "a lane for each split (attention_join)");
static_assert(PACK_MAX * CPU_LANES == DEVICE_LANES, "a warp adds the lanes of all heads at once");

/* Blocks of one head are few (pack_of) or of heads that share nothing: each has a processor's registers to
 * itself. */
template <int PACK> constexpr int blocks_of_processor = PACK == 1 ? 1 : 2;
/* Bytes of a key, or of a chunk's values, that a lane has on their way at once. */
template <int PACK> constexpr int bytes_ahead = PACK == 1 ? 256 : 128;

/* --- memory of a block --- */

template <int PACK> struct shared_memory {
  alignas(16) float weights[PACK][THREADS]; /* exp(score - largest), 0 where the row sees nothing */
  const void *values[THREADS];              /* of each position, zeros where the row sees nothing */
  float largest[PACK][WARPS];               /* of a chunk's scores */
  float lanes[WARPS][PACK_MAX][CPU_LANES];  /* sums of a chunk's weights; a lane of a warp reads each */
  int32_t arrived;
};

/* Nothing else may hold this pointer: where a structure has it beside pointers to global memory, nvcc 13.0
 * takes all of them for pointers to shared memory. */
template <int PACK> static __device__ __forceinline__ shared_memory<PACK> &block_memory() {
  CUDA_SHARED(shared);
  return *(shared_memory<PACK> *)shared;
}

/* Then follow floats: queries [PACK][row], padded with zeros; values of chunks [WARPS][PACK][row]; values of
 * all splits so far [PACK][row]. row: elements of a row of the cache. */
template <int PACK> static __device__ __forceinline__ float *block_queries() {
  return (float *)(&block_memory<PACK>() + 1);
}

template <int PACK> static __device__ __forceinline__ float *block_chunks(int32_t row) {
  return block_queries<PACK>() + PACK * row;
}

template <int PACK> static __device__ __forceinline__ float *block_totals(int32_t row) {
  return block_queries<PACK>() + PACK * row * (1 + WARPS);
}

template <int PACK> static size_t shared_bytes(int32_t row) {
  return sizeof(shared_memory<PACK>) + (size_t)(PACK * row * (2 + WARPS)) * sizeof(float);
}

/* --- one split --- */

template <class T, int PACK> struct block_job {
  const attention_job &j;
  attention_view view;
  int32_t head, heads, dim, row; /* the first query head, how many; row: elements of a row of the cache */
  cache_area<T> committed, staged;
  int32_t old; /* positions before it were there before this forward, and share no line with later ones */
};

static __device__ const attention_quad zeros[OPS_HEAD_DIM_MAX / ATTENTION_FOUR] = {};

/* Where the key of this thread's position lies, NULL where the row does not see it. Leaves in shared memory
 * where the value lies, and asks for values before `early`. */
template <class T, int PACK>
static __device__ const T *find_position(const block_job<T, PACK> &b, int32_t p, int32_t early) {
  const ops_row &row = b.view.row;
  const T *key = NULL, *value = (const T *)zeros;
  if (attention_sees(b.view, p, p + 1)) {
    const bool committed = p < row.length;
    const int32_t at =
        committed ? cache_row(b.j.kv, row.sequence, p) : b.j.rows.batch->paths[row.path_at + p - row.length];
    const cache_area<T> &area = committed ? b.committed : b.staged;
    key = area.keys + cache_key_at(b.j.kv, at);
    value = area.values + cache_value_at(b.j.kv, at);
    DEVICE_NO_UNROLL
    for (int32_t d = 0; p < early && d < b.row; d += DEVICE_LINE / (int32_t)sizeof(T))
      device_prefetch(value + d);
  }
  block_memory<PACK>().values[threadIdx.x] = value;
  return key;
}

template <class T> struct key_unit { alignas(16) T x[CUDA_KV_UNIT]; };

template <class T, int PACK, int WIDE> struct key_units { /* side by side */
  static constexpr int FIT = bytes_ahead<PACK> / (int)sizeof(key_unit<T>),
                       ALL = WIDE * DEVICE_LANES / CUDA_KV_UNIT;
  static constexpr int COUNT = FIT < ALL ? FIT : ALL;
  key_unit<T> of[COUNT];
};

/* In place of units that are not there, the last one is loaded again: without branches. */
template <class T, int PACK, int WIDE>
static __device__ __forceinline__ void load_key(key_units<T, PACK, WIDE> &k, const T *key, int32_t first,
                                                int32_t units) {
  DEVICE_UNROLL for (int i = 0; i < k.COUNT; i++) {
    const int32_t at = first + i < units ? first + i : units - 1;
    k.of[i] = device_load<key_unit<T>>(key + (size_t)at * (OPS_TILE * CUDA_KV_UNIT));
  }
}

template <class T, int PACK, int WIDE>
static __device__ __forceinline__ void add_key(const block_job<T, PACK> &b, const key_units<T, PACK, WIDE> &k,
                                               int32_t first, float (&scores)[PACK]) {
  const float *queries = block_queries<PACK>() + first * CUDA_KV_UNIT;
  DEVICE_UNROLL for (int i = 0; i < k.COUNT; i++) {
    if ((first + i) * CUDA_KV_UNIT >= b.row) break;
    DEVICE_UNROLL for (int c = 0; c < CUDA_KV_UNIT; c += ATTENTION_FOUR) {
      DEVICE_UNROLL for (int h = 0; h < PACK; h++) {
        const attention_quad q = device_load<attention_quad>(queries + h * b.row + i * CUDA_KV_UNIT + c);
        DEVICE_UNROLL for (int e = 0; e < ATTENTION_FOUR; e++) scores[h] =
            fmaf(q.x[e], cache_load(k.of[i].x[c + e]), scores[h]);
      }
    }
  }
}

/* The thread's position against all heads. The key's first units are there. */
template <class T, int PACK, int WIDE>
static __device__ __forceinline__ void score(const block_job<T, PACK> &b, const T *key,
                                             key_units<T, PACK, WIDE> &k, float (&scores)[PACK]) {
  const int32_t units = b.row / CUDA_KV_UNIT;
  DEVICE_UNROLL for (int h = 0; h < PACK; h++) scores[h] = 0;
  DEVICE_NO_UNROLL
  for (int32_t first = 0; first < units; first += k.COUNT) {
    if (first > 0) load_key(k, key, first, units);
    add_key(b, k, first, scores);
  }
  DEVICE_UNROLL for (int h = 0; h < PACK; h++) scores[h] *= b.j.scale;
}

/* The largest score of each head, in every thread, by way of a barrier. */
template <int PACK>
static __device__ __forceinline__ void find_largest(const float (&scores)[PACK], float (&largest)[PACK]) {
  shared_memory<PACK> &memory = block_memory<PACK>();
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, warp = (int32_t)threadIdx.x / DEVICE_LANES;
  DEVICE_UNROLL for (int h = 0; h < PACK; h++) {
    const float most = attention_largest(attention_larger(scores[h], -INFINITY), DEVICE_LANES);
    if (lane == 0) memory.largest[h][warp] = most;
  }
  __syncthreads();
  DEVICE_UNROLL for (int h = 0; h < PACK; h++) largest[h] =
      attention_largest(memory.largest[h][lane % WARPS], WARPS);
}

/* Leaves the weight of the thread's position, and the sums of the chunk's. */
template <int PACK>
static __device__ __forceinline__ void weigh(bool seen, const float (&scores)[PACK],
                                             const float (&largest)[PACK]) {
  shared_memory<PACK> &memory = block_memory<PACK>();
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, warp = (int32_t)threadIdx.x / DEVICE_LANES;
  DEVICE_UNROLL for (int h = 0; h < PACK; h++) {
    const float e = seen ? cpu_exp(scores[h] - largest[h]) : 0.0f;
    memory.weights[h][threadIdx.x] = e;
    float sum = e + __shfl_xor_sync(~0u, e, 2 * CPU_LANES);
    sum += __shfl_xor_sync(~0u, sum, CPU_LANES);
    if (lane < CPU_LANES) memory.lanes[warp][h][lane] = sum;
  }
  __syncwarp();
}

/* --- a chunk's values: WIDE components a lane --- */

template <class T, int WIDE> struct value_part { alignas(WIDE * sizeof(T)) T x[WIDE]; };

template <class T, int PACK, int WIDE> struct value_parts { /* of positions one after the other */
  static constexpr int FIT = bytes_ahead<PACK> / (int)sizeof(value_part<T, WIDE>);
  static constexpr int COUNT = FIT < DEVICE_LANES ? FIT : DEVICE_LANES;
  value_part<T, WIDE> of[COUNT];
};

/* Of the warp's positions from `first` on, the components from d on: without branches, so that all of them
 * are on their way at once. */
template <class T, int PACK, int WIDE>
static __device__ __forceinline__ void load_values(const block_job<T, PACK> &b, value_parts<T, PACK, WIDE> &v,
                                                   int32_t first, int32_t d) {
  const void *const *values =
      block_memory<PACK>().values + (int32_t)threadIdx.x / DEVICE_LANES * DEVICE_LANES + first;
  const int32_t at = d < b.row ? d : 0;
  DEVICE_UNROLL for (int i = 0; i < v.COUNT; i++) v.of[i] =
      device_load<value_part<T, WIDE>>((const T *)values[i] + at);
}

template <class T, int PACK, int WIDE>
static __device__ __forceinline__ void add_values(const value_parts<T, PACK, WIDE> &v, int32_t first,
                                                  float (&sums)[PACK][WIDE]) {
  const float *weights =
      block_memory<PACK>().weights[0] + (int32_t)threadIdx.x / DEVICE_LANES * DEVICE_LANES + first;
  DEVICE_UNROLL for (int i = 0; i < v.COUNT; i += ATTENTION_FOUR) {
    DEVICE_UNROLL for (int h = 0; h < PACK; h++) {
      const attention_quad w = device_load<attention_quad>(weights + h * THREADS + i);
      DEVICE_UNROLL for (int k = 0; k < ATTENTION_FOUR; k++) {
        DEVICE_UNROLL for (int c = 0; c < WIDE; c++) sums[h][c] =
            fmaf(w.x[k], cache_load(v.of[i + k].x[c]), sums[h][c]);
      }
    }
  }
}

/* Leaves the chunk's values in shared memory. The first ones are on their way. */
template <class T, int PACK, int WIDE>
static __device__ __forceinline__ void sum_chunk(const block_job<T, PACK> &b, value_parts<T, PACK, WIDE> &v) {
  float *chunk = block_chunks<PACK>(b.row) + (int32_t)threadIdx.x / DEVICE_LANES * PACK * b.row;
  DEVICE_NO_UNROLL
  for (int32_t at = 0; at < b.row; at += DEVICE_LANES * WIDE) {
    const int32_t d = at + (int32_t)threadIdx.x % DEVICE_LANES * WIDE;
    float sums[PACK][WIDE] = {};
    DEVICE_UNROLL for (int32_t first = 0; first < DEVICE_LANES; first += v.COUNT) {
      if (at + first > 0) load_values(b, v, first, d);
      add_values<T, PACK, WIDE>(v, first, sums);
    }
    if (d >= b.row) continue;
    DEVICE_UNROLL for (int h = 0; h < PACK; h++) {
      DEVICE_UNROLL for (int c = 0; c < WIDE; c++) chunk[h * b.row + d + c] = sums[h][c];
    }
  }
}

/* The sum of the split's weights for head lane / CPU_LANES, in the order of cpu_lane_sum. */
template <int PACK> static __device__ __forceinline__ float sum_of_weights() {
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES;
  float sum = 0;
  DEVICE_UNROLL for (int w = 0; w < WARPS; w++) sum +=
      block_memory<PACK>().lanes[w][lane / CPU_LANES][lane % CPU_LANES];
  for (int by = CPU_LANES / 2; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  return sum;
}

/* Rows of a block's heads lie one after the other: of which head element i is. */
template <int PACK> static __device__ __forceinline__ int32_t head_of(int32_t i, int32_t row) {
  return PACK == 1 ? 0 : i / row;
}

/* Component i % row of head i / row. */
template <int PACK> static __device__ __forceinline__ float sum_of_chunks(int32_t row, int32_t i) {
  const float *chunks = block_chunks<PACK>(row) + i;
  float sum = 0;
  DEVICE_UNROLL for (int w = 0; w < WARPS; w++) sum += chunks[w * PACK * row];
  return sum;
}

/* Element i of the queries, which are padded with zeros. */
template <class T, int PACK> static __device__ float query_at(const block_job<T, PACK> &b, int32_t i) {
  const int32_t h = head_of<PACK>(i, b.row), d = i - h * b.row;
  if (h >= b.heads || d >= b.dim) return 0;
  return b.j.q[attention_head_at(b.j, (int32_t)blockIdx.x, b.head + h) * (size_t)b.dim + (size_t)d];
}

/* own: the thread's first element. Ends with a barrier. */
template <class T, int PACK> static __device__ void keep_queries(const block_job<T, PACK> &b, float own) {
  DEVICE_NO_UNROLL
  for (int32_t i = (int32_t)threadIdx.x; i < PACK * b.row; i += THREADS) {
    block_queries<PACK>()[i] = own;
    own = query_at(b, i + THREADS);
  }
  __syncthreads();
}

/* Leaves the chunks' values and weights in shared memory; largest: of each head. In the block's first split,
 * keys of positions before b.old are loaded before the wait: no kernel of this forward writes them. A block
 * of one head has the registers to let values come while it scores. Ends with a barrier. */
template <class T, int PACK, int WIDE>
static __device__ void attend_split(const block_job<T, PACK> &b, int32_t split, bool first,
                                    float (&largest)[PACK]) {
  const int32_t p = split * OPS_SPLIT + (int32_t)threadIdx.x, old = first ? b.old : 0;
  const int32_t units = b.row / CUDA_KV_UNIT, d = (int32_t)threadIdx.x % DEVICE_LANES * WIDE;
  const T *key = find_position(b, p, old);
  key_units<T, PACK, WIDE> k;
  value_parts<T, PACK, WIDE> v;
  float scores[PACK];
  DEVICE_NO_UNROLL
  for (int later = 0; later < 2; later++) { /* one text for both */
    if (first && later) device_wait_for_previous();
    if (key && (p < old) != later) load_key(k, key, 0, units);
  }
  if (first) device_let_next_begin();
  const float query = first ? query_at(b, (int32_t)threadIdx.x) : 0;
  __syncwarp();
  if (PACK == 1) load_values(b, v, 0, d);
  if (first) keep_queries(b, query);
  if (key) {
    score(b, key, k, scores);
  } else {
    DEVICE_UNROLL for (int h = 0; h < PACK; h++) scores[h] = -INFINITY;
  }
  if (PACK > 1) load_values(b, v, 0, d);
  find_largest(scores, largest);
  weigh(key != NULL, scores, largest);
  sum_chunk(b, v);
  __syncthreads();
}

/* --- splits together --- */

/* Of one of a block's heads, without an index that is not a constant. */
template <class X, int PACK> static __device__ X pick(const X (&x)[PACK], int32_t head) {
  X found = x[0];
  DEVICE_UNROLL for (int h = 1; h < PACK; h++) found = h == head ? x[h] : found;
  return found;
}

/* The split that is in shared memory becomes part of the block's totals; t: of each head, of the splits so
 * far. */
template <int PACK>
static __device__ void add_to_totals(int32_t row, const float (&largest)[PACK], cpu_softmax (&t)[PACK],
                                     bool first) {
  const float sums = sum_of_weights<PACK>();
  float *totals = block_totals<PACK>(row);
  cpu_factors f[PACK];
  DEVICE_UNROLL for (int h = 0; h < PACK; h++) {
    const cpu_softmax split = {largest[h], __shfl_sync(~0u, sums, h * CPU_LANES)};
    f[h] = cpu_softmax_join(&t[h], split);
    if (first) t[h] = split;
  }
  DEVICE_NO_UNROLL
  for (int32_t i = (int32_t)threadIdx.x; i < PACK * row; i += THREADS) {
    const float value = sum_of_chunks<PACK>(row, i);
    totals[i] = first ? value : attention_joined(totals[i], value, pick(f, head_of<PACK>(i, row)));
  }
}

/* --- a split that is by itself --- */

/* What the block leaves of its split. */
template <class T, int PACK>
static __device__ void leave(const block_job<T, PACK> &b, int32_t split, const float (&largest)[PACK]) {
  const attention_job &j = b.j;
  const size_t at = attention_head_at(j, (int32_t)blockIdx.x, b.head) * (size_t)j.splits + (size_t)split;
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES;
  const float sum = sum_of_weights<PACK>();
  if ((int32_t)threadIdx.x < b.heads * CPU_LANES && lane % CPU_LANES == 0) {
    const int32_t h = lane / CPU_LANES;
    j.partials[at + (size_t)(h * j.splits)] = {{pick(largest, h), sum}, 1};
  }
  DEVICE_NO_UNROLL
  for (int32_t i = (int32_t)threadIdx.x; i < PACK * b.row; i += THREADS) {
    const int32_t h = head_of<PACK>(i, b.row), d = i - h * b.row;
    const float value = sum_of_chunks<PACK>(b.row, i);
    if (h < b.heads) j.values[(at + (size_t)(h * j.splits)) * (size_t)b.row + (size_t)d] = value;
  }
}

template <class T, int PACK>
static __device__ void leave_nothing(const block_job<T, PACK> &b, int32_t split) {
  const attention_job &j = b.j;
  const size_t head = attention_head_at(j, (int32_t)blockIdx.x, b.head + (int32_t)threadIdx.x);
  device_wait_for_previous();
  device_let_next_begin();
  if ((int32_t)threadIdx.x < b.heads) j.partials[head * (size_t)j.splits + (size_t)split].keys = 0;
}

/* The last of a pack's blocks has what they have left. */
template <class T, int PACK> static __device__ void meet(const block_job<T, PACK> &b, int32_t count) {
  if (!b.j.arrived) return;
  int32_t *arrived = b.j.arrived + blockIdx.x * gridDim.y + blockIdx.y;
  if (!attention_is_last(arrived, count, &block_memory<PACK>().arrived)) return;
  const size_t head = attention_head_at(b.j, (int32_t)blockIdx.x, b.head);
  const int32_t parts = (b.dim + ATTENTION_JOINED - 1) / ATTENTION_JOINED;
  for (int32_t i = (int32_t)threadIdx.x / DEVICE_LANES; i < b.heads * parts; i += WARPS)
    attention_join_head(b.j, head + (size_t)(i % b.heads), head + (size_t)(i % b.heads), count,
                        i / b.heads * ATTENTION_JOINED);
}

/* --- all splits of a block --- */

template <class T, int PACK>
static __device__ void put_totals(const block_job<T, PACK> &b, const cpu_softmax (&t)[PACK]) {
  float *y = b.j.y + attention_head_at(b.j, (int32_t)blockIdx.x, b.head) * (size_t)b.dim;
  DEVICE_NO_UNROLL
  for (int32_t i = (int32_t)threadIdx.x; i < PACK * b.row; i += THREADS) {
    const int32_t h = head_of<PACK>(i, b.row), d = i - h * b.row;
    if (h < b.heads && d < b.dim) y[h * b.dim + d] = block_totals<PACK>(b.row)[i] * (1.0f / pick(t, h).sum);
  }
}

/* Splits [first, end) of the row's `count`. */
template <class T, int PACK, int WIDE>
static __device__ void attend_splits(const block_job<T, PACK> &b, int32_t first, int32_t end, int32_t count) {
  const bool alone = end - first == count;
  cpu_softmax t[PACK] = {};
  float largest[PACK];
  bool begun = false;
  DEVICE_NO_UNROLL
  for (int32_t split = first; split < end; split++) {
    if (!attention_sees(b.view, split * OPS_SPLIT, (split + 1) * OPS_SPLIT)) continue;
    attend_split<T, PACK, WIDE>(b, split, !begun, largest);
    if (alone)
      add_to_totals(b.row, largest, t, !begun);
    else
      leave(b, split, largest);
    begun = true;
  }
  if (alone) {
    put_totals(b, t);
    return;
  }
  if (!begun) leave_nothing(b, first);
  meet(b, count);
}

/* --- blocks --- */

/* Blocks for the query heads of a key-value head; the last one may have fewer. */
static __device__ __host__ inline int32_t packs_of(int32_t group, int32_t pack) {
  return (group + pack - 1) / pack;
}

template <class T, int PACK> static __device__ block_job<T, PACK> block_of(const attention_job &j) {
  const int32_t row = (int32_t)blockIdx.x, group = j.heads / j.kv.kv_heads, packs = packs_of(group, PACK);
  const int32_t kv_head = (int32_t)blockIdx.y / packs, first = (int32_t)blockIdx.y % packs * PACK;
  block_job<T, PACK> b = {j,
                          attention_view_of(j, row),
                          kv_head * group + first,
                          group - first < PACK ? group - first : PACK,
                          j.kv.head_dim,
                          cuda_kv_row(j.kv.head_dim),
                          cache_area_of<T>(j.kv, false, j.layer, kv_head),
                          cache_area_of<T>(j.kv, true, j.layer, kv_head),
                          0};
  const int32_t old = b.view.row.length - j.rows.batch->row_count;
  b.old = old > 0 ? old / ATTENTION_LINE_KEYS * ATTENTION_LINE_KEYS : 0;
  return b;
}

template <class T, int PACK, int WIDE>
static __global__ void __launch_bounds__(THREADS, blocks_of_processor<PACK>) attend(attention_job j) {
  const bool none = (int32_t)blockIdx.x >= j.rows.batch->row_count;
  const int32_t split = (int32_t)blockIdx.z;
  const int32_t count = none ? 0 : j.rows.batch->rows[blockIdx.x].position / OPS_SPLIT + 1;
  if (split >= count) {
    device_wait_for_previous();
    return;
  }
  attend_splits<T, PACK, WIDE>(block_of<T, PACK>(j), split, j.spread ? split + 1 : count, count);
}

/* --- launches --- */

/* Query heads of a block: one where blocks are few. More blocks than the device runs at once would take
 * turns. */
static int32_t pack_of(const cuda_kv &kv, int32_t bucket, int32_t heads, int32_t splits) {
  const int32_t group = heads / kv.kv_heads, packs = packs_of(group, PACK_MAX);
  return (int64_t)bucket * heads * splits <= LAUNCH_BLOCKS_AT_ONCE ? 1 : packs_of(group, packs);
}

/* Blocks for a row and a split. */
static int32_t blocks_of(const cuda_kv &kv, int32_t heads, int32_t pack) {
  return kv.kv_heads * packs_of(heads / kv.kv_heads, pack);
}

/* Packs of heads and rows up to a counter each: splits are blocks of their own. */
static bool rows_spread(const cuda_kv &kv, int32_t bucket, int32_t heads, int32_t splits) {
  return (int64_t)bucket * blocks_of(kv, heads, pack_of(kv, bucket, heads, splits)) <=
         CUDA_ATTENTION_COUNTERS;
}

/* attention.cu; attention_runs.cu and attention_wide.cu; attention_prefill.cu */
enum way { APART, RUNS, PREFILL };

static way way_of(const cuda_kv &kv, cuda_runs runs) {
  if (runs.rows > CUDA_RUN_ROWS) return PREFILL;
  return (runs.rows > 1 || runs.shared > 0) && attention_runs_fit(kv) ? RUNS : APART;
}

static bool spreads(const cuda_kv &kv, int32_t bucket, cuda_runs runs, int32_t heads, int32_t splits) {
  switch (way_of(kv, runs)) {
  case PREFILL:
    return attention_prefill_plan(kv, runs, heads, splits).spread;
  case RUNS:
    return attention_runs_plan(kv, runs, heads, splits).spread;
  default:
    return rows_spread(kv, bucket, heads, splits);
  }
}

static int64_t cost_of(const cuda_kv &kv, cuda_runs runs, int32_t heads, int32_t splits) {
  switch (way_of(kv, runs)) {
  case PREFILL:
    return attention_prefill_plan(kv, runs, heads, splits).cost;
  case RUNS:
    return attention_runs_plan(kv, runs, heads, splits).cost;
  default:
    const int32_t wave = kv.head_dim <= 64 ? 7 : kv.head_dim <= 128 ? 10 : 14; /* of attention_pace */
    return attention_waves((int64_t)runs.bucket * blocks_of(kv, heads, PACK_MAX) * splits,
                           {blocks_of_processor<PACK_MAX>, 0, wave});
  }
}

/* May all splits of all rows be left in memory? */
static bool split_runs_fit(const cuda_kv &kv, int32_t bucket, cuda_runs split_runs, int32_t heads) {
  return split_runs.shared > 0 && way_of(kv, split_runs) == RUNS &&
         (int64_t)bucket * heads * attention_splits(kv.context) <= ATTENTION_PARTS_MAX;
}

/* Where blocks are few, those of single rows end sooner: there are more of them, and each has less to do.
 * Split runs are as many as there are, so others are weighed against them by the splits that there are. */
cuda_runs cuda_attention_runs(cuda_rows rows, cuda_runs runs, cuda_runs long_runs, cuda_runs split_runs,
                              cuda_kv kv, int32_t heads, int32_t positions, int32_t end) {
  const int32_t splits = attention_splits(positions);
  const cuda_runs apart = {rows.bucket, 1, 0, 0};
  const auto cost = [&](cuda_runs r) { return cost_of(kv, r, heads, splits); };
  cuda_runs best = apart;
  if (way_of(kv, runs) == RUNS && cost(runs) < cost(apart)) best = runs;
  if (long_runs.rows > CUDA_RUN_ROWS && attention_prefill_fits(kv) && cost(long_runs) < cost(best))
    best = long_runs;
  if (split_runs_fit(kv, rows.bucket, split_runs, heads) &&
      cost(split_runs) < cost_of(kv, best, heads, attention_splits(end)))
    best = split_runs;
  return best;
}

/* Rows of a launch whose splits may be left in memory. */
static int32_t rows_left(const cuda_kv &kv, int32_t bucket, cuda_runs runs, int32_t heads) {
  if (runs.shared > 0) return bucket;
  if (way_of(kv, runs) != APART) return attention_runs_left(kv, runs, heads) * runs.rows;
  return rows_spread(kv, bucket, heads, attention_splits(kv.context)) ? bucket : 0;
}

size_t cuda_attention_floats(cuda_kv kv, int32_t bucket, cuda_runs runs, int32_t heads) {
  const size_t rows = (size_t)rows_left(kv, bucket, runs, heads),
               parts = rows * (size_t)heads * (size_t)attention_splits(kv.context);
  if (parts == 0) return 0;
  return CUDA_ATTENTION_COUNTERS +
         parts * (sizeof(attention_partial) / sizeof(float) + (size_t)cuda_kv_row(kv.head_dim));
}

template <class T, int PACK, int WIDE> static void launch(cudaStream_t stream, const attention_job &j) {
  const dim3 grid((unsigned)j.rows.bucket, (unsigned)blocks_of(j.kv, j.heads, PACK),
                  (unsigned)(j.spread ? j.splits : 1));
  launch_early(attend<T, PACK, WIDE>, grid, dim3(THREADS), shared_bytes<PACK>(cuda_kv_row(j.kv.head_dim)),
               stream, j);
}

/* By type and pack, for heads of at most 2 * DEVICE_LANES components and for wider ones. */
typedef void launcher(cudaStream_t stream, const attention_job &j);
#define LAUNCHERS(T, PACK)                                                                                   \
  { launch<T, PACK, 2>, launch<T, PACK, 4> }
static launcher *const launchers[2][PACK_MAX][2] = {
    {LAUNCHERS(float, 1), LAUNCHERS(float, 2), LAUNCHERS(float, 3), LAUNCHERS(float, 4)},
    {LAUNCHERS(uint16_t, 1), LAUNCHERS(uint16_t, 2), LAUNCHERS(uint16_t, 3), LAUNCHERS(uint16_t, 4)}};

static void put_rows(cudaStream_t stream, const attention_job &j) {
  const int32_t pack = pack_of(j.kv, j.rows.bucket, j.heads, j.splits);
  launchers[j.kv.type == OPS_KV_F16][pack - 1][j.kv.head_dim > 2 * DEVICE_LANES](stream, j);
}

void cuda_attention(cudaStream_t stream, cuda_rows rows, cuda_runs runs, cuda_kv kv, int32_t layer,
                    int32_t view, int32_t heads, int32_t positions, const float *q, float *y,
                    float *scratch) {
  const int32_t splits = attention_splits(positions);
  const bool spread = splits > 1 && spreads(kv, rows.bucket, runs, heads, splits);
  const way which = way_of(kv, runs);
  attention_job j = {};
  j.rows = rows, j.kv = kv, j.layer = layer, j.view = view, j.heads = heads, j.splits = splits;
  j.spread = spread, j.long_runs = which == PREFILL, j.split_runs = runs.shared > 0, j.end_run = INT32_MAX;
  j.scale = 1.0f / sqrtf((float)kv.head_dim), j.q = q, j.y = y;
  if (spread) {
    const size_t partials = (size_t)rows_left(kv, rows.bucket, runs, heads) * (size_t)heads * (size_t)splits;
    if (splits <= ATTENTION_MEET_SPLITS && !j.split_runs) j.arrived = (int32_t *)scratch;
    j.partials = (attention_partial *)(scratch + CUDA_ATTENTION_COUNTERS);
    j.values = scratch + CUDA_ATTENTION_COUNTERS + partials * (sizeof(attention_partial) / sizeof(float));
  }
  switch (which) {
  case PREFILL:
    attention_put_prefill(stream, j, runs);
    break;
  case RUNS:
    attention_put_runs(stream, j, runs);
    break;
  default:
    put_rows(stream, j);
    if (spread && !j.arrived) attention_put_join(stream, j, rows.bucket);
  }
}
