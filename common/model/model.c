#include "common/model/model.h"
#include "common/model/device_error.h"
#include "common/model/kv_rows.h"
#include "common/model/weights.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#define KV_TYPES        2
#define TOKENS_AT_FIRST 4096

/* What one forward needs beside the weights: [MODEL_ROWS_MAX][columns], on the device. */
typedef struct activations {
  device_act *x;                  /* [embed] the residual stream */
  device_act *normed, *q, *k, *v; /* [embed], [heads * head_dim], [kv_heads * head_dim] twice */
  device_act *attended, *hidden;  /* [heads * head_dim], [ffn] */
} activations;

/* A forward, as the device gets it. */
typedef struct batch {
  ops_row rows[MODEL_ROWS_MAX];
  ops_span spans[OPS_VIEWS_MAX][MODEL_ROWS_MAX]; /* one a row */
  int32_t span_first[MODEL_ROWS_MAX + 1];        /* 0, 1, 2, ... */
  int32_t head_rows[MODEL_ROWS_MAX]; /* rows with logits, then those that are ranked, then that choose */
  ops_sampling choices[MODEL_ROWS_MAX];
  ops_ranking rankings[MODEL_ROWS_MAX];
  int32_t *tokens; /* [token_room] of the rankings' histories; taken with the first penalty */
  int32_t token_room;
  int32_t *paths; /* [MODEL_ROWS_MAX][KV_STAGE_MAX]; taken with the first tree */
  ops_batch plain;
} batch;

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
  batch batch;
  ops_answer answer;
  int32_t segment_count, segment_first[MODEL_ROWS_MAX + 1]; /* of each segment, its first row */
  int32_t head_line[MODEL_ROWS_MAX];                        /* where each row stands in head_rows, or -1 */
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
      {&a->x, c->embed, false}, {&a->normed, c->embed, true}, {&a->q, q, false},          {&a->k, kv, false},
      {&a->v, kv, false},       {&a->attended, q, true},      {&a->hidden, c->ffn, true},
  };
  memcpy(out, all, sizeof all);
}

/* About: floats, and a byte and something for each where a linear reads them as int8. */
static size_t activation_bytes(model *m) {
  activation list[ACTIVATIONS];
  size_t bytes = 0;
  list_activations(m, list);
  for (int32_t i = 0; i < ACTIVATIONS; i++)
    bytes += (size_t)MODEL_ROWS_MAX * (size_t)list[i].columns * (list[i].input ? 6 : 4);
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
      [OPS_MATH_INT8] = {[KV_F32] = NUMERICS_ID("int8", "f32"), [KV_F16] = NUMERICS_ID("int8", "f16")}};
#undef NUMERICS_ID
  return ids[math][type];
}

static int open_parts(model *m, const model_file *f, const model_options *o, err *e) {
  m->config = *model_file_config(f);
  m->ids.count = m->config.vocab;
  for (int32_t i = 0; i <= MODEL_ROWS_MAX; i++) m->batch.span_first[i] = i;
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
  m->device->table->drop(m->device, m->id_memory);
  mem_free(m->batch.paths);
  mem_free(m->batch.tokens);
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

static bool has_tree(const model_segment *segments, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    if (segments[i].kind == MODEL_TREE) return true;
  }
  return false;
}

/* What only trees ask for is taken with the first one, and booked as such. */
static int take_paths(model *m) {
  batch *b = &m->batch;
  if (!b->paths)
    b->paths = mem_alloc(m->mem, MEM_SPECULATION, (size_t)MODEL_ROWS_MAX * KV_STAGE_MAX * sizeof *b->paths);
  return b->paths ? ERR_OK : ERR_NOMEM;
}

static bool has_history(const model_segment *s) {
  return s->ranking && s->ranking->options.repeat_penalty != 1;
}

static int64_t history_tokens(const model_segment *s) {
  int64_t all = has_history(s) ? s->ranking->history_count : 0;
  for (int32_t r = 0, i = 0; has_history(s) && s->ranking->paths && r < s->count; r++)
    if (wants_logits(s, r)) all += s->ranking->paths[i++].count;
  return all;
}

