/* cpu_bound.c - op bound: a weighed row and some of its tiles are a chunk of work. */
#include "kernels/cpu/device_cpu.h"

#include <assert.h>
#include <math.h>

#define PIECE_TILES 32
#define LANES       32 /* of a sum over heads */

typedef struct bound_job {
  const device_kv *kv;
  const cpu_batch *batch;
  int32_t layer, heads, pieces; /* pieces: of the longest row */
  float scale;
  const device_act *q;
  bool mean, add;
  device_act *y;
} bound_job;

static float key_at(ops_kv_type type, const void *keys, size_t at) {
  return type == OPS_KV_F16 ? cpu_f16(((const uint16_t *)keys)[at]) : ((const float *)keys)[at];
}

/* Of a tile's first `count` keys. first: where component 0 of its first key lies. */
static void find_ends(const ops_kv_shape *s, const void *keys, size_t first, int32_t count, float *high,
                      float *low) {
  for (int32_t d = 0; d < s->head_dim; d++) {
    const size_t at = first + (size_t)d * OPS_TILE;
    high[d] = -INFINITY, low[d] = INFINITY;
    for (int32_t i = 0; i < count; i++) {
      const float x = key_at(s->type, keys, at + (size_t)i);
      high[d] = x > high[d] ? x : high[d];
      low[d] = x < low[d] ? x : low[d];
    }
  }
}

static float dot(const float *q, const float *key, int32_t n) {
  float sum = 0;
  for (int32_t d = 0; d < n; d++) sum = fmaf(q[d], key[d], sum);
  return sum;
}

static float mean_of(float *lanes, int32_t heads) {
  for (int32_t half = LANES / 2; half > 0; half /= 2)
    for (int32_t i = 0; i < half; i++) lanes[i] += lanes[i + half];
  return lanes[0] * (1.0f / (float)heads);
}

/* The largest of all heads, or their mean. */
static float bound_of(const bound_job *j, const cpu_row *row, const float *q, int32_t tile) {
  const ops_kv_shape *s = &j->kv->shape;
  const int32_t group = j->heads / s->kv_heads, count = cpu_min(row->length - tile * OPS_TILE, OPS_TILE);
  const size_t first = cpu_row_at(row->kv, tile * OPS_TILE) * (size_t)s->head_dim;
  float high[OPS_HEAD_DIM_MAX], low[OPS_HEAD_DIM_MAX], best = -INFINITY, lanes[LANES] = {0};
  for (int32_t h = 0; h < j->heads; h++, q += s->head_dim) {
    const void *keys = cpu_area_at(s, j->kv->keys, cpu_committed_rows(s), j->layer, h / group);
    if (h % group == 0) find_ends(s, keys, first, count, high, low);
    const float a = dot(q, high, s->head_dim) * j->scale, b = dot(q, low, s->head_dim) * j->scale;
    float own = a > -INFINITY ? a : -INFINITY;
    own = b > own ? b : own;
    best = own > best ? own : best;
    lanes[h % group % LANES] += own;
  }
  return j->mean ? mean_of(lanes, j->heads) : best;
}

static void bound_chunk(void *context, int32_t chunk, int32_t thread) {
  (void)thread;
  const bound_job *j = context;
  const int32_t row = j->batch->capture_rows[chunk / j->pieces], first = chunk % j->pieces * PIECE_TILES;
  const cpu_row *r = &j->batch->rows[row];
  const int32_t end = cpu_min(first + PIECE_TILES, (r->length + OPS_TILE - 1) / OPS_TILE);
  float *y = j->y->f32 + (size_t)row * (size_t)j->y->columns;
  const float *q = j->q->f32 + (size_t)row * (size_t)j->q->columns;
  for (int32_t t = first; t < end; t++) y[t] = (j->add ? y[t] : 0.0f) + bound_of(j, r, q, t);
}

void cpu_bound_op(device *d, int32_t layer, ops_weighing how, const device_act *q, bool add, device_act *y) {
  cpu_device *c = cpu_of(d);
  const ops_kv_shape *s = &c->kv->shape;
  const cpu_batch *b = &c->batch;
  bound_job j = {.kv = c->kv, .batch = b, .layer = layer, .q = q, .add = add, .y = y};
  int32_t longest = 0;
  j.mean = how == OPS_WEIGH_BOUND_MEAN;
  assert(c->running && layer < s->layers && b->weigh_count > 0 && y->columns == s->context / OPS_TILE);
  for (int32_t i = 0; i < b->weigh_count; i++) {
    const int32_t length = b->rows[b->capture_rows[i]].length;
    longest = length > longest ? length : longest;
  }
  j.heads = q->columns / s->head_dim;
  j.scale = 1.0f / sqrtf((float)s->head_dim);
  j.pieces = (longest + PIECE_TILES * OPS_TILE - 1) / (PIECE_TILES * OPS_TILE);
  cpu_late_settle(c->kv, layer);
  if (longest > 0) thread_pool_run(c->pool, b->weigh_count * j.pieces, bound_chunk, &j);
}
