#include "common/model/model.h"
#include "common/model/device_error.h"
#include "common/model/forward_batch.h"
#include "common/model/kv_rows.h"
#include "common/model/weights.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#define KV_TYPES 2

/* What one forward needs beside the weights: [MODEL_ROWS_MAX][columns], on the device. */
typedef struct activations {
  device_act *x;                  /* [embed] the residual stream */
  device_act *normed, *q, *k, *v; /* [embed], [heads * head_dim], [kv_heads * head_dim] twice */
  device_act *attended, *hidden;  /* [heads * head_dim], [ffn] */
} activations;

struct model {
  model_config config;
  device *device;
  mem *mem;
  weights weights;
  activations act;
  int32_t windows[OPS_VIEWS_MAX], view_count; /* the different ones among the layers */
  int32_t view[MODEL_LAYERS_MAX];             /* of each layer */
  device_ids ids;                             /* of rankings */
  device_memory *id_memory;                   /* theirs, or NULL */
  uint64_t logit_rows;
  _Atomic uint64_t progress; /* layers queued; others look at it during a forward */

  /* The last forward. */
  forward_batch batch;
  ops_answer answer;
  int32_t capture[MODEL_LAYERS_MAX + 1]; /* the capture of the state that enters each layer, or -1 */
  int32_t capture_line[MODEL_ROWS_MAX];  /* where each row stands in capture_rows, or -1 */
  int32_t capture_fused;                 /* the capture of fc's rows, or -1 */
  int32_t capture_mass;                  /* the capture of what blocks weigh, or -1 */

  const fusion *fusion; /* fc, for segments of fused rows; or NULL */
  device_act *fused;    /* [MODEL_ROWS_MAX][fusion_width], or NULL */
  device_act *mass;     /* [MODEL_ROWS_MAX][blocks of a context], or NULL */
  ops_weighing weighing;
};

/* --- opening --- */

typedef struct activation {
  device_act **act;
  int32_t columns;
  bool input; /* of a linear */
} activation;

#define ACTIVATIONS 7

static void list_activations(model *m, activation out[ACTIVATIONS]) {
  const model_config *c = &m->config;
  int32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
  activations *a = &m->act;
  const activation all[ACTIVATIONS] = {
      {&a->x, c->embed, m->device->prepares},
      {&a->normed, c->embed, true},
      {&a->q, q, false},
      {&a->k, kv, false},
      {&a->v, kv, false},
      {&a->attended, q, true},
      {&a->hidden, c->ffn, true},
  };
  memcpy(out, all, sizeof all);
}

/* About: floats, and a byte and something for each where a linear reads them as int8, two more as bf16. */
static size_t activation_bytes(model *m) {
  activation list[ACTIVATIONS];
  size_t bytes = 0, input = m->device->math == OPS_MATH_BF16 ? 8 : 6;
  list_activations(m, list);
  for (int32_t i = 0; i < ACTIVATIONS; i++)
    bytes += (size_t)MODEL_ROWS_MAX * (size_t)list[i].columns * (list[i].input ? input : sizeof(float));
  return bytes;
}

static bool take_activations(model *m) {
  activation list[ACTIVATIONS];
  list_activations(m, list);
  for (int32_t i = 0; i < ACTIVATIONS; i++) {
    device_act **act = list[i].act;
    *act = m->device->table->act(m->device, MODEL_ROWS_MAX, list[i].columns, list[i].input);
    if (!*act) return false;
  }
  return true;
}

static void drop_activations(model *m) {
  activation list[ACTIVATIONS];
  list_activations(m, list);
  for (int32_t i = 0; i < ACTIVATIONS; i++)
    if (*list[i].act) m->device->table->act_drop(m->device, *list[i].act);
}

/* False: the layers have too many different windows. */
static bool find_views(model *m) {
  for (int32_t layer = 0; layer < m->config.layers; layer++) {
    int32_t view = 0;
    while (view < m->view_count && m->windows[view] != m->config.window[layer]) view++;
    if (view == OPS_VIEWS_MAX) return false;
    if (view == m->view_count) m->windows[m->view_count++] = m->config.window[layer];
    m->view[layer] = view;
  }
  return true;
}

