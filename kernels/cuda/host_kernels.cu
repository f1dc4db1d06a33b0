#include "kernels/cuda/host_kernels.h"

#define PIECE 512 /* blocks that are passed as the arguments of one kernel: they are copied at the launch */

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
