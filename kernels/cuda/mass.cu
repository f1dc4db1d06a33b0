/* mass.cu - what the tiles of a row's committed keys weigh in its attention (ops.h: mass).
 *
 * A block of the first kernel takes a split of a captured row and one key-value head: a thread scores one
 * position against some of the group's heads at a time. The second kernel joins splits: each block has some
 * tiles, and finds the totals of all heads by itself, a warp each. */
#include "kernels/cuda/cache.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/launch.cuh"

constexpr int32_t MASS_HEADS = 4;     /* that a thread scores at a time */
constexpr int32_t MASS_THREADS = 256; /* of a block */
constexpr int32_t MASS_TILES = OPS_SPLIT / OPS_TILE;
constexpr int32_t MASS_WARPS = MASS_THREADS / DEVICE_LANES;

static_assert(OPS_SPLIT == MASS_THREADS, "a thread for each position of a split");
static_assert(DEVICE_LANES == 32, "a total has 32 lanes");

typedef struct mass_job {
  cuda_rows rows;
  cuda_kv kv;
  int32_t layer, heads, splits; /* splits: of the longest row of any replay */
  float scale;
  const float *q;
  bool add;
  float *y;
  int32_t columns;
  cpu_softmax *sums; /* [lines][heads][splits] */
  float *tiles;      /* [lines][heads][splits][MASS_TILES] */
} mass_job;

static __device__ size_t mass_part_at(const mass_job &j, int32_t line, int32_t head) {
  return ((size_t)line * (size_t)j.heads + (size_t)head) * (size_t)j.splits;
}

/* --- splits --- */

template <class T> struct mass_unit { alignas(CUDA_KV_UNIT * sizeof(T)) T x[CUDA_KV_UNIT]; };

/* A thread's key against heads [0, count) of the queries in shared memory, [MASS_HEADS][row]. */
template <class T>
static __device__ void mass_score(const T *key, const float *queries, int32_t row, int32_t head_dim,
                                  float (&scores)[MASS_HEADS]) {
  DEVICE_UNROLL for (int h = 0; h < MASS_HEADS; h++) scores[h] = 0;
  DEVICE_UNROLL_BY(2)
  for (int32_t d = 0; d < head_dim; d += CUDA_KV_UNIT) {
    const mass_unit<T> unit = device_load<mass_unit<T>>(key + cache_component_at(d));
    DEVICE_UNROLL for (int i = 0; i < CUDA_KV_UNIT; i++) {
      const float x = cache_load(unit.x[i]);
      DEVICE_UNROLL for (int h = 0; h < MASS_HEADS; h++) scores[h] =
          fmaf(queries[h * row + d + i], x, scores[h]);
    }
  }
}

/* In every thread, by way of barriers. */
static __device__ float mass_largest(float x, float *shared) {
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, warp = (int32_t)threadIdx.x / DEVICE_LANES;
  for (int32_t i = DEVICE_LANES / 2; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
  __syncthreads();
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  for (int32_t i = 0; i < MASS_WARPS; i++) x = fmaxf(x, shared[i]);
  return x;
}

/* The weight of the thread's position becomes part of its tile's sum, and that of the split's. */
static __device__ void mass_leave(float e, float largest, float *shared, cpu_softmax *sum, float *tiles) {
  const int32_t t = (int32_t)threadIdx.x;
  for (int32_t i = OPS_TILE / 2; i > 0; i /= 2) e += __shfl_down_sync(~0u, e, i);
  __syncthreads();
  if (t % OPS_TILE == 0) shared[t / OPS_TILE] = tiles[t / OPS_TILE] = e;
  __syncthreads();
  if (t > 0) return;
  float all = 0;
  for (int32_t i = 0; i < MASS_TILES; i++) all += shared[i];
  *sum = {largest, all};
}

template <class T> static __global__ void mass_split(mass_job j) {
  CUDA_SHARED(shared);
  const int32_t split = (int32_t)blockIdx.x, kv_head = (int32_t)blockIdx.y, line = (int32_t)blockIdx.z;
  const int32_t t = (int32_t)threadIdx.x, group = j.heads / j.kv.kv_heads, p = split * OPS_SPLIT + t;
  const int32_t dim = j.kv.head_dim, padded = cuda_kv_row(dim);
  const cuda_batch *batch = j.rows.batch;
  float *few = (float *)shared, *queries = few + MASS_THREADS / OPS_TILE;
  device_let_next_begin();
  device_wait_for_previous();
  if (line >= batch->weigh_count) return;
  const int32_t row = batch->capture_rows[line];
  const ops_row r = batch->rows[row];
  if (split * OPS_SPLIT >= r.length) return;
  const bool seen = p < r.length;
  const T *keys = cache_area_of<T>(j.kv, false, j.layer, kv_head).keys;
  const T *key = keys + cache_key_at(j.kv, cache_row(j.kv, r.sequence, seen ? p : r.length - 1));
  for (int32_t first = 0; first < group; first += MASS_HEADS) {
    const int32_t head = kv_head * group + first,
                  count = group - first < MASS_HEADS ? group - first : MASS_HEADS;
    const float *q = j.q + ((size_t)row * (size_t)j.heads + (size_t)head) * (size_t)dim;
    float scores[MASS_HEADS];
    __syncthreads();
    for (int32_t i = t; i < MASS_HEADS * padded; i += MASS_THREADS)
      queries[i] = i / padded < count && i % padded < dim ? q[i / padded * dim + i % padded] : 0.0f;
    __syncthreads();
    mass_score(key, queries, padded, dim, scores);
    for (int32_t h = 0; h < count; h++) {
      const float score = scores[h] * j.scale, largest = mass_largest(seen ? score : -INFINITY, few);
      const size_t part = mass_part_at(j, line, head + h) + (size_t)split;
      mass_leave(seen ? cpu_exp(score - largest) : 0.0f, largest, few, j.sums + part,
                 j.tiles + part * MASS_TILES);
    }
  }
}

/* --- all splits --- */

/* By a warp: a head's largest score, and 1 / its total, in every lane. */
static __device__ cpu_softmax mass_total(const cpu_softmax *sums, int32_t splits) {
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES;
  float largest = -INFINITY, all = 0;
  for (int32_t s = lane; s < splits; s += DEVICE_LANES) largest = fmaxf(largest, sums[s].largest);
  for (int32_t i = DEVICE_LANES / 2; i > 0; i /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, i));
  for (int32_t s = lane; s < splits; s += DEVICE_LANES)
    all = fmaf(sums[s].sum, cpu_exp(sums[s].largest - largest), all);
  for (int32_t i = DEVICE_LANES / 2; i > 0; i /= 2) all += __shfl_down_sync(~0u, all, i);
  return {largest, 1.0f / all};
}

