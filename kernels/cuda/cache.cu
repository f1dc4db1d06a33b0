/* cache.cu - what writes the cache: rows of a forward, and commits. */
#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/cache.cuh"
#include "kernels/cuda/launch.cuh"

#define WARP           32
#define STORE_WARPS    4   /* heads of a block */
#define COMMIT_ROWS    256 /* of one launch: their staged rows are arguments of the kernel */
#define COMMIT_EACH    8   /* rows of a block */
#define COMMIT_THREADS 128

/* --- rope_store: a warp a head --- */

/* 1 / sqrt(mean of squares + eps), in every lane. */
static __device__ float norm_scale(const float *x, int32_t n, float eps) {
  float v[ACTIVATION_EACH], sum = 0;
  for (int32_t i = 0; i < n; i += OPS_NORM_CHUNK) {
    activation_load<false>(x, n, i + (int32_t)threadIdx.x % WARP * ACTIVATION_EACH, v);
    sum += activation_chunk_squares(v);
  }
  return cpu_norm_scale(sum, n, eps);
}

typedef struct store_job {
  cuda_rows rows;
  cuda_kv kv;
  cuda_rotary rotary;
  int32_t layer, heads;
  float *q;
  const float *k, *v;
} store_job;

/* Calls put(i, y) for the components of a head of n, normed and rotated. A lane has the neighbour's component
 * before the neighbour writes it, so that put may write x. */
template <class Put>
static __device__ void rotate_head(const cuda_rotary &r, const float *norm, const float *angles,
                                   const float *x, int32_t n, Put put) {
  const float scale = norm ? norm_scale(x, n, r.eps) : 0;
  __syncwarp();
  for (int32_t i = (int32_t)threadIdx.x % WARP; i - (int32_t)threadIdx.x % WARP < n; i += WARP) {
    float y = i < n ? x[i] : 0;
    if (norm && i < n) y = y * scale * norm[i];
    const float other = __shfl_xor_sync(~0u, y, 1);
    if (i < r.dim) y = fmaf(other, angles[r.dim + i], y * angles[i]);
    if (i < n) put(i, y);
  }
}

template <class T>
static __device__ void store_key_value(const store_job &j, const ops_row &row, const float *angles,
                                       int32_t head, const float *key, const float *value) {
  const cuda_kv &kv = j.kv;
  const bool staged = row.path_count > 0;
  const int32_t at = cache_row_to_write(kv, *j.rows.batch, row);
  const cache_area<T> area = cache_area_of<T>(kv, staged, j.layer, head);
  T *keys = area.keys + cache_key_at(kv, at), *values = area.values + cache_value_at(kv, at);
  rotate_head(j.rotary, j.rotary.k_norm, angles, key, kv.head_dim,
              [=](int32_t i, float y) { cache_store(keys + cache_component_at(i), y); });
  for (int32_t i = (int32_t)threadIdx.x % WARP; i < kv.head_dim; i += WARP) cache_store(values + i, value[i]);
}

template <class T> static __global__ void store_rows(store_job j) {
  const int32_t row = (int32_t)blockIdx.x, dim = j.kv.head_dim, kv_heads = j.kv.kv_heads;
  const int32_t head = (int32_t)(blockIdx.y * STORE_WARPS + threadIdx.x / WARP);
  const bool none = row >= j.rows.batch->row_count || head >= j.heads + kv_heads;
  device_let_next_begin();
  device_wait_for_previous();
  if (none) return;
  const float *angles = j.rotary.angles + (size_t)row * 2 * (size_t)j.rotary.dim;
  if (head < j.heads) {
    float *q = j.q + ((size_t)row * (size_t)j.heads + (size_t)head) * (size_t)dim;
    rotate_head(j.rotary, j.rotary.q_norm, angles, q, dim, [=](int32_t i, float y) { q[i] = y; });
    return;
  }
  const size_t at = ((size_t)row * (size_t)kv_heads + (size_t)(head - j.heads)) * (size_t)dim;
  store_key_value<T>(j, j.rows.batch->rows[row], angles, head - j.heads, j.k + at, j.v + at);
}

void cuda_rope_store(cudaStream_t stream, cuda_rows rows, cuda_kv kv, int32_t layer, cuda_rotary rotary,
                     int32_t heads, float *q, const float *k, const float *v) {
  const store_job j = {rows, kv, rotary, layer, heads, q, k, v};
  const int32_t all = heads + kv.kv_heads;
  const dim3 grid((unsigned)rows.bucket, (unsigned)((all + STORE_WARPS - 1) / STORE_WARPS));
  launch_early(kv.type == OPS_KV_F16 ? store_rows<uint16_t> : store_rows<float>, grid,
               dim3(STORE_WARPS * WARP), 0, stream, j);
}

/* --- commit --- */

typedef struct commit_job {
  cuda_kv kv;
  int32_t sequence, count, length;
  int32_t path[COMMIT_ROWS];
} commit_job;

/* The keys of neighbouring rows lie side by side, so a block's threads take one component of all its rows,
 * and then the next ones. */
template <class T> static __global__ void commit_rows(commit_job j) {
  const cuda_kv &kv = j.kv;
  const int32_t layer = (int32_t)blockIdx.x / kv.kv_heads, head = (int32_t)blockIdx.x % kv.kv_heads;
  const cache_area<T> from = cache_area_of<T>(kv, true, layer, head);
  const cache_area<T> to = cache_area_of<T>(kv, false, layer, head);
  const int32_t i = (int32_t)(blockIdx.y * COMMIT_EACH + threadIdx.x % COMMIT_EACH);
  if (i >= j.count) return;
  const int32_t source = j.path[i], target = cache_row(kv, j.sequence, j.length + i);
  for (int32_t d = (int32_t)threadIdx.x / COMMIT_EACH; d < kv.head_dim; d += COMMIT_THREADS / COMMIT_EACH) {
    to.keys[cache_key_at(kv, target) + cache_component_at(d)] =
        from.keys[cache_key_at(kv, source) + cache_component_at(d)];
    to.values[cache_value_at(kv, target) + (size_t)d] = from.values[cache_value_at(kv, source) + (size_t)d];
  }
}

void cuda_commit(cudaStream_t stream, cuda_kv kv, int32_t sequence, const int32_t *path, int32_t count,
                 int32_t length) {
  for (int32_t first = 0; first < count; first += COMMIT_ROWS) {
    const int32_t rows = count - first < COMMIT_ROWS ? count - first : COMMIT_ROWS;
    commit_job j = {kv, sequence, rows, length + first, {0}};
    memcpy(j.path, path + first, (size_t)rows * sizeof *path);
    const dim3 grid((unsigned)(kv.layers * kv.kv_heads), (unsigned)((rows + COMMIT_EACH - 1) / COMMIT_EACH));
    cuda_launch(kv.type == OPS_KV_F16 ? commit_rows<uint16_t> : commit_rows<float>, grid,
                dim3(COMMIT_THREADS), 0, stream, j);
  }
}
