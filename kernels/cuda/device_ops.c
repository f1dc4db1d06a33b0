/* device_ops.c - the ops between begin and end: each one records what `end` will put into the stream. */
#include "kernels/cuda/device_parts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define OPS_AT_FIRST     256
#define SUPPLY_ALIGNMENT 64

/* --- recording --- */

static bool recorder_grow(cuda_forward *f) {
  if (f->op_count < f->op_capacity) return true;
  int32_t capacity = f->op_capacity ? 2 * f->op_capacity : OPS_AT_FIRST;
  cuda_op *ops = realloc(f->ops, (size_t)capacity * sizeof *ops);
  if (!ops) return false;
  f->ops = ops;
  f->op_capacity = capacity;
  return true;
}

/* NULL: this forward has failed already, or fails now. */
static cuda_op *record(cuda_device *d, cuda_op_kind kind, cuda_rows rows) {
  cuda_forward *f = &d->forward;
  assert(f->begun);
  if (!f->failed) f->failed = d->lost || !recorder_grow(f);
  if (f->failed) return NULL;
  cuda_op *op = &f->ops[f->op_count++];
  memset(op, 0, sizeof *op);
  op->kind = kind;
  op->rows.batch = rows.batch;
  op->rows.bucket = rows.bucket;
  op->rows.head = rows.head;
  return op;
}

/* Memory that ops of this forward share. What is recorded may use the memory as it is: where it has to grow,
 * that goes into the stream first. */
static bool room(cuda_device *d, device_memory **m, size_t bytes) {
  cuda_forward *f = &d->forward;
  if (f->failed || (*m && (*m)->bytes >= bytes)) return !f->failed;
  cuda_graph_flush(d);
  f->failed = f->failed || !cuda_memory_grow(d, m, MEM_ACTIVATIONS, bytes);
  return !f->failed;
}

/* --- addresses; member by member, so that the bytes between members stay zero --- */

static float *act_floats(const device_act *a) {
  return (float *)a->f32->at;
}

static const float *vector_floats(device_vector v) {
  return v.memory ? (const float *)(v.memory->at + v.at) : NULL;
}

static void set_weight(cuda_weight *to, const device_weight *w) {
  to->type = w->type;
  to->rows = w->rows;
  to->columns = w->columns;
  to->data = w->memory->at + w->at;
}

static void set_act(cuda_act *to, const device_act *a) {
  to->f32 = act_floats(a);
  to->tiles = a->tiles ? (cuda_tile *)a->tiles->at : NULL;
  to->columns = a->columns;
  to->bf16 = a->bf16;
}

/* --- the ops --- */

void cuda_ops_embed(device *base, const device_weight *w, device_act *x) {
  cuda_device *d = cuda_device_of(base);
  cuda_op *op = record(d, CUDA_OP_EMBED, d->forward.rows);
  assert(w->columns == x->columns);
  if (!op) return;
  set_weight(&op->jobs[0].w, w);
  op->y = act_floats(x);
}

/* Where this op's values lie on the device: a bucket of rows, so that the places of later ones are those of
 * the graph. Where the upload has to grow, what is recorded goes into the stream first: it reads the old one.
 */
static uint8_t *supply_room(cuda_device *d, size_t bytes, uint8_t **host) {
  cuda_upload *u = &d->forward.supplies;
  if (u->capacity - u->used < bytes) {
    cuda_graph_flush(d);
    if (!cuda_batch_upload_grow(d, u, 2 * (u->used + bytes))) return NULL;
    u->used = 0;
  }
  size_t at = u->used;
  u->used += bytes;
  *host = u->host + at;
  return u->device->at + at;
}

void cuda_ops_supply(device *base, const float *values, device_act *y) {
  cuda_device *d = cuda_device_enter(base);
  cuda_forward *f = &d->forward;
  size_t row = (size_t)y->columns * sizeof *values, bytes = (size_t)f->row_count * row;
  uint8_t *host = NULL;
  if (f->failed) return;
  uint8_t *to = supply_room(
      d, ((size_t)f->rows.bucket * row + SUPPLY_ALIGNMENT - 1) / SUPPLY_ALIGNMENT * SUPPLY_ALIGNMENT, &host);
  if (to) memcpy(host, values, bytes);
  if (!to || !cuda_device_ok(d, cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, d->stream))) {
    f->failed = true;
    return;
  }
  cuda_op *op = record(d, CUDA_OP_SUPPLY, f->rows);
  if (!op) return;
  op->count = y->columns;
  op->k = (const float *)to;
  op->y = act_floats(y);
}

