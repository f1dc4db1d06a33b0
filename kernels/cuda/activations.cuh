/* activations.cuh - norms, and the int8 and bf16 forms of activations, by all threads of a block. */
#pragma once

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device_code.cuh"

constexpr float ACTIVATION_LARGEST = 127.0f;
constexpr int32_t ACTIVATION_EACH = CPU_EIGHT; /* inputs of a thread; a warp has a chunk */

PORTABLE int32_t activation_chunks(int32_t columns) {
  return (columns + OPS_NORM_CHUNK - 1) / OPS_NORM_CHUNK;
}

/* --- norms --- */

/* Inputs [at, at + 8) of n; beyond n they are zeros. WHOLE: n is a multiple of 8, and the address one of 16
 * bytes. */
template <bool WHOLE> DEVICE_CODE void activation_load(const float *x, int32_t n, int32_t at, float v[8]) {
  DEVICE_UNROLL
  for (int32_t i = 0; i < ACTIVATION_EACH; i++) v[i] = 0.0f;
  if (at >= n) return;
  if constexpr (WHOLE) {
    const float4 low = device_load<float4>(x + at), high = device_load<float4>(x + at + 4);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  } else {
    DEVICE_UNROLL
    for (int32_t i = 0; i < ACTIVATION_EACH; i++)
      if (at + i < n) v[i] = x[at + i];
  }
}

/* The sum of a chunk's squares, in every lane of its warp: v is what the lane has of it. */
DEVICE_CODE float activation_chunk_squares(const float v[8]) {
  float sum = cpu_eight_squares(v);
  DEVICE_UNROLL
  for (int32_t by = CPU_EIGHTS / 2; by > 0; by /= 2) sum += __shfl_xor_sync(DEVICE_WARP, sum, by);
  return sum;
}

constexpr int32_t ACTIVATION_SUMS = 4; /* of chunks, that are loaded together */

/* Floats of a row's sums of chunks, which zeros follow. */
PORTABLE int32_t activation_sums_row(int32_t columns) {
  return (activation_chunks(columns) + ACTIVATION_SUMS - 1) / ACTIVATION_SUMS * ACTIVATION_SUMS;
}

/* The sum of a chunk of a row, and after the last one zeros; by the lanes of a warp. */
DEVICE_CODE void activation_put_sum(float *row, int32_t columns, int32_t chunk, float sum) {
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, at = chunk + lane;
  const bool zero = chunk + 1 == activation_chunks(columns) && at < activation_sums_row(columns);
  if (lane == 0 || zero) row[at] = lane == 0 ? sum : 0.0f;
}

/* 1 / sqrt(mean of squares + eps) of a row of n, from the sums of its chunks. */
DEVICE_CODE float activation_scale(const float *row, int32_t n, float eps) {
  float squares = 0.0f;
  DEVICE_NO_UNROLL
  for (int32_t i = 0; i < activation_sums_row(n); i += ACTIVATION_SUMS) {
    const float4 s = device_load<float4>(row + i);
    squares = (((squares + s.x) + s.y) + s.z) + s.w;
  }
  return cpu_norm_scale(squares, n, eps);
}

/* --- the int8 form: four threads make a block of one row --- */

struct activation_part {
  uint32_t words[2];
  int32_t half, all; /* sums of the block's q: of the thread's half, and of both */
  float scale;
};

/* The nearest integer is in the low bits. The limits bound a NaN, and what a subnormal `largest` makes of the
 * rest. */
DEVICE_CODE uint32_t activation_round(float x, float inverse) {
  const float v = fminf(fmaxf(x * inverse, -ACTIVATION_LARGEST), ACTIVATION_LARGEST);
  return cpu_bits_of(v + DEVICE_WHOLE);
}

/* x / 127, x not negative. Where nothing is subnormal, the remainder makes a product with 1 / 127 as exact as
 * a division (Markstein 1990), and is there sooner. */
DEVICE_CODE float activation_share(float x) {
  constexpr float share = 1.0f / ACTIVATION_LARGEST;
  const float near = x * share, exact = fmaf(fmaf(-ACTIVATION_LARGEST, near, x), share, near);
  return x > 0x1p-100f && x < 0x1p100f ? exact : x / ACTIVATION_LARGEST;
}

/* The largest magnitude of eight, as bits, so that a NaN is the largest of all. */
DEVICE_CODE uint32_t activation_largest(const float v[8]) {
  uint32_t m[ACTIVATION_EACH];
  DEVICE_UNROLL
  for (int32_t i = 0; i < ACTIVATION_EACH; i++) m[i] = cpu_bits_of(v[i]) & 0x7fffffffu;
  DEVICE_UNROLL
  for (int32_t by = ACTIVATION_EACH / 2; by > 0; by /= 2)
    for (int32_t i = 0; i < by; i++) m[i] = m[i] > m[i + by] ? m[i] : m[i + by];
  return m[0];
}

