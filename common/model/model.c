#include "common/model/model.h"
#include "common/model/kv_rows.h"
#include "common/model/rope.h"
#include "common/model/weights.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define KV_TYPES 2

/* What one forward needs beside the weights: f32 unless said otherwise, R = MODEL_ROWS_MAX. */
typedef struct activations {
  float *x;         /* [R][embed] the residual stream */
  ops_act normed;   /* [R][embed] */
  float *q, *k, *v; /* [R][heads * head_dim], [R][kv_heads * head_dim] twice */
  ops_act attended; /* [R][heads * head_dim] */
  ops_act hidden;   /* [R][ffn] */
  float *rope;      /* [R][2][rope_dim] */
  float *scratch;   /* attention_floats of the largest cache seen */
  size_t scratch_floats;
  float *logits; /* [logit_capacity][vocab] */
  int32_t logit_capacity;
} activations;

struct model {
  model_config config;
  model_math math;
  ops *device;
  mem *mem;
  weights weights;
  rope rope;
  activations act;
  uint64_t logit_rows;
  _Atomic uint64_t progress; /* layers computed; others look at it during a forward */

  /* The last forward. */
  ops_row rows[MODEL_ROWS_MAX];
  int32_t row_count, segment_count;
  int32_t segment_first[MODEL_ROWS_MAX + 1]; /* its first row */
  int32_t head_rows[MODEL_ROWS_MAX];         /* what goes through the output head: the rows with logits, then
                                                those that choose */
  int32_t head_count, logit_count;           /* all of them; those with logits */
  int32_t head_line[MODEL_ROWS_MAX];         /* where each row stands in head_rows, or -1 */
  ops_sampling choices[MODEL_ROWS_MAX];      /* [head_count - logit_count]: how they choose */
  int32_t chosen[MODEL_ROWS_MAX];            /* what they chose */
  int32_t *paths; /* [MODEL_ROWS_MAX][KV_STAGE_MAX] staging slots; taken with the first tree */
};

/* --- opening --- */

static float *take_floats(model *m, size_t rows, size_t columns) {
  return mem_alloc(m->mem, MEM_ACTIVATIONS, rows * columns * sizeof(float));
}

/* The int8 form is taken only where a quantised weight can read it. */
static bool take_act(model *m, ops_act *a, int32_t columns) {
  *a = (ops_act){.columns = columns, .f32 = take_floats(m, MODEL_ROWS_MAX, (size_t)columns)};
  if (m->math != MODEL_MATH_INT8 || columns % OPS_BLOCK != 0) return a->f32 != NULL;
  size_t blocks = (size_t)columns / OPS_BLOCK;
  a->q8 = mem_alloc(m->mem, MEM_ACTIVATIONS, (size_t)MODEL_ROWS_MAX * (size_t)columns);
  a->scale = take_floats(m, MODEL_ROWS_MAX, blocks);
  a->sum = take_floats(m, MODEL_ROWS_MAX, blocks);
  a->total = mem_alloc(m->mem, MEM_ACTIVATIONS, (size_t)MODEL_ROWS_MAX * blocks * sizeof *a->total);
  return a->f32 && a->q8 && a->scale && a->sum && a->total;
}

static void free_act(ops_act *a) {
  mem_free(a->f32);
  mem_free(a->q8);
  mem_free(a->scale);
  mem_free(a->sum);
  mem_free(a->total);
}

static bool take_activations(model *m) {
  const model_config *c = &m->config;
  activations *a = &m->act;
  size_t q = (size_t)c->heads * (size_t)c->head_dim, kv = (size_t)c->kv_heads * (size_t)c->head_dim;
  a->x = take_floats(m, MODEL_ROWS_MAX, (size_t)c->embed);
  a->q = take_floats(m, MODEL_ROWS_MAX, q);
  a->k = take_floats(m, MODEL_ROWS_MAX, kv);
  a->v = take_floats(m, MODEL_ROWS_MAX, kv);
  a->rope = take_floats(m, MODEL_ROWS_MAX, 2 * (size_t)c->rope_dim);
  a->logits = take_floats(m, 1, (size_t)c->vocab);
  a->logit_capacity = 1;
  bool acts = take_act(m, &a->normed, c->embed) && take_act(m, &a->attended, c->heads * c->head_dim) &&
              take_act(m, &a->hidden, c->ffn);
  return acts && a->x && a->q && a->k && a->v && a->rope && a->logits;
}