/* A larger one than before has another address, and so another graph. */
static bool capture_room(cuda_device *d, cuda_captured *c, size_t bytes) {
  if (bytes <= c->bytes) return true;
  float *rows = cuda_memory_pinned(d, bytes);
  if (!rows) return false;
  cuda_memory_unpin(c->rows);
  c->rows = rows;
  c->bytes = bytes;
  return true;
}

void cuda_ops_capture(device *base, const device_act *x) {
  cuda_device *d = cuda_device_enter(base);
  cuda_forward *f = &d->forward;
  int32_t bucket = cuda_batch_bucket(f->capture_count);
  assert(f->capture_count > 0 && f->captures_made < OPS_CAPTURES_MAX);
  cuda_captured *to = &f->captures[f->captures_made++];
  to->columns = x->columns;
  base->counters.captured_rows += (uint64_t)f->capture_count;
  f->failed = f->failed || !capture_room(d, to, (size_t)bucket * (size_t)x->columns * sizeof(float));
  cuda_op *op = record(d, CUDA_OP_CAPTURE, f->rows);
  if (!op) return;
  op->count = x->columns;
  op->bucket = bucket;
  op->x.f32 = act_floats(x);
  op->y = to->rows;
}

void cuda_ops_norm(device *base, const device_act *x, bool head, device_vector w, float eps, device_act *y) {
  cuda_device *d = cuda_device_of(base);
  if (head && d->forward.head_count == 0) return;
  cuda_op *op = record(d, CUDA_OP_NORM, head ? d->forward.head : d->forward.rows);
  assert(x->columns == y->columns);
  if (!op) return;
  op->norm.x = act_floats(x);
  op->norm.weight = vector_floats(w);
  op->norm.eps = eps;
  op->count = y->columns;
  op->y = act_floats(y);
}

static void record_jobs(cuda_device *d, const device_linear *jobs, int32_t count, const device_act *x) {
  cuda_op *op = record(d, CUDA_OP_LINEAR, d->forward.rows);
  if (!op) return;
  set_act(&op->x, x);
  op->count = count;
  for (int32_t i = 0; i < count; i++) {
    assert(jobs[i].w.columns == x->columns);
    set_weight(&op->jobs[i].w, &jobs[i].w);
    op->jobs[i].y = act_floats(jobs[i].y);
    op->jobs[i].add = jobs[i].add;
    op->jobs[i].bias = vector_floats(jobs[i].bias);
  }
}

void cuda_ops_linear(device *base, const device_linear *jobs, int32_t count, const device_act *x) {
  for (int32_t i = 0; i < count; i += CUDA_JOBS_MAX) {
    int32_t n = count - i < CUDA_JOBS_MAX ? count - i : CUDA_JOBS_MAX;
    record_jobs(cuda_device_of(base), jobs + i, n, x);
  }
}

static void record_swiglu(cuda_device *d, const device_weight *gate, const device_weight *up,
                          const device_act *x, float *y) {
  cuda_op *op = record(d, CUDA_OP_SWIGLU, d->forward.rows);
  if (!op) return;
  set_act(&op->x, x);
  set_weight(&op->jobs[0].w, gate);
  set_weight(&op->jobs[1].w, up);
  op->y = y;
}

