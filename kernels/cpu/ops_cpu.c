/* ops_cpu.c - the op table of the CPU: cuts each op into chunks for the pool and calls the kernels. */
#include "kernels/cpu/sample.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/thread_pool.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define LINEAR_CHUNKS_A_THREAD                                                                               \
  2 /* of one op: a late thread costs half its share; more pieces cost more starts */
#define ATTENTION_CHUNKS_A_THREAD 2
#define SMALL_WORK                10000 /* elements: below, waking a thread costs more than it saves */
#define VARIANT_MAX               48
#define COMMIT_LINE               64 /* bytes that are fetched at once */

typedef struct ops_cpu {
  ops base;
  const cpu_kernels *kernels;
  thread_pool *pool;
  cpu_winner *winners;                             /* [threads][SAMPLE_ROWS] */
  char variants[CPU_ROWS_MAX + 1][2][VARIANT_MAX]; /* [rows of the last tile][the others have one more] */
} ops_cpu;

static ops_cpu *cpu_of(ops *o) {
  return (ops_cpu *)o;
}

static int32_t min_i32(int32_t a, int32_t b) {
  return a < b ? a : b;
}

/* Runs body over [0, rows), by several threads when the work is worth it. */
static void run_rows(ops_cpu *c, int32_t rows, int64_t elements, thread_pool_body *body, void *context) {
  if (elements < SMALL_WORK) {
    for (int32_t i = 0; i < rows; i++) body(context, i, 0);
  } else {
    thread_pool_run(c->pool, rows, body, context);
  }
}

/* --- embed, norm: one row a chunk; who writes activations writes their int8 form --- */

typedef struct embed_job {
  const ops_row *rows;
  const ops_weight *w;
  float *x;
} embed_job;

static void embed_row(void *context, int32_t i, int32_t thread) {
  (void)thread;
  const embed_job *j = context;
  cpu_unpack_row(j->w, j->rows[i].token, j->x + (size_t)i * (size_t)j->w->columns);
}

static void op_embed(ops *o, const ops_row *rows, int32_t count, const ops_weight *w, float *x) {
  embed_job j = {rows, w, x};
  o->counters.forwards++;
  o->counters.rows += (uint64_t)count;
  run_rows(cpu_of(o), count, (int64_t)count * w->columns, embed_row, &j);
}

/* The int8 form of inputs [first, first + count) of a row, whole blocks. */
static void quantize_part(const cpu_kernels *k, ops_act *x, int32_t row, int32_t first, int32_t count) {
  if (!x->q8) return;
  size_t at = (size_t)row * (size_t)x->columns + (size_t)first, block = at / OPS_BLOCK;
  k->quantize(x->q8 + at, x->scale + block, x->sum + block, x->total + block, x->f32 + at, count);
}

typedef struct norm_job {
  const cpu_kernels *k;
  const float *x, *w;
  const int32_t *index;
  float eps;
  ops_act *y;
} norm_job;

static void norm_row(void *context, int32_t i, int32_t thread) {
  (void)thread;
  const norm_job *j = context;
  size_t n = (size_t)j->y->columns, from = (size_t)(j->index ? j->index[i] : i);
  j->k->norm(j->y->f32 + (size_t)i * n, j->x + from * n, j->w, j->y->columns, j->eps);
  quantize_part(j->k, j->y, i, 0, j->y->columns);
}

static void op_norm(ops *o, const float *x, const int32_t *index, int32_t count, const float *w, float eps,
                    ops_act *y) {
  norm_job j = {cpu_of(o)->kernels, x, w, index, eps, y};
  run_rows(cpu_of(o), count, (int64_t)count * y->columns, norm_row, &j);
}

typedef struct act_job {
  const cpu_kernels *k;
  ops_act *x;
} act_job;

static void quantize_row(void *context, int32_t i, int32_t thread) {
  (void)thread;
  const act_job *j = context;
  quantize_part(j->k, j->x, i, 0, j->x->columns);
}

/* For an op whose chunks do not write whole blocks. */
static void quantize_rows(ops *o, ops_act *x, int32_t count) {
  if (!x->q8) return;
  act_job j = {.k = cpu_of(o)->kernels, .x = x};
  run_rows(cpu_of(o), count, (int64_t)count * x->columns, quantize_row, &j);
}

/* --- linear: a chunk is a run of groups over all matrices of the op --- */

typedef struct linear_job {
  const cpu_kernels *k;
  const ops_linear *jobs;
  const ops_act *x;
  int32_t count, groups, chunks; /* groups: of all jobs, in order */
} linear_job;

static int32_t group_count(const ops_weight *w) {
  return (w->rows + OPS_GROUP - 1) / OPS_GROUP;
}