static void free_activations(activations *a) {
  float *plain[] = {a->x, a->q, a->k, a->v, a->rope, a->scratch, a->logits};
  for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) mem_free(plain[i]);
  free_act(&a->normed);
  free_act(&a->attended);
  free_act(&a->hidden);
}

static ops_cpu_isa ops_isa(model_isa isa) {
  _Static_assert(MODEL_ISA_AVX512 - MODEL_ISA_C == OPS_CPU_AVX512 - OPS_CPU_C, "the same in the same order");
  return (ops_cpu_isa)(OPS_CPU_C + (isa - MODEL_ISA_C));
}

const char *model_isa_lacks(model_isa isa) {
  return ops_cpu_lacks(ops_isa(isa));
}

model_isa model_isa_chosen(model_isa wanted) {
  if (wanted != MODEL_ISA_AUTO) return wanted;
  model_isa isa = MODEL_ISA_AVX512;
  while (model_isa_lacks(isa)) isa--;
  return isa;
}

static int open_device(model *m, const model_options *o, err *e) {
  model_isa chosen = model_isa_chosen(o->isa);
  const char *lacking = model_isa_lacks(chosen);
  if (lacking)
    return err_set(e, ERR_UNSUPPORTED,
                   "this processor has no %s, which that instruction set needs: use --isa auto", lacking);
  if (o->threads < 1 || o->threads > OPS_THREADS_MAX) {
    return err_set(e, ERR_ARG, "%d threads are not possible: give 1 to %d (--threads)", o->threads,
                   OPS_THREADS_MAX);
  }
  m->device = ops_cpu_open(ops_isa(chosen), o->threads);
  return m->device ? ERR_OK
                   : err_set(e, ERR_NOMEM, "could not start %d threads: give fewer (--threads)", o->threads);
}

const char *model_numerics_id(model_math math, kv_type type) {
#define NUMERICS_ID(math, type) "cpu/" math "/kv-" type "/" OPS_NUMERICS_VERSION
  static const char *const ids[][KV_TYPES] = {
      [MODEL_MATH_F32] = {[KV_F32] = NUMERICS_ID("f32", "f32"), [KV_F16] = NUMERICS_ID("f32", "f16")},
      [MODEL_MATH_INT8] = {[KV_F32] = NUMERICS_ID("int8", "f32"), [KV_F16] = NUMERICS_ID("int8", "f16")}};
#undef NUMERICS_ID
  return ids[math][type];
}

static int open_parts(model *m, const model_file *f, const model_options *o, err *e) {
  m->config = *model_file_config(f);
  if (m->config.head_dim > OPS_HEAD_DIM_MAX) {
    return err_set(e, ERR_UNSUPPORTED, "heads of %d are wider than the %d built here", m->config.head_dim,
                   OPS_HEAD_DIM_MAX);
  }
  int rc = open_device(m, o, e);
  if (rc != ERR_OK) return rc;
  if (!take_activations(m))
    return err_set(e, ERR_NOMEM, "no memory for the activations of %d rows", MODEL_ROWS_MAX);
  const weights_options w = {o->progress, o->progress_context, o->repack_cache, o->log};
  rc = weights_load(&m->weights, f, m->device, &w, m->mem, e);
  if (rc == ERR_OK && !rope_init(&m->rope, &m->config, m->weights.rope_factors))
    rc = err_set(e, ERR_FORMAT, "the model's rotary frequencies are impossible: convert the model again");
  return rc;
}

int model_open(model **out, const model_file *f, const model_options *o, mem *mm, err *e) {
  *out = NULL;
  model *m = mem_alloc(mm, MEM_GENERAL, sizeof *m);
  if (!m) return err_set(e, ERR_NOMEM, "no memory for the model");
  *m = (model){.math = o->math, .mem = mm};
  int rc = open_parts(m, f, o, e);
  if (rc != ERR_OK) {
    model_close(m);
    return rc;
  }
  *out = m;
  return ERR_OK;
}

