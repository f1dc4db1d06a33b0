/* cpu_mass.c - op mass: a row, a key-value head and some of the row's splits are a chunk of work; then each
 * row's splits and heads are joined. */
#include "kernels/cpu/device_cpu.h"

#include <assert.h>
#include <math.h>

#define PIECE_SPLITS 8
#define TOTAL_LANES  32 /* in which the splits of a head are summed (ops.h) */

typedef struct mass_job {
  const cpu_kernels *k;
  const device_kv *kv;
  const cpu_batch *batch;
  int32_t layer, heads;
  int32_t splits, pieces; /* of the longest row */
  const device_act *q;
  bool add;
  device_act *y;
  float *scratch;    /* [threads][scratch_floats()] */
  cpu_softmax *sums; /* [weigh_count][heads][splits] */
  float *tiles;      /* [weigh_count][heads][splits * CPU_SPLIT_TILES] */
} mass_job;

/* A thread's scores and queries. */
static size_t scratch_floats(const mass_job *j) {
  const ops_kv_shape *s = &j->kv->shape;
  return cpu_score_floats(s) + (size_t)(j->heads / s->kv_heads) * (size_t)s->head_dim;
}

static int32_t splits_of(int32_t length) {
  return (length + OPS_SPLIT - 1) / OPS_SPLIT;
}

/* Where the splits of a captured row and a head begin. */
static size_t part_at(const mass_job *j, int32_t line, int32_t head) {
  return ((size_t)line * (size_t)j->heads + (size_t)head) * (size_t)j->splits;
}

static void mass_chunk(void *context, int32_t chunk, int32_t thread) {
  const mass_job *j = context;
  const ops_kv_shape *s = &j->kv->shape;
  const int32_t group = j->heads / s->kv_heads, piece = chunk % j->pieces,
                head = chunk / j->pieces % s->kv_heads, line = chunk / j->pieces / s->kv_heads;
  const cpu_row *from = &j->batch->rows[j->batch->capture_rows[line]];
  const cpu_row row = {.kv = from->kv, .length = from->length}; /* without its path */
  const ops_span span = {0, row.length};
  const int32_t first_span[2] = {0, 1}, split = piece * PIECE_SPLITS,
                end = cpu_min(split + PIECE_SPLITS, splits_of(row.length));
  const size_t at = (size_t)(from - j->batch->rows) * (size_t)j->heads + (size_t)(head * group);
  float *scratch = j->scratch + (size_t)thread * scratch_floats(j);
  if (split >= end) return;
  const cpu_attention a = {
      .type = s->type,
      .head_dim = s->head_dim,
      .heads = group,
      .rows = 1,
      .row = &row,
      .keys = cpu_area_at(s, j->kv->keys, cpu_committed_rows(s), j->layer, head),
      .values = cpu_area_at(s, j->kv->values, cpu_committed_rows(s), j->layer, head),
      .q = j->q->f32 + at * (size_t)s->head_dim,
      .scale = 1.0f / sqrtf((float)s->head_dim),
      .spans = &span,
      .first_span = first_span,
      .split = split,
      .split_end = end,
      .scores = scratch,
      .stage = s->stage,
      .queries = scratch + cpu_score_floats(s),
  };
  const size_t part = part_at(j, line, head * group);
  j->k->mass(&a, &(cpu_mass){j->splits, j->sums + part, j->tiles + part * CPU_SPLIT_TILES});
}

/* One head's shares of the tiles, to y. */
static void join_head(const cpu_softmax *sums, const float *tiles, int32_t splits, int32_t tile_count,
                      float *y) {
  float largest = -INFINITY, lane[TOTAL_LANES] = {0};
  for (int32_t s = 0; s < splits; s++) largest = sums[s].largest > largest ? sums[s].largest : largest;
  for (int32_t s = 0; s < splits; s++) {
    float *sum = &lane[s % TOTAL_LANES];
    *sum = fmaf(sums[s].sum, cpu_exp(sums[s].largest - largest), *sum);
  }
  for (int32_t half = TOTAL_LANES / 2; half > 0; half /= 2)
    for (int32_t i = 0; i < half; i++) lane[i] += lane[i + half];
  for (int32_t s = 0; s < splits; s++) {
    const float share = cpu_exp(sums[s].largest - largest) * (1.0f / lane[0]);
    const int32_t first = s * CPU_SPLIT_TILES, end = cpu_min(first + CPU_SPLIT_TILES, tile_count);
    for (int32_t t = first; t < end; t++) y[t] = fmaf(tiles[t], share, y[t]);
  }
}

static void join_row(void *context, int32_t line, int32_t thread) {
  (void)thread;
  const mass_job *j = context;
  const int32_t row = j->batch->capture_rows[line], length = j->batch->rows[row].length,
                tiles = (length + OPS_TILE - 1) / OPS_TILE;
  float *y = j->y->f32 + (size_t)row * (size_t)j->y->columns;
  for (int32_t t = 0; t < tiles && !j->add; t++) y[t] = 0.0f;
  for (int32_t h = 0; h < j->heads && length > 0; h++) {
    const size_t part = part_at(j, line, h);
    join_head(j->sums + part, j->tiles + part * CPU_SPLIT_TILES, splits_of(length), tiles, y);
  }
}

void cpu_mass_op(device *d, int32_t layer, const device_act *q, bool add, device_act *y) {
  cpu_device *c = cpu_of(d);
  const ops_kv_shape *s = &c->kv->shape;
  const cpu_batch *b = &c->batch;
  mass_job j = {.k = c->kernels, .kv = c->kv, .batch = b, .layer = layer, .q = q, .add = add, .y = y};
  j.heads = q->columns / s->head_dim;
  assert(c->running && layer < s->layers && b->weigh_count > 0 && y->columns == s->context / OPS_TILE);
  for (int32_t i = 0; i < b->weigh_count; i++) {
    const int32_t splits = splits_of(b->rows[b->capture_rows[i]].length);
    j.splits = splits > j.splits ? splits : j.splits;
  }
  j.pieces = (j.splits + PIECE_SPLITS - 1) / PIECE_SPLITS;
  const size_t parts = (size_t)b->weigh_count * (size_t)j.heads * (size_t)j.splits;
  const size_t floats = parts * (2 + CPU_SPLIT_TILES);
  if (!cpu_op_grow(c, &c->scores, scratch_floats(&j) * (size_t)d->threads * sizeof(float)) ||
      !cpu_op_grow(c, &c->mass, floats * sizeof(float)))
    return;
  cpu_late_settle(c->kv, layer);
  j.scratch = c->scores.data;
  j.sums = c->mass.data;
  j.tiles = (float *)(j.sums + parts);
  thread_pool_run(c->pool, b->weigh_count * s->kv_heads * j.pieces, mass_chunk, &j);
  cpu_run(c, b->weigh_count, (int64_t)parts * CPU_SPLIT_TILES, join_row, &j);
}
