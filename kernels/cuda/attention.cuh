/* attention.cuh - what the kernels of attention share: attention.cu, in which a block has one row;
 * attention_runs.cu and attention_wide.cu, in which it has the few rows of a verify; and
 * attention_prefill.cu, in which it has many rows of a prompt. ops.h says what they compute. */
#pragma once

#include "kernels/cuda/cache.cuh"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/launch.cuh"

#define ATTENTION_THREADS    OPS_SPLIT               /* of a block of attention.cu: one for each position */
#define ATTENTION_CHUNKS     (OPS_SPLIT / OPS_CHUNK) /* of a split */
#define ATTENTION_FOUR       4                       /* floats that one access takes */
#define ATTENTION_LINE_KEYS  (DEVICE_LINE / 16)      /* at most: a key's unit has 16 bytes or more */
#define ATTENTION_JOIN_AHEAD 8                       /* splits whose values are on their way at once */
/* That many splits are joined by the last of their blocks, and more by a kernel (attention_join.cu), which
 * takes a microsecond to begin, but has a block for each head. Split runs need it in any case. */
#define ATTENTION_MEET_SPLITS 16
#define ATTENTION_JOIN_ONCE   1 /* us */

typedef struct attention_quad {
  alignas(16) float x[ATTENTION_FOUR];
} attention_quad;

typedef struct attention_partial { /* what a split leaves for one query head, beside its values */
  alignas(16) cpu_softmax softmax;
  int32_t keys; /* 0: the row sees none, and the rest is undefined */
} attention_partial;

typedef struct attention_job {
  cuda_rows rows;
  cuda_kv kv;
  int32_t layer, view, heads, splits;
  bool spread; /* a block a split */
  bool long_runs, split_runs;
  int32_t first_run, end_run; /* of this launch; end_run may be more than there are */
  float scale;
  const float *q;
  float *y;
  int32_t *arrived; /* [CUDA_ATTENTION_COUNTERS]: blocks that have left their split, of those that make the
                       same results; 0 between kernels. NULL: attention_put_join joins what they leave */
  attention_partial *partials; /* [rows of the launch][heads][splits] */
  float *values;               /* [rows of the launch][heads][splits][cuda_kv_row(head_dim)] */
} attention_job;

/* The first row of a run; one behind the last is where it would begin. */
DEVICE_CODE int32_t attention_run_begin(const attention_job &j, int32_t run) {
  const cuda_batch *batch = j.rows.batch;
  const int32_t count = j.long_runs ? batch->long_run_count : batch->run_count;
  if (run == 0) return 0;
  return run < count ? (j.long_runs ? batch->long_runs : batch->runs)[run].first : batch->row_count;
}

/* --- what a row sees --- */

typedef struct attention_view {
  ops_row row;
  const ops_span *spans;
  int32_t count;
} attention_view;

DEVICE_CODE attention_view attention_view_of(const attention_job &j, int32_t row) {
  const cuda_batch *batch = j.rows.batch;
  const cuda_view view = batch->views[j.view];
  const int32_t first = view.first[row];
  const attention_view v = {batch->rows[row], view.spans + first, view.first[row + 1] - first};
  return v;
}