void model_close(model *m) {
  if (!m) return;
  if (m->device) m->device->table->close(m->device);
  weights_free(&m->weights);
  free_activations(&m->act);
  mem_free(m->paths);
  mem_free(m);
}

/* --- the batch: checked whole before anything is written --- */

static int check_segment(const model *m, const kv_cache *k, const model_segment *s) {
  if (s->count < 1) return ERR_ARG;
  for (int32_t i = 0; i < s->count; i++) {
    if (s->tokens[i] < 0 || s->tokens[i] >= m->config.vocab) return ERR_ARG;
  }
  if (s->kind == MODEL_APPEND) return kv_check_append(k, s->seq, s->count);
  return kv_check_tree(k, s->seq, s->parents, s->count);
}

static bool seen_before(const model_segment *segments, int32_t i) {
  for (int32_t j = 0; j < i; j++) {
    if (segments[j].seq == segments[i].seq) return true;
  }
  return false;
}

static int check_batch(const model *m, const kv_cache *k, const model_segment *segments, int32_t count) {
  if (count < 1) return ERR_ARG;
  int64_t rows = 0;
  for (int32_t i = 0; i < count; i++) {
    rows += segments[i].count;
    if (rows > MODEL_ROWS_MAX) return ERR_LIMIT;
    int rc = check_segment(m, k, &segments[i]);
    if (rc != ERR_OK) return rc;
    if (seen_before(segments, i)) return ERR_ARG;
  }
  return ERR_OK;
}

static bool wants_logits(const model_segment *s, int32_t row) {
  return !s->no_logits && (s->all_logits || row == s->count - 1);
}

static int32_t logits_wanted(const model_segment *segments, int32_t count) {
  int32_t wanted = 0;
  for (int32_t i = 0; i < count; i++) {
    if (segments[i].no_logits || segments[i].sampling) continue;
    wanted += segments[i].all_logits ? segments[i].count : 1;
  }
  return wanted;
}

static bool has_tree(const model_segment *segments, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    if (segments[i].kind == MODEL_TREE) return true;
  }
  return false;
}

/* What grows with use: memory that only trees ask for is booked as such. */
static int take_for_batch(model *m, const kv_cache *k, const model_segment *segments, int32_t count) {
  activations *a = &m->act;
  bool tree = has_tree(segments, count);
  mem_tag tag = tree ? MEM_SPECULATION : MEM_ACTIVATIONS;
  if (tree && !m->paths) {
    m->paths = mem_alloc(m->mem, tag, (size_t)MODEL_ROWS_MAX * KV_STAGE_MAX * sizeof *m->paths);
    if (!m->paths) return ERR_NOMEM;
  }
  int32_t wanted = logits_wanted(segments, count);
  if (wanted > a->logit_capacity) {
    float *logits = mem_alloc(m->mem, tag, (size_t)wanted * (size_t)m->config.vocab * sizeof *logits);
    if (!logits) return ERR_NOMEM;
    mem_free(a->logits);
    a->logits = logits;
    a->logit_capacity = wanted;
    m->segment_count = 0; /* the last forward's are gone */
  }
  size_t floats = m->device->table->attention_floats(m->device, kv_shape(k), m->config.heads);
  if (floats > a->scratch_floats) {
    float *scratch = mem_alloc(m->mem, MEM_ACTIVATIONS, floats * sizeof *scratch);
    if (!scratch) return ERR_NOMEM;
    mem_free(a->scratch);
    a->scratch = scratch;
    a->scratch_floats = floats;
  }
  return ERR_OK;
}

static ops_row append_row(const kv_cache *k, const model_segment *s, int32_t i) {
  int32_t position = kv_length(k, s->seq) + i;
  return (ops_row){
      .kv = kv_pointers(k, s->seq), .token = s->tokens[i], .position = position, .length = position + 1};
}

static ops_row tree_row(model *m, const kv_cache *k, const model_segment *s, int32_t i, int32_t first) {
  int32_t *path = m->paths + (size_t)(first + i) * KV_STAGE_MAX, count = kv_path(k, s->seq, i, path);
  int32_t length = kv_length(k, s->seq);
  return (ops_row){.kv = kv_pointers(k, s->seq),
                   .token = s->tokens[i],
                   .position = length + count - 1,
                   .length = length,
                   .path_count = count,
                   .path = path};
}

