/* weights.cuh - packed weights (kernels/cpu/packed_format.h) as a kernel reads them: one by one, or as the
 * words that a tensor core takes. */
#pragma once

#include "kernels/cpu/packed_format.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device_code.cuh"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
__host__ __device__ constexpr cpu_format weight_format_of(ops_type type) {
#define FORMAT(name, TYPE, ...)                                                                              \
  if (type == OPS_##TYPE) return {__VA_ARGS__};
  CPU_FORMATS(FORMAT)
#undef FORMAT
  return {}; /* not quantised */
}
#pragma GCC diagnostic pop

constexpr int32_t WEIGHT_STAGE = 8; /* blocks that are copied together: a unit, where there are sub-scales */

template <ops_type TYPE> struct weights {
  static constexpr cpu_format F = weight_format_of(TYPE);
  static constexpr bool QUANTISED = F.bits != 0;
  static constexpr int32_t ELEMENT_BYTES = TYPE == OPS_F32 ? 4 : 2; /* not quantised */
  static constexpr int32_t PLANE_BYTES = F.bits * OPS_GROUP * OPS_BLOCK / 8;
  static constexpr int32_t UNIT_BYTES =
      !QUANTISED ? OPS_BLOCK * OPS_GROUP * ELEMENT_BYTES
      : F.sub    ? 2 * CPU_HALVES + CPU_UNIT_BLOCKS * (CPU_SUB_SCALES + PLANE_BYTES)
                 : PLANE_BYTES + CPU_HALVES * (F.minima ? 2 : 1);
  static constexpr int32_t STAGE_BYTES = F.sub ? UNIT_BYTES : WEIGHT_STAGE * UNIT_BYTES;
  /* Of a warp's ring. The rings of eight warps fit the shared memory of every GPU. */
  static constexpr int32_t STAGES = STAGE_BYTES > 4096 ? 2 : 3;

  /* Bytes of a group of OPS_GROUP outputs. */
  __host__ __device__ static size_t group_bytes(int32_t columns) {
    size_t bytes = (size_t)columns * OPS_GROUP * ELEMENT_BYTES;
    if (QUANTISED) bytes = (size_t)(columns / OPS_BLOCK) / (F.sub ? CPU_UNIT_BLOCKS : 1) * UNIT_BYTES;
    return (bytes + 63) / 64 * 64;
  }
};

/* --- one by one --- */

template <ops_type TYPE> DEVICE_CODE uint8_t weight_number(const uint8_t *planes, int32_t lane, int32_t i) {
  constexpr cpu_format F = weight_format_of(TYPE);
  const int32_t v = i / 4, at = 4 * lane + i % 4;
  int32_t u = 0;
  if (F.bits & 8) u = planes[v * CPU_VECTOR_BYTES + at] ^ 128;
  if (F.bits & 4) u = planes[v % 4 * CPU_VECTOR_BYTES + at] >> v / 4 * 4 & 15;
  if (F.bits & 2)
    u |= (planes[cpu_twos_at(F) + (size_t)(v / 4 * CPU_VECTOR_BYTES + at)] >> 2 * (v % 4) & 3)
         << (F.bits & 4);
  if (F.bits & 1) u |= (planes[cpu_ones_at(F) + (size_t)at] >> v & 1) << (F.bits & 6);
  if (!F.table) return (uint8_t)u;
  constexpr uint8_t table[16] = {CPU_TABLE};
  return table[u];
}

/* Input k of output `lane` of a group, dequantised. */
template <ops_type TYPE> DEVICE_CODE float weight_value(const uint8_t *group, int32_t lane, int32_t k) {
  const size_t at = (size_t)k * OPS_GROUP + (size_t)lane;
  if constexpr (TYPE == OPS_F32) return ((const float *)group)[at];
  if constexpr (TYPE == OPS_F16) return device_half(((const uint16_t *)group)[at]);
  if constexpr (TYPE == OPS_BF16) return cpu_bf16(((const uint16_t *)group)[at]);
  if constexpr (weights<TYPE>::QUANTISED) {
    constexpr cpu_format F = weight_format_of(TYPE);
    const int32_t i = k % OPS_BLOCK;
    const cpu_block block = cpu_block_at(group, F, (size_t)(k / OPS_BLOCK));
    const cpu_scale scale = cpu_scale_at(block, F, (size_t)lane, (size_t)(i / (OPS_BLOCK / 2)));
    return cpu_weight_value(F, scale, weight_number<TYPE>(block.planes, lane, i));
  }
}

/* --- as a tensor core takes them: thread (g, j) of a warp, g < 8, j < 4, has outputs 2 g and 2 g + 1 --- */

DEVICE_CODE uint2 weight_words(const uint8_t *at) {
  return device_load<uint2>(at);
}

/* The table's entries, plus 128, of four nibbles. */
DEVICE_CODE uint32_t weight_table(uint32_t nibbles) {
  constexpr uint8_t t[16] = {CPU_TABLE};
  uint32_t word[4];
  for (int i = 0; i < 4; i++)
    word[i] =
        t[4 * i] | (uint32_t)t[4 * i + 1] << 8 | (uint32_t)t[4 * i + 2] << 16 | (uint32_t)t[4 * i + 3] << 24;
  const uint32_t low = nibbles & 0x07070707, upper = (nibbles >> 3 & 0x01010101) * 255;
  const uint32_t which = (low & 7) | (low >> 4 & 0x70) | (low >> 8 & 0x700) | (low >> 12 & 0x7000);
  return (device_bytes(word[0], word[1], which) & ~upper) | (device_bytes(word[2], word[3], which) & upper);
}

/* Numbers u (Q8_0: the signed weights) of a block: words j of outputs 2 g and 2 g + 1, then words j + 4. */
template <ops_type TYPE>
DEVICE_CODE void weight_fragment(const uint8_t *planes, int32_t g, int32_t j, uint32_t a[4]) {
  constexpr cpu_format F = weight_format_of(TYPE);
  const uint32_t each = 0x01010101;
  planes += 8 * g;
  a[0] = a[1] = a[2] = a[3] = 0;
  if constexpr ((F.bits & 8) != 0) {
    const uint2 low = weight_words(planes + j * CPU_VECTOR_BYTES);
    const uint2 high = weight_words(planes + (j + 4) * CPU_VECTOR_BYTES);
    a[0] = low.x, a[1] = low.y, a[2] = high.x, a[3] = high.y;
  }
  if constexpr ((F.bits & 4) != 0) {
    const uint2 w = weight_words(planes + j * CPU_VECTOR_BYTES);
    a[0] = w.x & 15 * each, a[1] = w.y & 15 * each, a[2] = w.x >> 4 & 15 * each, a[3] = w.y >> 4 & 15 * each;
  }
  if constexpr ((F.bits & 2) != 0) {
    constexpr int shift = F.bits & 4;
    const uint2 low = weight_words(planes + cpu_twos_at(F));
    const uint2 high = weight_words(planes + cpu_twos_at(F) + CPU_VECTOR_BYTES);
    a[0] |= (low.x >> 2 * j & 3 * each) << shift, a[1] |= (low.y >> 2 * j & 3 * each) << shift;
    a[2] |= (high.x >> 2 * j & 3 * each) << shift, a[3] |= (high.y >> 2 * j & 3 * each) << shift;
  }
  if constexpr ((F.bits & 1) != 0) {
    constexpr int shift = F.bits & 6;
    const uint2 w = weight_words(planes + cpu_ones_at(F));
    a[0] |= (w.x >> j & each) << shift, a[1] |= (w.y >> j & each) << shift;
    a[2] |= (w.x >> (j + 4) & each) << shift, a[3] |= (w.y >> (j + 4) & each) << shift;
  }
  if constexpr (F.table)
    for (int i = 0; i < 4; i++) a[i] = weight_table(a[i]);
}

/* Halves of outputs 2 g and 2 g + 1. */
DEVICE_CODE float2 weight_halves(const uint8_t *halves, int32_t g) {
  const uint32_t both = device_load<uint32_t>(halves + 4 * g);
  return {device_half(both & 0xffff), device_half(both >> 16)};
}
