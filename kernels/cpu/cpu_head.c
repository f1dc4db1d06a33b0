/* cpu_head.c - op head: logits that are kept or ranked, and tokens that are chosen from logits that are not.
 */
#include "kernels/cpu/device_cpu.h"
#include "kernels/cpu/sample.h"

#include <assert.h>

/* --- choosing: a panel's outputs meet each row's winner --- */

typedef struct sample_job {
  const cpu_kernels *k;
  const cpu_weight *w;
  const cpu_act *x;
  const ops_sampling *choices; /* of rows [first, first + rows) */
  int32_t first, rows, chunks;
  cpu_winner *winners; /* [threads][CPU_SAMPLE_ROWS] */
} sample_job;

/* Rows [row, row + rows) of the job meet the outputs of groups [g, end); winners: of these rows. */
static void sample_panel(const sample_job *j, int32_t g, int32_t end, int32_t row, int32_t rows,
                         cpu_winner *winners) {
  _Alignas(64) float panel[CPU_PANEL_FLOATS];
  int32_t stride = rows * OPS_GROUP, first = g * OPS_GROUP, n = cpu_min(end * OPS_GROUP, j->w->rows) - first;
  cpu_panel_fill(j->k, j->w, j->x, g, end, j->first + row, rows, panel);
  for (int32_t t = 0; t < rows; t++)
    j->k->sample(panel + t * OPS_GROUP, stride, first, n, &j->choices[row + t], &winners[row + t]);
}

/* A thread keeps its winners over its chunks: the better they are, the less noise is made. */
static void sample_chunk(void *context, int32_t chunk, int32_t thread) {
  const sample_job *j = context;
  int32_t groups = cpu_group_count(j->w), tiles = cpu_tile_count(j->k, j->rows);
  int32_t g = (int32_t)((int64_t)chunk * groups / j->chunks);
  int32_t end = (int32_t)((int64_t)(chunk + 1) * groups / j->chunks);
  int32_t step =
      CPU_PANEL_FLOATS / (cpu_tile_begin(j->rows, tiles, 1) * OPS_GROUP); /* tile 0 is the largest */
  for (; g < end; g += step) {
    for (int32_t i = 0; i < tiles; i++) {
      int32_t row = cpu_tile_begin(j->rows, tiles, i), rows = cpu_tile_begin(j->rows, tiles, i + 1) - row;
      sample_panel(j, g, cpu_min(g + step, end), row, rows, j->winners + (size_t)thread * CPU_SAMPLE_ROWS);
    }
  }
}

/* Which thread found what does not show: the best of all is one. */
static int32_t sample_best(const cpu_device *c, const cpu_winner *winners, int32_t row) {
  cpu_winner best = CPU_NOBODY;
  for (int32_t t = 0; t < c->base.threads; t++) {
    const cpu_winner *w = &winners[t * CPU_SAMPLE_ROWS + row];
    cpu_winner_meet(&best, w->value, w->id);
  }
  return best.id == CPU_NOBODY.id ? -1 : best.id;
}

static void sample_rows(cpu_device *c, sample_job *j, int32_t *ids) {
  for (int32_t t = 0; t < c->base.threads; t++)
    for (int32_t i = 0; i < j->rows; i++) j->winners[t * CPU_SAMPLE_ROWS + i] = CPU_NOBODY;
  thread_pool_run(c->pool, j->chunks, sample_chunk, j);
  for (int32_t i = 0; i < j->rows; i++) ids[i] = sample_best(c, j->winners, i);
}

static void choose(cpu_device *c, const cpu_weight *w, const cpu_act *x) {
  const cpu_batch *b = &c->batch;
  int32_t lines = b->logit_count + b->rank_count, count = b->head_count - lines, threads = c->base.threads;
  int32_t chunks = threads == 1 ? 1 : cpu_min(cpu_group_count(w), threads * CPU_CHUNKS);
  for (int32_t first = 0; first < count; first += CPU_SAMPLE_ROWS) {
    sample_job j = {.k = c->kernels,
                    .w = w,
                    .x = x,
                    .choices = b->choices + first,
                    .first = lines + first,
                    .rows = cpu_min(CPU_SAMPLE_ROWS, count - first),
                    .chunks = chunks,
                    .winners = c->winners.data};
    sample_rows(c, &j, b->ids + first);
  }
}

/* --- the op --- */

void cpu_head(device *d, const device_weight *w, const device_act *x) {
  cpu_device *c = cpu_of(d);
  const cpu_batch *b = &c->batch;
  cpu_weight head = cpu_weight_of(w);
  assert(c->running && w->columns == x->columns && x->rows >= b->head_count);
  c->vocab = w->rows;
  int32_t lines = b->logit_count + b->rank_count;
  if (lines > 0) {
    if (!cpu_op_grow(c, &c->logits, (size_t)lines * (size_t)w->rows * sizeof(float))) return;
    cpu_linear_into(c, &head, x, lines, c->logits.data);
  }
  if (b->head_count > lines) choose(c, &head, x);
}

const float *cpu_logits(device *d, int32_t line) {
  const cpu_device *c = cpu_of(d);
  assert(!c->running && !c->failed && line >= 0 && line < c->batch.logit_count);
  d->counters.logit_lines++;
  return (const float *)c->logits.data + (size_t)line * (size_t)c->vocab;
}