/* Spans of the row that begin before `to`. */
DEVICE_CODE int32_t attention_spans_before(const attention_view &v, int32_t to) {
  int32_t low = 0, high = v.count;
  DEVICE_NO_UNROLL
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (v.spans[middle].first < to)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Does the row see one of the positions [from, to)? */
DEVICE_CODE bool attention_sees(const attention_view &v, int32_t from, int32_t to) {
  const int32_t before = attention_spans_before(v, to);
  return before > 0 && from < v.spans[before - 1].end;
}

/* Bits of a chunk's positions from `from` on. */
DEVICE_CODE uint32_t attention_bits_from(int32_t begin, int32_t from) {
  return from <= begin ? ~0u : from >= begin + OPS_CHUNK ? 0 : ~0u << (from - begin);
}

/* What the row sees of the chunk that begins at position `begin`, a bit for each position. */
DEVICE_CODE uint32_t attention_seen(const attention_view &v, int32_t begin) {
  const int32_t before = attention_spans_before(v, begin + 1);
  uint32_t seen = 0;
  DEVICE_NO_UNROLL
  for (int32_t i = before > 0 ? before - 1 : 0; i < v.count; i++) {
    const ops_span span = v.spans[i];
    if (span.first >= begin + OPS_CHUNK) break;
    seen |= attention_bits_from(begin, span.first) & ~attention_bits_from(begin, span.end);
  }
  return seen;
}

/* Index of (row, query head) in q and y, in heads. */
DEVICE_CODE size_t attention_head_at(const attention_job &j, int32_t row, int32_t head) {
  return (size_t)row * (size_t)j.heads + (size_t)head;
}

/* --- sums and maxima --- */

/* A NaN is never the larger one. */
DEVICE_CODE float attention_larger(float a, float b) {
  return a > b ? a : b;
}

/* Of a number of lanes that is a power of two. */
DEVICE_CODE float attention_largest(float x, int lanes) {
  DEVICE_UNROLL for (int by = DEVICE_LANES / 2; by > 0; by /= 2) if (by < lanes) x =
      attention_larger(__shfl_xor_sync(~0u, x, by), x);
  return x;
}

/* A chunk's scores of one lane, CPU_LANES apart, become weights; returns what the lane adds to its sum. seen:
 * bit 0 is the first one's. */
DEVICE_CODE float attention_weigh_chunk(float *scores, uint32_t seen, float most) {
  float e[ATTENTION_FOUR];
  DEVICE_UNROLL for (int k = 0; k < ATTENTION_FOUR; k++) {
    const float x = cpu_exp(scores[k * CPU_LANES] - most);
    e[k] = seen >> k * CPU_LANES & 1 ? x : 0.0f;
    scores[k * CPU_LANES] = e[k];
  }
  return (e[0] + e[2]) + (e[1] + e[3]);
}

DEVICE_CODE float attention_joined(float before, float split, cpu_factors f) {
  return fmaf(split, f.split, before * f.before);
}

/* --- splits that were blocks of their own --- */

/* Is this the last of `count` blocks to have left its split? What the others wrote can then be read. flag: of
 * the block's shared memory. */
DEVICE_CODE bool attention_is_last(int32_t *arrived, int32_t count, int32_t *flag) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    *flag = atomicAdd(arrived, 1) + 1;
    if (*flag == count) *arrived = 0;
    __threadfence();
  }
  __syncthreads();
  return *flag == count;
}

/* Up to as many splits as a warp has lanes, one a lane: each lane's factors, given the largest score before
 * them, which becomes that of all. */
DEVICE_CODE cpu_factors attention_factors(const attention_partial &p, float &before) {
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES;
  float most = p.keys ? p.softmax.largest : -INFINITY;
  DEVICE_UNROLL for (int by = 1; by < DEVICE_LANES; by *= 2) {
    const float other = __shfl_up_sync(~0u, most, (unsigned)by);
    most = lane >= by ? attention_larger(other, most) : most;
  }
  most = attention_larger(before, most);
  float previous = __shfl_up_sync(~0u, most, 1u);
  previous = lane == 0 ? before : previous;
  before = __shfl_sync(~0u, most, DEVICE_LANES - 1);
  return {cpu_exp(previous - most), cpu_exp(p.softmax.largest - most)};
}

typedef struct attention_sum { /* of the splits so far: of their weights, and of four components */
  float weights;
  attention_quad values;
} attention_sum;

DEVICE_CODE void attention_add(attention_sum &to, float weights, const attention_quad &values, cpu_factors f,
                               bool first) {
  to.weights = first ? weights : attention_joined(to.weights, weights, f);
  DEVICE_UNROLL for (int i = 0; i < ATTENTION_FOUR; i++) to.values.x[i] =
      first ? values.x[i] : attention_joined(to.values.x[i], values.x[i], f);
}

/* The components from d on of a head, from all its splits, ATTENTION_MEET_SPLITS at most. row: floats from
 * split to split. */