static cpu_linear *linear_kernel(const cpu_kernels *k, const ops_act *x, ops_type type) {
  cpu_linear *quantised = x->q8 ? k->linear_int8[type] : NULL;
  return quantised ? quantised : k->linear_f32[type];
}

/* Inlined, so that the copy of a full group, whose width is a constant, is a few instructions. */
static inline void put_row(float *y, const float *out, int32_t width, bool add) {
  if (!add) {
    memcpy(y, out, (size_t)width * sizeof *y);
    return;
  }
  for (int32_t r = 0; r < width; r++) y[r] += out[r];
}

static void put_outputs(const ops_linear *l, int32_t group, int32_t row, int32_t rows, const float *out) {
  int32_t width = min_i32(OPS_GROUP, l->w->rows - group * OPS_GROUP);
  float *y = l->y + (size_t)row * (size_t)l->w->rows + (size_t)group * OPS_GROUP;
  for (int32_t t = 0; t < rows; t++, out += OPS_GROUP, y += l->w->rows) {
    if (width == OPS_GROUP)
      put_row(y, out, OPS_GROUP, l->add);
    else
      put_row(y, out, width, l->add);
    if (l->bias) put_row(y, l->bias + (size_t)group * OPS_GROUP, width, true);
  }
}

/* Rows are cut into as few tiles as the kernel allows, of nearly equal size, the larger ones first. */
static int32_t tile_count(const cpu_kernels *k, int32_t rows) {
  return (rows + k->rows_max - 1) / k->rows_max;
}

static int32_t tile_begin(int32_t rows, int32_t tiles, int32_t i) {
  return rows / tiles * i + min_i32(i, rows % tiles);
}

static void linear_group(const linear_job *j, const ops_linear *l, int32_t group) {
  const uint8_t *data =
      (const uint8_t *)l->w->data + (size_t)group * cpu_group_bytes(l->w->type, l->w->columns);
  cpu_linear *kernel = linear_kernel(j->k, j->x, l->w->type);
  _Alignas(64) float out[CPU_ROWS_MAX * OPS_GROUP];
  int32_t tiles = tile_count(j->k, j->count);
  for (int32_t i = 0; i < tiles; i++) {
    int32_t row = tile_begin(j->count, tiles, i), rows = tile_begin(j->count, tiles, i + 1) - row;
    kernel(data, j->x, row, rows, cpu_parts(l->w), out);
    put_outputs(l, group, row, rows, out);
  }
}

static void linear_chunk(void *context, int32_t chunk, int32_t thread) {
  (void)thread;
  const linear_job *j = context;
  int32_t g = (int32_t)((int64_t)chunk * j->groups / j->chunks);
  int32_t end = (int32_t)((int64_t)(chunk + 1) * j->groups / j->chunks);
  const ops_linear *l = j->jobs;
  int32_t first = 0; /* of l, among all groups */
  for (; g < end; g++) {
    while (g - first >= group_count(l->w)) first += group_count(l++->w);
    linear_group(j, l, g - first);
  }
}

static void op_linear(ops *o, const ops_linear *jobs, int32_t job_count, const ops_act *x, int32_t count) {
  linear_job j = {.k = cpu_of(o)->kernels, .jobs = jobs, .x = x, .count = count};
  for (int32_t i = 0; i < job_count; i++) {
    assert(jobs[i].w->columns == x->columns);
    j.groups += group_count(jobs[i].w);
  }
  j.chunks = o->threads == 1 ? 1 : min_i32(j.groups, o->threads * LINEAR_CHUNKS_A_THREAD);
  thread_pool_run(cpu_of(o)->pool, j.chunks, linear_chunk, &j);
}

/* --- what uses outputs while they are in the nearest cache: a panel, [group][row][OPS_GROUP] --- */

#define PANEL_FLOATS (8 * CPU_ROWS_MAX * OPS_GROUP)

/* Outputs of groups [g, end) for rows [row, row + rows) of x. */
static void fill_panel(const cpu_kernels *k, const ops_weight *w, const ops_act *x, int32_t g, int32_t end,
                       int32_t row, int32_t rows, float *panel) {
  cpu_linear *kernel = linear_kernel(k, x, w->type);
  size_t bytes = cpu_group_bytes(w->type, w->columns);
  const uint8_t *data = (const uint8_t *)w->data + (size_t)g * bytes;
  for (; g < end; g++, data += bytes, panel += rows * OPS_GROUP)
    kernel(data, x, row, rows, cpu_parts(w), panel);
}

/* --- linear_swiglu --- */