/* The rows of the segment that want logits, or a choice, go to the end of head_rows. */
static void list_head_rows(model *m, const model_segment *s, int32_t first) {
  for (int32_t r = 0; r < s->count; r++) {
    if (!wants_logits(s, r)) continue;
    int32_t row = first + r, line = m->head_count++;
    m->head_rows[line] = row;
    m->head_line[row] = line;
    if (s->sampling)
      m->choices[line - m->logit_count] = (ops_sampling){.scale = s->sampling->scale,
                                                         .seed = s->sampling->seed,
                                                         .choice = s->sampling->choice,
                                                         .position = (uint32_t)m->rows[row].position + 1};
  }
}

static void build_head(model *m, const model_segment *segments, int32_t count) {
  m->head_count = 0;
  for (int32_t i = 0; i < m->row_count; i++) m->head_line[i] = -1;
  for (int32_t i = 0; i < count; i++)
    if (!segments[i].sampling) list_head_rows(m, &segments[i], m->segment_first[i]);
  m->logit_count = m->head_count;
  for (int32_t i = 0; i < count; i++)
    if (segments[i].sampling) list_head_rows(m, &segments[i], m->segment_first[i]);
}

static void build_rows(model *m, const kv_cache *k, const model_segment *segments, int32_t count) {
  m->row_count = 0;
  m->segment_count = count;
  for (int32_t i = 0; i < count; i++) {
    const model_segment *s = &segments[i];
    int32_t first = m->segment_first[i] = m->row_count;
    for (int32_t r = 0; r < s->count; r++) {
      int32_t row = m->row_count++;
      m->rows[row] = s->kind == MODEL_APPEND ? append_row(k, s, r) : tree_row(m, k, s, r, first);
    }
  }
  m->segment_first[count] = m->row_count;
  build_head(m, segments, count);
  for (int32_t i = 0; i < m->row_count; i++) {
    rope_row(&m->rope, m->rows[i].position, m->act.rope + (size_t)i * 2 * (size_t)m->config.rope_dim);
  }
}

/* --- the graph --- */

static void norm(model *m, const int32_t *index, int32_t count, const float *w) {
  ops *d = m->device;
  d->table->norm(d, m->act.x, index, count, w, m->config.norm_eps, &m->act.normed);
}

static void attention_in(model *m, const weights_layer *w, const ops_kv_shape *s, int32_t layer) {
  activations *a = &m->act;
  ops *d = m->device;
  norm(m, NULL, m->row_count, w->attn_norm);
  const ops_linear jobs[] = {
      {.w = &w->q, .y = a->q, .bias = w->q_bias},
      {.w = &w->k, .y = a->k, .bias = w->k_bias},
      {.w = &w->v, .y = a->v, .bias = w->v_bias},
  };
  const ops_rotary rotary = {a->rope, m->config.rope_dim, w->q_norm, w->k_norm, m->config.norm_eps};
  d->table->linear(d, jobs, 3, &a->normed, m->row_count);
  d->table->rope_store(d, s, layer, m->rows, m->row_count, m->config.heads, &rotary, a->q, a->k, a->v);
}

static void attention_out(model *m, const weights_layer *w, const ops_kv_shape *s, int32_t layer) {
  activations *a = &m->act;
  ops *d = m->device;
  d->table->attention(d, s, layer, m->rows, m->row_count, m->config.heads, m->config.window[layer], a->q,
                      &a->attended, a->scratch);
  d->table->linear(d, &(ops_linear){&w->output, a->x, true, w->output_bias}, 1, &a->attended, m->row_count);
}

static void feed_forward(model *m, const weights_layer *w) {
  activations *a = &m->act;
  ops *d = m->device;
  norm(m, NULL, m->row_count, w->ffn_norm);
  d->table->linear_swiglu(d, &w->gate, &w->up, &a->normed, m->row_count, &a->hidden);
  d->table->linear(d, &(ops_linear){.w = &w->down, .y = a->x, .add = true}, 1, &a->hidden, m->row_count);
}

/* The rows from `row` on. */
static ops_act act_from(const ops_act *a, int32_t row) {
  size_t at = (size_t)row * (size_t)a->columns, block = at / OPS_BLOCK;
  ops_act from = {.columns = a->columns, .f32 = a->f32 + at};
  if (!a->q8) return from;
  from.q8 = a->q8 + at;
  from.scale = a->scale + block;
  from.sum = a->sum + block;
  from.total = a->total + block;
  return from;
}