/* Room for all histories, which grow with their sequences. */
static int take_tokens(model *m, const model_segment *segments, int32_t count) {
  batch *b = &m->batch;
  int64_t all = 0, room = b->token_room ? b->token_room : TOKENS_AT_FIRST;
  for (int32_t i = 0; i < count; i++) all += history_tokens(&segments[i]);
  if (all <= b->token_room) return ERR_OK;
  while (room < all) room *= 2;
  int32_t *tokens = room <= INT32_MAX ? mem_alloc(m->mem, MEM_GENERAL, (size_t)room * sizeof *tokens) : NULL;
  if (!tokens) return ERR_NOMEM;
  mem_free(b->tokens);
  b->tokens = tokens;
  b->token_room = (int32_t)room;
  return ERR_OK;
}

static ops_row append_row(const kv_cache *k, const model_segment *s, int32_t i) {
  int32_t position = kv_length(k, s->seq) + i;
  return (ops_row){.token = s->tokens[i], .position = position, .sequence = s->seq, .length = position + 1};
}

static ops_row tree_row(batch *b, const kv_cache *k, const model_segment *s, int32_t i) {
  int32_t at = b->plain.path_length, count = kv_path(k, s->seq, i, b->paths + at);
  int32_t length = kv_length(k, s->seq);
  b->plain.path_length += count;
  return (ops_row){.token = s->tokens[i],
                   .position = length + count - 1,
                   .sequence = s->seq,
                   .length = length,
                   .path_at = at,
                   .path_count = count};
}

static ops_slice add_tokens(batch *b, const int32_t *tokens, int32_t count) {
  ops_slice s = {b->plain.token_count, count};
  if (count > 0) memcpy(b->tokens + s.first, tokens, (size_t)count * sizeof *tokens);
  b->plain.token_count += count;
  return s;
}

static ops_sampling choice_of(const model_sampling *s, int32_t position) {
  return (ops_sampling){s->scale, s->seed, s->choice, (uint32_t)position};
}

/* The rows of the segment that want logits go to the end of head_rows. */
static void list_head_rows(model *m, const model_segment *s, int32_t first) {
  batch *b = &m->batch;
  ops_batch *plain = &b->plain;
  const model_ranking *k = s->ranking;
  bool history = has_history(s);
  ops_slice shared = history ? add_tokens(b, k->history, k->history_count) : (ops_slice){0};
  for (int32_t r = 0, i = 0; r < s->count; r++) {
    if (!wants_logits(s, r)) continue;
    int32_t row = first + r, line = plain->head_count++, position = b->rows[row].position + 1;
    b->head_rows[line] = row;
    m->head_line[row] = line;
    if (s->sampling)
      b->choices[line - plain->logit_count - plain->rank_count] = choice_of(s->sampling, position);
    if (!k) continue;
    ops_ranking *to = &b->rankings[plain->rank_count++];
    *to = (ops_ranking){.options = k->options, .position = position, .count = k->count, .history = {shared}};
    if (history && k->paths) to->history[1] = add_tokens(b, k->paths[i].tokens, k->paths[i].count);
    i++;
  }
}

typedef enum { HEAD_KEEPS, HEAD_RANKS, HEAD_CHOOSES, HEAD_USES } head_use;

static head_use use_of(const model_segment *s) {
  assert(!s->sampling || !s->ranking);
  return s->sampling ? HEAD_CHOOSES : s->ranking ? HEAD_RANKS : HEAD_KEEPS;
}

static void build_head(model *m, const model_segment *segments, int32_t count) {
  ops_batch *plain = &m->batch.plain;
  for (int32_t i = 0; i < plain->row_count; i++) m->head_line[i] = -1;
  for (head_use use = HEAD_KEEPS; use < HEAD_USES; use++) {
    for (int32_t i = 0; i < count; i++)
      if (use_of(&segments[i]) == use) list_head_rows(m, &segments[i], m->segment_first[i]);
    if (use == HEAD_KEEPS) plain->logit_count = plain->head_count;
  }
}

/* A row sees the positions of its window, or all of them, up to its own. */
static void build_views(model *m) {
  batch *b = &m->batch;
  b->plain.view_count = m->view_count;
  for (int32_t v = 0; v < m->view_count; v++) {
    int32_t window = m->windows[v];
    b->plain.views[v] = (ops_view){b->span_first, b->spans[v]};
    for (int32_t i = 0; i < b->plain.row_count; i++) {
      int32_t end = b->rows[i].position + 1;
      b->spans[v][i] = (ops_span){window > 0 && end > window ? end - window : 0, end};
    }
  }
}