#define GATED_GROUPS 2 /* of a block of OPS_BLOCK outputs, which one chunk makes */

typedef struct gated_job {
  const cpu_kernels *k;
  const ops_weight *gate, *up;
  const ops_act *x;
  ops_act *y;
  int32_t count, chunks;
} gated_job;

static void gated_panel(const gated_job *j, int32_t g, int32_t end, int32_t row, int32_t rows) {
  _Alignas(64) float gate[PANEL_FLOATS], up[PANEL_FLOATS];
  fill_panel(j->k, j->gate, j->x, g, end, row, rows, gate);
  fill_panel(j->k, j->up, j->x, g, end, row, rows, up);
  j->k->swiglu(gate, gate, up, (end - g) * rows * OPS_GROUP);
  ops_linear whole = {.w = j->gate, .y = j->y->f32};
  for (int32_t i = g; i < end; i++) put_outputs(&whole, i, row, rows, gate + (i - g) * rows * OPS_GROUP);
  int32_t first = g * OPS_GROUP, n = min_i32(end * OPS_GROUP, j->y->columns) - first;
  for (int32_t t = 0; t < rows; t++) quantize_part(j->k, j->y, row + t, first, n);
}

static void gated_chunk(void *context, int32_t chunk, int32_t thread) {
  (void)thread;
  const gated_job *j = context;
  int32_t groups = group_count(j->gate), blocks = (groups + GATED_GROUPS - 1) / GATED_GROUPS;
  int32_t tiles = tile_count(j->k, j->count);
  int32_t g = (int32_t)((int64_t)chunk * blocks / j->chunks) * GATED_GROUPS;
  int32_t end = min_i32((int32_t)((int64_t)(chunk + 1) * blocks / j->chunks) * GATED_GROUPS, groups);
  int32_t step =
      PANEL_FLOATS / (tile_begin(j->count, tiles, 1) * OPS_GROUP); /* the first tile is the largest */
  step -= step % GATED_GROUPS;
  for (; g < end; g += step) {
    for (int32_t i = 0; i < tiles; i++) {
      int32_t row = tile_begin(j->count, tiles, i);
      gated_panel(j, g, min_i32(g + step, end), row, tile_begin(j->count, tiles, i + 1) - row);
    }
  }
}

static void op_linear_swiglu(ops *o, const ops_weight *gate, const ops_weight *up, const ops_act *x,
                             int32_t count, ops_act *y) {
  assert(gate->columns == x->columns && up->columns == x->columns);
  assert(gate->rows == y->columns && up->rows == y->columns);
  gated_job j = {cpu_of(o)->kernels, gate, up, x, y, count, 1};
  int32_t blocks = (group_count(gate) + GATED_GROUPS - 1) / GATED_GROUPS;
  if (o->threads > 1) j.chunks = min_i32(blocks, o->threads * LINEAR_CHUNKS_A_THREAD);
  thread_pool_run(cpu_of(o)->pool, j.chunks, gated_chunk, &j);
}

/* --- choose: a panel's outputs meet each row's winner --- */

#define SAMPLE_ROWS 128 /* rows whose winners a thread has room for */

typedef struct sample_job {
  const cpu_kernels *k;
  const ops_weight *w;
  const ops_act *x;
  const ops_sampling *choices; /* of rows [first, first + count) */
  int32_t first, count, chunks;
  cpu_winner *winners; /* [threads][SAMPLE_ROWS] */
} sample_job;

/* Rows [row, row + rows) of x meet the outputs of groups [g, end); winners: of these rows. */
static void sample_panel(const sample_job *j, int32_t g, int32_t end, int32_t row, int32_t rows,
                         cpu_winner *winners) {
  _Alignas(64) float panel[PANEL_FLOATS];
  int32_t stride = rows * OPS_GROUP, first = g * OPS_GROUP, n = min_i32(end * OPS_GROUP, j->w->rows) - first;
  fill_panel(j->k, j->w, j->x, g, end, j->first + row, rows, panel);
  for (int32_t t = 0; t < rows; t++)
    j->k->sample(panel + t * OPS_GROUP, stride, first, n, &j->choices[row + t], &winners[row + t]);
}

/* A thread keeps its winners over its chunks: the better they are, the less noise is made. */
static void sample_chunk(void *context, int32_t chunk, int32_t thread) {
  const sample_job *j = context;
  int32_t groups = group_count(j->w), tiles = tile_count(j->k, j->count);
  int32_t g = (int32_t)((int64_t)chunk * groups / j->chunks);
  int32_t end = (int32_t)((int64_t)(chunk + 1) * groups / j->chunks);
  int32_t step =
      PANEL_FLOATS / (tile_begin(j->count, tiles, 1) * OPS_GROUP); /* the first tile is the largest */
  for (; g < end; g += step) {
    for (int32_t i = 0; i < tiles; i++) {
      int32_t row = tile_begin(j->count, tiles, i), rows = tile_begin(j->count, tiles, i + 1) - row;
      sample_panel(j, g, min_i32(g + step, end), row, rows, j->winners + (size_t)thread * SAMPLE_ROWS);
    }
  }
}