/* The low bytes of four words. */
DEVICE_CODE uint32_t activation_bytes(const uint32_t v[4]) {
  return device_bytes(device_bytes(v[0], v[1], 0x0040), device_bytes(v[2], v[3], 0x0040), 0x5410);
}

/* Eight inputs, a quarter of a block. All lanes of a warp take part. */
DEVICE_CODE activation_part activation_quantize(const float v[8]) {
  uint32_t bits = activation_largest(v), q[8];
  DEVICE_UNROLL
  for (int32_t by = 2; by > 0; by /= 2) {
    const uint32_t other = __shfl_xor_sync(DEVICE_WARP, bits, by);
    bits = bits > other ? bits : other;
  }
  const float largest = cpu_float_of(bits);
  const float inverse = largest > 0.0f ? ACTIVATION_LARGEST / largest : 0.0f;
  DEVICE_UNROLL
  for (int32_t i = 0; i < ACTIVATION_EACH; i++) q[i] = activation_round(v[i], inverse);
  activation_part p = {{activation_bytes(q), activation_bytes(q + 4)}, 0, 0, activation_share(largest)};
  const uint32_t ones = 0x01010101;
  const int32_t own = device_dot_4<true>(p.words[0], ones, device_dot_4<true>(p.words[1], ones, 0));
  p.half = own + __shfl_xor_sync(DEVICE_WARP, own, 1);
  p.all = p.half + __shfl_xor_sync(DEVICE_WARP, p.half, 2);
  return p;
}

/* Tiles of which so many lie side by side: [tiles / across][blocks][across], of `all`; the last ones may be
 * fewer than `across`. */
struct activation_order {
  int32_t blocks, across, all;
  DEVICE_CODE int32_t side_by_side(int32_t tile) const {
    const int32_t left = all - tile / across * across;
    return left < across ? left : across;
  }
  DEVICE_CODE size_t at(int32_t tile, int32_t block) const {
    return (size_t)(tile / across * across) * (size_t)blocks +
           (size_t)(block * side_by_side(tile) + tile % across);
  }
};

/* Tiles in that order, from row `first` of them on. */
struct activation_tiles {
  cuda_tile *tiles;
  activation_order order;
  int32_t first;
  /* Thread `quarter` of the four puts its share of a block of a row, if it is there. */
  DEVICE_CODE void put(bool there, int32_t row, int32_t block, int32_t quarter, const float v[8]) const {
    const activation_part p = activation_quantize(v);
    if (!there) return;
    const int32_t to = first + row, at = to % CUDA_TILE_ROWS;
    cuda_tile *tile = tiles + order.at(to / CUDA_TILE_ROWS, block);
    int32_t *q = tile->q[at] + quarter % 2 * 4 + quarter / 2;
    q[0] = (int32_t)p.words[0];
    q[2] = (int32_t)p.words[1];
    if (quarter % 2 == 0) tile->halves[at][quarter / 2] = (int16_t)p.half;
    if (quarter == 0) {
      tile->scale_sum[at][0] = p.scale;
      tile->scale_sum[at][1] = p.scale * (float)p.all;
    }
  }
};

/* --- the bf16 form --- */

struct activation_bf16_tiles { /* [..][blocks] */
  cuda_bf16_tile *tiles;
  int32_t blocks, first;
  DEVICE_CODE void put(bool there, int32_t row, int32_t block, int32_t quarter, const float v[8]) const {
    const int32_t to = first + row;
    cuda_bf16_tile *tile = tiles + (size_t)(to / CUDA_TILE_ROWS) * (size_t)blocks + block;
    static_assert(ACTIVATION_EACH == CUDA_BF16_CHUNK, "a thread has a chunk");
    if (there)
      device_store(tile->words[quarter][to % CUDA_TILE_ROWS],
                   uint4{device_bf16_pair(v[0], v[1]), device_bf16_pair(v[2], v[3]),
                         device_bf16_pair(v[4], v[5]), device_bf16_pair(v[6], v[7])});
  }
};

/* --- the forms of rows, by all threads of a block --- */

/* Which chunks a warp makes: first that of `row` and `chunk`, then every `rows_on` rows and `chunks_on`
 * chunks further. It divides, and so a kernel asks for it before it waits. */
struct activation_walk {
  int32_t row, chunk, rows_on, chunks_on;
};

DEVICE_CODE activation_walk activation_walk_of(int32_t columns, int32_t warp, int32_t warps) {
  const int32_t chunks = activation_chunks(columns);
  return {warp / chunks, warp % chunks, warps / chunks, warps % chunks};
}