const char *model_numerics_id(ops_math math, kv_type type) {
#define NUMERICS_ID(math, type) math "/kv-" type "/" OPS_NUMERICS_VERSION
  static const char *const ids[][KV_TYPES] = {
      [OPS_MATH_F32] = {[KV_F32] = NUMERICS_ID("f32", "f32"), [KV_F16] = NUMERICS_ID("f32", "f16")},
      [OPS_MATH_INT8] = {[KV_F32] = NUMERICS_ID("int8", "f32"), [KV_F16] = NUMERICS_ID("int8", "f16")},
      [OPS_MATH_BF16] = {
          [KV_F32] = NUMERICS_ID("bf16-t25", "f32"), [KV_F16] = NUMERICS_ID("bf16-t25", "f16")}};
#undef NUMERICS_ID
  return ids[math][type];
}

static bool has_bf16(const model_file *f) {
  static const model_role roles[] = {MODEL_Q, MODEL_ATTN_OUTPUT, MODEL_UP, MODEL_DOWN};
  for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
    if (model_file_tensor(f, roles[i], 0)->type == GGUF_BF16) return true;
  return false;
}

ops_math model_math(int32_t wanted, const model_file *f, const char *device_name) {
  if (wanted != MODEL_MATH_AUTO) return (ops_math)wanted;
  const bool gpu = strncmp(device_name, "cuda", strlen("cuda")) == 0;
  return gpu && f && has_bf16(f) ? OPS_MATH_BF16 : OPS_MATH_INT8;
}

int model_open_device(device **out, const model_file *f, const char *name, int32_t wanted, device_options o,
                      const logger *log, mem *mm, err *e) {
  o.math = model_math(wanted, f, name);
  int rc = device_open(out, name, &o, mm, e);
  if (rc != ERR_UNSUPPORTED || wanted != MODEL_MATH_AUTO || o.math != OPS_MATH_BF16) return rc;
  o.math = OPS_MATH_INT8;
  *e = (err){0};
  rc = device_open(out, name, &o, mm, e);
  if (rc == ERR_OK)
    log_line(log, LOG_WARNING,
             "%s does not compute class bf16-t25: BF16 weights are multiplied in f32, slowly", name);
  return rc;
}

static int open_parts(model *m, const model_file *f, const model_options *o, err *e) {
  m->config = *model_file_config(f);
  m->ids.count = m->config.vocab;
  forward_open(&m->batch);
  if (m->config.head_dim > OPS_HEAD_DIM_MAX) {
    return err_set(e, ERR_UNSUPPORTED, "heads of %d are wider than the %d built here", m->config.head_dim,
                   OPS_HEAD_DIM_MAX);
  }
  if (!find_views(m))
    return err_set(e, ERR_UNSUPPORTED, "the model's layers have more than %d different windows",
                   OPS_VIEWS_MAX);
  weights_options w = {o->progress, o->progress_context, o->repack_cache, o->log, o->cache};
  w.needs.activations = activation_bytes(m);
  int rc = weights_load(&m->weights, f, m->device, &w, m->mem, e);
  if (rc == ERR_OK && !take_activations(m))
    rc = err_set(e, ERR_NOMEM, "no memory for the activations of %d rows: end what else uses %s",
                 MODEL_ROWS_MAX, m->device->table->name);
  return rc;
}

int model_open(model **out, const model_file *f, device *d, const model_options *o, mem *mm, err *e) {
  *out = NULL;
  model *m = mem_alloc(mm, MEM_GENERAL, sizeof *m);
  if (!m) return err_set(e, ERR_NOMEM, "no memory for the model");
  *m = (model){.device = d, .mem = mm};
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
  weights_free(&m->weights, m->device);
  drop_activations(m);
  if (m->fused) m->device->table->act_drop(m->device, m->fused);
  if (m->mass) m->device->table->act_drop(m->device, m->mass);
  m->device->table->drop(m->device, m->id_memory);
  forward_close(&m->batch);
  mem_free(m);
}

/* --- the graph: nothing between begin and end depends on an answer --- */

static void norm(model *m, bool head, device_vector w) {
  device *d = m->device;
  d->table->norm(d, m->act.x, head, w, m->config.norm_eps, m->act.normed);
}

static void attention_in(model *m, const weights_layer *w, int32_t layer) {
  activations *a = &m->act;
  device *d = m->device;
  norm(m, false, w->attn_norm);
  const device_linear jobs[] = {
      {.w = w->q, .y = a->q, .bias = w->q_bias},
      {.w = w->k, .y = a->k, .bias = w->k_bias},
      {.w = w->v, .y = a->v, .bias = w->v_bias},
  };
  const device_rotary rotary = {w->q_norm, w->k_norm, m->config.norm_eps};
  d->table->linear(d, jobs, 3, a->normed);
  d->table->rope_store(d, layer, &rotary, a->q, a->k, a->v);
}

/* What blocks weigh is found in every fourth layer, the last one among them: of all it takes a fifth of a
 * pass after a long context, and the choice hardly differs. */
