/* cpu_rows.c - ops of one row at a time: embed, norm and the int8 form of activations. A row is a chunk; who
 * writes activations writes their int8 form. */
#include "kernels/cpu/device_cpu.h"
#include "kernels/cpu/tensor_step.h"

#include <assert.h>
#include <string.h>

typedef struct embed_job {
  const cpu_row *rows;
  cpu_weight w;
  float *x;
} embed_job;

static void embed_row(void *context, int32_t i, int32_t thread) {
  (void)thread;
  const embed_job *j = context;
  cpu_unpack_row(&j->w, j->rows[i].token, j->x + (size_t)i * (size_t)j->w.columns);
}

void cpu_embed(device *d, const device_weight *w, device_act *x) {
  cpu_device *c = cpu_of(d);
  int32_t rows = c->batch.row_count;
  embed_job j = {c->batch.rows, cpu_weight_of(w), x->f32};
  assert(c->running && x->columns == w->columns && x->rows >= rows);
  cpu_run(c, rows, (int64_t)rows * w->columns, embed_row, &j);
  cpu_quantize_rows(c, x, rows);
}

/* --- quantise --- */

void cpu_quantize_part(const cpu_kernels *k, cpu_act *x, int32_t row, int32_t first, int32_t count) {
  if (!x->q8) return;
  size_t at = (size_t)row * (size_t)x->columns + (size_t)first, block = at / OPS_BLOCK;
  k->quantize(x->q8 + at, x->scale + block, x->sum + block, x->total + block, x->f32 + at, count);
  for (size_t i = at; x->bf16 && i < at + (size_t)count; i++) x->bf16[i] = tensor_bf16(x->f32[i]);
}

typedef struct quantize_job {
  const cpu_kernels *k;
  cpu_act *x;
} quantize_job;

static void quantize_row(void *context, int32_t i, int32_t thread) {
  (void)thread;
  const quantize_job *j = context;
  cpu_quantize_part(j->k, j->x, i, 0, j->x->columns);
}

void cpu_quantize_rows(cpu_device *c, cpu_act *x, int32_t rows) {
  if (!x->q8) return;
  quantize_job j = {c->kernels, x};
  cpu_run(c, rows, (int64_t)rows * x->columns, quantize_row, &j);
}

/* --- norm --- */

typedef struct norm_job {
  const cpu_kernels *k;
  const float *x, *w;
  const int32_t *index; /* NULL: row i is row i */
  float eps;
  cpu_act *y;
} norm_job;

static void norm_row(void *context, int32_t i, int32_t thread) {
  (void)thread;
  const norm_job *j = context;
  size_t n = (size_t)j->y->columns, from = (size_t)(j->index ? j->index[i] : i);
  j->k->norm(j->y->f32 + (size_t)i * n, j->x + from * n, j->w, j->y->columns, j->eps);
  cpu_quantize_part(j->k, j->y, i, 0, j->y->columns);
}

void cpu_norm(device *d, const device_act *x, bool head, device_vector w, float eps, device_act *y) {
  cpu_device *c = cpu_of(d);
  int32_t rows = head ? c->batch.head_count : c->batch.row_count;
  norm_job j = {c->kernels, x->f32, cpu_vector(w), head ? c->batch.head_rows : NULL, eps, y};
  assert(c->running && x->columns == y->columns && y->rows >= rows && j.w);
  cpu_run(c, rows, (int64_t)rows * y->columns, norm_row, &j);
}

/* --- rows that come from the host, and rows that it reads --- */

void cpu_supply(device *d, const float *values, device_act *y) {
  cpu_device *c = cpu_of(d);
  int32_t rows = c->batch.row_count;
  assert(c->running && y->rows >= rows);
  memcpy(y->f32, values, (size_t)rows * (size_t)y->columns * sizeof *values);
  cpu_quantize_rows(c, y, rows);
}

void cpu_capture_rows(device *d, const device_act *x) {
  cpu_device *c = cpu_of(d);
  const cpu_batch *b = &c->batch;
  assert(c->running && b->capture_count > 0 && c->captures_made < OPS_CAPTURES_MAX);
  cpu_capture *to = &c->captures[c->captures_made++];
  size_t bytes = (size_t)x->columns * sizeof(float);
  to->columns = x->columns;
  d->counters.captured_rows += (uint64_t)b->capture_count;
  if (!cpu_op_grow(c, &to->memory, (size_t)b->capture_count * bytes)) return;
  for (int32_t i = 0; i < b->capture_count; i++)
    memcpy((char *)to->memory.data + (size_t)i * bytes,
           x->f32 + (size_t)b->capture_rows[i] * (size_t)x->columns, bytes);
}

const float *cpu_captured(device *d, int32_t capture, int32_t line) {
  const cpu_device *c = cpu_of(d);
  assert(!c->running && !c->failed && capture >= 0 && capture < c->captures_made && line >= 0 &&
         line < c->batch.capture_count);
  const cpu_capture *from = &c->captures[capture];
  return (const float *)from->memory.data + (size_t)line * (size_t)from->columns;
}