/* Which thread found what does not show: the best of all is one. */
static int32_t sample_best(const ops_cpu *c, int32_t row) {
  cpu_winner best = CPU_NOBODY;
  for (int32_t t = 0; t < c->base.threads; t++) {
    const cpu_winner *w = &c->winners[t * SAMPLE_ROWS + row];
    cpu_winner_meet(&best, w->value, w->id);
  }
  return best.id == CPU_NOBODY.id ? 0 : best.id;
}

static void sample_rows(ops_cpu *c, sample_job *j, int32_t *ids) {
  for (int32_t t = 0; t < c->base.threads; t++)
    for (int32_t i = 0; i < j->count; i++) c->winners[t * SAMPLE_ROWS + i] = CPU_NOBODY;
  thread_pool_run(c->pool, j->chunks, sample_chunk, j);
  for (int32_t i = 0; i < j->count; i++) ids[i] = sample_best(c, i);
}

static void op_sample(ops *o, const ops_weight *w, const ops_act *x, int32_t count,
                      const ops_sampling *choices, int32_t *ids) {
  assert(w->columns == x->columns);
  for (int32_t i = 0; i < count; i++) assert(choices[i].scale >= 0);
  ops_cpu *c = cpu_of(o);
  int32_t chunks = o->threads == 1 ? 1 : min_i32(group_count(w), o->threads * LINEAR_CHUNKS_A_THREAD);
  for (int32_t first = 0; first < count; first += SAMPLE_ROWS) {
    sample_job j = {.k = c->kernels,
                    .w = w,
                    .x = x,
                    .choices = choices + first,
                    .first = first,
                    .count = min_i32(SAMPLE_ROWS, count - first),
                    .chunks = chunks,
                    .winners = c->winners};
    sample_rows(c, &j, ids + first);
  }
}

/* --- the cache --- */

static size_t element_bytes(ops_kv_type type) {
  return type == OPS_KV_F16 ? 2 : 4;
}

static int32_t committed_rows(const ops_kv_shape *s) {
  return s->blocks * OPS_TILE;
}

/* Where rows of (layer, kv head) begin in an area of `rows` rows a head. */
static void *area_at(const ops_kv_shape *s, const void *area, int32_t rows, int32_t layer, int32_t head) {
  size_t heads = (size_t)layer * (size_t)s->kv_heads + (size_t)head;
  return (uint8_t *)(uintptr_t)area + heads * (size_t)rows * (size_t)s->head_dim * element_bytes(s->type);
}

static void *element_at(const ops_kv_shape *s, void *p, size_t i) {
  return (uint8_t *)p + i * element_bytes(s->type);
}

/* Index in a head's keys of component 0 of the key in `slot`; components lie OPS_TILE apart. */
static size_t key_index(const ops_kv_shape *s, size_t slot) {
  return slot / OPS_TILE * (size_t)s->head_dim * OPS_TILE + slot % OPS_TILE;
}

static void commit_late(ops_cpu *c, const ops_kv_shape *s, int32_t layer, const ops_row *rows, int32_t count);

typedef struct store_job {
  const cpu_kernels *k;
  const ops_kv_shape *s;
  int32_t layer, heads;
  const ops_row *rows;
  const ops_rotary *rotary;
  const float *keys, *values;
  float *q;
} store_job;

/* A head of row i, in place. */
static void rotate(const store_job *j, int32_t i, const float *norm, float *x) {
  const ops_rotary *r = j->rotary;
  const float *cosine = r->table + (size_t)i * 2 * (size_t)r->dim;
  if (norm) j->k->norm(x, x, norm, j->s->head_dim, r->eps);
  j->k->rope(x, x, cosine, cosine + r->dim, r->dim);
}

static void store_head(const store_job *j, int32_t i, int32_t head, const float *key, const float *value) {
  const ops_kv_shape *s = j->s;
  const ops_row *r = &j->rows[i];
  bool staged = r->path_count > 0;
  int32_t area = staged ? s->stage : committed_rows(s);
  void *keys = area_at(s, staged ? r->kv->stage_keys : r->kv->keys, area, j->layer, head);
  void *values = area_at(s, staged ? r->kv->stage_values : r->kv->values, area, j->layer, head);
  size_t row = staged ? (size_t)r->path[r->path_count - 1] : cpu_row_at(r->kv, r->position);
  size_t at = row * (size_t)s->head_dim;
  j->k->store(s->type, element_at(s, keys, key_index(s, row)), OPS_TILE, key, s->head_dim);
  j->k->store(s->type, element_at(s, values, at), 1, value, s->head_dim);
}