#define WEIGHING_EVERY 4

static void weigh(model *m, int32_t layer) {
  const bool weighs = m->capture_mass >= 0 && (m->config.layers - 1 - layer) % WEIGHING_EVERY == 0;
  const device_table *t = m->device->table;
  if (!weighs) return;
  const bool add = layer >= WEIGHING_EVERY;
  if (m->weighing == OPS_WEIGH_MASS)
    t->mass(m->device, layer, m->act.q, add, m->mass);
  else
    t->bound(m->device, layer, m->weighing, m->act.q, add, m->mass);
}

static void attention_out(model *m, const weights_layer *w, int32_t layer) {
  activations *a = &m->act;
  device *d = m->device;
  weigh(m, layer);
  d->table->attention(d, layer, m->view[layer], a->q, a->attended);
  d->table->linear(d, &(device_linear){w->output, a->x, true, w->output_bias}, 1, a->attended);
}

static void feed_forward(model *m, const weights_layer *w) {
  activations *a = &m->act;
  device *d = m->device;
  norm(m, false, w->ffn_norm);
  d->table->linear_swiglu(d, &w->gate, &w->up, a->normed, a->hidden);
  d->table->linear(d, &(device_linear){.w = w->down, .y = a->x, .add = true}, 1, a->hidden);
}

static void output_head(model *m) {
  norm(m, true, m->weights.output_norm);
  m->device->table->head(m->device, &m->weights.head, m->act.normed);
  if (m->batch.plain.rank_count > 0) m->device->table->rank(m->device, m->ids);
  m->logit_rows += (uint64_t)m->batch.plain.head_count;
}

/* Which of fc's taps it is, or -1. */
static int32_t fc_part(const model *m, int32_t layer) {
  int32_t count = 0;
  const int32_t *taps = m->capture_fused >= 0 ? fusion_taps(m->fusion, &count) : NULL;
  for (int32_t i = 0; i < count; i++)
    if (taps[i] == layer) return i;
  return -1;
}

/* A tap's part of fc, added to those of the taps before it. */
static void fuse(model *m, int32_t part) {
  int32_t count;
  const device_linear job = {.w = fusion_parts(m->fusion)[part], .y = m->fused, .add = part > 0};
  fusion_taps(m->fusion, &count);
  m->device->table->linear(m->device, &job, 1, m->act.x);
  if (part == count - 1) m->device->table->capture(m->device, m->fused);
}

static void tap(model *m, int32_t layer) {
  if (m->capture[layer] >= 0) m->device->table->capture(m->device, m->act.x);
  int32_t part = fc_part(m, layer);
  if (part >= 0) fuse(m, part);
}

static void run_graph(void *context) {
  model *m = context;
  device *d = m->device;
  int32_t layers = m->config.layers;
  bool heads = m->batch.plain.head_count > 0;
  bool last = heads || m->capture[layers] >= 0 || fc_part(m, layers) >= 0 || m->capture_mass >= 0;
  d->table->embed(d, &m->weights.embed, m->act.x);
  d->table->rope(d, &m->weights.rope);
  for (int32_t layer = 0; layer < layers; layer++) {
    const weights_layer *w = &m->weights.layers[layer];
    tap(m, layer);
    attention_in(m, w, layer);
    if (layer == layers - 1 && !last) return; /* keys and values were all that was wanted */
    attention_out(m, w, layer);
    feed_forward(m, w);
    atomic_fetch_add_explicit(&m->progress, 1, memory_order_relaxed);
  }
  tap(m, layers);
  if (m->capture_mass >= 0) d->table->capture(d, m->mass);
  if (heads) output_head(m);
}

/* --- taps --- */

/* Are they fc's, all of them, in its order? */
static bool are_fused(const model *m, const model_segment *s) {
  int32_t count = 0;
  const int32_t *taps = m->fusion ? fusion_taps(m->fusion, &count) : NULL;
  return taps && count == s->tap_count && memcmp(taps, s->taps, (size_t)count * sizeof *taps) == 0;
}

static int check_taps(const model *m, const model_segment *s) {
  if (s->tap_first < 0 || (s->fused && !are_fused(m, s)) || (s->weighs && !m->mass)) return ERR_ARG;
  for (int32_t i = 0; i < s->tap_count; i++)
    if (s->taps[i] < 0 || s->taps[i] > m->config.layers) return ERR_ARG;
  return ERR_OK;
}

/* The captures of a forward: of the state that enters each layer, of fc's rows, and of what blocks weigh; -1:
 * none. */
