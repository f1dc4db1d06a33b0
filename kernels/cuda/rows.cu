#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/weights.cuh"

constexpr int32_t ROW_THREADS = 128;

/* --- embed --- */

template <ops_type TYPE> static __global__ void embed(cuda_rows rows, cuda_weight w, float *x) {
  const int32_t row = (int32_t)blockIdx.x, count = rows.batch->row_count;
  const int32_t token = row < count ? rows.batch->rows[row].token : 0;
  device_let_next_begin();
  device_wait_for_previous();
  if (row >= count) return;
  const uint8_t *group =
      (const uint8_t *)w.data + (size_t)(token / OPS_GROUP) * weights<TYPE>::group_bytes(w.columns);
  for (int32_t i = (int32_t)threadIdx.x; i < w.columns; i += (int32_t)blockDim.x)
    x[(size_t)row * (size_t)w.columns + (size_t)i] = weight_value<TYPE>(group, token % OPS_GROUP, i);
}

typedef void embed_kernel(cuda_rows, cuda_weight, float *);

static embed_kernel *embed_kernel_of(ops_type type) {
#define KERNEL(name, TYPE, ...)                                                                              \
  case OPS_##TYPE:                                                                                           \
    return embed<OPS_##TYPE>;
  switch (type) {
    KERNEL(f32, F32, )
    KERNEL(f16, F16, )
    KERNEL(bf16, BF16, )
    CPU_FORMATS(KERNEL)
  default:
    return nullptr;
  }
#undef KERNEL
}

void cuda_embed(cudaStream_t stream, cuda_rows rows, cuda_weight w, float *x) {
  launch_early(embed_kernel_of(w.type), dim3((unsigned)rows.bucket), dim3(ROW_THREADS), 0, stream, rows, w,
               x);
}

/* --- rows that come from the host, and rows that it reads --- */

static __global__ void copy_rows(cuda_rows rows, bool captured, const float *from, int32_t columns,
                                 float *to) {
  const cuda_batch *batch = rows.batch;
  const int32_t row = (int32_t)blockIdx.x, count = captured ? batch->capture_count : batch->row_count;
  const int32_t source = captured && row < count ? batch->capture_rows[row] : row;
  device_let_next_begin();
  device_wait_for_previous();
  if (row >= count) return;
  for (int32_t i = (int32_t)threadIdx.x; i < columns; i += (int32_t)blockDim.x)
    to[(size_t)row * (size_t)columns + (size_t)i] = from[(size_t)source * (size_t)columns + (size_t)i];
}

void cuda_supply(cudaStream_t stream, cuda_rows rows, const float *values, int32_t columns, float *y) {
  launch_early(copy_rows, dim3((unsigned)rows.bucket), dim3(ROW_THREADS), 0, stream, rows, false, values,
               columns, y);
}

void cuda_capture(cudaStream_t stream, cuda_rows rows, int32_t bucket, const float *x, int32_t columns,
                  float *to) {
  launch_early(copy_rows, dim3((unsigned)bucket), dim3(ROW_THREADS), 0, stream, rows, true, x, columns, to);
}

/* --- norms, and other forms of activations: a block has a row, or some chunks of one --- */

constexpr int32_t PREPARE_THREADS = 512;

/* The norm of a row of any length. */
static __device__ void norm_row(const float *x, const float *weight, int32_t n, float eps, float *sums,
                                float *y) {
  const int32_t warp = (int32_t)threadIdx.x / DEVICE_LANES, lane = (int32_t)threadIdx.x % DEVICE_LANES;
  float v[ACTIVATION_EACH];
  for (int32_t i = warp; i < activation_chunks(n); i += (int32_t)blockDim.x / DEVICE_LANES) {
    activation_load<false>(x, n, i * OPS_NORM_CHUNK + lane * ACTIVATION_EACH, v);
    const float sum = activation_chunk_squares(v);
    activation_put_sum(sums, n, i, sum);
  }
  __syncthreads();
  const float scale = activation_scale(sums, n, eps);
  for (int32_t i = (int32_t)threadIdx.x; i < n; i += (int32_t)blockDim.x) y[i] = x[i] * scale * weight[i];
}

static __global__ void prepare(rows_prepared p) {
  CUDA_SHARED(memory);
  const cuda_batch *batch = p.rows.batch;
  const int32_t row = (int32_t)blockIdx.x, count = p.rows.head ? batch->head_count : batch->row_count;
  const int32_t warps = (int32_t)blockDim.x / DEVICE_LANES;
  const activation_walk walk =
      activation_walk_of(p.columns, (int32_t)blockIdx.y * warps + (int32_t)threadIdx.x / DEVICE_LANES,
                         (int32_t)gridDim.y * warps);
  device_let_next_begin();
  if (row >= count) {
    device_wait_for_previous();
    return;
  }
  const float *x = p.x + (size_t)(p.rows.head && p.weight ? batch->head_rows[row] : row) * (size_t)p.columns;
  const activation_rows rows = {x, nullptr, 1, p.columns, p.weight, p.eps};
  const activation_early early = p.tiles ? activation_early_of(rows, walk) : activation_early{};
  device_wait_for_previous();
  if (p.y) norm_row(x, p.weight, p.columns, p.eps, (float *)memory, p.y + (size_t)row * (size_t)p.columns);
  if (p.tiles && p.bf16)
    activation_forms(rows, walk, early, (float *)memory,
                     activation_bf16_tiles{(cuda_bf16_tile *)p.tiles, p.columns / OPS_BLOCK, row});
  else if (p.tiles)
    activation_forms(
        rows, walk, early, (float *)memory,
        activation_tiles{p.tiles, {p.columns / OPS_BLOCK, p.across, cuda_tile_rows(p.rows.bucket)}, row});
}

/* A warp for each chunk of a row, as far as one block has so many. Without a norm, of which all chunks of a
 * row are a part, more blocks have the others. */
void rows_prepare(cudaStream_t stream, const rows_prepared &p) {
  const int32_t chunks = activation_chunks(p.columns), most = PREPARE_THREADS / DEVICE_LANES,
                warps = chunks < most ? chunks : most, blocks = p.weight ? 1 : (chunks + warps - 1) / warps;
  launch_early(prepare, dim3((unsigned)p.rows.bucket, (unsigned)blocks),
               dim3((unsigned)(warps * DEVICE_LANES)), (size_t)activation_sums_row(p.columns) * sizeof(float),
               stream, p);
}

void cuda_norm(cudaStream_t stream, cuda_rows rows, cuda_norm_source from, int32_t columns, float *y) {
  rows_prepare(stream, {rows, from.x, from.weight, from.eps, columns, y, nullptr, false, 1});
}

void cuda_quantize(cudaStream_t stream, cuda_rows rows, cuda_act x) {
  rows_prepare(stream, {rows, x.f32, nullptr, 0.0f, x.columns, nullptr, x.tiles, x.bf16, 1});
}