static void store_row(void *context, int32_t i, int32_t thread) {
  (void)thread;
  const store_job *j = context;
  const ops_kv_shape *s = j->s;
  size_t dim = (size_t)s->head_dim;
  float key[OPS_HEAD_DIM_MAX];
  for (int32_t h = 0; h < j->heads; h++) {
    float *q = j->q + ((size_t)i * (size_t)j->heads + (size_t)h) * dim;
    rotate(j, i, j->rotary->q_norm, q);
  }
  for (int32_t h = 0; h < s->kv_heads; h++) {
    size_t at = ((size_t)i * (size_t)s->kv_heads + (size_t)h) * dim;
    memcpy(key, j->keys + at, dim * sizeof *key);
    rotate(j, i, j->rotary->k_norm, key);
    store_head(j, i, h, key, j->values + at);
  }
}

static void op_rope_store(ops *o, const ops_kv_shape *s, int32_t layer, const ops_row *rows, int32_t count,
                          int32_t heads, const ops_rotary *rotary, float *q, const float *k, const float *v) {
  store_job j = {cpu_of(o)->kernels, s, layer, heads, rows, rotary, k, v, q};
  for (int32_t i = 0; i < count; i++) o->counters.staged_writes += rows[i].path_count > 0;
  commit_late(cpu_of(o), s, layer, rows, count);
  run_rows(cpu_of(o), count, (int64_t)count * (heads + 2 * s->kv_heads) * s->head_dim, store_row, &j);
}

typedef struct attention_job {
  const cpu_kernels *k;
  const ops_kv_shape *s;
  int32_t layer, heads, stride, window;
  int32_t rows_each, count, threads; /* rows of a chunk, of all */
  const ops_row *rows;
  const float *q;
  ops_act *y;
  float *scratch; /* [threads][queries_max][stride] */
} attention_job;

/* Query heads that a kernel call may be given. */
static int32_t queries_max(int32_t group) {
  return group > CPU_QUERIES_MAX ? group : CPU_QUERIES_MAX;
}

/* Blocks do not cross from the heads of one chunk to those of another. */
static bool quantizes_heads(const attention_job *j) {
  return j->heads / j->s->kv_heads * j->s->head_dim % OPS_BLOCK == 0;
}

/* Where the thread goes on: at the next sequence of its chunk, or at a chunk further on. */
static const ops_kv *what_follows(const attention_job *j, int32_t row, int32_t end, int32_t *head) {
  if (row < end) return j->rows[row].kv;
  int32_t chunk = (end - 1) / j->rows_each * j->s->kv_heads + *head + j->threads;
  *head = chunk % j->s->kv_heads;
  row = chunk / j->s->kv_heads * j->rows_each;
  return row < j->count ? j->rows[row].kv : NULL;
}

/* What each of `count` rows sees with the window: one span. */
static void see(const attention_job *j, int32_t row, int32_t count, ops_span *spans, int32_t *first) {
  for (int32_t i = 0; i < count; i++) {
    int32_t end = j->rows[row + i].length + j->rows[row + i].path_count;
    spans[i] = (ops_span){j->window > 0 && end > j->window ? end - j->window : 0, end};
    first[i + 1] = i + 1;
  }
}