static __device__ attention_quad attention_join(const attention_partial *partials, const float *values,
                                                int32_t count, int32_t row, int32_t d) {
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES;
  float before = -INFINITY;
  attention_sum sum = {};
  attention_partial p = {{0, 0}, 0};
  cpu_factors f = {0, 0};
  bool any = false;
  if (lane < count) p = device_load_fresh<attention_partial>(partials + lane);
  DEVICE_NO_UNROLL
  for (int32_t first = 0; first < count; first += ATTENTION_JOIN_AHEAD) {
    attention_quad ahead[ATTENTION_JOIN_AHEAD];
    DEVICE_UNROLL for (int i = 0; i < ATTENTION_JOIN_AHEAD; i++) {
      const int32_t split = first + i < count ? first + i : 0;
      ahead[i] = device_load_fresh<attention_quad>(values + (size_t)split * (size_t)row + d);
    }
    if (first == 0) f = attention_factors(p, before);
    DEVICE_UNROLL for (int i = 0; i < ATTENTION_JOIN_AHEAD; i++) {
      const int32_t from = first + i;
      const cpu_factors g = {__shfl_sync(~0u, f.before, from), __shfl_sync(~0u, f.split, from)};
      const float weights = __shfl_sync(~0u, p.softmax.sum, from);
      if (!__shfl_sync(~0u, p.keys, from)) continue;
      attention_add(sum, weights, ahead[i], g, !any);
      any = true;
    }
  }
  DEVICE_UNROLL for (int i = 0; i < ATTENTION_FOUR; i++) sum.values.x[i] *= 1.0f / sum.weights;
  return sum.values;
}

#define ATTENTION_JOINED (DEVICE_LANES * ATTENTION_FOUR) /* components that a warp joins at once */

/* What its splits have left becomes y of a head, ATTENTION_JOINED components from `from` on, by one warp.
 * part: the head among those of the launch. */
DEVICE_CODE void attention_join_head(const attention_job &j, size_t head, size_t part, int32_t count,
                                     int32_t from) {
  const int32_t row = cuda_kv_row(j.kv.head_dim), dim = j.kv.head_dim;
  const int32_t d = from + (int32_t)threadIdx.x % DEVICE_LANES * ATTENTION_FOUR;
  const size_t first = part * (size_t)j.splits;
  const attention_quad y =
      attention_join(j.partials + first, j.values + first * (size_t)row, count, row, d < row ? d : 0);
  DEVICE_UNROLL for (int i = 0; i < ATTENTION_FOUR; i++) if (d + i < dim)
      j.y[head * (size_t)dim + (size_t)(d + i)] = y.x[i];
}

/* --- blocks of several queries of a run: each is a row and a head of one key-value head's group --- */

typedef struct attention_queries {
  const attention_job &j;
  cuda_run run;
  int32_t kv_head, group, first; /* the first query of the run's */
  int32_t before;                /* rows of the batch before the launch's */

  /* Index in q and y of a query that is there, in heads. */
  __device__ __forceinline__ size_t at(int32_t query) const {
    const int32_t i = first + query, row = i / group;
    return attention_head_at(j, run.first + row, kv_head * group + i - row * group);
  }

  /* What it leaves of a split: an index in partials, and of a row of values. */
  __device__ __forceinline__ size_t part_at(int32_t query, int32_t split) const {
    return (at(query) - attention_head_at(j, before, 0)) * (size_t)j.splits + (size_t)split;
  }
} attention_queries;

/* Does a row see something of a split? seen: what it sees of each chunk. */
DEVICE_CODE bool attention_sees_split(const uint32_t seen[ATTENTION_CHUNKS]) {
  uint32_t any = 0;
  DEVICE_UNROLL for (int c = 0; c < ATTENTION_CHUNKS; c++) any |= seen[c];
  return any != 0;
}

/* Says that no query of the block sees anything of a split. there: does this thread have a query? */
DEVICE_CODE void attention_leave_nothing(const attention_queries &b, bool there, int32_t split) {
  if (there) b.j.partials[b.part_at((int32_t)threadIdx.x, split)].keys = 0;
}

/* The last of `count` blocks of the same queries joins what all of them have left. row_of: a query's row, or
 * `nobody` where there is no query. flag: of the block's shared memory. */
template <int QUERIES, int ROW>
DEVICE_CODE void attention_meet(const attention_queries &b, int32_t count, const int32_t *row_of,
                                int32_t nobody, int32_t *flag) {
  if (!b.j.arrived) return;
  int32_t *arrived = b.j.arrived + blockIdx.x * gridDim.y + blockIdx.y;
  if (!attention_is_last(arrived, count, flag)) return;
  const int32_t warps = (int32_t)blockDim.x / DEVICE_LANES;
  DEVICE_NO_UNROLL
  for (int32_t q = (int32_t)threadIdx.x / DEVICE_LANES; q < QUERIES; q += warps)
    for (int32_t from = 0; row_of[q] != nobody && from < ROW; from += ATTENTION_JOINED)
      attention_join_head(b.j, b.at(q), b.at(q) - attention_head_at(b.j, b.before, 0), count, from);
}

