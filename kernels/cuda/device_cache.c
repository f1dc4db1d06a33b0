/* device_cache.c - the cache's memory on the device: one pool of blocks, the block tables, the staging pool.
 */
#include "kernels/cuda/device_parts.h"
#include "kernels/cuda/host_kernels.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static size_t side_bytes(const ops_kv_shape *s, int32_t rows) { /* keys, or values */
  size_t row = (size_t)s->layers * (size_t)s->kv_heads * (size_t)cuda_kv_row(s->head_dim);
  return row * (size_t)rows * (s->type == OPS_KV_F16 ? 2 : 4);
}

static int32_t table_length(const cuda_kv *k) {
  return k->context / OPS_TILE;
}

static void *at_of(const device_memory *m) {
  return m ? m->at : NULL;
}

static void tell_kernels(device_kv *k) {
  k->kernels.keys = at_of(k->keys);
  k->kernels.values = at_of(k->values);
  k->kernels.stage_keys = at_of(k->stage_keys);
  k->kernels.stage_values = at_of(k->stage_values);
  k->kernels.tables = at_of(k->tables);
}

/* Keys, or values, of all blocks. */
static device_memory *take_side(device *base, const ops_kv_shape *s) {
  const size_t bytes = side_bytes(s, s->blocks * OPS_TILE);
  return base->kv_in_host ? cuda_memory_take_mapped(base, MEM_KV_HOST, bytes)
                          : cuda_memory_take(base, MEM_KV, bytes);
}

device_kv *cuda_cache_open(device *base, const ops_kv_shape *s) {
  device_kv *k = calloc(1, sizeof *k);
  if (!k) return NULL;
  cuda_kv *to = &k->kernels; /* zeroed, and filled member by member: recorded ops are compared as bytes */
  to->type = s->type;
  to->layers = s->layers;
  to->kv_heads = s->kv_heads;
  to->head_dim = s->head_dim;
  to->blocks = s->blocks;
  to->sequences = s->sequences;
  to->context = s->context;
  to->stage = s->stage;
  size_t tables = (size_t)s->sequences * (size_t)table_length(to) * sizeof(int32_t);
  k->keys = take_side(base, s);
  k->values = take_side(base, s);
  k->tables = cuda_memory_take(base, MEM_KV, tables);
  tell_kernels(k);
  if (k->keys && k->values && k->tables) return k;
  cuda_cache_close(base, k);
  return NULL;
}

void cuda_cache_close(device *base, device_kv *k) {
  if (!k) return;
  device_memory *all[] = {k->keys, k->values, k->stage_keys, k->stage_values, k->tables};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) cuda_memory_drop(base, all[i]);
  free(k);
}

bool cuda_cache_stage(device *base, device_kv *k) {
  const cuda_kv *s = &k->kernels;
  const ops_kv_shape shape = {
      .type = s->type, .layers = s->layers, .kv_heads = s->kv_heads, .head_dim = s->head_dim};
  if (!k->stage_keys) k->stage_keys = cuda_memory_take(base, MEM_SPECULATION, side_bytes(&shape, s->stage));
  if (!k->stage_values)
    k->stage_values = cuda_memory_take(base, MEM_SPECULATION, side_bytes(&shape, s->stage));
  tell_kernels(k);
  return k->stage_keys && k->stage_values;
}

void cuda_cache_map(device *base, device_kv *k, int32_t sequence, const int32_t *blocks, int32_t count) {
  cuda_device *d = cuda_device_enter(base);
  assert(count <= table_length(&k->kernels) && sequence < k->kernels.sequences);
  if (d->lost || count == 0) return;
  int32_t *to = (int32_t *)k->tables->at + (size_t)sequence * (size_t)table_length(&k->kernels);
  cuda_put_table(d->stream, to, blocks, count);
  d->base.counters.launches++;
  cuda_device_ok(d, cudaGetLastError());
}

void cuda_cache_commit(device *base, device_kv *k, int32_t sequence, const int32_t *path, int32_t count,
                       int32_t length) {
  cuda_device *d = cuda_device_enter(base);
  assert(k->stage_keys && sequence < k->kernels.sequences);
  if (d->lost || count == 0) return;
  d->base.counters.commit_copies += (uint64_t)count * (uint64_t)k->kernels.layers;
  d->base.counters.launches++;
  cuda_commit(d->stream, k->kernels, sequence, path, count, length);
  cuda_device_ok(d, cudaGetLastError());
}
