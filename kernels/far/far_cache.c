/* far_cache.c - the cache of a far device: maps and commits are queued. */
#include "kernels/far/far_device.h"
#include "kernels/far/far_require.h"

#include <stdlib.h>
#include <string.h>

static far_device *idle(device *d) {
  far_device *f = far_device_of(d);
  far_require(f->state == FAR_IDLE, "a cache is opened, staged and closed between forwards");
  return f;
}

static void check_shape(const ops_kv_shape *s) {
  far_require(s->layers >= 1 && s->kv_heads >= 1 && s->head_dim >= 1 && s->head_dim <= OPS_HEAD_DIM_MAX &&
                  s->blocks >= 1 && s->sequences >= 1,
              "a cache's shape is in its ranges");
  far_require(s->context >= 1 && s->context % OPS_TILE == 0 && s->stage >= 0 && s->stage % OPS_TILE == 0,
              "context and stage are multiples of OPS_TILE");
}

static device_kv *far_kv_open(device *d, const ops_kv_shape *s) {
  far_device *f = idle(d);
  check_shape(s);
  if (f->lost || far_faults_due(&f->faults.refuse)) return NULL;
  far_thing thing = {.kind = FAR_KV, .shape = *s};
  ops_kv_shape copy = *s;
  thing.mapped = calloc((size_t)s->sequences, sizeof *thing.mapped);
  thing.seen = calloc((size_t)s->sequences, sizeof *thing.seen);
  thing.writer = calloc((size_t)s->stage + 1, sizeof *thing.writer);
  if (thing.mapped && thing.seen && thing.writer) thing.inner = f->inner->table->kv_open(f->inner, &copy);
  memset(&copy, FAR_PAGES_POISON, sizeof copy);
  device_kv *handle = thing.inner ? far_handles_add(&f->handles, &thing) : NULL;
  if (handle) return handle;
  if (thing.inner) f->inner->table->kv_close(f->inner, thing.inner);
  far_handles_free_arrays(&thing);
  return NULL;
}

static void far_kv_close(device *d, device_kv *k) {
  far_device *f = idle(d);
  if (!k) return;
  far_device_run(f); /* its maps and commits */
  f->inner->table->kv_close(f->inner, far_handles_find(&f->handles, k, FAR_KV)->inner);
  far_handles_drop(&f->handles, k, FAR_KV);
}

static bool far_kv_stage(device *d, device_kv *k) {
  far_device *f = idle(d);
  far_thing *kv = far_handles_find(&f->handles, k, FAR_KV);
  if (f->lost) return false;
  if (kv->staged) return true;
  kv->staged = !far_faults_due(&f->faults.refuse) && f->inner->table->kv_stage(f->inner, kv->inner);
  return kv->staged;
}

/* --- queued --- */

typedef struct sequence_args {
  device_kv *kv;
  int32_t sequence, count, length;
  int32_t numbers[]; /* [count] */
} sequence_args;

static far_thing *sequence_of(const far_device *f, const device_kv *k, int32_t sequence) {
  far_require(f->state != FAR_RECORDING, "maps and commits are not between begin and end");
  far_thing *kv = far_handles_find(&f->handles, k, FAR_KV);
  far_require(sequence >= 0 && sequence < kv->shape.sequences, "the sequence is one of the cache");
  return kv;
}

static void queue_sequence(far_device *f, far_call *call, const sequence_args *head, const int32_t *numbers) {
  size_t bytes = (size_t)head->count * sizeof *numbers;
  sequence_args *args = far_queue_add(&f->queue, call, sizeof *args + bytes);
  memcpy(args, head, sizeof *args);
  if (bytes > 0) memcpy(args->numbers, numbers, bytes);
}

static void run_map(void *context, void *p) {
  device *inner = ((far_device *)context)->inner;
  sequence_args *a = p;
  inner->table->kv_map(inner, a->kv, a->sequence, a->numbers, a->count);
}

static void far_kv_map(device *d, device_kv *k, int32_t sequence, const int32_t *blocks, int32_t count) {
  far_device *f = far_device_of(d);
  far_thing *kv = sequence_of(f, k, sequence);
  far_require(count >= 0 && count <= kv->shape.context / OPS_TILE, "a map fits the context");
  for (int32_t i = 0; i < count; i++)
    far_require(blocks[i] >= 0 && blocks[i] < kv->shape.blocks, "a mapped block is one of the cache");
  kv->mapped[sequence] = count;
  if (!f->lost) queue_sequence(f, run_map, &(sequence_args){kv->inner, sequence, count, 0}, blocks);
}

static void run_commit(void *context, void *p) {
  device *inner = ((far_device *)context)->inner;
  sequence_args *a = p;
  inner->table->kv_commit(inner, a->kv, a->sequence, a->numbers, a->count, a->length);
}

static void far_kv_commit(device *d, device_kv *k, int32_t sequence, const int32_t *path, int32_t count,
                          int32_t length) {
  far_device *f = far_device_of(d);
  far_thing *kv = sequence_of(f, k, sequence);
  far_require(count == 0 || kv->staged, "a commit takes staged rows");
  far_require(count >= 0 && length >= 0 && length + count <= kv->mapped[sequence] * OPS_TILE,
              "a commit goes to mapped blocks");
  for (int32_t i = 0; i < count; i++)
    far_require(path[i] >= 0 && path[i] < kv->shape.stage, "a commit's path is made of staged rows");
  f->base.counters.commit_copies += (uint64_t)count * (uint64_t)kv->shape.layers;
  if (!f->lost) queue_sequence(f, run_commit, &(sequence_args){kv->inner, sequence, count, length}, path);
}

void far_device_cache_functions(device_table *t) {
  t->kv_open = far_kv_open;
  t->kv_close = far_kv_close;
  t->kv_stage = far_kv_stage;
  t->kv_map = far_kv_map;
  t->kv_commit = far_kv_commit;
}