/* Rows [row, row + count), of one sequence, of a chunk that ends before `end`. */
static void attend_rows(const attention_job *j, int32_t row, int32_t count, int32_t end, int32_t head,
                        int32_t thread) {
  const ops_kv_shape *s = j->s;
  int32_t group = j->heads / s->kv_heads;
  size_t row_floats = (size_t)j->heads * (size_t)s->head_dim;
  size_t at = (size_t)row * row_floats + (size_t)(head * group) * (size_t)s->head_dim;
  const ops_kv *kv = j->rows[row].kv;
  ops_span spans[CPU_QUERIES_MAX];
  int32_t first_span[CPU_QUERIES_MAX + 1] = {0};
  see(j, row, count, spans, first_span);
  cpu_attention a = {
      .type = s->type,
      .head_dim = s->head_dim,
      .heads = group,
      .rows = count,
      .row = j->rows + row,
      .keys = area_at(s, kv->keys, committed_rows(s), j->layer, head),
      .values = area_at(s, kv->values, committed_rows(s), j->layer, head),
      .q = j->q + at,
      .y = j->y->f32 + at,
      .row_floats = row_floats,
      .scale = 1.0f / sqrtf((float)s->head_dim),
      .scores = j->scratch + (size_t)thread * (size_t)queries_max(group) * (size_t)j->stride,
      .stride = j->stride,
      .stage = s->stage,
      .spans = spans,
      .first_span = first_span,
  };
  if (kv->stage_keys) {
    a.stage_keys = area_at(s, kv->stage_keys, s->stage, j->layer, head);
    a.stage_values = area_at(s, kv->stage_values, s->stage, j->layer, head);
  }
  int32_t next_head = head;
  const ops_kv *next = what_follows(j, row + count, end, &next_head);
  if (next && (next != kv || next_head != head)) {
    a.next_keys = area_at(s, next->keys, committed_rows(s), j->layer, next_head);
    a.next_values = area_at(s, next->values, committed_rows(s), j->layer, next_head);
    a.next = next;
  }
  j->k->attention(&a);
  if (!quantizes_heads(j)) return;
  for (int32_t i = 0; i < count; i++)
    quantize_part(j->k, j->y, row + i, head * group * s->head_dim, group * s->head_dim);
}

/* A few rows and one key-value head; where another sequence begins, another call. */
static void attention_chunk(void *context, int32_t chunk, int32_t thread) {
  const attention_job *j = context;
  int32_t head = chunk % j->s->kv_heads, row = chunk / j->s->kv_heads * j->rows_each;
  int32_t end = min_i32(row + j->rows_each, j->count);
  for (int32_t next = row; row < end; row = next) {
    while (next < end && j->rows[next].kv == j->rows[row].kv) next++;
    attend_rows(j, row, next - row, end, head, thread);
  }
}

/* Rows that go through the keys together: as many as the kernels take, fewer where threads would go idle. */
static int32_t rows_together(const ops_kv_shape *s, int32_t count, int32_t heads, int32_t threads) {
  int32_t rows = CPU_QUERIES_MAX / (heads / s->kv_heads);
  while (rows > 1 && (count + rows - 1) / rows * s->kv_heads < threads * ATTENTION_CHUNKS_A_THREAD) rows--;
  return rows > 1 ? rows : 1;
}

static void op_attention(ops *o, const ops_kv_shape *s, int32_t layer, const ops_row *rows, int32_t count,
                         int32_t heads, int32_t window, const float *q, ops_act *y, float *scratch) {
  attention_job j = {
      .k = cpu_of(o)->kernels,
      .s = s,
      .layer = layer,
      .heads = heads,
      .stride = cpu_score_stride(s),
      .window = window,
      .rows_each = rows_together(s, count, heads, o->threads),
      .count = count,
      .threads = o->threads,
      .rows = rows,
      .q = q,
      .y = y,
      .scratch = scratch,
  };
  int32_t groups = (count + j.rows_each - 1) / j.rows_each;
  thread_pool_run(cpu_of(o)->pool, groups * s->kv_heads, attention_chunk, &j);
  if (!quantizes_heads(&j)) quantize_rows(o, y, count);
}

static size_t op_attention_floats(const ops *o, const ops_kv_shape *s, int32_t heads) {
  return (size_t)o->threads * (size_t)queries_max(heads / s->kv_heads) * (size_t)cpu_score_stride(s);
}

typedef struct commit_job {
  const ops_kv_shape *s;
  const ops_kv *kv;
  const int32_t *path;
  int32_t count, length;
} commit_job;

/* Component d of `count` keys that will lie side by side in a tile: its cache lines are touched once. */
static void commit_component(ops_kv_type type, void *to, const void *const *from, int32_t count, size_t d) {
  for (int32_t i = 0; i < count; i++) {
    if (type == OPS_KV_F16)
      ((uint16_t *)to)[d * OPS_TILE + (size_t)i] = ((const uint16_t *)from[i])[d * OPS_TILE];
    else
      ((float *)to)[d * OPS_TILE + (size_t)i] = ((const float *)from[i])[d * OPS_TILE];
  }
}

static void commit_keys(const commit_job *j, void *keys, void *stage_keys) {
  const ops_kv_shape *s = j->s;
  const void *from[OPS_TILE];
  for (int32_t i = 0, run; i < j->count; i += run) {
    int32_t to = j->length + i;
    run = min_i32(j->count - i, OPS_TILE - to % OPS_TILE);
    for (int32_t k = 0; k < run; k++)
      from[k] = element_at(s, stage_keys, key_index(s, (size_t)j->path[i + k]));
    void *tile = element_at(s, keys, key_index(s, cpu_row_at(j->kv, to)));
    for (size_t d = 0; d < (size_t)s->head_dim; d++) commit_component(s->type, tile, from, run, d);
  }
}

