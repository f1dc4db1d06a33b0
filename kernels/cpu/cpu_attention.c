/* cpu_attention.c - op attention: a group of rows, one key-value head and a piece of their splits are a chunk
 * of work. Of a group whose splits are in several pieces, whoever ends the last one joins what all came to.
 * Rows of one sequence attend together, and so do those of several in the splits that these share. */
#include "kernels/cpu/device_cpu.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>

#define CHUNKS_A_THREAD  2          /* at least, before rows are taken apart for it */
#define PIECES_A_THREAD  6          /* chunks, at least, if splits suffice */
#define BUSY_SHARE       0.9        /* of the threads' time, if chunks take equally long */
#define SPLITS_BYTES_MAX (32 << 20) /* bytes */

/* How the work is cut. Chunk ((head * pieces) + piece) * groups + group. */
typedef struct attention_cut {
  int32_t rows_each, groups; /* rows of a group; groups of all rows */
  int32_t pieces;            /* that a group's splits are cut into */
  int32_t splits;            /* of a group, at most */
} attention_cut;

typedef struct attention_job {
  const cpu_kernels *k;
  const device_kv *kv;
  int32_t layer, heads;
  attention_cut cut;
  int32_t count; /* rows */
  const cpu_row *rows;
  const cpu_view *view;
  const float *q;
  cpu_act *y;
  float *scratch; /* [threads][scratch_floats()] */
  /* If there are several pieces. */
  cpu_softmax *split_sums; /* [kv_heads][rows][group][splits] */
  float *split_values;     /* [kv_heads][rows][group][splits][head_dim] */
  _Atomic int32_t *left;   /* [kv_heads][groups]: pieces that are not done */
} attention_job;

static int32_t group_heads(const attention_job *j) {
  return j->heads / j->kv->shape.kv_heads;
}

/* Queries that a kernel call may be given. */
static size_t queries_max(int32_t group) {
  return (size_t)(group > CPU_QUERIES_MAX ? group : CPU_QUERIES_MAX);
}

/* A thread's scores, queries and sums. */
static size_t scratch_floats(const ops_kv_shape *s, int32_t group) {
  return cpu_score_floats(s) + queries_max(group) * ((size_t)s->head_dim + 2);
}

/* Blocks do not cross from the heads of one chunk to those of another. */
static bool quantizes_heads(const attention_job *j) {
  return group_heads(j) * j->kv->shape.head_dim % OPS_BLOCK == 0;
}

/* The splits in which rows [row, row + count) see keys: first and end. */
static ops_span splits_of(const cpu_view *v, int32_t row, int32_t count) {
  ops_span all = {INT32_MAX, 0};
  for (int32_t i = row; i < row + count; i++) {
    const ops_span *first = &v->spans[v->first[i]], *last = &v->spans[v->first[i + 1] - 1];
    const int32_t end = (last->end + OPS_SPLIT - 1) / OPS_SPLIT;
    all.first = cpu_min(first->first / OPS_SPLIT, all.first);
    all.end = end > all.end ? end : all.end;
  }
  return all;
}