typedef struct tap_captures {
  int32_t layers[MODEL_LAYERS_MAX + 1], fused, mass;
} tap_captures;

/* All that the segments ask for; the captures are made in the order of layers, fc's behind its last tap. */
static int number_taps(const model *m, const model_segment *segments, int32_t count, tap_captures *c) {
  int32_t taps = 0, fc_end = -1;
  bool weighs = false;
  c->fused = -1;
  for (int32_t i = 0; i <= m->config.layers; i++) c->layers[i] = -1;
  for (int32_t i = 0; i < count; i++) {
    const model_segment *s = &segments[i];
    int rc = check_taps(m, s);
    if (rc != ERR_OK) return rc;
    weighs |= s->weighs;
    if (s->fused && s->tap_count > 0) fc_end = s->taps[s->tap_count - 1];
    for (int32_t t = 0; t < s->tap_count && !s->fused; t++) c->layers[s->taps[t]] = 0;
  }
  for (int32_t i = 0; i <= m->config.layers; i++) {
    if (c->layers[i] >= 0) c->layers[i] = taps++;
    if (i == fc_end) c->fused = taps++;
  }
  c->mass = weighs ? taps++ : -1;
  return taps <= OPS_CAPTURES_MAX ? ERR_OK : ERR_LIMIT;
}

static void capture_row(model *m, int32_t row) {
  forward_batch *b = &m->batch;
  m->capture_line[row] = b->plain.capture_count;
  b->capture_rows[b->plain.capture_count++] = row;
}

/* Those that weigh come first. */
static void list_captured_rows(model *m, const model_segment *segments, int32_t count) {
  forward_batch *b = &m->batch;
  for (int32_t row = 0; row < b->plain.row_count; row++) m->capture_line[row] = -1;
  for (int32_t i = 0; i < count; i++)
    if (segments[i].weighs) capture_row(m, b->segment_first[i]);
  b->plain.weigh_count = b->plain.capture_count;
  for (int32_t i = 0; i < count; i++)
    for (int32_t r = segments[i].tap_first; segments[i].tap_count > 0 && r < segments[i].count; r++)
      if (m->capture_line[b->segment_first[i] + r] < 0) capture_row(m, b->segment_first[i] + r);
  if (b->plain.capture_count > 0) return;
  for (int32_t i = 0; i <= m->config.layers; i++) m->capture[i] = -1;
  m->capture_fused = m->capture_mass = -1;
}

static bool fits(const model *m, const kv_cache *k) {
  const model_config *c = &m->config;
  const ops_kv_shape *s = kv_shape(k);
  return kv_device(k) == m->device && s->layers == c->layers && s->kv_heads == c->kv_heads &&
         s->head_dim == c->head_dim;
}

int model_forward(model *m, kv_cache *k, const model_segment *segments, int32_t count) {
  assert(fits(m, k));
  forward_batch *b = &m->batch;
  tap_captures captures;
  int rc = forward_check(k, segments, count, m->config.vocab);
  if (rc == ERR_OK) rc = number_taps(m, segments, count, &captures);
  if (rc == ERR_OK) rc = forward_reserve(b, segments, count, m->mem);
  if (rc != ERR_OK) return rc;
  b->segment_count = 0; /* the last forward's logits and choices are gone */
  memcpy(m->capture, captures.layers, sizeof m->capture);
  m->capture_fused = captures.fused;
  m->capture_mass = captures.mass;
  forward_build(b, k, segments, count, m->windows, m->view_count);
  list_captured_rows(m, segments, count);
  rc = forward_run(b, m->device, k, run_graph, m, &m->answer);
  if (rc == ERR_OK) forward_done(b, k, segments, count);
  return rc;
}

/* --- what it tells --- */

static int32_t head_line(const model *m, int32_t segment, int32_t row) {
  int32_t at = forward_row(&m->batch, segment, row);
  return at < 0 ? -1 : m->batch.head_line[at];
}

const float *model_tapped(const model *m, int32_t segment, int32_t row, int32_t tap) {
  int32_t at = forward_row(&m->batch, segment, row), line = at < 0 ? -1 : m->capture_line[at];
  if (line < 0 || tap < 0 || tap > m->config.layers || m->capture[tap] < 0) return NULL;
  return m->device->table->captured(m->device, m->capture[tap], line);
}

const float *model_fused(const model *m, int32_t segment, int32_t row) {
  int32_t at = forward_row(&m->batch, segment, row), line = at < 0 ? -1 : m->capture_line[at];
  return line < 0 || m->capture_fused < 0 ? NULL
                                          : m->device->table->captured(m->device, m->capture_fused, line);
}