/* The lines of the tiles that are read and written, all of them on their way at once: the weights that a
 * forward reads have pushed them out of the near caches. */
static void commit_fetch(const commit_job *j, int32_t layer, int32_t head) {
  const ops_kv_shape *s = j->s;
  size_t bytes = OPS_TILE * (size_t)s->head_dim * element_bytes(s->type);
  const uint8_t *to = (const uint8_t *)area_at(s, j->kv->keys, committed_rows(s), layer, head) +
                      (size_t)j->kv->map[j->length / OPS_TILE].at * bytes;
  const uint8_t *from = (const uint8_t *)area_at(s, j->kv->stage_keys, s->stage, layer, head) +
                        (size_t)(j->path[0] / OPS_TILE) * bytes;
  for (size_t i = 0; i < bytes; i += COMMIT_LINE) {
    __builtin_prefetch(from + i, 1); /* the next tree's rows go there */
    __builtin_prefetch(to + i, 1);
  }
}

static void commit_head(const commit_job *j, int32_t layer, int32_t head) {
  const ops_kv_shape *s = j->s;
  void *values = area_at(s, j->kv->values, committed_rows(s), layer, head);
  void *stage_values = area_at(s, j->kv->stage_values, s->stage, layer, head);
  size_t dim = (size_t)s->head_dim;
  commit_keys(j, area_at(s, j->kv->keys, committed_rows(s), layer, head),
              area_at(s, j->kv->stage_keys, s->stage, layer, head));
  for (int32_t i = 0; i < j->count; i++)
    memcpy(element_at(s, values, cpu_row_at(j->kv, j->length + i) * dim),
           element_at(s, stage_values, (size_t)j->path[i] * dim), dim * element_bytes(s->type));
}

static void commit_layer(void *context, int32_t layer, int32_t thread) {
  (void)thread;
  const commit_job *j = context;
  for (int32_t head = 0; head < j->s->kv_heads; head++) commit_fetch(j, layer, head);
  for (int32_t head = 0; head < j->s->kv_heads; head++) commit_head(j, layer, head);
}

static void commit_late(ops_cpu *c, const ops_kv_shape *s, int32_t layer, const ops_row *rows,
                        int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    const ops_kv *kv = rows[i].kv;
    if (kv->late == 0 || (i > 0 && kv == rows[i - 1].kv)) continue;
    commit_job j = {s, kv, kv->late_path, kv->late, kv->late_at};
    commit_layer(&j, layer, 0);
    c->base.counters.commit_copies += (uint64_t)kv->late;
  }
}

static void op_commit(ops *o, const ops_kv_shape *s, const ops_kv *kv, const int32_t *path, int32_t count,
                      int32_t length) {
  commit_job j = {s, kv, path, count, length};
  o->counters.commit_copies += (uint64_t)count * (uint64_t)s->layers;
  thread_pool_run(cpu_of(o)->pool, s->layers, commit_layer, &j);
}

/* --- the rest --- */

typedef struct parallel_job {
  void (*body)(void *context, int32_t i);
  void *context;
} parallel_job;

static void parallel_chunk(void *context, int32_t i, int32_t thread) {
  (void)thread;
  const parallel_job *j = context;
  j->body(j->context, i);
}

static void op_parallel(ops *o, int32_t count, void (*body)(void *context, int32_t i), void *context) {
  parallel_job j = {body, context};
  thread_pool_run(cpu_of(o)->pool, count, parallel_chunk, &j);
}

static const char *op_variant(const ops *o, int32_t rows) {
  const ops_cpu *c = (const ops_cpu *)o;
  int32_t tiles = tile_count(c->kernels, rows);
  return c->variants[rows / tiles][rows % tiles != 0];
}

static int op_sync(ops *o) {
  (void)o;
  return 0;
}

static void op_close(ops *o) {
  if (!o) return;
  thread_pool_close(cpu_of(o)->pool);
  free(cpu_of(o)->winners);
  free(o);
}

#define OPS_CPU_TABLE(isa)                                                                                   \
  {                                                                                                          \
    .name = isa, .layout = CPU_LAYOUT, .packed_bytes = cpu_packed_bytes, .pack = cpu_pack,                   \
    .embed = op_embed, .norm = op_norm, .linear = op_linear, .sample = op_sample,                            \
    .rope_store = op_rope_store, .attention = op_attention, .attention_floats = op_attention_floats,         \
    .linear_swiglu = op_linear_swiglu, .commit = op_commit, .parallel = op_parallel, .variant = op_variant,  \
    .sync = op_sync, .close = op_close                                                                       \
  }

