/* linear_steps.cuh - a block of BF16 weights of 16 outputs out of shared memory, as a tensor core takes it.
 * Its order of sums is the definition (kernels/cpu/tensor_step.h). */
#pragma once

#include "kernels/cuda/linear.cuh"

constexpr int32_t LINEAR_STEP_BYTES = TENSOR_STEP * OPS_GROUP * 2;

/* Chunks of 16 bytes are eight outputs of an input each. Where chunk i of a step lies in shared memory, as a
 * chunk: those of eight inputs of the same outputs, which are read together, are in different banks. Whoever
 * copies weights there asks for chunk `lane`. Of other types they lie as they come. */
template <ops_type TYPE> DEVICE_CODE int32_t linear_chunk_at(int32_t i) {
  return TYPE == OPS_BF16 ? i ^ (i >> 3 & 1) : i;
}

/* What a lane has of the two steps of a block: rows are outputs. */
struct linear_steps {
  uint32_t a[2][4];
};

DEVICE_CODE linear_steps linear_steps_at(const uint8_t *block) {
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, matrix = lane / 8;
  const int32_t input = matrix / 2 * 8 + lane % 8, chunk = linear_chunk_at<OPS_BF16>(2 * input + matrix % 2);
  linear_steps w;
  DEVICE_UNROLL
  for (int32_t s = 0; s < 2; s++) device_load_turned(w.a[s], block + s * LINEAR_STEP_BYTES + chunk * 16);
  return w;
}

/* The thread's outputs, g and g + 8 of rows 2 j and 2 j + 1 of each tile, to sums [row][OPS_GROUP] of its
 * warp; rows beyond ROWS are left out. */
template <int TILES, int ROWS> DEVICE_CODE void linear_put_steps(const float acc[TILES][4], float *sums) {
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, g = lane / 4, j = lane % 4;
  DEVICE_UNROLL
  for (int32_t i = 0; i < 2 * TILES; i++) {
    const int32_t row = i / 2 * CUDA_TILE_ROWS + 2 * j + i % 2;
    if (row >= ROWS) break;
    sums[row * OPS_GROUP + g] = acc[i / 2][i % 2];
    sums[row * OPS_GROUP + g + OPS_GROUP / 2] = acc[i / 2][2 + i % 2];
  }
}