/* Weights of two types, which one kernel does not take: two linears, and then what combines them. */
static void record_gated(cuda_device *d, const device_weight *gate, const device_weight *up,
                         const device_act *x, float *y) {
  cuda_forward *f = &d->forward;
  size_t floats = (size_t)f->rows.bucket * (size_t)gate->rows;
  if (!room(d, &f->gated, 2 * floats * sizeof(float))) return;
  float *both = (float *)f->gated->at;
  cuda_op *linears = record(d, CUDA_OP_LINEAR, f->rows);
  if (!linears) return;
  set_act(&linears->x, x);
  linears->count = 2;
  set_weight(&linears->jobs[0].w, gate);
  set_weight(&linears->jobs[1].w, up);
  linears->jobs[0].y = both;
  linears->jobs[1].y = both + floats;
  cuda_op *op = record(d, CUDA_OP_GATED, f->rows);
  if (!op) return;
  op->count = gate->rows;
  op->k = both;
  op->v = both + floats;
  op->y = y;
}

void cuda_ops_linear_swiglu(device *base, const device_weight *gate, const device_weight *up,
                            const device_act *x, device_act *y) {
  assert(gate->columns == x->columns && up->columns == x->columns && gate->rows == y->columns &&
         up->rows == y->columns);
  if (gate->type == up->type)
    record_swiglu(cuda_device_of(base), gate, up, x, act_floats(y));
  else
    record_gated(cuda_device_of(base), gate, up, x, act_floats(y));
}

void cuda_ops_rope(device *base, const device_rope *r) {
  cuda_device *d = cuda_device_of(base);
  cuda_forward *f = &d->forward;
  size_t floats = (size_t)f->rows.bucket * 2 * (size_t)r->dim;
  assert(r->dim > 0);
  if (!room(d, &f->rope, floats * sizeof(float))) return;
  cuda_op *op = record(d, CUDA_OP_ROPE, f->rows);
  if (!op) return;
  op->frequency = vector_floats(r->frequency);
  op->count = r->dim;
  op->times = r->times;
  op->y = (float *)f->rope->at;
  f->angles = op->y;
  f->rope_dim = r->dim;
}

void cuda_ops_rope_store(device *base, int32_t layer, const device_rotary *r, device_act *q,
                         const device_act *k, const device_act *v) {
  cuda_device *d = cuda_device_of(base);
  cuda_forward *f = &d->forward;
  cuda_op *op = record(d, CUDA_OP_ROPE_STORE, f->rows);
  if (!op) return;
  assert(f->angles && f->kv && (f->staged == 0 || f->kv->stage_keys));
  d->base.counters.staged_writes += (uint64_t)f->staged;
  op->kv = f->kv->kernels;
  op->layer = layer;
  op->heads = q->columns / op->kv.head_dim;
  op->rotary.angles = f->angles;
  op->rotary.dim = f->rope_dim;
  op->rotary.q_norm = vector_floats(r->q_norm);
  op->rotary.k_norm = vector_floats(r->k_norm);
  op->rotary.eps = r->eps;
  op->y = act_floats(q);
  op->k = act_floats(k);
  op->v = act_floats(v);
}

static const cuda_attending *attending_of(cuda_forward *f, int32_t heads) {
  cuda_attending *a = &f->attending;
  if (a->heads == heads) return a;
  a->heads = heads;
  a->runs = cuda_attention_runs(f->rows, f->runs, f->long_runs, f->split_runs, f->kv->kernels, heads,
                                f->positions, f->end);
  a->floats = cuda_attention_floats(f->kv->kernels, f->rows.bucket, a->runs, heads);
  return a;
}

void cuda_ops_attention(device *base, int32_t layer, int32_t view, const device_act *q, device_act *y) {
  cuda_device *d = cuda_device_of(base);
  cuda_forward *f = &d->forward;
  assert(f->kv);
  int32_t heads = q->columns / f->kv->kernels.head_dim;
  const cuda_attending *a = attending_of(f, heads);
  if (a->floats > 0 && !room(d, &f->scratch, a->floats * sizeof(float))) return;
  cuda_op *op = record(d, CUDA_OP_ATTENTION, f->rows);
  if (!op) return;
  op->kv = f->kv->kernels;
  op->layer = layer;
  op->view = view;
  op->heads = heads;
  op->positions = f->positions;
  op->runs = a->runs;
  op->x.f32 = act_floats(q);
  op->y = act_floats(y);
  op->scratch = a->floats > 0 ? f->scratch->at : NULL;
}

