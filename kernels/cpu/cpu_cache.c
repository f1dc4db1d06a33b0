/* cpu_cache.c - keys and values: their memory, block tables, commits, and ops rope and rope_store. */
#include "kernels/cpu/device_cpu.h"
#include "kernels/rope_angle.h"

#include <assert.h>
#include <string.h>

#define COMMIT_LINE 64 /* bytes that are fetched at once */
#define STORE_ROWS  32 /* of a chunk of rope_store */
#define ANGLE_COST  32 /* multiply-adds that an angle costs, for the choice of threads */

/* --- where things lie --- */

static size_t element_bytes(ops_kv_type type) {
  return type == OPS_KV_F16 ? 2 : 4;
}

int32_t cpu_committed_rows(const ops_kv_shape *s) {
  return s->blocks * OPS_TILE;
}

void *cpu_area_at(const ops_kv_shape *s, void *area, int32_t rows, int32_t layer, int32_t head) {
  size_t heads = (size_t)layer * (size_t)s->kv_heads + (size_t)head;
  return (uint8_t *)area + heads * (size_t)rows * (size_t)s->head_dim * element_bytes(s->type);
}

static void *element_at(const ops_kv_shape *s, void *p, size_t i) {
  return (uint8_t *)p + i * element_bytes(s->type);
}

/* Index in a head's keys of component 0 of the key in `row`; components lie OPS_TILE apart. */
static size_t key_index(const ops_kv_shape *s, size_t row) {
  return row / OPS_TILE * (size_t)s->head_dim * OPS_TILE + row % OPS_TILE;
}

/* Bytes of the keys (or values) of so many rows in all layers; false: they do not fit size_t twice. */
static bool half_bytes(const ops_kv_shape *s, size_t rows, size_t *bytes) {
  size_t row = (size_t)s->layers * (size_t)s->kv_heads * (size_t)s->head_dim * element_bytes(s->type);
  return !__builtin_mul_overflow(row, rows, bytes) && *bytes <= SIZE_MAX / 2;
}

/* --- memory --- */

static bool take_rows(cpu_device *c, device_kv *k) {
  size_t half, each = (size_t)k->shape.context / OPS_TILE, sequences = (size_t)k->shape.sequences;
  if (!half_bytes(&k->shape, (size_t)k->shape.blocks * OPS_TILE, &half)) return false;
  size_t tables = sequences * (sizeof *k->sequences + each * sizeof(cpu_kv_block));
  if (!cpu_buffer_take(c, &k->tables, MEM_GENERAL, tables)) return false;
  if (!cpu_buffer_take(c, &k->rows, MEM_KV, 2 * half)) return false;
  k->keys = k->rows.data;
  k->values = (uint8_t *)k->rows.data + half;
  k->sequences = k->tables.data;
  cpu_kv_block *maps = (cpu_kv_block *)(k->sequences + sequences);
  for (size_t i = 0; i < sequences; i++) k->sequences[i].map = maps + i * each;
  return true;
}

device_kv *cpu_kv_open(device *d, const ops_kv_shape *s) {
  cpu_device *c = cpu_of(d);
  assert(!c->running && s->context % OPS_TILE == 0 && s->stage % OPS_TILE == 0);
  assert(s->head_dim <= OPS_HEAD_DIM_MAX && s->blocks > 0 && s->sequences > 0);
  device_kv *k = mem_alloc(c->mem, MEM_GENERAL, sizeof *k);
  if (!k) return NULL;
  *k = (device_kv){.shape = *s};
  if (take_rows(c, k)) return k;
  cpu_kv_close(d, k);
  return NULL;
}

void cpu_kv_close(device *d, device_kv *k) {
  cpu_device *c = cpu_of(d);
  if (!k) return;
  cpu_buffer *buffers[] = {&k->rows, &k->tables, &k->stage, &k->late_memory};
  for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) cpu_buffer_drop(c, buffers[i]);
  if (c->kv == k) c->kv = NULL;
  mem_free(k);
}

static void lay_out_late(device_kv *k) {
  cpu_late *l = &k->late;
  const ops_kv_shape *s = &k->shape;
  l->from = k->late_memory.data;
  l->to = l->from + s->stage;
  l->sequence = l->to + s->stage;
  l->first = l->sequence + s->sequences;
  l->settled = (bool *)(l->first + s->sequences + 1);
}

