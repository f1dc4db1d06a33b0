/* host_kernels.h - kernels that the host's side needs beside those of the ops. */
#pragma once

#include "kernels/cuda/cuda_kernels.h"

PORTABLE_C_BEGIN
/* table[0..count) = blocks. blocks is the host's memory, and its own again when this returns. */
void cuda_put_table(cudaStream_t stream, int32_t *table, const int32_t *blocks, int32_t count);

/* y = silu(gate) * up, elementwise; all of them [rows][columns]. */
void cuda_put_gated(cudaStream_t stream, cuda_rows rows, int32_t columns, const float *gate, const float *up,
                    float *y);

/* Reads `bytes` of zeros, a multiple of 16. */
void cuda_put_reading(cudaStream_t stream, void *from, size_t bytes);

/* Breaks the context, as a kernel does that reads memory it must not. */
void cuda_put_fault(cudaStream_t stream);
PORTABLE_C_END
