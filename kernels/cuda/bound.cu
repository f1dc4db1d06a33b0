/* bound.cu - a bound of what each key of a tile scores, for the rows that are weighed (ops.h: bound). A warp
 * has a tile: its lanes find the high and the low key, and then have a head each. */
#include "kernels/cuda/cache.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/launch.cuh"

constexpr int32_t BOUND_WARPS = 4; /* of a block */

typedef struct bound_job {
  cuda_rows rows;
  cuda_kv kv;
  int32_t layer, heads;
  float scale;
  const float *q;
  bool mean, add;
  float *y;
} bound_job;

/* Of a tile's first `count` keys, by all lanes of a warp. */
template <class T>
static __device__ void bound_ends(const T *keys, int32_t count, int32_t dim, float *high, float *low) {
  for (int32_t d = (int32_t)threadIdx.x % DEVICE_LANES; d < dim; d += DEVICE_LANES) {
    const T *key = keys + cache_component_at(d);
    float most = -INFINITY, least = INFINITY;
    for (int32_t i = 0; i < count; i++) {
      const float x = cache_load(key[i * CUDA_KV_UNIT]);
      most = x > most ? x : most;
      least = x < least ? x : least;
    }
    high[d] = most;
    low[d] = least;
  }
}

/* The larger product of a head's query with the two keys. */
static __device__ float bound_head(const bound_job &j, const float *q, const float *high, const float *low) {
  float a = 0, b = 0;
  for (int32_t d = 0; d < j.kv.head_dim; d++) {
    a = fmaf(q[d], high[d], a);
    b = fmaf(q[d], low[d], b);
  }
  a *= j.scale;
  b *= j.scale;
  const float own = a > -INFINITY ? a : -INFINITY;
  return b > own ? b : own;
}

static __device__ float bound_join(const bound_job &j, float x, float y) {
  if (j.mean) return x + y;
  return y > x ? y : x;
}

/* What the lane has, joined with its heads of a group. */
static __device__ float bound_group(const bound_job &j, const float *q, const float *high, const float *low,
                                    float had) {
  const int32_t group = j.heads / j.kv.kv_heads;
  for (int32_t i = (int32_t)threadIdx.x % DEVICE_LANES; i < group; i += DEVICE_LANES)
    had = bound_join(j, had, bound_head(j, q + i * j.kv.head_dim, high, low));
  return had;
}

template <class T> static __global__ void bound_tiles(bound_job j) {
  CUDA_SHARED(shared);
  const int32_t warp = (int32_t)threadIdx.x / DEVICE_LANES, line = (int32_t)blockIdx.y;
  const int32_t tile = (int32_t)blockIdx.x * BOUND_WARPS + warp, dim = j.kv.head_dim;
  const cuda_batch *batch = j.rows.batch;
  float *high = (float *)shared + warp * 2 * dim, *low = high + dim, had = j.mean ? 0.0f : -INFINITY;
  device_let_next_begin();
  device_wait_for_previous();
  if (line >= batch->weigh_count) return;
  const int32_t row = batch->capture_rows[line], first = tile * OPS_TILE;
  const ops_row r = batch->rows[row];
  if (first >= r.length) return;
  const int32_t count = r.length - first < OPS_TILE ? r.length - first : OPS_TILE;
  const size_t at = cache_key_at(j.kv, cache_row(j.kv, r.sequence, first));
  for (int32_t head = 0; head < j.kv.kv_heads; head++) {
    const int32_t query = row * j.heads + head * (j.heads / j.kv.kv_heads);
    bound_ends(cache_area_of<T>(j.kv, false, j.layer, head).keys + at, count, dim, high, low);
    __syncwarp();
    had = bound_group(j, j.q + (size_t)query * (size_t)dim, high, low, had);
    __syncwarp();
  }
  for (int32_t i = DEVICE_LANES / 2; i > 0; i /= 2) had = bound_join(j, had, __shfl_xor_sync(~0u, had, i));
  if (j.mean) had *= 1.0f / (float)j.heads;
  float *y = j.y + (size_t)row * (size_t)(j.kv.context / OPS_TILE) + (size_t)tile;
  if (threadIdx.x % DEVICE_LANES == 0) *y = (j.add ? *y : 0.0f) + had;
}

void cuda_bound(cudaStream_t stream, cuda_rows rows, int32_t bucket, cuda_kv kv, int32_t layer, int32_t heads,
                int32_t positions, const float *q, bool mean, bool add, float *y) {
  const bound_job j = {rows, kv, layer, heads, 1.0f / sqrtf((float)kv.head_dim), q, mean, add, y};
  const int32_t tiles = (positions + OPS_TILE - 1) / OPS_TILE;
  const dim3 grid((unsigned)((tiles + BOUND_WARPS - 1) / BOUND_WARPS), (unsigned)bucket);
  launch_early(kv.type == OPS_KV_F16 ? bound_tiles<uint16_t> : bound_tiles<float>, grid,
               dim3(BOUND_WARPS * DEVICE_LANES), BOUND_WARPS * 2 * (size_t)kv.head_dim * sizeof(float),
               stream, j);
}
