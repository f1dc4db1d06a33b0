/* cuda_cache.h - caches and batches in device memory, for tests of the kernels that read and write
 * them. What no row sees is full of NaNs. */
#pragma once

#include "common/base/portable.h"
#include "kernels/cuda/split_runs.h"

PORTABLE_C_BEGIN
#include "kernels/cpu/cpu_math.h"
PORTABLE_C_END

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

PORTABLE_C_BEGIN
#include <cmocka.h>
PORTABLE_C_END

/* --- device memory --- */

template <class T> T *to_device(const T *from, size_t count) {
  T *p;
  assert_int_equal(cudaMalloc((void **)&p, (count ? count : 1) * sizeof(T)), cudaSuccess);
  assert_int_equal(cudaMemcpy(p, from, count * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  return p;
}

template <class T> T *to_device(const std::vector<T> &from) {
  return to_device(from.data(), from.size());
}

template <class T> std::vector<T> from_device(const T *p, size_t count) {
  std::vector<T> v(count);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_int_equal(cudaMemcpy(v.data(), p, count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
  return v;
}

template <class T> void assert_same(const std::vector<T> &got, const std::vector<T> &expected) {
  assert_int_equal(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); i++)
    if (memcmp(&got[i], &expected[i], sizeof(T)))
      fail_msg("element %zu of %zu is %.9g instead of %.9g", i, got.size(), (double)got[i],
               (double)expected[i]);
}

/* --- numbers --- */

static inline uint32_t hash_of(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return (uint32_t)(x >> 32 ^ x);
}

/* In [-1, 1). */
static inline float number_of(uint64_t x) {
  return (float)(int32_t)hash_of(x) * 0x1p-31f;
}

static inline std::vector<float> numbers(size_t count, uint64_t seed) {
  std::vector<float> v(count);
  for (size_t i = 0; i < count; i++) v[i] = number_of(seed << 40 | i);
  return v;
}

#define NAN_BITS     0x7fc00000u
#define F16_NAN      0x7e00
#define F16_INFINITY 0x7c00

/* --- a cache, on the host and on the device --- */

typedef struct cache_area_copy { /* as bits: f16, or f32 */
  std::vector<uint32_t> keys, values;
} cache_area_copy;

struct test_cache {
  cuda_kv kv;
  std::vector<int32_t> tables;
  cache_area_copy committed, staged;
  uint8_t *memory[4];
};

static inline size_t element_bytes(const cuda_kv &kv) {
  return kv.type == OPS_KV_F16 ? 2 : 4;
}

/* Components of a key or value, with their padding. */
static inline int32_t padded_dim(int32_t head_dim) {
  return head_dim % 8 ? head_dim + 8 - head_dim % 8 : head_dim;
}

/* Index of component d of a key, and of a value, in an area of `rows` rows a head. */
static inline size_t key_index(const cuda_kv &kv, int32_t rows, int32_t layer, int32_t head, int32_t row,
                               int32_t d) {
  const size_t dim = (size_t)padded_dim(kv.head_dim), unit = (size_t)(d / 8);
  size_t base = ((size_t)layer * (size_t)kv.kv_heads + (size_t)head) * (size_t)rows * dim;
  return base + (size_t)(row / OPS_TILE * OPS_TILE) * dim + (unit * OPS_TILE + (size_t)(row % OPS_TILE)) * 8 +
         (size_t)(d % 8);
}

static inline size_t value_index(const cuda_kv &kv, int32_t rows, int32_t layer, int32_t head, int32_t row,
                                 int32_t d) {
  const size_t dim = (size_t)padded_dim(kv.head_dim);
  size_t base = ((size_t)layer * (size_t)kv.kv_heads + (size_t)head) * (size_t)rows * dim;
  return base + (size_t)row * dim + (size_t)d;
}

static inline uint32_t bits_of_element(const cuda_kv &kv, float x) {
  return kv.type == OPS_KV_F16 ? cpu_to_f16(x) : cpu_bits_of(x);
}

static inline float element_of_bits(const cuda_kv &kv, uint32_t bits) {
  return kv.type == OPS_KV_F16 ? cpu_f16((uint16_t)bits) : cpu_float_of(bits);
}

/* The bits in the form that lies in memory. */
static inline std::vector<uint8_t> packed_elements(const cuda_kv &kv, const std::vector<uint32_t> &bits) {
  std::vector<uint8_t> out(bits.size() * element_bytes(kv));
  for (size_t i = 0; i < bits.size(); i++) memcpy(&out[i * element_bytes(kv)], &bits[i], element_bytes(kv));
  return out;
}

static inline void assert_same_elements(const test_cache &c, const void *device,
                                        const std::vector<uint32_t> &expected) {
  assert_same(from_device((const uint8_t *)device, expected.size() * element_bytes(c.kv)),
              packed_elements(c.kv, expected));
}

/* NaNs, and zeros where rows are padded. */
static inline void fill_area(const cuda_kv &kv, int32_t rows, cache_area_copy *area) {
  const int32_t dim = padded_dim(kv.head_dim);
  area->keys.assign((size_t)(kv.layers * kv.kv_heads) * (size_t)rows * (size_t)dim,
                    kv.type == OPS_KV_F16 ? F16_NAN : NAN_BITS);
  area->values = area->keys;
  for (int32_t i = 0; i < kv.layers * kv.kv_heads * rows; i++) {
    for (int32_t d = kv.head_dim; d < dim; d++) {
      const int32_t head = i / rows;
      area->keys[key_index(kv, rows, head / kv.kv_heads, head % kv.kv_heads, i % rows, d)] = 0;
      area->values[value_index(kv, rows, head / kv.kv_heads, head % kv.kv_heads, i % rows, d)] = 0;
    }
  }
}

/* Blocks of the sequences lie in a scattered order. Memory is NaNs. */
static inline test_cache make_cache(ops_kv_type type, int32_t layers, int32_t kv_heads, int32_t head_dim,
                                    int32_t sequences, int32_t context, int32_t stage) {
  test_cache c = {};
  int32_t each = context / OPS_TILE, blocks = sequences * each + 3;
  c.kv = {type, layers, kv_heads, head_dim, blocks, sequences, context, stage, NULL, NULL, NULL, NULL, NULL};
  int32_t step = 7;
  while (blocks % step == 0) step += 2;
  for (int32_t i = 0; i < sequences * each; i++)
    c.tables.push_back((int32_t)((int64_t)(i + 1) * step % blocks));
  fill_area(c.kv, blocks * OPS_TILE, &c.committed);
  fill_area(c.kv, stage, &c.staged);
  return c;
}

static inline void upload_cache(test_cache *c) {
  c->memory[0] = to_device(packed_elements(c->kv, c->committed.keys));
  c->memory[1] = to_device(packed_elements(c->kv, c->committed.values));
  c->memory[2] = to_device(packed_elements(c->kv, c->staged.keys));
  c->memory[3] = to_device(packed_elements(c->kv, c->staged.values));
  c->kv.keys = c->memory[0];
  c->kv.values = c->memory[1];
  c->kv.stage_keys = c->memory[2];
  c->kv.stage_values = c->memory[3];
  c->kv.tables = to_device(c->tables);
}

static inline void free_cache(test_cache *c) {
  for (uint8_t *p : c->memory) cudaFree(p);
  cudaFree((void *)c->kv.tables);
}

/* The committed row of a sequence's position. */
static inline int32_t committed_row(const test_cache &c, int32_t sequence, int32_t p) {
  return c.tables[(size_t)(sequence * (c.kv.context / OPS_TILE) + p / OPS_TILE)] * OPS_TILE + p % OPS_TILE;
}

/* --- a batch --- */

struct test_batch {
  std::vector<ops_row> rows;
  std::vector<int32_t> paths;
  std::vector<std::vector<ops_span>> spans; /* of view 0, of each row */
  std::vector<void *> memory;
  cuda_batch *device;
  cuda_runs runs; /* how many there are, and how long the longest is */
  cuda_runs split_runs;
};

/* Of rows that follow each other and are of one sequence, `most` at a time. */
static inline std::vector<cuda_run> runs_of(const std::vector<ops_row> &rows, int32_t most) {
  std::vector<cuda_run> runs;
  for (int32_t i = 0; i < (int32_t)rows.size(); i++) {
    const bool more = i > 0 && rows[(size_t)i].sequence == rows[(size_t)i - 1].sequence;
    if (!more || runs.back().count == most) runs.push_back({i, 0});
    runs.back().count++;
  }
  return runs;
}

/* Rows are in no span yet. */
static inline void add_row(test_batch *b, int32_t sequence, int32_t length,
                           const std::vector<int32_t> &path) {
  int32_t at = (int32_t)b->paths.size(), count = (int32_t)path.size();
  b->rows.push_back({1, length + count - 1, sequence, length, at, count, 0, 0});
  b->paths.insert(b->paths.end(), path.begin(), path.end());
  b->spans.push_back({});
}

/* Memory for more rows than there are: those are never to be read. */
static inline void upload_batch(test_batch *b) {
  std::vector<int32_t> first = {0};
  std::vector<ops_span> spans;
  for (const std::vector<ops_span> &s : b->spans) {
    spans.insert(spans.end(), s.begin(), s.end());
    first.push_back((int32_t)spans.size());
  }
  cuda_batch batch = {};
  batch.rows = to_device(b->rows);
  batch.paths = to_device(b->paths);
  batch.views[0].first = to_device(first);
  batch.views[0].spans = to_device(spans);
  batch.row_count = (int32_t)b->rows.size();
  const std::vector<cuda_run> runs = runs_of(b->rows, CUDA_RUN_ROWS);
  batch.runs = to_device(runs);
  batch.run_count = b->runs.bucket = (int32_t)runs.size();
  for (const cuda_run &r : runs) b->runs.rows = r.count > b->runs.rows ? r.count : b->runs.rows;
  if (b->paths.empty()) {
    const std::vector<cuda_run> long_runs = runs_of(b->rows, CUDA_LONG_RUN_ROWS);
    batch.long_runs = to_device(long_runs);
    batch.long_run_count = (int32_t)long_runs.size();
  }
  const cuda_split_run wrong = {{0, 2}, b->rows[0].position / OPS_SPLIT}; /* behind the last one */
  std::vector<cuda_split_run> split_runs((size_t)cuda_split_runs_most(b->rows.data(), batch.row_count) + 4,
                                         wrong);
  b->split_runs =
      cuda_split_runs_of(b->rows.data(), batch.row_count, split_runs.data(), &batch.split_run_count);
  batch.split_runs = to_device(split_runs);
  b->device = to_device(&batch, 1);
  b->memory = {
      (void *)batch.rows, (void *)batch.paths,     (void *)batch.views[0].first, (void *)batch.views[0].spans,
      (void *)batch.runs, (void *)batch.long_runs, (void *)batch.split_runs,     b->device};
}

static inline void free_batch(test_batch *b) {
  for (void *p : b->memory) cudaFree(p);
}