bool cpu_kv_stage(device *d, device_kv *k) {
  cpu_device *c = cpu_of(d);
  const ops_kv_shape *s = &k->shape;
  size_t half, ints = 2 * (size_t)s->stage + 2 * (size_t)s->sequences + 1;
  assert(!c->running);
  if (k->stage.data) return true;
  if (s->stage == 0 || !half_bytes(s, (size_t)s->stage, &half)) return false;
  size_t bytes = ints * sizeof(int32_t) + (size_t)s->layers * sizeof(bool);
  if (!cpu_buffer_grow(c, &k->late_memory, MEM_SPECULATION, bytes)) return false;
  lay_out_late(k);
  if (!cpu_buffer_take(c, &k->stage, MEM_SPECULATION, 2 * half)) return false;
  k->stage_keys = k->stage.data;
  k->stage_values = (uint8_t *)k->stage.data + half;
  return true;
}

/* A late commit knows the rows of all blocks, so it does not matter to it. */
void cpu_kv_map(device *d, device_kv *k, int32_t sequence, const int32_t *blocks, int32_t count) {
  assert(!cpu_of(d)->running && sequence >= 0 && sequence < k->shape.sequences);
  assert(count >= 0 && count <= k->shape.context / OPS_TILE);
  cpu_kv *s = &k->sequences[sequence];
  for (int32_t i = count - 1; i >= 0; i--) {
    assert(blocks[i] >= 0 && blocks[i] < k->shape.blocks);
    bool goes_on = i + 1 < count && blocks[i + 1] == blocks[i] + 1;
    s->map[i] = (cpu_kv_block){blocks[i], goes_on ? s->map[i + 1].run + 1 : 1};
  }
  s->map_count = count;
}

/* --- commit: some staged rows become rows of all blocks --- */

typedef struct commit_job {
  const device_kv *k;
  const int32_t *from, *to;
  int32_t count;
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
  const ops_kv_shape *s = &j->k->shape;
  const void *from[OPS_TILE];
  for (int32_t i = 0, run; i < j->count; i += run) {
    run = cpu_min(j->count - i, OPS_TILE - j->to[i] % OPS_TILE);
    for (int32_t k = 0; k < run; k++)
      from[k] = element_at(s, stage_keys, key_index(s, (size_t)j->from[i + k]));
    void *tile = element_at(s, keys, key_index(s, (size_t)j->to[i]));
    for (size_t d = 0; d < (size_t)s->head_dim; d++) commit_component(s->type, tile, from, run, d);
  }
}

/* The lines of the tiles that are read and written, all of them on their way at once: the weights that a
 * forward reads have pushed them out of the near caches. */
static void commit_fetch(const commit_job *j, int32_t layer, int32_t head) {
  const ops_kv_shape *s = &j->k->shape;
  size_t bytes = OPS_TILE * (size_t)s->head_dim * element_bytes(s->type);
  const uint8_t *to = cpu_area_at(s, j->k->keys, cpu_committed_rows(s), layer, head);
  const uint8_t *from = cpu_area_at(s, j->k->stage_keys, s->stage, layer, head);
  to += (size_t)(j->to[0] / OPS_TILE) * bytes;
  from += (size_t)(j->from[0] / OPS_TILE) * bytes;
  for (size_t i = 0; i < bytes; i += COMMIT_LINE) {
    __builtin_prefetch(from + i, 1); /* the next tree's rows go there */
    __builtin_prefetch(to + i, 1);
  }
}

static void commit_head(const commit_job *j, int32_t layer, int32_t head) {
  const ops_kv_shape *s = &j->k->shape;
  void *values = cpu_area_at(s, j->k->values, cpu_committed_rows(s), layer, head);
  void *stage_values = cpu_area_at(s, j->k->stage_values, s->stage, layer, head);
  size_t dim = (size_t)s->head_dim;
  commit_keys(j, cpu_area_at(s, j->k->keys, cpu_committed_rows(s), layer, head),
              cpu_area_at(s, j->k->stage_keys, s->stage, layer, head));
  for (int32_t i = 0; i < j->count; i++)
    memcpy(element_at(s, values, (size_t)j->to[i] * dim),
           element_at(s, stage_values, (size_t)j->from[i] * dim), dim * element_bytes(s->type));
}

