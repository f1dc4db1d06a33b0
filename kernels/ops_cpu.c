/* ops_cpu.c - the op table of the CPU: cuts each op into chunks for the pool and calls the kernels. */
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/pool.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define LINEAR_CHUNKS_A_THREAD 3     /* of one op: enough that a late thread costs little */
#define SMALL_WORK             16384 /* elements below which waking another thread costs more than it saves */
#define VARIANT_MAX            32

typedef struct ops_cpu {
  ops base;
  const cpu_kernels *kernels;
  pool *pool;
  char variants[2][CPU_ROWS_MAX + 1][VARIANT_MAX]; /* [more rows than one tile][rows left] */
} ops_cpu;

static ops_cpu *cpu_of(ops *o) {
  return (ops_cpu *)o;
}

static int32_t min_i32(int32_t a, int32_t b) {
  return a < b ? a : b;
}

/* Runs body over [0, rows), by several threads when the work is worth it. */
static void run_rows(ops_cpu *c, int32_t rows, int64_t elements, pool_body *body, void *context) {
  if (elements < SMALL_WORK) {
    for (int32_t i = 0; i < rows; i++) body(context, i, 0);
  } else {
    pool_run(c->pool, rows, body, context);
  }
}

/* --- embed, norm, quantize, swiglu, argmax: one row a chunk --- */

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
}

static void op_norm(ops *o, const float *x, const int32_t *index, int32_t count, const float *w, float eps,
                    ops_act *y) {
  norm_job j = {cpu_of(o)->kernels, x, w, index, eps, y};
  run_rows(cpu_of(o), count, (int64_t)count * y->columns, norm_row, &j);
}

typedef struct act_job {
  const cpu_kernels *k;
  ops_act *x;
  const float *gate, *up;
} act_job;

static void quantize_row(void *context, int32_t i, int32_t thread) {
  (void)thread;
  const act_job *j = context;
  size_t n = (size_t)j->x->columns, row = (size_t)i * n, block = row / OPS_BLOCK;
  j->k->quantize(j->x->q8 + row, j->x->scale + block, j->x->sum + block, j->x->f32 + row, j->x->columns);
}

static void op_quantize(ops *o, ops_act *x, int32_t count) {
  if (!x->q8) return;
  act_job j = {.k = cpu_of(o)->kernels, .x = x};
  run_rows(cpu_of(o), count, (int64_t)count * x->columns, quantize_row, &j);
}

static void swiglu_row(void *context, int32_t i, int32_t thread) {
  (void)thread;
  const act_job *j = context;
  size_t row = (size_t)i * (size_t)j->x->columns;
  j->k->swiglu(j->x->f32 + row, j->gate + row, j->up + row, j->x->columns);
}

static void op_swiglu(ops *o, const float *gate, const float *up, int32_t count, ops_act *y) {
  act_job j = {.k = cpu_of(o)->kernels, .x = y, .gate = gate, .up = up};
  run_rows(cpu_of(o), count, (int64_t)count * y->columns, swiglu_row, &j);
}

typedef struct argmax_job {
  const cpu_kernels *k;
  const float *x;
  int32_t columns, *ids;
} argmax_job;

static void argmax_row(void *context, int32_t i, int32_t thread) {
  (void)thread;
  const argmax_job *j = context;
  j->ids[i] = j->k->argmax(j->x + (size_t)i * (size_t)j->columns, j->columns);
}