DEVICE_CODE activation_walk activation_walk_of(int32_t columns) {
  return activation_walk_of(columns, (int32_t)threadIdx.x / DEVICE_LANES, (int32_t)blockDim.x / DEVICE_LANES);
}

DEVICE_CODE void activation_go_on(activation_walk &w, int32_t chunks) {
  w.row += w.rows_on;
  w.chunk += w.chunks_on;
  if (w.chunk < chunks) return;
  w.chunk -= chunks;
  w.row++;
}

/* Rows of whole blocks; row i is at x + index[i] * columns, without an index at x + i * columns. */
struct activation_rows {
  const float *x;
  const int32_t *index;
  int32_t count, columns;
  const float *weight; /* of a norm that they go through; or NULL */
  float eps;
};

/* Where the thread's inputs of a chunk are; NULL: it has none. */
DEVICE_CODE const float *activation_at(const activation_rows &r, const activation_walk &w) {
  const int32_t at = w.chunk * OPS_NORM_CHUNK + (int32_t)threadIdx.x % DEVICE_LANES * ACTIVATION_EACH;
  if (!r.x || w.row >= r.count || at >= r.columns) return nullptr;
  return r.x + (size_t)(r.index ? r.index[w.row] : w.row) * (size_t)r.columns + at;
}

DEVICE_CODE void activation_load_at(const float *at, float v[8]) {
  activation_load<true>(at, at ? ACTIVATION_EACH : 0, 0, v);
}

DEVICE_CODE void activation_load_weight(const activation_rows &r, const activation_walk &w, float v[8]) {
  activation_load<true>(r.weight, r.weight ? r.columns : 0,
                        w.chunk * OPS_NORM_CHUNK + (int32_t)threadIdx.x % DEVICE_LANES * ACTIVATION_EACH, v);
}

/* Of the thread's first chunk, what it can have before the previous kernel has ended: where the inputs will
 * be, and the norm's weights. */
struct activation_early {
  const float *x;
  float weight[8];
};

DEVICE_CODE activation_early activation_early_of(const activation_rows &r, const activation_walk &w) {
  activation_early e;
  e.x = activation_at(r, w);
  activation_load_weight(r, w, e.weight);
  return e;
}

/* The sums of chunks [count][activation_sums_row]. own: what the thread has of its first one. */
DEVICE_CODE void activation_sums(const activation_rows &r, activation_walk w, const float own[8],
                                 float *sums) {
  const int32_t chunks = activation_chunks(r.columns), row = activation_sums_row(r.columns);
  float v[8];
  DEVICE_UNROLL
  for (int32_t i = 0; i < ACTIVATION_EACH; i++) v[i] = own[i];
  DEVICE_NO_UNROLL
  while (w.row < r.count) {
    activation_put_sum(sums + w.row * row, r.columns, w.chunk, activation_chunk_squares(v));
    activation_go_on(w, chunks);
    if (w.row < r.count) activation_load_at(activation_at(r, w), v);
  }
}

/* Another form of the rows. sums: room for [count][activation_sums_row], aligned to 16 bytes, if there is a
 * norm. The threads meet at the end. */
template <class TO>
DEVICE_CODE void activation_forms(const activation_rows &r, activation_walk w, activation_early early,
                                  float *sums, const TO &forms) {
  const int32_t chunks = activation_chunks(r.columns), lane = (int32_t)threadIdx.x % DEVICE_LANES;
  float next[8], scale = 0.0f;
  int32_t scaled = -1; /* the row whose scale that is */
  activation_load_at(early.x, next);
  if (r.weight) {
    activation_sums(r, w, next, sums);
    __syncthreads();
  }
  DEVICE_NO_UNROLL
  while (w.row < r.count) {
    const int32_t row = w.row, at = w.chunk * OPS_NORM_CHUNK + lane * ACTIVATION_EACH;
    float v[8];
    DEVICE_UNROLL
    for (int32_t i = 0; i < ACTIVATION_EACH; i++) v[i] = next[i];
    activation_go_on(w, chunks);
    if (w.row < r.count) activation_load_at(activation_at(r, w), next); /* is on its way meanwhile */
    if (r.weight) {
      if (row != scaled)
        scale = activation_scale(sums + row * activation_sums_row(r.columns), r.columns, r.eps);
      scaled = row;
      DEVICE_UNROLL
      for (int32_t i = 0; i < ACTIVATION_EACH; i++) v[i] = v[i] * scale * early.weight[i];
      if (w.row < r.count) activation_load_weight(r, w, early.weight);
    }
    forms.put(at < r.columns, row, at / OPS_BLOCK, lane % 4, v);
  }
  __syncthreads();
}