/* --- launches --- */

inline int32_t attention_splits(int32_t positions) {
  return (positions + OPS_SPLIT - 1) / OPS_SPLIT;
}

/* What a kernel takes, measured in us of an H200: to begin and end, and for each wave of blocks, so many of a
 * processor at once. */
typedef struct attention_pace {
  int32_t of_processor, once, wave;
} attention_pace;

inline int64_t attention_waves(int64_t blocks, attention_pace p) {
  const int64_t at_once = (int64_t)launch_processors() * p.of_processor;
  return (blocks + at_once - 1) / at_once * p.wave;
}

/* How runs are launched. */
typedef struct attention_plan {
  bool spread;  /* a block has one split, rather than all of them */
  int32_t runs; /* of a launch; less than all where what splits leave would be too much memory, or the
                   counters are too few */
  int64_t cost;
} attention_plan;

#define ATTENTION_PARTS_MAX    ((int64_t)128 << 10) /* splits of heads of rows that are left in memory */
#define ATTENTION_LAUNCHES_MAX 8                    /* of an attention */

/* Runs whose splits may be left in memory, whatever is in the cache; 0: not even those of one. */
inline int32_t attention_runs_left(const cuda_kv &kv, cuda_runs runs, int32_t heads) {
  const int64_t most = ATTENTION_PARTS_MAX / ((int64_t)runs.rows * heads * attention_splits(kv.context));
  return most < runs.bucket ? (int32_t)most : runs.bucket;
}

/* blocks: of a run and a split. whole: a block can have all splits. cost 0: there is no way. */
inline attention_plan attention_plan_of(const cuda_kv &kv, cuda_runs runs, int32_t heads, int32_t splits,
                                        int32_t blocks, bool whole, attention_pace p) {
  const attention_plan alone = {
      false, runs.bucket, whole ? p.once + attention_waves((int64_t)runs.bucket * blocks, p) * splits : 0};
  int32_t most = attention_runs_left(kv, runs, heads);
  if (splits <= ATTENTION_MEET_SPLITS && most * blocks > CUDA_ATTENTION_COUNTERS)
    most = CUDA_ATTENTION_COUNTERS / blocks;
  if (splits < 2 || (int64_t)most * ATTENTION_LAUNCHES_MAX < runs.bucket) return alone;
  const int32_t rest = runs.bucket % most;
  const int64_t each = p.once + attention_waves((int64_t)most * blocks * splits, p),
                last = rest ? p.once + attention_waves((int64_t)rest * blocks * splits, p) : 0,
                cost = runs.bucket / most * each + last;
  const bool spread = most == runs.bucket || !whole || cost < alone.cost;
  return spread ? attention_plan{true, most, cost} : alone;
}

/* Joins what the blocks of the splits of a launch have left, of so many rows at most. */
void attention_put_join(cudaStream_t stream, const attention_job &j, int32_t rows);

/* Runs launch by launch. rows: of a run. */
template <class Launch>
void attention_put_plan(cudaStream_t stream, attention_job j, cuda_runs runs, attention_plan plan,
                        const Launch &launch) {
  for (int32_t first = 0; first < runs.bucket; first += plan.runs) {
    const int32_t count = plan.runs < runs.bucket - first ? plan.runs : runs.bucket - first;
    j.first_run = first;
    j.end_run = first + count;
    launch(j, count);
    if (j.spread && !j.arrived) attention_put_join(stream, j, count * runs.rows);
  }
}

/* Is there a kernel for runs in this cache, and shared memory for it? The others are for where there is. */
bool attention_runs_fit(const cuda_kv &kv);
/* The rows of each run read together. */
void attention_put_runs(cudaStream_t stream, const attention_job &j, cuda_runs runs);
/* How, and what it costs. */
attention_plan attention_runs_plan(const cuda_kv &kv, cuda_runs runs, int32_t heads, int32_t splits);

/* The same of attention_prefill.cu, for runs of committed rows. */
bool attention_prefill_fits(const cuda_kv &kv);
void attention_put_prefill(cudaStream_t stream, const attention_job &j, cuda_runs runs);
attention_plan attention_prefill_plan(const cuda_kv &kv, cuda_runs runs, int32_t heads, int32_t splits);