/* An op of what the tiles of captured rows weigh. NULL: the forward has failed. */
static cuda_op *record_weighing(cuda_device *d, cuda_op_kind kind, int32_t layer, const device_act *q,
                                bool add, device_act *y) {
  cuda_forward *f = &d->forward;
  assert(f->kv && f->weigh_count > 0 && y->columns == f->kv->kernels.context / OPS_TILE);
  cuda_op *op = record(d, kind, f->rows);
  if (!op) return NULL;
  op->kv = f->kv->kernels;
  op->layer = layer;
  op->heads = q->columns / f->kv->kernels.head_dim;
  op->positions = f->positions;
  op->bucket = cuda_batch_bucket(f->weigh_count);
  op->x.f32 = act_floats(q);
  op->add = add;
  op->y = act_floats(y);
  return op;
}

void cuda_ops_mass(device *base, int32_t layer, const device_act *q, bool add, device_act *y) {
  cuda_device *d = cuda_device_of(base);
  cuda_forward *f = &d->forward;
  const int32_t heads = q->columns / f->kv->kernels.head_dim, bucket = cuda_batch_bucket(f->weigh_count);
  if (!room(d, &f->mass, cuda_mass_floats(bucket, heads, f->positions) * sizeof(float))) return;
  cuda_op *op = record_weighing(d, CUDA_OP_MASS, layer, q, add, y);
  if (op) op->scratch = f->mass->at;
}

void cuda_ops_bound(device *base, int32_t layer, ops_weighing how, const device_act *q, bool add,
                    device_act *y) {
  cuda_op *op = record_weighing(cuda_device_of(base), CUDA_OP_BOUND, layer, q, add, y);
  if (op) op->mean = how == OPS_WEIGH_BOUND_MEAN;
}

static void record_logits(cuda_device *d, const device_weight *w, const device_act *x) {
  cuda_op *op = record(d, CUDA_OP_LINEAR, d->forward.head);
  if (!op) return;
  set_act(&op->x, x);
  op->count = 1;
  set_weight(&op->jobs[0].w, w);
  op->jobs[0].y = (float *)d->forward.logits->at;
}

static void record_sample(cuda_device *d, const device_weight *w) {
  cuda_forward *f = &d->forward;
  size_t bytes = cuda_sample_bytes(f->head.bucket, w->rows);
  if (bytes > 0 && !room(d, &f->sample, bytes)) return;
  cuda_op *op = record(d, CUDA_OP_SAMPLE, f->head);
  if (!op) return;
  op->count = w->rows;
  op->x.f32 = (float *)f->logits->at;
  op->scratch = bytes > 0 ? f->sample->at : NULL;
}

void cuda_ops_head(device *base, const device_weight *w, const device_act *x) {
  cuda_device *d = cuda_device_of(base);
  cuda_forward *f = &d->forward;
  assert(w->columns == x->columns);
  if (f->head_count == 0) return;
  size_t logits = (size_t)f->head.bucket * (size_t)w->rows * sizeof(float);
  f->vocabulary = w->rows;
  if (!room(d, &f->logits, logits)) return;
  record_logits(d, w, x);
  if (f->head_count > f->logit_count + f->rank_count) record_sample(d, w);
}

void cuda_ops_rank(device *base, device_ids ids) {
  cuda_device *d = cuda_device_of(base);
  cuda_forward *f = &d->forward;
  int32_t bucket = cuda_batch_bucket(f->rank_count);
  assert(ids.count > 0 && (ids.memory ? ids.common : ids.count) <= f->vocabulary);
  if (f->rank_count == 0 || !room(d, &f->rank, cuda_rank_bytes(bucket, ids.count))) return;
  cuda_op *op = record(d, CUDA_OP_RANK, f->head);
  if (!op) return;
  op->count = bucket;
  op->rankings = cuda_batch_rankings(d);
  op->logits.logits = (const float *)f->logits->at;
  op->logits.columns = f->vocabulary;
  op->logits.vocabulary = ids.count;
  op->logits.common = ids.common;
  op->logits.of = ids.memory ? (const int32_t *)(ids.memory->at + ids.at) : NULL;
  op->ranked = f->ranked;
  op->scratch = f->rank->at;
}