static void output_head(model *m) {
  ops *d = m->device;
  const ops_weight *head = &m->weights.head;
  norm(m, m->head_rows, m->head_count, m->weights.output_norm);
  if (m->logit_count > 0)
    d->table->linear(d, &(ops_linear){.w = head, .y = m->act.logits}, 1, &m->act.normed, m->logit_count);
  if (m->head_count > m->logit_count) {
    ops_act choosing = act_from(&m->act.normed, m->logit_count);
    d->table->sample(d, head, &choosing, m->head_count - m->logit_count, m->choices, m->chosen);
  }
  m->logit_rows += (uint64_t)m->head_count;
}

static void run_graph(model *m, const ops_kv_shape *s) {
  ops *d = m->device;
  d->table->embed(d, m->rows, m->row_count, &m->weights.embed, m->act.x);
  for (int32_t layer = 0; layer < m->config.layers; layer++) {
    const weights_layer *w = &m->weights.layers[layer];
    attention_in(m, w, s, layer);
    if (layer == m->config.layers - 1 && m->head_count == 0)
      return; /* keys and values were all that was wanted */
    attention_out(m, w, s, layer);
    feed_forward(m, w);
    atomic_fetch_add_explicit(&m->progress, 1, memory_order_relaxed);
  }
  output_head(m);
}

static bool fits(const model_config *c, const ops_kv_shape *s) {
  return s->layers == c->layers && s->kv_heads == c->kv_heads && s->head_dim == c->head_dim;
}

int model_forward(model *m, kv_cache *k, const model_segment *segments, int32_t count) {
  assert(fits(&m->config, kv_shape(k)));
  int rc = check_batch(m, k, segments, count);
  if (rc == ERR_OK) rc = take_for_batch(m, k, segments, count);
  if (rc != ERR_OK) return rc;
  kv_bind(k, m->device);
  build_rows(m, k, segments, count);
  run_graph(m, kv_shape(k));
  if (m->device->table->sync(m->device) != 0) return ERR_INTERNAL;
  for (int32_t i = 0; i < count; i++) {
    if (segments[i].kind == MODEL_APPEND)
      kv_appended(k, segments[i].seq, segments[i].count);
    else
      kv_staged(k, segments[i].seq);
  }
  return ERR_OK;
}

/* --- what it tells --- */

static int32_t head_line(const model *m, int32_t segment, int32_t row) {
  if (segment < 0 || segment >= m->segment_count || row < 0) return -1;
  int32_t at = m->segment_first[segment] + row;
  return at < m->segment_first[segment + 1] ? m->head_line[at] : -1;
}

const float *model_logits(const model *m, int32_t segment, int32_t row) {
  int32_t line = head_line(m, segment, row);
  if (line < 0 || line >= m->logit_count) return NULL;
  return m->act.logits + (size_t)line * (size_t)m->config.vocab;
}

int32_t model_sampled(const model *m, int32_t segment, int32_t row) {
  int32_t line = head_line(m, segment, row);
  return line < m->logit_count ? -1 : m->chosen[line - m->logit_count];
}

uint64_t model_progress(const model *m) {
  return atomic_load_explicit(&m->progress, memory_order_relaxed);
}

const model_config *model_shape(const model *m) {
  return &m->config;
}

const char *model_numerics(const model *m, kv_type type) {
  return model_numerics_id(m->math, type);
}

struct ops *model_device(const model *m) {
  return m->device;
}

const char *model_variant(const model *m, int32_t rows) {
  return m->device->table->variant(m->device, rows);
}

model_counters model_count(const model *m) {
  const ops_counters *c = &m->device->counters;
  return (model_counters){
      .forwards = c->forwards,
      .rows = c->rows,
      .logit_rows = m->logit_rows,
      .staged_rows = c->staged_writes / (uint64_t)m->config.layers,
      .commit_copies = c->commit_copies,
  };
}

void model_parallel(model *m, int32_t count, void (*body)(void *context, int32_t i), void *context) {
  m->device->table->parallel(m->device, count, body, context);
}
