/* linear_f32.cu - linears in f32 math, of every type: 16 threads, one for each output of a group, sum the
 * inputs of one part for up to eight rows. */
#include "kernels/cuda/linear.cuh"

/* Adds inputs [k, k + n) of the rows, which lie `columns` floats apart. */
template <ops_type TYPE>
DEVICE_CODE void add_inputs(const uint8_t *group, const float *x, int32_t columns, int32_t k, int32_t n,
                            int32_t rows, float acc[LINEAR_F32_ROWS]) {
  const int32_t lane = (int32_t)threadIdx.x % OPS_GROUP;
  DEVICE_UNROLL_BY(8)
  for (int32_t i = k; i < k + n; i++) {
    const float w = weight_value<TYPE>(group, lane, i);
    DEVICE_UNROLL
    for (int32_t row = 0; row < LINEAR_F32_ROWS; row++)
      if (row < rows) acc[row] = fmaf(w, x[(size_t)row * (size_t)columns + (size_t)i], acc[row]);
  }
}

template <ops_type TYPE>
DEVICE_CODE void sum_slot(const linear_args &a, const linear_slot &s, int32_t first, int32_t rows,
                          float *sums) {
  const int32_t lane = (int32_t)threadIdx.x % OPS_GROUP;
  const float *x = a.input.x + (size_t)first * (size_t)a.columns;
  float acc[LINEAR_F32_ROWS] = {};
  for (int32_t k = s.first * OPS_BLOCK; k < s.end * OPS_BLOCK; k += OPS_BLOCK) {
    const int32_t left = a.columns - k;
    add_inputs<TYPE>(s.group, x, a.columns, k, left < OPS_BLOCK ? left : OPS_BLOCK, rows, acc);
  }
  for (int32_t row = 0; row < LINEAR_F32_ROWS; row++) sums[row * OPS_GROUP + lane] = acc[row];
}

template <ops_type TYPE> static __global__ void linear_f32(const __grid_constant__ linear_args a) {
  CUDA_SHARED(memory);
  float *sums = (float *)memory;
  const int32_t slot = (int32_t)threadIdx.x / OPS_GROUP, first = (int32_t)blockIdx.y * LINEAR_F32_ROWS;
  device_let_next_begin();
  const int32_t left = linear_row_count(a.rows) - first,
                rows = left < LINEAR_F32_ROWS ? left : LINEAR_F32_ROWS;
  linear_output mine = linear_no_output();
  if (rows > 0) mine = linear_output_at(a, {0, a.units}, (int32_t)threadIdx.x, LINEAR_F32_ROWS, first, rows);
  device_wait_for_previous();
  if (rows <= 0) return;
  linear_output_load(a, mine);
  if (slot < a.units * a.parts) {
    const linear_slot s = linear_slot_at<TYPE>(a, slot);
    if (s.group) sum_slot<TYPE>(a, s, first, rows, sums + slot * LINEAR_F32_ROWS * OPS_GROUP);
  }
  __syncthreads();
  linear_finish(a, {0, a.units}, sums, LINEAR_F32_ROWS, first, rows, mine, true);
}

linear_kernel *linear_f32_kernel(ops_type type) {
#define KERNEL(name, TYPE, ...)                                                                              \
  case OPS_##TYPE:                                                                                           \
    return linear_f32<OPS_##TYPE>;
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