static void commit_layer(const commit_job *j, int32_t layer) {
  for (int32_t head = 0; head < j->k->shape.kv_heads; head++) commit_fetch(j, layer, head);
  for (int32_t head = 0; head < j->k->shape.kv_heads; head++) commit_head(j, layer, head);
}

static void forget(device_kv *k) {
  cpu_late *l = &k->late;
  memset(l->settled, 0, (size_t)k->shape.layers * sizeof *l->settled);
  l->commits = l->settled_count = 0;
}

void cpu_late_settle(device_kv *k, int32_t layer) {
  cpu_late *l = &k->late;
  if (l->commits == 0 || l->settled[layer]) return;
  for (int32_t i = 0; i < l->commits; i++) {
    int32_t first = l->first[i];
    commit_layer(&(commit_job){k, l->from + first, l->to + first, l->first[i + 1] - first}, layer);
  }
  l->settled[layer] = true;
  if (++l->settled_count == k->shape.layers) forget(k);
}

static void settle_all(device_kv *k) {
  for (int32_t layer = 0; layer < k->shape.layers; layer++) cpu_late_settle(k, layer);
}

/* A commit is put behind those that are late already, unless it is the sequence's second, or some layers have
 * carried these out. */
static bool may_wait(const device_kv *k, int32_t sequence, int32_t count) {
  const cpu_late *l = &k->late;
  if (l->commits == 0) return true;
  for (int32_t i = 0; i < l->commits; i++)
    if (l->sequence[i] == sequence) return false;
  return l->settled_count == 0 && count <= k->shape.stage - l->first[l->commits];
}

void cpu_kv_commit(device *d, device_kv *k, int32_t sequence, const int32_t *path, int32_t count,
                   int32_t length) {
  cpu_late *l = &k->late;
  const cpu_kv *s = &k->sequences[sequence];
  assert(!cpu_of(d)->running && count >= 0 && count <= k->shape.stage && length >= 0);
  if (count == 0) return;
  assert(k->stage.data && length + count <= s->map_count * OPS_TILE);
  d->counters.commit_copies += (uint64_t)count * (uint64_t)k->shape.layers;
  if (!may_wait(k, sequence, count)) settle_all(k);
  int32_t at = l->commits ? l->first[l->commits] : 0;
  for (int32_t i = 0; i < count; i++) {
    assert(path[i] >= 0 && path[i] < k->shape.stage);
    l->from[at + i] = path[i];
    l->to[at + i] = (int32_t)cpu_row_at(s, length + i);
  }
  l->sequence[l->commits] = sequence;
  l->first[l->commits] = at;
  l->first[++l->commits] = at + count;
}

/* --- rope --- */

typedef struct rope_job {
  const cpu_row *rows;
  const float *frequency;
  float *angles, times;
  int32_t dim;
} rope_job;

static void rope_row(void *context, int32_t i, int32_t thread) {
  (void)thread;
  const rope_job *j = context;
  float *cosines = j->angles + (size_t)i * 2 * (size_t)j->dim, *sines = cosines + j->dim;
  for (int32_t p = 0; p < j->dim / 2; p++) {
    float cosine, sine;
    rope_angle(j->frequency[p], j->rows[i].position + j->rows[i].rope_shift, j->times, &cosine, &sine);
    cosines[2 * p] = cosines[2 * p + 1] = cosine;
    sines[2 * p] = -sine;
    sines[2 * p + 1] = sine;
  }
}

void cpu_rope(device *d, const device_rope *r) {
  cpu_device *c = cpu_of(d);
  int32_t rows = c->batch.row_count;
  assert(c->running && r->dim % 2 == 0 && r->dim <= OPS_HEAD_DIM_MAX);
  if (!cpu_op_grow(c, &c->angles, (size_t)rows * 2 * (size_t)r->dim * sizeof(float))) return;
  rope_job j = {c->batch.rows, cpu_vector(r->frequency), c->angles.data, r->times, r->dim};
  c->rope_dim = r->dim;
  cpu_run(c, rows, (int64_t)rows * r->dim / 2 * ANGLE_COST, rope_row, &j);
}

/* --- rope_store --- */

typedef struct store_job {
  const cpu_kernels *k;
  device_kv *kv;
  int32_t layer, heads, rope_dim, count; /* count: of rows */
  const cpu_row *rows;
  const float *angles, *q_norm, *k_norm;
  float eps;
  const float *keys, *values;
  float *q;
} store_job;

