#include "kernels/cuda/host_kernels.h"
#include "kernels/cpu/cpu_math.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/launch.cuh"

#define PIECE                                                                                                \
  512 /* threads of a block; blocks of a table that are the arguments of one kernel, which are copied        \
         at the launch */

struct table_piece {
  int32_t blocks[PIECE];
};

static __global__ void table_kernel(int32_t *table, table_piece piece, int32_t count) {
  int32_t i = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) table[i] = piece.blocks[i];
}

void cuda_put_table(cudaStream_t stream, int32_t *table, const int32_t *blocks, int32_t count) {
  for (int32_t i = 0; i < count; i += PIECE) {
    table_piece piece = {};
    int32_t n = count - i < PIECE ? count - i : PIECE;
    for (int32_t k = 0; k < n; k++) piece.blocks[k] = blocks[i + k];
    cuda_launch(table_kernel, dim3(1), dim3(PIECE), 0, stream, table + i, piece, n);
  }
}

static __global__ void gated_kernel(cuda_rows rows, int32_t columns, const float *gate, const float *up,
                                    float *y) {
  const int32_t column = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x), row = (int32_t)blockIdx.y;
  device_let_next_begin();
  device_wait_for_previous();
  if (row >= rows.batch->row_count || column >= columns) return;
  const size_t at = (size_t)row * (size_t)columns + (size_t)column;
  y[at] = cpu_silu(gate[at]) * up[at];
}

void cuda_put_gated(cudaStream_t stream, cuda_rows rows, int32_t columns, const float *gate, const float *up,
                    float *y) {
  const dim3 grid((unsigned)(columns + PIECE - 1) / PIECE, (unsigned)rows.bucket);
  launch_early(gated_kernel, grid, dim3(PIECE), 0, stream, rows, columns, gate, up, y);
}

#define READ_AHEAD  4 /* loads of a thread that are on their way together */
#define READ_BLOCKS 8 /* of a processor */

static __global__ void read_kernel(uint4 *from, size_t count) {
  const size_t step = (size_t)gridDim.x * blockDim.x;
  uint32_t any = 0;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += READ_AHEAD * step) {
    uint4 v[READ_AHEAD] = {};
    DEVICE_UNROLL for (size_t k = 0; k < READ_AHEAD; k++) if (i + k * step < count) v[k] = from[i + k * step];
    DEVICE_UNROLL for (size_t k = 0; k < READ_AHEAD; k++) any |= v[k].x | v[k].y | v[k].z | v[k].w;
  }
  if (any) from->x = any; /* never: or else the loads would be left out */
}

void cuda_put_reading(cudaStream_t stream, void *from, size_t bytes) {
  const unsigned blocks = (unsigned)(launch_processors() * READ_BLOCKS);
  cuda_launch(read_kernel, dim3(blocks), dim3(PIECE), 0, stream, (uint4 *)from, bytes / sizeof(uint4));
}

static __global__ void fault_kernel() {
#ifdef __CUDACC__
  __trap();
#else
  shim_runtime_fault();
#endif
}

void cuda_put_fault(cudaStream_t stream) {
  cuda_launch(fault_kernel, dim3(1), dim3(1), 0, stream);
}
