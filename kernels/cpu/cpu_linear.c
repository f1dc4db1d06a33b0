/* cpu_linear.c - ops linear and linear_swiglu. */
#include "kernels/cpu/device_cpu.h"

#include <assert.h>
#include <string.h>

#define JOBS_MAX 8 /* matrices of one op */

/* --- linear: a chunk is a run of groups over all matrices of the op --- */

typedef struct part { /* of a job */
  cpu_weight w;
  float *y; /* [rows][w.rows] */
  bool add;
  const float *bias;
} part;

typedef struct linear_job {
  const cpu_kernels *k;
  const part *parts;
  const cpu_act *x;
  int32_t rows, groups, chunks; /* groups: of all parts, in order */
} linear_job;

int32_t cpu_group_count(const cpu_weight *w) {
  return (w->rows + OPS_GROUP - 1) / OPS_GROUP;
}

static cpu_linear *linear_kernel(const cpu_kernels *k, const cpu_act *x, ops_type type) {
  if (x->bf16 && type == OPS_BF16) return k->linear_step;
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

static void put_outputs(const part *l, int32_t group, int32_t row, int32_t rows, const float *out) {
  int32_t width = cpu_min(OPS_GROUP, l->w.rows - group * OPS_GROUP);
  float *y = l->y + (size_t)row * (size_t)l->w.rows + (size_t)group * OPS_GROUP;
  for (int32_t t = 0; t < rows; t++, out += OPS_GROUP, y += l->w.rows) {
    if (width == OPS_GROUP)
      put_row(y, out, OPS_GROUP, l->add);
    else
      put_row(y, out, width, l->add);
    if (l->bias) put_row(y, l->bias + (size_t)group * OPS_GROUP, width, true);
  }
}

int32_t cpu_tile_count(const cpu_kernels *k, int32_t rows) {
  return (rows + k->rows_max - 1) / k->rows_max;
}

int32_t cpu_tile_begin(int32_t rows, int32_t tiles, int32_t i) {
  return rows / tiles * i + cpu_min(i, rows % tiles);
}

static void linear_group(const linear_job *j, const part *l, int32_t group) {
  const uint8_t *data = (const uint8_t *)l->w.data + (size_t)group * cpu_group_bytes(l->w.type, l->w.columns);
  cpu_linear *kernel = linear_kernel(j->k, j->x, l->w.type);
  _Alignas(64) float out[CPU_ROWS_MAX * OPS_GROUP];
  int32_t tiles = cpu_tile_count(j->k, j->rows);
  for (int32_t i = 0; i < tiles; i++) {
    int32_t row = cpu_tile_begin(j->rows, tiles, i), rows = cpu_tile_begin(j->rows, tiles, i + 1) - row;
    kernel(data, j->x, row, rows, cpu_parts(&l->w), out);
    put_outputs(l, group, row, rows, out);
  }
}

static void linear_chunk(void *context, int32_t chunk, int32_t thread) {
  (void)thread;
  const linear_job *j = context;
  int32_t g = (int32_t)((int64_t)chunk * j->groups / j->chunks);
  int32_t end = (int32_t)((int64_t)(chunk + 1) * j->groups / j->chunks);
  const part *l = j->parts;
  int32_t first = 0; /* of l, among all groups */
  for (; g < end; g++) {
    while (g - first >= cpu_group_count(&l->w)) first += cpu_group_count(&l++->w);
    linear_group(j, l, g - first);
  }
}

static void run_linear(cpu_device *c, const part *parts, int32_t count, const cpu_act *x, int32_t rows) {
  linear_job j = {.k = c->kernels, .parts = parts, .x = x, .rows = rows};
  for (int32_t i = 0; i < count; i++) {
    assert(parts[i].w.columns == x->columns);
    j.groups += cpu_group_count(&parts[i].w);
  }
  j.chunks = c->base.threads == 1 ? 1 : cpu_min(j.groups, c->base.threads * CPU_CHUNKS);
  thread_pool_run(c->pool, j.chunks, linear_chunk, &j);
}

void cpu_linear_into(cpu_device *c, const cpu_weight *w, const cpu_act *x, int32_t rows, float *y) {
  run_linear(c, &(part){.w = *w, .y = y}, 1, x, rows);
}

void cpu_linear_op(device *d, const device_linear *jobs, int32_t count, const device_act *x) {
  cpu_device *c = cpu_of(d);
  int32_t rows = c->batch.row_count;
  part parts[JOBS_MAX] = {{.y = NULL}};
  assert(c->running && count <= JOBS_MAX && x->rows >= rows);
  for (int32_t i = 0; i < count; i++) {
    const device_linear *l = &jobs[i];
    assert(l->y->columns == l->w.rows && l->y->rows >= rows);
    parts[i] = (part){cpu_weight_of(&l->w), l->y->f32, l->add, cpu_vector(l->bias)};
  }
  run_linear(c, parts, count, x, rows);
  for (int32_t i = 0; i < count; i++) cpu_quantize_rows(c, jobs[i].y, rows);
}

/* --- linear_swiglu: panels of both matrices meet while they are in the nearest cache --- */

void cpu_panel_fill(const cpu_kernels *k, const cpu_weight *w, const cpu_act *x, int32_t g, int32_t end,
                    int32_t row, int32_t rows, float *panel) {
  cpu_linear *kernel = linear_kernel(k, x, w->type);
  size_t bytes = cpu_group_bytes(w->type, w->columns);
  const uint8_t *data = (const uint8_t *)w->data + (size_t)g * bytes;
  for (; g < end; g++, data += bytes, panel += rows * OPS_GROUP)
    kernel(data, x, row, rows, cpu_parts(w), panel);
}

#define GATED_GROUPS 2 /* of a block of OPS_BLOCK outputs, which one chunk makes */

typedef struct gated_job {
  const cpu_kernels *k;
  cpu_weight gate, up;
  const cpu_act *x;
  cpu_act *y;
  int32_t rows, chunks;
} gated_job;

static void gated_panel(const gated_job *j, int32_t g, int32_t end, int32_t row, int32_t rows) {
  _Alignas(64) float gate[CPU_PANEL_FLOATS], up[CPU_PANEL_FLOATS];
  cpu_panel_fill(j->k, &j->gate, j->x, g, end, row, rows, gate);
  cpu_panel_fill(j->k, &j->up, j->x, g, end, row, rows, up);
  j->k->swiglu(gate, gate, up, (end - g) * rows * OPS_GROUP);
  part whole = {.w = j->gate, .y = j->y->f32};
  for (int32_t i = g; i < end; i++) put_outputs(&whole, i, row, rows, gate + (i - g) * rows * OPS_GROUP);
  int32_t first = g * OPS_GROUP, n = cpu_min(end * OPS_GROUP, j->y->columns) - first;
  for (int32_t t = 0; t < rows; t++) cpu_quantize_part(j->k, j->y, row + t, first, n);
}

static void gated_chunk(void *context, int32_t chunk, int32_t thread) {
  (void)thread;
  const gated_job *j = context;
  int32_t groups = cpu_group_count(&j->gate), blocks = (groups + GATED_GROUPS - 1) / GATED_GROUPS;
  int32_t tiles = cpu_tile_count(j->k, j->rows);
  int32_t g = (int32_t)((int64_t)chunk * blocks / j->chunks) * GATED_GROUPS;
  int32_t end = cpu_min((int32_t)((int64_t)(chunk + 1) * blocks / j->chunks) * GATED_GROUPS, groups);
  int32_t step =
      CPU_PANEL_FLOATS / (cpu_tile_begin(j->rows, tiles, 1) * OPS_GROUP); /* tile 0 is the largest */
  step -= step % GATED_GROUPS;
  for (; g < end; g += step) {
    for (int32_t i = 0; i < tiles; i++) {
      int32_t row = cpu_tile_begin(j->rows, tiles, i);
      gated_panel(j, g, cpu_min(g + step, end), row, cpu_tile_begin(j->rows, tiles, i + 1) - row);
    }
  }
}

void cpu_linear_swiglu(device *d, const device_weight *gate, const device_weight *up, const device_act *x,
                       device_act *y) {
  cpu_device *c = cpu_of(d);
  int32_t rows = c->batch.row_count;
  assert(c->running && gate->columns == x->columns && up->columns == x->columns);
  assert(gate->rows == y->columns && up->rows == y->columns && x->rows >= rows && y->rows >= rows);
  gated_job j = {c->kernels, cpu_weight_of(gate), cpu_weight_of(up), x, y, rows, 1};
  int32_t blocks = (cpu_group_count(&j.gate) + GATED_GROUPS - 1) / GATED_GROUPS;
  if (d->threads > 1) j.chunks = cpu_min(blocks, d->threads * CPU_CHUNKS);
  thread_pool_run(c->pool, j.chunks, gated_chunk, &j);
}
