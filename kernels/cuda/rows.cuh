/* rows.cuh - what linears need done to their input first, when it does not pay to do it in every block. */
#pragma once

#include "kernels/cuda/cuda_kernels.h"

/* Row i of x, or where there is a weight the norm of row i (rows.head: of row head_rows[i]), to tiles; or the
 * norm to y [bucket][columns]. One of y and tiles is NULL. bf16: the tiles are cuda_bf16_tile. */
struct rows_prepared {
  cuda_rows rows;
  const float *x, *weight;
  float eps;
  int32_t columns;
  float *y;
  cuda_tile *tiles;
  bool bf16;
  int32_t across; /* int8 tiles that lie side by side (activation_order) */
};

void rows_prepare(cudaStream_t stream, const rows_prepared &p);
