/* cache.cuh - where the rows of a cache lie in a device's memory (cuda_kernels.h: cuda_kv). */
#pragma once

#include "kernels/cpu/cpu_math.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device_code.cuh"

/* An element of the cache: f32, or the bits of an f16. */
__device__ __forceinline__ float cache_load(float x) {
  return x;
}

__device__ __forceinline__ float cache_load(uint16_t x) {
  return device_half(x);
}

__device__ __forceinline__ void cache_store(float *to, float x) {
  *to = x;
}

__device__ __forceinline__ void cache_store(uint16_t *to, float x) {
  *to = cpu_to_f16(x);
}

/* Where the sequence's committed row `position` lies among the rows of all blocks. */
__device__ __forceinline__ int32_t cache_row(const cuda_kv &kv, int32_t sequence, int32_t position) {
  const int32_t *table = kv.tables + (size_t)sequence * (size_t)(kv.context / OPS_TILE);
  return table[position / OPS_TILE] * OPS_TILE + position % OPS_TILE;
}

/* Where a row's own key and value go: among the staged rows where it has a path, else among those of all
 * blocks. */
__device__ __forceinline__ int32_t cache_row_to_write(const cuda_kv &kv, const cuda_batch &batch,
                                                      const ops_row &row) {
  return row.path_count > 0 ? batch.paths[row.path_at + row.path_count - 1]
                            : cache_row(kv, row.sequence, row.position);
}

/* One layer's keys and values of one key-value head: the committed rows', or the staged ones'. */
template <class T> struct cache_area { T *keys, *values; };

template <class T>
__device__ __forceinline__ cache_area<T> cache_area_of(const cuda_kv &kv, bool staged, int32_t layer,
                                                       int32_t head) {
  const size_t rows = (size_t)(staged ? kv.stage : kv.blocks * OPS_TILE);
  const size_t at =
      ((size_t)layer * (size_t)kv.kv_heads + (size_t)head) * rows * (size_t)cuda_kv_row(kv.head_dim);
  cache_area<T> a = {(T *)(staged ? kv.stage_keys : kv.keys) + at,
                     (T *)(staged ? kv.stage_values : kv.values) + at};
  return a;
}

/* Index in a head's keys of component 0 of the key of `row`, */
__device__ __forceinline__ size_t cache_key_at(const cuda_kv &kv, int32_t row) {
  return (size_t)(row / OPS_TILE) * (size_t)cuda_kv_row(kv.head_dim) * OPS_TILE +
         (size_t)(row % OPS_TILE * CUDA_KV_UNIT);
}

/* and how far after it component d is. */
__device__ __forceinline__ size_t cache_component_at(int32_t d) {
  return (size_t)(d / CUDA_KV_UNIT * (OPS_TILE * CUDA_KV_UNIT) + d % CUDA_KV_UNIT);
}

__device__ __forceinline__ size_t cache_value_at(const cuda_kv &kv, int32_t row) {
  return (size_t)row * (size_t)cuda_kv_row(kv.head_dim);
}