static void op_argmax(ops *o, const float *x, int32_t count, int32_t columns, int32_t *ids) {
  argmax_job j = {cpu_of(o)->kernels, x, columns, ids};
  run_rows(cpu_of(o), count, count > 1 ? (int64_t)count * columns : 0, argmax_row, &j);
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

static void put_outputs(const ops_linear *l, int32_t group, int32_t row, int32_t rows, const float *out) {
  int32_t width = min_i32(OPS_GROUP, l->w->rows - group * OPS_GROUP);
  for (int32_t t = 0; t < rows; t++, out += OPS_GROUP) {
    float *y = l->y + (size_t)(row + t) * (size_t)l->w->rows + (size_t)group * OPS_GROUP;
    if (!l->add) {
      memcpy(y, out, (size_t)width * sizeof *y);
      continue;
    }
    for (int32_t r = 0; r < width; r++) y[r] += out[r];
  }
}

static void linear_group(const linear_job *j, const ops_linear *l, int32_t group) {
  const uint8_t *data =
      (const uint8_t *)l->w->data + (size_t)group * cpu_group_bytes(l->w->type, l->w->columns);
  cpu_linear *kernel = linear_kernel(j->k, j->x, l->w->type);
  _Alignas(32) float out[CPU_ROWS_MAX * OPS_GROUP];
  for (int32_t row = 0; row < j->count; row += j->k->rows_max) {
    int32_t rows = min_i32(j->k->rows_max, j->count - row);
    kernel(data, j->x, row, rows, out);
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
  pool_run(cpu_of(o)->pool, j.chunks, linear_chunk, &j);
}

/* --- the cache --- */

static size_t element_bytes(ops_kv_type type) {
  return type == OPS_KV_F16 ? 2 : 4;
}

/* Where rows of (layer, kv head) begin in an area of `rows` rows a head. */
static void *area_at(const ops_kv_shape *s, const void *area, int32_t rows, int32_t layer, int32_t head) {
  size_t heads = (size_t)layer * (size_t)s->kv_heads + (size_t)head;
  return (uint8_t *)(uintptr_t)area + heads * (size_t)rows * (size_t)s->head_dim * element_bytes(s->type);
}

static void *element_at(const ops_kv_shape *s, void *p, size_t i) {
  return (uint8_t *)p + i * element_bytes(s->type);
}

/* Index in a head's committed keys of component 0 of the key at `position`; components lie OPS_TILE apart. */
static size_t key_index(const ops_kv_shape *s, int32_t position) {
  return (size_t)(position / OPS_TILE) * (size_t)s->head_dim * OPS_TILE + (size_t)(position % OPS_TILE);
}

typedef struct store_job {
  const cpu_kernels *k;
  const ops_kv_shape *s;
  int32_t layer, heads, rope_dim;
  const ops_row *rows;
  const float *rope, *keys, *values;
  float *q;
} store_job;

static void rotate(const store_job *j, int32_t i, const float *x, float *y) {
  const float *cosine = j->rope + (size_t)i * 2 * (size_t)j->rope_dim;
  j->k->rope(y, x, cosine, cosine + j->rope_dim, j->rope_dim);
}

static void store_head(const store_job *j, int32_t i, int32_t head, const float *key, const float *value) {
  const ops_kv_shape *s = j->s;
  const ops_row *r = &j->rows[i];
  bool staged = r->path_count > 0;
  int32_t area = staged ? s->stage : s->context;
  void *keys = area_at(s, staged ? r->kv->stage_keys : r->kv->keys, area, j->layer, head);
  void *values = area_at(s, staged ? r->kv->stage_values : r->kv->values, area, j->layer, head);
  size_t row = (size_t)(staged ? r->path[r->path_count - 1] : r->position), at = row * (size_t)s->head_dim;
  if (staged)
    j->k->store(s->type, element_at(s, keys, at), 1, key, s->head_dim);
  else
    j->k->store(s->type, element_at(s, keys, key_index(s, r->position)), OPS_TILE, key, s->head_dim);
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
    rotate(j, i, q, q);
  }
  for (int32_t h = 0; h < s->kv_heads; h++) {
    size_t at = ((size_t)i * (size_t)s->kv_heads + (size_t)h) * dim;
    memcpy(key, j->keys + at, dim * sizeof *key);
    rotate(j, i, key, key);
    store_head(j, i, h, key, j->values + at);
  }
}

static void op_rope_store(ops *o, const ops_kv_shape *s, int32_t layer, const ops_row *rows, int32_t count,
                          int32_t heads, const float *rope, int32_t rope_dim, float *q, const float *k,
                          const float *v) {
  store_job j = {cpu_of(o)->kernels, s, layer, heads, rope_dim, rows, rope, k, v, q};
  for (int32_t i = 0; i < count; i++) o->counters.staged_writes += rows[i].path_count > 0;
  run_rows(cpu_of(o), count, (int64_t)count * (heads + 2 * s->kv_heads) * s->head_dim, store_row, &j);
}

typedef struct attention_job {
  const cpu_kernels *k;
  const ops_kv_shape *s;
  int32_t layer, heads, stride;
  const ops_row *rows;
  const float *q;
  ops_act *y;
  float *scratch; /* [threads][heads / kv_heads][stride] */
} attention_job;

static int32_t score_stride(const ops_kv_shape *s) {
  return s->context + s->stage + 2 * OPS_TILE;
}

static void attention_chunk(void *context, int32_t chunk, int32_t thread) {
  const attention_job *j = context;
  const ops_kv_shape *s = j->s;
  int32_t i = chunk / s->kv_heads, head = chunk % s->kv_heads, group = j->heads / s->kv_heads;
  size_t at = ((size_t)i * (size_t)j->heads + (size_t)(head * group)) * (size_t)s->head_dim;
  const ops_row *r = &j->rows[i];
  cpu_attention a = {
      .type = s->type,
      .head_dim = s->head_dim,
      .heads = group,
      .length = r->length,
      .path_count = r->path_count,
      .path = r->path,
      .keys = area_at(s, r->kv->keys, s->context, j->layer, head),
      .values = area_at(s, r->kv->values, s->context, j->layer, head),
      .q = j->q + at,
      .y = j->y->f32 + at,
      .scale = 1.0f / sqrtf((float)s->head_dim),
      .scores = j->scratch + (size_t)thread * (size_t)group * (size_t)j->stride,
      .stride = j->stride,
  };
  if (r->path_count > 0) {
    a.stage_keys = area_at(s, r->kv->stage_keys, s->stage, j->layer, head);
    a.stage_values = area_at(s, r->kv->stage_values, s->stage, j->layer, head);
  }
  j->k->attention(&a);
}

static void op_attention(ops *o, const ops_kv_shape *s, int32_t layer, const ops_row *rows, int32_t count,
                         int32_t heads, const float *q, ops_act *y, float *scratch) {
  attention_job j = {cpu_of(o)->kernels, s, layer, heads, score_stride(s), rows, q, y, scratch};
  pool_run(cpu_of(o)->pool, count * s->kv_heads, attention_chunk, &j);
}

static size_t op_attention_floats(const ops *o, const ops_kv_shape *s, int32_t heads) {
  return (size_t)o->threads * (size_t)(heads / s->kv_heads) * (size_t)score_stride(s);
}

typedef struct commit_job {
  const ops_kv_shape *s;
  const ops_kv *kv;
  const int32_t *path;
  int32_t count, length;
} commit_job;

static void commit_key(const ops_kv_shape *s, void *to, const void *from) {
  for (size_t d = 0; d < (size_t)s->head_dim; d++) {
    if (s->type == OPS_KV_F16)
      ((uint16_t *)to)[d * OPS_TILE] = ((const uint16_t *)from)[d];
    else
      ((float *)to)[d * OPS_TILE] = ((const float *)from)[d];
  }
}

static void commit_head(void *context, int32_t chunk, int32_t thread) {
  (void)thread;
  const commit_job *j = context;
  const ops_kv_shape *s = j->s;
  int32_t layer = chunk / s->kv_heads, head = chunk % s->kv_heads;
  void *keys = area_at(s, j->kv->keys, s->context, layer, head);
  void *values = area_at(s, j->kv->values, s->context, layer, head);
  void *stage_keys = area_at(s, j->kv->stage_keys, s->stage, layer, head);
  void *stage_values = area_at(s, j->kv->stage_values, s->stage, layer, head);
  size_t dim = (size_t)s->head_dim;
  for (int32_t i = 0; i < j->count; i++) {
    size_t from = (size_t)j->path[i] * dim;
    int32_t to = j->length + i;
    commit_key(s, element_at(s, keys, key_index(s, to)), element_at(s, stage_keys, from));
    memcpy(element_at(s, values, (size_t)to * dim), element_at(s, stage_values, from),
           dim * element_bytes(s->type));
  }
}

static void op_commit(ops *o, const ops_kv_shape *s, const ops_kv *kv, const int32_t *path, int32_t count,
                      int32_t length) {
  commit_job j = {s, kv, path, count, length};
  int32_t chunks = s->layers * s->kv_heads;
  o->counters.commit_copies += (uint64_t)count * (uint64_t)s->layers;
  run_rows(cpu_of(o), chunks, (int64_t)chunks * count * s->head_dim, commit_head, &j);
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
  pool_run(cpu_of(o)->pool, count, parallel_chunk, &j);
}

static const char *op_variant(const ops *o, int32_t rows) {
  const ops_cpu *c = (const ops_cpu *)o;
  int32_t left = rows % c->kernels->rows_max;
  return c->variants[rows >= c->kernels->rows_max][left];
}

static int op_sync(ops *o) {
  (void)o;
  return 0;
}

static void op_close(ops *o) {
  if (!o) return;
  pool_close(cpu_of(o)->pool);
  free(o);
}

#define OPS_CPU_TABLE(isa)                                                                                   \
  {                                                                                                          \
    .name = isa, .packed_bytes = cpu_packed_bytes, .pack = cpu_pack, .embed = op_embed, .norm = op_norm,     \
    .quantize = op_quantize, .linear = op_linear, .rope_store = op_rope_store, .attention = op_attention,    \
    .attention_floats = op_attention_floats, .swiglu = op_swiglu, .argmax = op_argmax, .commit = op_commit,  \
    .parallel = op_parallel, .variant = op_variant, .sync = op_sync, .close = op_close                       \
  }

static const ops_table tables[] = {[OPS_CPU_C] = OPS_CPU_TABLE("c"), [OPS_CPU_AVX2] = OPS_CPU_TABLE("avx2")};

#if defined(__x86_64__)
static const cpu_kernels *const kernels_by_isa[] = {&cpu_kernels_c, &cpu_kernels_avx2};

/* Not every compiler's __builtin_cpu_supports knows F16C. */
static bool has_f16c(void) {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool ops_cpu_has(ops_cpu_isa isa) {
  if (isa == OPS_CPU_C) return true;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
#else
static const cpu_kernels *const kernels_by_isa[] = {&cpu_kernels_c, NULL};

bool ops_cpu_has(ops_cpu_isa isa) {
  return isa == OPS_CPU_C;
}
#endif

/* "avx2 x4 + avx2 x1": the kernel of the full tiles and of the rows left. */
static void name_variants(ops_cpu *c) {
  const cpu_kernels *k = c->kernels;
  const char *full = k->variants[k->rows_max];
  for (int32_t left = 0; left < k->rows_max; left++) {
    snprintf(c->variants[0][left], VARIANT_MAX, "%s", k->variants[left]);
    if (left == 0)
      snprintf(c->variants[1][left], VARIANT_MAX, "%s", full);
    else
      snprintf(c->variants[1][left], VARIANT_MAX, "%s + %s", full, k->variants[left]);
  }
}

ops *ops_cpu_open(ops_cpu_isa isa, int32_t threads) {
  if (!ops_cpu_has(isa) || threads < 1 || threads > OPS_THREADS_MAX) return NULL;
  ops_cpu *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->base = (ops){.table = &tables[isa], .threads = threads};
  c->kernels = kernels_by_isa[isa];
  c->pool = pool_open(threads);
  if (!c->pool) {
    op_close(&c->base);
    return NULL;
  }
  name_variants(c);
  return &c->base;
}