static void build_batch(model *m, const kv_cache *k, const model_segment *segments, int32_t count) {
  batch *b = &m->batch;
  b->plain = (ops_batch){.rows = b->rows,
                         .paths = b->paths,
                         .head_rows = b->head_rows,
                         .rankings = b->rankings,
                         .tokens = b->tokens,
                         .choices = b->choices};
  for (int32_t i = 0; i < count; i++) {
    const model_segment *s = &segments[i];
    m->segment_first[i] = b->plain.row_count;
    for (int32_t r = 0; r < s->count; r++) {
      ops_row *row = &b->rows[b->plain.row_count++];
      *row = s->kind == MODEL_APPEND ? append_row(k, s, r) : tree_row(b, k, s, r);
    }
  }
  m->segment_first[count] = b->plain.row_count;
  build_head(m, segments, count);
  build_views(m);
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

static void attention_out(model *m, const weights_layer *w, int32_t layer) {
  activations *a = &m->act;
  device *d = m->device;
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

static void run_graph(model *m) {
  device *d = m->device;
  d->table->embed(d, &m->weights.embed, m->act.x);
  d->table->rope(d, &m->weights.rope);
  for (int32_t layer = 0; layer < m->config.layers; layer++) {
    const weights_layer *w = &m->weights.layers[layer];
    attention_in(m, w, layer);
    if (layer == m->config.layers - 1 && m->batch.plain.head_count == 0)
      return; /* keys and values were all that was wanted */
    attention_out(m, w, layer);
    feed_forward(m, w);
    atomic_fetch_add_explicit(&m->progress, 1, memory_order_relaxed);
  }
  output_head(m);
}

/* Runs the batch on the device, and waits for it. */
static int compute(model *m, device_kv *rows) {
  device *d = m->device;
  if (!d->table->begin(d, rows, &m->batch.plain))
    return d->table->wait(d, NULL) == OPS_LOST ? ERR_DEVICE : ERR_NOMEM;
  run_graph(m);
  d->table->end(d);
  return device_error(d->table->wait(d, &m->answer));
}

static bool fits(const model *m, const kv_cache *k) {
  const model_config *c = &m->config;
  const ops_kv_shape *s = kv_shape(k);
  return kv_device(k) == m->device && s->layers == c->layers && s->kv_heads == c->kv_heads &&
         s->head_dim == c->head_dim;
}

int model_forward(model *m, kv_cache *k, const model_segment *segments, int32_t count) {
  assert(fits(m, k));
  int rc = check_batch(m, k, segments, count);
  if (rc == ERR_OK && has_tree(segments, count)) rc = take_paths(m);
  if (rc == ERR_OK) rc = take_tokens(m, segments, count);
  if (rc != ERR_OK) return rc;
  m->segment_count = 0; /* the last forward's logits and choices are gone */
  build_batch(m, k, segments, count);
  rc = compute(m, kv_rows(k));
  if (rc != ERR_OK) return rc;
  m->segment_count = count;
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

uint64_t model_device_us(const model *m) {
  return m->answer.device_us;
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
  int32_t line = head_line(m, segment, row), ranking = line - m->batch.plain.logit_count;
  if (line < 0 || ranking < 0 || ranking >= m->batch.plain.rank_count) return NULL;
  return m->device->table->ranked(m->device, ranking, 1);
}

void model_rank_all(const model *m) {
  if (m->segment_count > 0 && m->batch.plain.rank_count > 0)
    m->device->table->ranked(m->device, 0, m->batch.plain.rank_count);
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

int model_set_ids(model *m, const int32_t *ids, int32_t count) {
  size_t bytes = (size_t)count * sizeof *ids;
  assert(count >= 1 && (ids || count <= m->config.vocab));
  for (int32_t i = 0; ids && i < count; i++) assert(ids[i] < m->config.vocab);
  device_memory *memory = ids ? m->device->table->take(m->device, MEM_GENERAL, bytes) : NULL;
  int rc = !ids ? ERR_OK : memory ? fill_ids(m, memory, ids, bytes) : ERR_NOMEM;
  m->device->table->drop(m->device, rc == ERR_OK ? m->id_memory : memory);
  if (rc != ERR_OK) return rc;
  m->id_memory = memory;
  m->ids = (device_ids){.memory = memory, .count = count};
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
