/* linear_product.cuh - a block of quantised weights of 16 outputs times tiles of 8 rows, by a warp. A tensor
 * core multiplies exact integers, so that its order does not matter. */
#pragma once

#include "kernels/cuda/linear.cuh"

/* What thread (g, j) has of a block's scales: of outputs 2 g and 2 g + 1. */
struct linear_scales {
  float2 d, m;                  /* as cpu_scale_at makes them; with two sub-scales as they are kept */
  int32_t sub[2][2], min[2][2]; /* [output][half] */
};

template <ops_type TYPE> DEVICE_CODE linear_scales linear_scales_at(const cpu_block &k, int32_t g) {
  constexpr cpu_format F = weight_format_of(TYPE);
  linear_scales s = {};
  s.d = weight_halves(k.scales, g);
  if constexpr (F.minima) s.m = weight_halves(k.scales + CPU_HALVES, g);
  if constexpr (F.sub == 32) {
    const uint32_t sub = device_load<uint16_t>(k.sub + 2 * g),
                   min = device_load<uint16_t>(k.sub + OPS_GROUP + 2 * g);
    s.d.x = s.d.x * device_float(sub & 255), s.d.y = s.d.y * device_float(sub >> 8);
    s.m.x = -(s.m.x * device_float(min & 255)), s.m.y = -(s.m.y * device_float(min >> 8));
  }
  if constexpr (F.sub == 16) {
    for (int32_t i = 0; i < 4; i++) {
      const uint32_t both = device_load<uint32_t>(k.sub + 4 * g) >> 8 * i & 255;
      s.sub[i / 2][i % 2] = F.minima ? (int32_t)(both & 15) : (int32_t)(int8_t)both;
      s.min[i / 2][i % 2] = (int32_t)(both >> 4);
    }
  }
  return s;
}

/* The thread's part of a tile's block: rows 2 j and 2 j + 1. */
struct linear_tile {
  uint32_t q[2]; /* words j and j + 4 of row g */
  float scale[2], sum[2];
  int32_t half[2][2]; /* [row][half] */
};

DEVICE_CODE linear_tile linear_tile_at(const cuda_tile *t, int32_t g, int32_t j) {
  const uint2 q = device_load<uint2>(&t->q[g][2 * j]);
  const float4 s = device_load<float4>(t->scale_sum[2 * j]);
  const int2 h = device_load<int2>(t->halves[2 * j]);
  return {{q.x, q.y}, {s.x, s.z}, {s.y, s.w}, {{(int16_t)h.x, h.x >> 16}, {(int16_t)h.y, h.y >> 16}}};
}

/* terms: as acc; c and d are undefined where there are no minima. */
template <ops_type TYPE>
DEVICE_CODE void linear_find_terms(const linear_scales &s, const uint32_t a[4], const linear_tile &t,
                                   linear_term terms[4]) {
  constexpr cpu_format F = weight_format_of(TYPE);
  constexpr bool is_signed = (F.bits & 8) != 0;
  constexpr int32_t bias = is_signed ? 0 : F.bias;
  const int32_t less[2] = {bias * (t.half[0][0] + t.half[0][1]), bias * (t.half[1][0] + t.half[1][1])};
  int32_t sum[4] = {-less[0], -less[1], -less[0], -less[1]};
  device_multiply_32<is_signed>(sum, a, t.q);
  for (int32_t i = 0; i < 4; i++)
    terms[i] = {(i < 2 ? s.d.x : s.d.y) * t.scale[i % 2], (float)sum[i], i < 2 ? s.m.x : s.m.y, t.sum[i % 2]};
}

template <ops_type TYPE> DEVICE_CODE float linear_add_term(const linear_term &t, float sum) {
  sum = fmaf(t.a, t.b, sum);
  return weight_format_of(TYPE).minima ? fmaf(t.c, t.d, sum) : sum;
}

template <ops_type TYPE>
DEVICE_CODE void linear_add_one_scale(const linear_scales &s, const uint32_t a[4], const linear_tile &t,
                                      float acc[4]) {
  linear_term terms[4];
  linear_find_terms<TYPE>(s, a, t, terms);
  for (int32_t i = 0; i < 4; i++) acc[i] = linear_add_term<TYPE>(terms[i], acc[i]);
}

template <ops_type TYPE>
DEVICE_CODE void linear_add_two_scales(const linear_scales &s, const uint32_t a[4], const linear_tile &t,
                                       float acc[4]) {
  constexpr cpu_format F = weight_format_of(TYPE);
  int32_t sum[2][4];
  for (int32_t h = 0; h < 2; h++) {
    const int32_t less[2] = {F.bias * t.half[0][h], F.bias * t.half[1][h]};
    for (int32_t i = 0; i < 4; i++) sum[h][i] = -less[i % 2];
    device_multiply_16(sum[h], a + 2 * h, t.q + h);
  }
  for (int32_t i = 0; i < 4; i++) {
    const int32_t total = s.sub[i / 2][0] * sum[0][i] + s.sub[i / 2][1] * sum[1][i];
    acc[i] = fmaf((i < 2 ? s.d.x : s.d.y) * t.scale[i % 2], (float)total, acc[i]);
    if (!F.minima) continue;
    const int32_t least = s.min[i / 2][0] * t.half[i % 2][0] + s.min[i / 2][1] * t.half[i % 2][1];
    acc[i] = fmaf(-((i < 2 ? s.m.x : s.m.y) * t.scale[i % 2]), (float)least, acc[i]);
  }
}

/* Tiles of further rows lie `tile_stride` tiles apart; in place of those that are not there, the last one is
 * taken again. */
template <ops_type TYPE, int TILES>
DEVICE_CODE void linear_add_block(const cpu_block &k, const cuda_tile *tile, size_t tile_stride,
                                  int32_t there, float acc[TILES][4]) {
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, g = lane / 4, j = lane % 4;
  const linear_scales s = linear_scales_at<TYPE>(k, g);
  uint32_t a[4];
  weight_fragment<TYPE>(k.planes, g, j, a);
  DEVICE_UNROLL
  for (int32_t i = 0; i < TILES; i++) {
    const linear_tile t = linear_tile_at(tile + (size_t)(i < there ? i : there - 1) * tile_stride, g, j);
    if constexpr (weight_format_of(TYPE).sub == 16)
      linear_add_two_scales<TYPE>(s, a, t, acc[i]);
    else
      linear_add_one_scale<TYPE>(s, a, t, acc[i]);
  }
}

/* The thread's outputs to sums [row][OPS_GROUP] of its warp. */
template <int TILES> DEVICE_CODE void linear_put_sums(const float acc[TILES][4], float *sums) {
  const int32_t lane = (int32_t)threadIdx.x % DEVICE_LANES, g = lane / 4, j = lane % 4;
  for (int32_t i = 0; i < TILES; i++) {
    float *row = sums + (i * CUDA_TILE_ROWS + 2 * j) * OPS_GROUP + 2 * g;
    device_store(row, float2{acc[i][0], acc[i][2]});
    device_store(row + OPS_GROUP, float2{acc[i][1], acc[i][3]});
  }
}