static const ops_table tables[OPS_CPU_ISA_COUNT] = {[OPS_CPU_C] = OPS_CPU_TABLE("c"),
                                                    [OPS_CPU_AVX2] = OPS_CPU_TABLE("avx2"),
                                                    [OPS_CPU_AVX_VNNI] = OPS_CPU_TABLE("avx-vnni"),
                                                    [OPS_CPU_AVX512] = OPS_CPU_TABLE("avx512")};

#if defined(__x86_64__)
static const cpu_kernels *const kernels_by_isa[OPS_CPU_ISA_COUNT] = {[OPS_CPU_C] = &cpu_kernels_c,
                                                                     [OPS_CPU_AVX2] = &cpu_kernels_avx2,
                                                                     [OPS_CPU_AVX_VNNI] =
                                                                         &cpu_kernels_avx_vnni,
                                                                     [OPS_CPU_AVX512] = &cpu_kernels_avx512};

/* Not every compiler's __builtin_cpu_supports knows F16C. */
static bool has_f16c(void) {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* Nor AVX-VNNI: leaf 7, subleaf 1. */
static bool has_avx_vnni(void) {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

const char *ops_cpu_lacks(ops_cpu_isa isa) {
  const struct {
    ops_cpu_isa first, last; /* sets that need it */
    const char *name;
    bool has;
  } needs[] = {{OPS_CPU_AVX2, OPS_CPU_AVX512, "avx2", __builtin_cpu_supports("avx2")},
               {OPS_CPU_AVX2, OPS_CPU_AVX512, "fma", __builtin_cpu_supports("fma")},
               {OPS_CPU_AVX2, OPS_CPU_AVX512, "f16c", has_f16c()},
               {OPS_CPU_AVX_VNNI, OPS_CPU_AVX_VNNI, "avx_vnni", has_avx_vnni()},
               {OPS_CPU_AVX512, OPS_CPU_AVX512, "avx512f", __builtin_cpu_supports("avx512f")},
               {OPS_CPU_AVX512, OPS_CPU_AVX512, "avx512bw", __builtin_cpu_supports("avx512bw")},
               {OPS_CPU_AVX512, OPS_CPU_AVX512, "avx512dq", __builtin_cpu_supports("avx512dq")},
               {OPS_CPU_AVX512, OPS_CPU_AVX512, "avx512vl", __builtin_cpu_supports("avx512vl")},
               {OPS_CPU_AVX512, OPS_CPU_AVX512, "avx512_vnni", __builtin_cpu_supports("avx512vnni")}};
  for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
    if (needs[i].first <= isa && isa <= needs[i].last && !needs[i].has) return needs[i].name;
  return NULL;
}
#else
static const cpu_kernels *const kernels_by_isa[OPS_CPU_ISA_COUNT] = {[OPS_CPU_C] = &cpu_kernels_c};

const char *ops_cpu_lacks(ops_cpu_isa isa) {
  return isa == OPS_CPU_C ? NULL : "x86-64";
}
#endif

bool ops_cpu_has(ops_cpu_isa isa) {
  return isa >= OPS_CPU_C && isa < OPS_CPU_ISA_COUNT && !ops_cpu_lacks(isa);
}

/* "avx2 x4", or "avx2 x4 + avx2 x3" where tiles of both sizes are used. */
static void name_variants(ops_cpu *c) {
  const char *name = c->kernels->name;
  for (int32_t rows = 1; rows <= c->kernels->rows_max; rows++) {
    snprintf(c->variants[rows][0], VARIANT_MAX, "%s x%d", name, rows);
    snprintf(c->variants[rows][1], VARIANT_MAX, "%s x%d + %s x%d", name, rows + 1, name, rows);
  }
}

ops *ops_cpu_open(ops_cpu_isa isa, int32_t threads) {
  if (!ops_cpu_has(isa) || threads < 1 || threads > OPS_THREADS_MAX) return NULL;
  ops_cpu *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->base = (ops){.table = &tables[isa], .threads = threads};
  c->kernels = kernels_by_isa[isa];
  c->pool = thread_pool_open(threads);
  c->winners = aligned_alloc(64, (size_t)threads * SAMPLE_ROWS * sizeof *c->winners);
  if (!c->pool || !c->winners) {
    op_close(&c->base);
    return NULL;
  }
  name_variants(c);
  return &c->base;
}

bool ops_cpu_pin(ops *o, const int32_t *cpus, int32_t count) {
  return thread_pool_pin(cpu_of(o)->pool, cpus, count);
}