/* A head of row i, in place. */
static void rotate(const store_job *j, int32_t i, const float *norm, float *x) {
  const float *cosine = j->angles + (size_t)i * 2 * (size_t)j->rope_dim;
  if (norm) j->k->norm(x, x, norm, j->kv->shape.head_dim, j->eps);
  j->k->rope(x, x, cosine, cosine + j->rope_dim, j->rope_dim);
}

static void store_head(const store_job *j, int32_t i, int32_t head, const float *key, const float *value) {
  const ops_kv_shape *s = &j->kv->shape;
  const cpu_row *r = &j->rows[i];
  bool staged = r->path_count > 0;
  int32_t area = staged ? s->stage : cpu_committed_rows(s);
  void *keys = cpu_area_at(s, staged ? j->kv->stage_keys : j->kv->keys, area, j->layer, head);
  void *values = cpu_area_at(s, staged ? j->kv->stage_values : j->kv->values, area, j->layer, head);
  size_t row = staged ? (size_t)(r->stage_at + r->path[r->path_count - 1]) : cpu_row_at(r->kv, r->position);
  size_t at = row * (size_t)s->head_dim;
  j->k->store(s->type, element_at(s, keys, key_index(s, row)), OPS_TILE, key, s->head_dim);
  j->k->store(s->type, element_at(s, values, at), 1, value, s->head_dim);
}

static void store_key(const store_job *j, int32_t i, int32_t head) {
  const ops_kv_shape *s = &j->kv->shape;
  size_t dim = (size_t)s->head_dim, at = ((size_t)i * (size_t)s->kv_heads + (size_t)head) * dim;
  float key[OPS_HEAD_DIM_MAX];
  memcpy(key, j->keys + at, dim * sizeof *key);
  rotate(j, i, j->k_norm, key);
  store_head(j, i, head, key, j->values + at);
}

/* A head of the queries, or of the keys and values, in a few rows. Keys of neighbouring rows share cache
 * lines, so that a thread has them all. */
static void store_chunk(void *context, int32_t chunk, int32_t thread) {
  (void)thread;
  const store_job *j = context;
  int32_t kv_heads = j->kv->shape.kv_heads, all = kv_heads + j->heads, head = chunk % all;
  int32_t first = chunk / all * STORE_ROWS, end = cpu_min(first + STORE_ROWS, j->count);
  size_t dim = (size_t)j->kv->shape.head_dim;
  for (int32_t i = first; i < end; i++) {
    if (head < kv_heads)
      store_key(j, i, head);
    else
      rotate(j, i, j->q_norm, j->q + ((size_t)i * (size_t)j->heads + (size_t)(head - kv_heads)) * dim);
  }
}

void cpu_rope_store(device *d, int32_t layer, const device_rotary *r, device_act *q, const device_act *k,
                    const device_act *v) {
  cpu_device *c = cpu_of(d);
  const ops_kv_shape *s = &c->kv->shape;
  const cpu_batch *b = &c->batch;
  assert(c->running && layer < s->layers && q->columns % s->head_dim == 0);
  assert(k->columns == s->kv_heads * s->head_dim && v->columns == k->columns);
  if (c->failed) return;
  assert(c->rope_dim > 0 && c->rope_dim <= s->head_dim);
  store_job j = {.k = c->kernels,
                 .kv = c->kv,
                 .layer = layer,
                 .heads = q->columns / s->head_dim,
                 .rope_dim = c->rope_dim,
                 .count = b->row_count,
                 .rows = b->rows,
                 .angles = c->angles.data,
                 .q_norm = cpu_vector(r->q_norm),
                 .k_norm = cpu_vector(r->k_norm),
                 .eps = r->eps,
                 .keys = k->f32,
                 .values = v->f32,
                 .q = q->f32};
  for (int32_t i = 0; b->staged && i < b->row_count; i++)
    d->counters.staged_writes += b->rows[i].path_count > 0;
  cpu_late_settle(c->kv, layer);
  int32_t blocks = (b->row_count + STORE_ROWS - 1) / STORE_ROWS;
  int64_t elements = (int64_t)b->row_count * (j.heads + 2 * s->kv_heads) * s->head_dim;
  cpu_run(c, blocks * (s->kv_heads + j.heads), elements, store_chunk, &j);
}
