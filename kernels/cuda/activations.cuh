/* activations.cuh - norms, and the int8 form of activations, by all threads of a block. */
#pragma once

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device_code.cuh"

constexpr float ACTIVATION_LARGEST = 127.0f;

/* Rows that lie `stride` floats apart. */
struct activation_rows {
  const float *x;
  size_t stride;
  int32_t count, columns;
};

/* 1 / sqrt(mean of squares + eps) of each row, to scales [count]. Eight threads sum a row, as ops.h has it.
 */
DEVICE_CODE void activation_norms(const activation_rows &r, float eps, float *scales) {
  const int32_t lane = (int32_t)threadIdx.x % CPU_LANES, at = (int32_t)threadIdx.x / CPU_LANES;
  DEVICE_NO_UNROLL
  for (int32_t first = 0; first < r.count; first += (int32_t)blockDim.x / CPU_LANES) {
    const int32_t row = first + at < r.count ? first + at : r.count - 1;
    const float *x = r.x + (size_t)row * r.stride;
    float sum = 0.0f;
    int32_t i = lane;
    DEVICE_UNROLL_BY(6)
    for (; i < r.columns - 3 * CPU_LANES; i += 4 * CPU_LANES) DEVICE_UNROLL for (int32_t k = 0; k < 4; k++) {
        const float value = x[i + k * CPU_LANES];
        sum = fmaf(value, value, sum);
      }
    DEVICE_NO_UNROLL
    for (; i < r.columns; i += CPU_LANES) sum = fmaf(x[i], x[i], sum);
    sum += __shfl_xor_sync(DEVICE_WARP, sum, 4);
    sum += __shfl_xor_sync(DEVICE_WARP, sum, 2);
    sum += __shfl_xor_sync(DEVICE_WARP, sum, 1);
    if (lane == 0) scales[row] = cpu_norm_scale(sum, r.columns, eps);
  }
}

/* --- the int8 form: eight threads make a block of one row, four inputs each --- */

struct activation_four {
  uint32_t word;
  int32_t sum;
  float scale;
};

DEVICE_CODE int32_t activation_round(float x, float inverse) {
  float v = x * inverse; /* the guard bounds a NaN, and what a subnormal `largest` makes of the rest */
  v = v > -ACTIVATION_LARGEST ? v : -ACTIVATION_LARGEST;
  v = v < ACTIVATION_LARGEST ? v : ACTIVATION_LARGEST;
  return (int32_t)rintf(v);
}

DEVICE_CODE activation_four activation_quantize(float4 x) {
  float largest = cpu_larger(cpu_larger(0.0f, x.x), x.y);
  largest = cpu_larger(cpu_larger(largest, x.z), x.w);
  for (int32_t i = 4; i > 0; i /= 2) largest = cpu_larger(largest, __shfl_xor_sync(DEVICE_WARP, largest, i));
  const float inverse = largest > 0.0f ? ACTIVATION_LARGEST / largest : 0.0f;
  const int32_t a = activation_round(x.x, inverse), b = activation_round(x.y, inverse),
                c = activation_round(x.z, inverse), d = activation_round(x.w, inverse);
  const uint32_t word =
      ((uint32_t)a & 255) | ((uint32_t)b & 255) << 8 | ((uint32_t)c & 255) << 16 | (uint32_t)d << 24;
  return {word, a + b + c + d, largest / ACTIVATION_LARGEST};
}

/* Thread `lane` of the eight puts its share into row `row` of a tile. */
DEVICE_CODE void activation_put(cuda_tile *tile, int32_t row, int32_t lane, activation_four q) {
  const int32_t pair = q.sum + __shfl_xor_sync(DEVICE_WARP, q.sum, 1);
  const int32_t half = pair + __shfl_xor_sync(DEVICE_WARP, pair, 2);
  const int32_t all = half + __shfl_xor_sync(DEVICE_WARP, half, 4);
  if (!tile) return;
  tile->q[row][lane % 4 * 2 + lane / 4] = (int32_t)q.word;
  if (lane % 4 == 0) tile->halves[row][lane / 4] = (int16_t)half;
  if (lane == 0) {
    tile->scale_sum[row][0] = q.scale;
    tile->scale_sum[row][1] = q.scale * (float)all;
  }
}

/* Which blocks a group of eight threads makes: first that of `row` and `block`, then every `rows_on` rows and
 * `blocks_on` blocks further. It divides by the blocks, of which there must be one,
 * and so a kernel asks for it before it waits. */
struct activation_walk {
  int32_t row, block, rows_on, blocks_on;
};

DEVICE_CODE activation_walk activation_walk_of(int32_t columns) {
  const int32_t blocks = columns / OPS_BLOCK, group = (int32_t)threadIdx.x / 8,
                groups = (int32_t)blockDim.x / 8;
  return {group / blocks, group % blocks, groups / blocks, groups % blocks};
}

DEVICE_CODE void activation_go_on(activation_walk &w, int32_t blocks) {
  w.row += w.rows_on;
  w.block += w.blocks_on;
  if (w.block < blocks) return;
  w.block -= blocks;
  w.row++;
}

/* The thread's inputs of the walk's block, or of the first row where the walk has ended. */
DEVICE_CODE float4 activation_load(const activation_rows &r, const activation_walk &w, int32_t lane) {
  const size_t row = w.row < r.count ? (size_t)w.row : 0;
  return device_load<float4>(r.x + row * r.stride + w.block * OPS_BLOCK + lane * 4);
}

DEVICE_CODE float4 activation_normed(float4 x, float scale, const float *weight) {
  const float4 w = device_load<float4>(weight);
  return {x.x * scale * w.x, x.y * scale * w.y, x.z * scale * w.z, x.w * scale * w.w};
}

/* The int8 form of the rows, of their norms where there is a weight, to tiles [..][columns / OPS_BLOCK], from
 * row `first` of them on. */
DEVICE_CODE void activation_tiles(const activation_rows &r, const float *weight, const float *scales,
                                  cuda_tile *tiles, int32_t first, activation_walk walk) {
  const int32_t lane = (int32_t)threadIdx.x % 8, blocks = r.columns / OPS_BLOCK, items = r.count * blocks;
  float4 next = activation_load(r, walk, lane);
  DEVICE_NO_UNROLL
  for (int32_t i = (int32_t)threadIdx.x / 32 * 4; i < items; i += (int32_t)blockDim.x / 8) {
    const bool any = walk.row < r.count; /* all lanes of a warp take part */
    const int32_t row = any ? walk.row : 0, k = walk.block * OPS_BLOCK + lane * 4, to = first + row;
    cuda_tile *tile = tiles + (size_t)(to / CUDA_TILE_ROWS) * (size_t)blocks + walk.block;
    float4 x = next;
    activation_go_on(walk, blocks);
    next = activation_load(r, walk, lane); /* is on its way meanwhile */
    if (weight) x = activation_normed(x, scales[row], weight + k);
    activation_put(any ? tile : nullptr, to % CUDA_TILE_ROWS, lane, activation_quantize(x));
  }
}
