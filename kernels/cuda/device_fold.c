/* device_fold.c - norms that only linears read become part of the linears: a kernel less for each.
 *
 * A linear can norm its input on the way (cuda_kernels.h), and leaves the normed rows undefined then. So a
 * norm may go if nobody else reads these rows before they are written again, and if what is normed is still
 * there when the last of the linears runs. */
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

static bool fold(cuda_op *norm, const cuda_op *end) {
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

void cuda_fold_norms(cuda_device *d) {
  cuda_forward *f = &d->forward;
  int32_t kept = 0;
  for (int32_t i = 0; i < f->op_count; i++) {
    cuda_op *o = &f->ops[i];
    if (o->kind == CUDA_OP_NORM && fold(o, f->ops + f->op_count)) continue;
    if (kept != i) memcpy(&f->ops[kept], o, sizeof *o);
    kept++;
  }
  f->op_count = kept;
}
