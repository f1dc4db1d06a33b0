/* cpu_attention.c - op attention: a few rows and one key-value head are a chunk. */
#include "kernels/cpu/device_cpu.h"

#include <assert.h>
#include <math.h>

#define CHUNKS_A_THREAD 2

typedef struct attention_job {
  const cpu_kernels *k;
  const device_kv *kv;
  int32_t layer, heads, stride;
  int32_t rows_each, count; /* rows of a chunk, of all */
  const cpu_row *rows;
  const cpu_view *view;
  const float *q;
  cpu_act *y;
  float *scores; /* [threads][queries_max][stride] */
} attention_job;

/* Query heads that a kernel call may be given. */
static int32_t queries_max(int32_t group) {
  return group > CPU_QUERIES_MAX ? group : CPU_QUERIES_MAX;
}

/* Blocks do not cross from the heads of one chunk to those of another. */
static bool quantizes_heads(const attention_job *j) {
  const ops_kv_shape *s = &j->kv->shape;
  return j->heads / s->kv_heads * s->head_dim % OPS_BLOCK == 0;
}

/* Where the thread goes on: at the next sequence of its chunk, or at the next chunk. */
static const cpu_kv *what_follows(const attention_job *j, int32_t row, int32_t end, int32_t *head) {
  int32_t kv_heads = j->kv->shape.kv_heads;
  if (row < end) return j->rows[row].kv;
  int32_t chunk = (end - 1) / j->rows_each * kv_heads + *head + 1;
  *head = chunk % kv_heads;
  row = chunk / kv_heads * j->rows_each;
  return row < j->count ? j->rows[row].kv : NULL;
}

static void *committed_at(const attention_job *j, void *area, int32_t head) {
  const ops_kv_shape *s = &j->kv->shape;
  return cpu_area_at(s, area, cpu_committed_rows(s), j->layer, head);
}

/* The sequence's part of the staging pool. */
static void point_at_stage(const attention_job *j, int32_t head, cpu_attention *a) {
  const device_kv *k = j->kv;
  size_t skipped = (size_t)a->row->stage_at * (size_t)a->head_dim * (a->type == OPS_KV_F16 ? 2 : 4);
  if (a->row->path_count == 0) return;
  a->stage_keys = (uint8_t *)cpu_area_at(&k->shape, k->stage_keys, k->shape.stage, j->layer, head) + skipped;
  a->stage_values =
      (uint8_t *)cpu_area_at(&k->shape, k->stage_values, k->shape.stage, j->layer, head) + skipped;
}

static void point_at_next(const attention_job *j, int32_t row, int32_t end, int32_t head, cpu_attention *a) {
  int32_t next_head = head;
  const cpu_kv *next = what_follows(j, row, end, &next_head);
  if (!next || (next == a->row->kv && next_head == head)) return;
  a->next_keys = committed_at(j, j->kv->keys, next_head);
  a->next_values = committed_at(j, j->kv->values, next_head);
  a->next = next;
}

/* Rows [row, row + count), of one sequence, of a chunk that ends before `end`. */
static void attend_rows(const attention_job *j, int32_t row, int32_t count, int32_t end, int32_t head,
                        int32_t thread) {
  const ops_kv_shape *s = &j->kv->shape;
  int32_t group = j->heads / s->kv_heads;
  size_t row_floats = (size_t)j->heads * (size_t)s->head_dim;
  size_t at = (size_t)row * row_floats + (size_t)(head * group) * (size_t)s->head_dim;
  cpu_attention a = {
      .type = s->type,
      .head_dim = s->head_dim,
      .heads = group,
      .rows = count,
      .row = j->rows + row,
      .keys = committed_at(j, j->kv->keys, head),
      .values = committed_at(j, j->kv->values, head),
      .q = j->q + at,
      .y = j->y->f32 + at,
      .row_floats = row_floats,
      .scale = 1.0f / sqrtf((float)s->head_dim),
      .scores = j->scores + (size_t)thread * (size_t)queries_max(group) * (size_t)j->stride,
      .stride = j->stride,
      .stage = s->stage,
      .spans = j->view->spans,
      .first_span = j->view->first + row,
  };
  point_at_stage(j, head, &a);
  point_at_next(j, row + count, end, head, &a);
  j->k->attention(&a);
  if (!quantizes_heads(j)) return;
  for (int32_t i = 0; i < count; i++)
    cpu_quantize_part(j->k, j->y, row + i, head * group * s->head_dim, group * s->head_dim);
}

/* Where another sequence begins, another call. */
static void attention_chunk(void *context, int32_t chunk, int32_t thread) {
  const attention_job *j = context;
  int32_t kv_heads = j->kv->shape.kv_heads, head = chunk % kv_heads, row = chunk / kv_heads * j->rows_each;
  int32_t end = cpu_min(row + j->rows_each, j->count);
  for (int32_t next = row; row < end; row = next) {
    while (next < end && j->rows[next].kv == j->rows[row].kv) next++;
    attend_rows(j, row, next - row, end, head, thread);
  }
}

/* Rows that go through the keys together: as many as the kernels take, fewer where threads would go idle. */
static int32_t rows_together(const ops_kv_shape *s, int32_t count, int32_t heads, int32_t threads) {
  int32_t rows = CPU_QUERIES_MAX / (heads / s->kv_heads);
  while (rows > 1 && (count + rows - 1) / rows * s->kv_heads < threads * CHUNKS_A_THREAD) rows--;
  return rows > 1 ? rows : 1;
}

void cpu_attention_op(device *d, int32_t layer, int32_t view, const device_act *q, device_act *y) {
  cpu_device *c = cpu_of(d);
  const ops_kv_shape *s = &c->kv->shape;
  int32_t count = c->batch.row_count, heads = q->columns / s->head_dim, stride = cpu_score_stride(s);
  assert(c->running && layer < s->layers && view < c->batch.view_count && y->columns == q->columns);
  assert(heads % s->kv_heads == 0 && q->rows >= count && y->rows >= count);
  size_t scores = (size_t)d->threads * (size_t)queries_max(heads / s->kv_heads) * (size_t)stride;
  if (!cpu_op_grow(c, &c->scores, scores * sizeof(float))) return;
  cpu_late_settle(c->kv, layer);
  attention_job j = {
      .k = c->kernels,
      .kv = c->kv,
      .layer = layer,
      .heads = heads,
      .stride = stride,
      .rows_each = rows_together(s, count, heads, d->threads),
      .count = count,
      .rows = c->batch.rows,
      .view = &c->batch.views[view],
      .q = q->f32,
      .y = y,
      .scores = c->scores.data,
  };
  int32_t groups = (count + j.rows_each - 1) / j.rows_each;
  thread_pool_run(c->pool, groups * s->kv_heads, attention_chunk, &j);
  if (!quantizes_heads(&j)) cpu_quantize_rows(c, y, count);
}