/* Where piece i of a group's splits begins; i = pieces: where they end. */
static int32_t piece_at(ops_span splits, int32_t i, int32_t pieces) {
  return splits.first + (int32_t)((int64_t)(splits.end - splits.first) * i / pieces);
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

/* What a thread probably attends to after rows that end before `row`: the next sequence of its group, whose
 * rows end before `end`, or else the next chunk. */
static void point_at_next(const attention_job *j, int32_t row, int32_t end, int32_t chunk, cpu_attention *a) {
  const attention_cut *cut = &j->cut;
  const int32_t head = chunk / cut->groups / cut->pieces;
  if (row == end) row = ++chunk % cut->groups * cut->rows_each;
  const int32_t next_head = chunk / cut->groups / cut->pieces, piece = chunk / cut->groups % cut->pieces;
  if (next_head == j->kv->shape.kv_heads) return;
  const cpu_kv *next = j->rows[row].kv;
  if (next == a->row->kv && next_head == head) return;
  a->next_keys = committed_at(j, j->kv->keys, next_head);
  a->next_values = committed_at(j, j->kv->values, next_head);
  a->next = next;
  a->next_tile = piece_at(splits_of(j->view, row, 1), piece, cut->pieces) * (OPS_SPLIT / OPS_TILE);
}

/* Rows [row, row + count), of one sequence, and all their splits. */
static cpu_attention attention_of(const attention_job *j, int32_t row, int32_t count, int32_t head) {
  const ops_kv_shape *s = &j->kv->shape;
  const int32_t group = group_heads(j);
  const ops_span splits = splits_of(j->view, row, count);
  const size_t row_floats = (size_t)j->heads * (size_t)s->head_dim;
  const size_t at = (size_t)row * row_floats + (size_t)(head * group) * (size_t)s->head_dim;
  const size_t part =
      (size_t)(head * j->count + row) * (size_t)group * (size_t)j->cut.splits; /* their first */
  return (cpu_attention){
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
      .spans = j->view->spans,
      .first_span = j->view->first + row,
      .split = splits.first,
      .split_end = splits.end,
      .split_sums = j->split_sums ? j->split_sums + part : NULL,
      .split_values = j->split_sums ? j->split_values + part * (size_t)s->head_dim : NULL,
      .first_left = splits.first,
      .splits_left = j->cut.splits,
      .stage = s->stage,
  };
}

static void take_scratch(const attention_job *j, int32_t thread, cpu_attention *a) {
  const ops_kv_shape *s = &j->kv->shape;
  const int32_t group = group_heads(j);
  a->scores = j->scratch + (size_t)thread * scratch_floats(s, group);
  a->queries = a->scores + cpu_score_floats(s);
  a->sums = (cpu_softmax *)(a->queries + queries_max(group) * (size_t)s->head_dim);
}

/* The splits that this row's sequence and that of the row before have in common: all, if it is the same one.
 * Rows with windows that have left the first split have none. */
static int32_t shared_before(const attention_job *j, int32_t row) {
  const bool can = j->cut.pieces != 1 && splits_of(j->view, row - 1, 1).first == 0;
  if (j->rows[row].kv == j->rows[row - 1].kv) return INT32_MAX;
  return can && splits_of(j->view, row, 1).first == 0 ? j->rows[row].shared / OPS_SPLIT : 0;
}

/* The rows from `row` on, before `end`, each of which has more than `splits` splits in common with the one
 * before. *common: what all of them have. */
static int32_t sharing_rows(const attention_job *j, int32_t row, int32_t end, int32_t splits,
                            int32_t *common) {
  int32_t next = row + 1;
  *common = INT32_MAX;
  for (int32_t shared; next < end && (shared = shared_before(j, next)) > splits; next++)
    *common = cpu_min(shared, *common);
  return next - row;
}

static void quantize_heads(const attention_job *j, int32_t row, int32_t count, int32_t head) {
  const int32_t columns = group_heads(j) * j->kv->shape.head_dim;
  if (!quantizes_heads(j)) return;
  for (int32_t i = 0; i < count; i++) cpu_quantize_part(j->k, j->y, row + i, head * columns, columns);
}

/* Where a group's last piece is done: its rows, from what all of them came to. */
static void join_group(const attention_job *j, int32_t group, int32_t head) {
  const int32_t begin = group * j->cut.rows_each, end = cpu_min(begin + j->cut.rows_each, j->count);
  for (int32_t row = begin, count, common; row < end; row += count) {
    count = sharing_rows(j, row, end, INT32_MAX - 1, &common);
    const cpu_attention a = attention_of(j, row, count, head);
    j->k->attention_join(&a);
    quantize_heads(j, row, count, head);
  }
}

/* What a thread does of a chunk: some splits of rows [row, row + count). */
typedef struct attention_part {
  int32_t chunk, thread, head;
  int32_t end; /* of the group's rows */
  int32_t row, count, split, split_end;
} attention_part;

static void attend_together(const attention_job *j, const attention_part *p, int32_t split_end) {
  cpu_attention a = attention_of(j, p->row, p->count, p->head);
  take_scratch(j, p->thread, &a);
  point_at_stage(j, p->head, &a);
  point_at_next(j, p->row + p->count, p->end, p->chunk, &a);
  a.split = p->split;
  a.split_end = split_end;
  j->k->attention(&a);
}

/* The splits that sequences have in common for all their rows, and then those that fewer of them have, down
 * to each sequence's own. */
static void attend(const attention_job *j, attention_part p) {
  for (const int32_t end = p.row + p.count; p.row < end; p.row += p.count) {
    int32_t common;
    p.count = sharing_rows(j, p.row, end, p.split, &common);
    attention_part rest = p;
    rest.split = cpu_min(common, p.split_end);
    attend_together(j, &p, rest.split);
    if (rest.split < p.split_end) attend(j, rest);
  }
}

/* Where rows begin that share nothing with those before, the pieces of other splits. */
static void attention_chunk(void *context, int32_t chunk, int32_t thread) {
  const attention_job *j = context;
  const attention_cut *cut = &j->cut;
  const int32_t group = chunk % cut->groups, piece = chunk / cut->groups % cut->pieces,
                head = chunk / cut->groups / cut->pieces;
  const int32_t begin = group * cut->rows_each, end = cpu_min(begin + cut->rows_each, j->count);
  for (int32_t row = begin, count, common; row < end; row += count) {
    count = sharing_rows(j, row, end, 0, &common);
    const ops_span splits = splits_of(j->view, row, count);
    attend(j, (attention_part){chunk, thread, head, end, row, count, piece_at(splits, piece, cut->pieces),
                               piece_at(splits, piece + 1, cut->pieces)});
    if (cut->pieces == 1) quantize_heads(j, row, count, head);
  }
  if (cut->pieces == 1) return;
  _Atomic int32_t *left = &j->left[head * cut->groups + group];
  if (atomic_fetch_sub_explicit(left, 1, memory_order_acq_rel) == 1) join_group(j, group, head);
}

/* Of rows that stand side by side and share splits, at most: how many there are, and their splits. */
static int32_t longest_run(const attention_job *j, int32_t *splits, bool *several) {
  int32_t most = 0;
  *splits = 1;
  for (int32_t row = 0, count, common; row < j->count; row += count) {
    count = sharing_rows(j, row, j->count, 0, &common);
    const ops_span all = splits_of(j->view, row, count);
    most = count > most ? count : most;
    *several |= common < INT32_MAX;
    *splits = all.end - all.first > *splits ? all.end - all.first : *splits;
  }
  return most;
}

/* The fewest pieces with which so many chunks keep the threads busy, up to one for each split. */
static int32_t pieces_for(int32_t chunks, int32_t threads, int32_t splits) {
  int32_t pieces = 1;
  for (; pieces < splits; pieces++) {
    const int32_t all = chunks * pieces, turns = (all + threads - 1) / threads;
    if (all >= threads * PIECES_A_THREAD && all >= BUSY_SHARE * turns * threads) break;
  }
  return pieces;
}

/* As many rows go through shared keys together as a kernel takes, fewer where threads would go idle. Several
 * sequences leave their splits in at least two pieces. */
static attention_cut cut_for(const attention_job *j, int32_t threads) {
  const ops_kv_shape *s = &j->kv->shape;
  attention_cut c = {0};
  bool several = false;
  c.rows_each = longest_run(j, &c.splits, &several);
  const int32_t most = CPU_QUERIES_MAX / group_heads(j);
  const size_t bytes = (size_t)j->count * (size_t)(j->heads * s->head_dim) * (size_t)c.splits * sizeof(float);
  const int32_t pieces_max = bytes > SPLITS_BYTES_MAX ? 1 : c.splits;
  c.rows_each = cpu_min(c.rows_each, most > 1 ? most : 1);
  for (;; c.rows_each--) {
    c.groups = (j->count + c.rows_each - 1) / c.rows_each;
    if (c.rows_each == 1 || c.groups * s->kv_heads * pieces_max >= threads * CHUNKS_A_THREAD) break;
  }
  c.rows_each = (j->count + c.groups - 1) / c.groups; /* groups of nearly equal size */
  c.groups = (j->count + c.rows_each - 1) / c.rows_each;
  c.pieces = pieces_for(c.groups * s->kv_heads, threads, pieces_max);
  if (several && c.pieces == 1) c.pieces = cpu_min(2, pieces_max);
  return c;
}

/* Memory for what pieces leave. If there is none, a group's splits are one piece. */
static void take_splits(cpu_device *c, attention_job *j) {
  const ops_kv_shape *s = &j->kv->shape;
  const int32_t counters = s->kv_heads * j->cut.groups;
  const size_t parts = (size_t)j->count * (size_t)j->heads * (size_t)j->cut.splits;
  if (j->cut.pieces == 1) return;
  const size_t values = parts * (size_t)s->head_dim * sizeof(float), sums = parts * sizeof(cpu_softmax);
  const mem_tag tag = c->batch.staged ? MEM_SPECULATION : MEM_ACTIVATIONS;
  if (!cpu_buffer_grow(c, &c->splits, tag, values + sums + (size_t)counters * sizeof *j->left)) {
    j->cut.pieces = 1;
    return;
  }
  j->split_values = c->splits.data;
  j->split_sums = (cpu_softmax *)(j->split_values + parts * (size_t)s->head_dim);
  j->left = (_Atomic int32_t *)(j->split_sums + parts);
  for (int32_t i = 0; i < counters; i++) atomic_init(&j->left[i], j->cut.pieces);
}

void cpu_attention_op(device *d, int32_t layer, int32_t view, const device_act *q, device_act *y) {
  cpu_device *c = cpu_of(d);
  const ops_kv_shape *s = &c->kv->shape;
  const int32_t count = c->batch.row_count, heads = q->columns / s->head_dim;
  assert(c->running && layer < s->layers && view < c->batch.view_count && y->columns == q->columns);
  assert(heads % s->kv_heads == 0 && q->rows >= count && y->rows >= count);
  const size_t scratch = scratch_floats(s, heads / s->kv_heads) * (size_t)d->threads;
  if (!cpu_op_grow(c, &c->scores, scratch * sizeof(float))) return;
  cpu_late_settle(c->kv, layer);
  attention_job j = {
      .k = c->kernels,
      .kv = c->kv,
      .layer = layer,
      .heads = heads,
      .count = count,
      .rows = c->batch.rows,
      .view = &c->batch.views[view],
      .q = q->f32,
      .y = y,
      .scratch = c->scores.data,
  };
  j.cut = cut_for(&j, d->threads);
  take_splits(c, &j);
  thread_pool_run(c->pool, j.cut.groups * s->kv_heads * j.cut.pieces, attention_chunk, &j);
  if (!quantizes_heads(&j)) cpu_quantize_rows(c, y, count);
}