int model_fuse(model *m, const fusion *f) {
  bool fits = fusion_parts(f) && fusion_device(f) == m->device && !m->fused;
  int32_t count;
  fusion_taps(f, &count);
  if (!fits || fusion_columns(f) != count * m->config.embed) return ERR_UNSUPPORTED;
  m->fused = m->device->table->act(m->device, MODEL_ROWS_MAX, fusion_width(f), false);
  if (!m->fused) return ERR_NOMEM;
  m->fusion = f;
  return ERR_OK;
}

int model_weigh(model *m, const kv_cache *k, ops_weighing how) {
  const int32_t blocks = kv_shape(k)->context / OPS_TILE;
  assert(fits(m, k));
  m->weighing = how;
  if (!m->mass) m->mass = m->device->table->act(m->device, MODEL_ROWS_MAX, blocks, false);
  return m->mass ? ERR_OK : ERR_NOMEM;
}

const float *model_mass(const model *m, int32_t segment) {
  int32_t at = forward_row(&m->batch, segment, 0), line = at < 0 ? -1 : m->capture_line[at];
  const bool weighed = line >= 0 && line < m->batch.plain.weigh_count;
  return !weighed || m->capture_mass < 0 ? NULL
                                         : m->device->table->captured(m->device, m->capture_mass, line);
}

uint64_t model_device_us(const model *m) {
  return m->answer.device_us;
}

bool model_prepared(const model *m) {
  return m->answer.prepared;
}

const float *model_logits(const model *m, int32_t segment, int32_t row) {
  int32_t line = head_line(m, segment, row);
  if (line < 0 || line >= m->batch.plain.logit_count) return NULL;
  return m->device->table->logits(m->device, line);
}

int32_t model_sampled(const model *m, int32_t segment, int32_t row) {
  int32_t line = head_line(m, segment, row);
  int32_t choice = line - m->batch.plain.logit_count - m->batch.plain.rank_count;
  return line < 0 || choice < 0 ? -1 : m->answer.ids[choice];
}

const ops_ranked *model_ranked(const model *m, int32_t segment, int32_t row) {
  return forward_ranked(&m->batch, m->device, segment, row);
}

void model_rank_all(const model *m) {
  forward_rank_all(&m->batch, m->device);
}

/* Window by window. */
static int fill_ids(const model *m, device_memory *to, const int32_t *ids, size_t bytes) {
  const device_table *table = m->device->table;
  size_t most = table->window_max(m->device) / sizeof *ids * sizeof *ids;
  int rc = ERR_OK;
  for (size_t at = 0, part; at < bytes && rc == ERR_OK; at += part) {
    part = bytes - at < most ? bytes - at : most;
    void *window = table->fill(m->device, to, at, part);
    if (!window) return ERR_NOMEM;
    memcpy(window, (const char *)ids + at, part);
    rc = device_error(table->filled(m->device));
  }
  return rc;
}

int model_set_ids(model *m, const int32_t *tokens, int32_t count) {
  int32_t outputs = m->config.vocab;
  size_t bytes = (size_t)outputs * sizeof *tokens;
  assert(count >= 1 && (tokens || count <= outputs));
  for (int32_t i = 0; tokens && i < outputs; i++) assert(tokens[i] < count);
  device_memory *memory = tokens ? m->device->table->take(m->device, MEM_GENERAL, bytes) : NULL;
  int rc = !tokens ? ERR_OK : memory ? fill_ids(m, memory, tokens, bytes) : ERR_NOMEM;
  m->device->table->drop(m->device, rc == ERR_OK ? m->id_memory : memory);
  if (rc != ERR_OK) return rc;
  m->id_memory = memory;
  m->ids = (device_ids){.memory = memory, .count = count, .outputs = outputs, .common = outputs};
  return ERR_OK;
}

uint64_t model_progress(const model *m) {
  return atomic_load_explicit(&m->progress, memory_order_relaxed);
}

const model_config *model_shape(const model *m) {
  return &m->config;
}

const char *model_numerics(const model *m, kv_type type) {
  return model_numerics_id(m->device->math, type);
}

device *model_device(const model *m) {
  return m->device;
}

const char *model_device_name(const model *m) {
  return m->device->table->name;
}

int32_t model_width(const model *m, int32_t rows) {
  return m->device->table->width(m->device, rows);
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
      .logit_lines = c->logit_lines,
      .staged_rows = c->staged_writes / (uint64_t)m->config.layers,
      .commit_copies = c->commit_copies,
  };
}
