/* device_fold.c - what only linears read or write becomes part of the linears: a kernel less for each.
 *
 * A linear can norm its input on the way (cuda_kernels.h), and leaves the normed rows undefined then. So a
 * norm may go if nobody else reads these rows before they are written again, and if what is normed is still
 * there when the last of the linears runs.
 *
 * A linear that makes q, k and v can rotate and store them too, where heads are not normed, and writes no k
 * and v then. So a rope_store may go if it follows such a linear, and nobody else reads these. */
#include "kernels/cuda/device_parts.h"

#include <string.h>

typedef enum { READS_NOTHING, READS_AS_LINEAR, READS_ELSEHOW } reading;

static bool same_rows(const cuda_op *a, const cuda_op *b) {
  return a->rows.bucket == b->rows.bucket && a->rows.head == b->rows.head;
}

static bool is_linear(const cuda_op *o) {
  return o->kind == CUDA_OP_LINEAR || o->kind == CUDA_OP_SWIGLU;
}

static reading how_reads(const cuda_op *o, const cuda_op *norm) {
  const float *y = norm->y;
  bool input = o->x.f32 == y;
  if (input && is_linear(o) && !o->normed && same_rows(o, norm)) return READS_AS_LINEAR;
  bool other = o->k == y || o->v == y || (o->kind == CUDA_OP_NORM && o->norm.x == y);
  return input || other ? READS_ELSEHOW : READS_NOTHING;
}

static bool writes(const cuda_op *o, const float *y) {
  if (o->kind != CUDA_OP_LINEAR) return o->y == y;
  for (int32_t i = 0; i < o->count; i++)
    if (o->jobs[i].y == y) return true;
  return false;
}

/* All of the norm's rows, without reading them. */
static bool overwrites(const cuda_op *o, const cuda_op *norm) {
  return o->kind == CUDA_OP_NORM && o->y == norm->y && same_rows(o, norm);
}

/* The op that writes the normed rows again, or NULL: the norm has to stay. */
static const cuda_op *end_of_use(const cuda_op *norm, const cuda_op *end) {
  bool source = true; /* is still there */
  for (const cuda_op *o = norm + 1; o < end; o++) {
    reading r = how_reads(o, norm);
    if (r == READS_NOTHING && overwrites(o, norm)) return o;
    if (writes(o, norm->norm.x)) source = false;
    if (r == READS_ELSEHOW || writes(o, norm->y) || (r == READS_AS_LINEAR && !source)) return NULL;
  }
  return NULL;
}

static bool fold_norm(cuda_op *norm, const cuda_op *end) {
  const cuda_op *last = end_of_use(norm, end);
  if (!last) return false;
  for (cuda_op *o = norm + 1; o < last; o++) {
    if (how_reads(o, norm) != READS_AS_LINEAR) continue;
    o->normed = true;
    o->norm.x = norm->norm.x;
    o->norm.weight = norm->norm.weight;
    o->norm.eps = norm->norm.eps;
  }
  return true;
}

/* --- rope_store --- */

static bool reads(const cuda_op *o, const float *y) {
  return o->x.f32 == y || o->k == y || o->v == y || o->norm.x == y;
}

static bool is_read(const float *y, const cuda_op *from, const cuda_op *end) {
  for (const cuda_op *o = from; o < end; o++) {
    if (reads(o, y)) return true;
    if (writes(o, y)) return false;
  }
  return false;
}

static bool makes(const cuda_op *linear, int32_t job, const float *y) {
  return linear->jobs[job].y == y && !linear->jobs[job].add;
}

static bool may_store(const cuda_op *linear, const cuda_op *store, const cuda_op *end) {
  if (store->kv.head_dim % 2 != 0) return false; /* a pair of components is one of neighbouring outputs */
  return linear->kind == CUDA_OP_LINEAR && store->kind == CUDA_OP_ROPE_STORE && same_rows(linear, store) &&
         !store->rotary.q_norm && !store->rotary.k_norm && linear->count == 3 && makes(linear, 0, store->y) &&
         makes(linear, 1, store->k) && makes(linear, 2, store->v) && !is_read(store->k, store + 1, end) &&
         !is_read(store->v, store + 1, end);
}

static bool fold_store(cuda_op *linear, const cuda_op *store, const cuda_op *end) {
  if (!may_store(linear, store, end)) return false;
  linear->stores = true;
  linear->kv = store->kv;
  linear->layer = store->layer;
  linear->rotary.angles = store->rotary.angles;
  linear->rotary.dim = store->rotary.dim;
  return true;
}

void cuda_fold(cuda_device *d) {
  cuda_forward *f = &d->forward;
  const cuda_op *end = f->ops + f->op_count;
  int32_t kept = 0;
  for (cuda_op *o = f->ops; o < end; o++) {
    if (o->kind == CUDA_OP_NORM && fold_norm(o, end)) continue;
    if (kept > 0 && fold_store(&f->ops[kept - 1], o, end)) continue;
    if (&f->ops[kept] != o) memcpy(&f->ops[kept], o, sizeof *o);
    kept++;
  }
  f->op_count = kept;
}