static __global__ void mass_join(mass_job j) {
  CUDA_SHARED(shared);
  cpu_softmax *totals = (cpu_softmax *)shared; /* [heads] */
  const int32_t line = (int32_t)blockIdx.y, warp = (int32_t)threadIdx.x / DEVICE_LANES;
  const int32_t tile = (int32_t)blockIdx.x * MASS_THREADS + (int32_t)threadIdx.x, s = tile / MASS_TILES;
  const cuda_batch *batch = j.rows.batch;
  device_let_next_begin();
  device_wait_for_previous();
  if (line >= batch->weigh_count) return;
  const int32_t row = batch->capture_rows[line], length = batch->rows[row].length;
  const int32_t splits = (length + OPS_SPLIT - 1) / OPS_SPLIT;
  for (int32_t h = warp; h < j.heads; h += MASS_WARPS) {
    const cpu_softmax total = mass_total(j.sums + mass_part_at(j, line, h), splits);
    if (threadIdx.x % DEVICE_LANES == 0) totals[h] = total;
  }
  __syncthreads();
  if (tile >= (length + OPS_TILE - 1) / OPS_TILE) return;
  float *y = j.y + (size_t)row * (size_t)j.columns + (size_t)tile;
  float mass = j.add ? *y : 0.0f;
  for (int32_t h = 0; h < j.heads; h++) {
    const size_t part = mass_part_at(j, line, h) + (size_t)s;
    const float share = cpu_exp(j.sums[part].largest - totals[h].largest) * totals[h].sum;
    mass = fmaf(j.tiles[part * MASS_TILES + (size_t)(tile % MASS_TILES)], share, mass);
  }
  *y = mass;
}

/* --- launches --- */

static int32_t mass_splits(int32_t positions) {
  return (positions + OPS_SPLIT - 1) / OPS_SPLIT;
}

size_t cuda_mass_floats(int32_t bucket, int32_t heads, int32_t positions) {
  return (size_t)bucket * (size_t)heads * (size_t)mass_splits(positions) * (2 + MASS_TILES);
}

void cuda_mass(cudaStream_t stream, cuda_rows rows, int32_t bucket, cuda_kv kv, int32_t layer, int32_t heads,
               int32_t positions, const float *q, bool add, float *y, float *scratch) {
  const int32_t splits = mass_splits(positions);
  const size_t parts = (size_t)bucket * (size_t)heads * (size_t)splits;
  const float scale = 1.0f / sqrtf((float)kv.head_dim);
  const mass_job j = {rows,
                      kv,
                      layer,
                      heads,
                      splits,
                      scale,
                      q,
                      add,
                      y,
                      kv.context / OPS_TILE,
                      (cpu_softmax *)scratch,
                      scratch + 2 * parts};
  const size_t shared = (MASS_TILES + MASS_HEADS * (size_t)cuda_kv_row(kv.head_dim)) * sizeof(float);
  launch_early(kv.type == OPS_KV_F16 ? mass_split<uint16_t> : mass_split<float>,
               dim3((unsigned)splits, (unsigned)kv.kv_heads, (unsigned)bucket), dim3(MASS_THREADS), shared,
               stream, j);
  const int32_t tiles = (positions + OPS_TILE - 1) / OPS_TILE;
  launch_early(mass_join, dim3((unsigned)((tiles + MASS_THREADS - 1) / MASS_THREADS), (unsigned)bucket),
               dim3(MASS_THREADS), (size_t)heads * sizeof(cpu_softmax), stream, j);
}
