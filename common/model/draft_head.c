#include "common/model/draft_head.h"
#include "common/model/forward_batch.h"
#include "common/model/head_weights.h"
#include "common/model/kv_rows.h"

#include <assert.h>
#include <string.h>

#define VIEW  0
#define LAYER 0

#define OUTPUT_STEP                                                                                          \
  64 /* rows of the output matrix: a device that records forwards sees few different ones                    \
      */

/* [MODEL_ROWS_MAX][columns], on the device. */
typedef struct activations {
  device_act *taps, *taps_normed;   /* [tap_count * target_embed]; the latter only where fc reads a norm */
  device_act *state;                /* [embed] what a row reads beside its token; later its residual stream */
  device_act *state_normed;         /* ... where that is not normed */
  device_act *embedding, *embedded; /* [embed] the token's, and its norm */
  device_act *q, *k, *v;            /* [heads * head_dim], [kv_heads * head_dim] twice */
  device_act *attended, *hidden;    /* [heads * head_dim], [ffn] */
  device_act *normed;               /* [embed] */
} activations;

#define ACTIVATIONS 12

struct draft_head {
  head_config config;
  device *device;
  mem *mem;
  head_weights weights;
  activations act;
  float *taps, *states; /* [MODEL_ROWS_MAX][...] what the rows of the next forward read, or zeros */
  bool reads_taps;      /* some row of it does */
  device_weight output; /* as many rows as it needs */
  model_segment segments[MODEL_ROWS_MAX];
  forward_batch batch;
  ops_answer answer;
};

/* --- opening --- */

static int32_t tap_columns(const draft_head *h) {
  return h->config.tap_count * h->config.target_embed;
}

static bool take_activations(draft_head *h) {
  const model_config *c = &h->config.layer;
  int32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, taps = tap_columns(h);
  activations *a = &h->act;
  const struct {
    device_act **act;
    int32_t columns;
    bool input; /* of a linear */
  } all[ACTIVATIONS] = {
      {&a->taps, taps, true},
      {&a->taps_normed, h->config.norm_before_fc ? taps : 0, true},
      {&a->state, c->embed, false},
      {&a->state_normed, c->embed, true},
      {&a->embedding, c->embed, false},
      {&a->embedded, c->embed, true},
      {&a->q, q, false},
      {&a->k, kv, false},
      {&a->v, kv, false},
      {&a->attended, q, true},
      {&a->hidden, c->ffn, true},
      {&a->normed, c->embed, true},
  };
  for (int32_t i = 0; i < ACTIVATIONS; i++) {
    if (all[i].columns == 0) continue;
    *all[i].act = h->device->table->act(h->device, MODEL_ROWS_MAX, all[i].columns, all[i].input);
    if (!*all[i].act) return false;
  }
  return true;
}

static int open_parts(draft_head *h, const head_file *f, const model_file *target, head_shares shares,
                      err *e) {
  size_t rows = MODEL_ROWS_MAX;
  h->config = *head_file_config(f);
  forward_open(&h->batch);
  int rc = head_weights_load(&h->weights, f, target, shares, h->device, e);
  if (rc != ERR_OK) return rc;
  h->taps = mem_alloc(h->mem, MEM_SPECULATION, rows * (size_t)tap_columns(h) * sizeof *h->taps);
  h->states = mem_alloc(h->mem, MEM_SPECULATION, rows * (size_t)h->config.layer.embed * sizeof *h->states);
  if (h->taps && h->states && take_activations(h)) return ERR_OK;
  return err_set(e, ERR_NOMEM, "no memory for a draft head's activations of %d rows: end what else uses %s",
                 MODEL_ROWS_MAX, h->device->table->name);
}

int draft_head_open(draft_head **out, const head_file *f, const model_file *target, head_shares shares,
                    device *d, mem *m, err *e) {
  *out = NULL;
  draft_head *h = mem_alloc(m, MEM_SPECULATION, sizeof *h);
  if (!h) return err_set(e, ERR_NOMEM, "no memory for a draft head");
  *h = (draft_head){.device = d, .mem = m};
  int rc = open_parts(h, f, target, shares, e);
  if (rc != ERR_OK)
    draft_head_close(h);
  else
    *out = h;
  return rc;
}

static void drop_activations(draft_head *h) {
  activations *a = &h->act;
  device_act *all[ACTIVATIONS] = {a->taps,      a->taps_normed, a->state,  a->state_normed,
                                  a->embedding, a->embedded,    a->q,      a->k,
                                  a->v,         a->attended,    a->hidden, a->normed};
  for (int32_t i = 0; i < ACTIVATIONS; i++)
    if (all[i]) h->device->table->act_drop(h->device, all[i]);
}

void draft_head_close(draft_head *h) {
  if (!h) return;
  head_weights_free(&h->weights, h->device);
  drop_activations(h);
  forward_close(&h->batch);
  mem_free(h->taps);
  mem_free(h->states);
  mem_free(h);
}

/* --- what the rows read --- */

/* A row reads taps or a state; the other one is zero, and adds nothing. Where no row reads taps, fc is left
 * out, and so are they. */
static void gather_rows(draft_head *h, const draft_head_segment *s, int32_t first) {
  size_t taps = (size_t)tap_columns(h), embed = (size_t)h->config.layer.embed;
  bool has_taps = s->input == DRAFT_HEAD_TAPS;
  size_t rows = (size_t)s->rows.count, row = (size_t)first;
  if (has_taps) {
    memcpy(h->taps + row * taps, s->values, rows * taps * sizeof *h->taps);
    memset(h->states + row * embed, 0, rows * embed * sizeof *h->states);
  } else {
    if (h->reads_taps) memset(h->taps + row * taps, 0, rows * taps * sizeof *h->taps);
    memcpy(h->states + row * embed, s->values, rows * embed * sizeof *h->states);
  }
}

/* The noise of a sampled token makes rare ones win now and then, so that such a row is ranked by all outputs.
 * Any other one is ranked by the common ones and its sequence's own. */
static ops_slice outputs_of(const draft_head *h, int32_t row, const ops_ranking *r) {
  if (r->options.temperature > 0 && h->weights.rest.count > 0) return h->weights.rest;
  return head_rows_own(h->weights.own, h->batch.rows[row].sequence);
}

/* The forward computes as many outputs as its rows take. */
static void share_outputs(draft_head *h) {
  forward_batch *b = &h->batch;
  const ops_batch *plain = &b->plain;
  int32_t end = h->weights.ids.common;
  h->output = h->weights.output;
  if (!h->weights.own) return;
  for (int32_t i = 0; i < plain->rank_count; i++) {
    int32_t row = b->head_rows[plain->logit_count + i];
    ops_slice own = outputs_of(h, row, &b->rankings[i]);
    b->rankings[i].own = own;
    if (own.first + own.count > end) end = own.first + own.count;
  }
  end = (end + OUTPUT_STEP - 1) / OUTPUT_STEP * OUTPUT_STEP;
  if (end < h->output.rows) h->output.rows = end;
}

static void build(draft_head *h, const kv_cache *k, const draft_head_segment *segments, int32_t count) {
  forward_batch *b = &h->batch;
  const int32_t window = head_config_window(&h->config);
  forward_build(b, k, h->segments, count, &window, 1);
  memcpy(b->capture_rows, b->head_rows, (size_t)b->plain.head_count * sizeof *b->head_rows);
  b->plain.capture_count = b->plain.head_count;
  share_outputs(h);
  h->reads_taps = false;
  for (int32_t i = 0; i < count; i++) h->reads_taps |= segments[i].input == DRAFT_HEAD_TAPS;
  for (int32_t i = 0; i < count; i++) gather_rows(h, &segments[i], b->segment_first[i]);
}

/* --- the graph --- */

static void norm(draft_head *h, const device_act *x, bool head, device_vector w, device_act *y) {
  h->device->table->norm(h->device, x, head, w, h->config.layer.norm_eps, y);
}

static void make_state(draft_head *h) {
  activations *a = &h->act;
  device *d = h->device;
  d->table->supply(d, h->states, a->state);
  if (!h->reads_taps) return;
  device_act *x = a->taps;
  d->table->supply(d, h->taps, x);
  if (h->config.norm_before_fc) {
    norm(h, x, false, h->weights.fc_norm, a->taps_normed);
    x = a->taps_normed;
  }
  d->table->linear(d, &(device_linear){.w = h->weights.fc, .y = a->state, .add = true}, 1, x);
}

static void attention(draft_head *h, device_act *residual) {
  activations *a = &h->act;
  const head_weights *w = &h->weights;
  device *d = h->device;
  const device_linear of_token[] = {
      {.w = w->q[0], .y = a->q}, {.w = w->k[0], .y = a->k}, {.w = w->v[0], .y = a->v}};
  const device_linear of_state[] = {{.w = w->q[1], .y = a->q, .add = true},
                                    {.w = w->k[1], .y = a->k, .add = true},
                                    {.w = w->v[1], .y = a->v, .add = true}};
  d->table->linear(d, of_token, 3, a->embedded);
  d->table->linear(d, of_state, 3, a->state_normed);
  d->table->rope_store(d, LAYER, &(device_rotary){.eps = h->config.layer.norm_eps}, a->q, a->k, a->v);
  if (h->batch.plain.head_count == 0) return; /* keys and values were all that was wanted */
  d->table->attention(d, LAYER, VIEW, a->q, a->attended);
  d->table->linear(d, &(device_linear){.w = w->attn_output, .y = residual, .add = true}, 1, a->attended);
}

static void feed_forward(draft_head *h, device_act *residual) {
  activations *a = &h->act;
  device *d = h->device;
  norm(h, residual, false, h->weights.ffn_norm, a->normed);
  d->table->linear_swiglu(d, &h->weights.gate, &h->weights.up, a->normed, a->hidden);
  d->table->linear(d, &(device_linear){.w = h->weights.down, .y = residual, .add = true}, 1, a->hidden);
}

static void output(draft_head *h, const device_act *residual) {
  device *d = h->device;
  if (h->config.norm_output) norm(h, residual, false, h->weights.output_norm, h->act.normed);
  d->table->capture(d, h->config.norm_output ? h->act.normed : residual);
  norm(h, residual, true, h->weights.output_norm, h->act.normed);
  d->table->head(d, &h->output, h->act.normed);
  d->table->rank(d, h->weights.ids);
}

static void run_graph(void *context) {
  draft_head *h = context;
  activations *a = &h->act;
  device *d = h->device;
  device_act *residual = h->config.norm_before_residual ? a->state_normed : a->state;
  make_state(h);
  norm(h, a->state, false, h->weights.state_norm, a->state_normed);
  d->table->embed(d, &h->weights.embed, a->embedding);
  norm(h, a->embedding, false, h->weights.embed_norm, a->embedded);
  d->table->rope(d, &h->weights.rope);
  attention(h, residual);
  if (h->batch.plain.head_count == 0) return;
  feed_forward(h, residual);
  output(h, residual);
}

/* --- a forward --- */

static bool fits(const draft_head *h, const kv_cache *k) {
  const model_config *c = &h->config.layer;
  const ops_kv_shape *s = kv_shape(k);
  return kv_device(k) == h->device && s->layers == 1 && s->kv_heads == c->kv_heads &&
         s->head_dim == c->head_dim;
}

int draft_head_forward(draft_head *h, kv_cache *k, const draft_head_segment *segments, int32_t count) {
  assert(fits(h, k));
  if (count < 1) return ERR_ARG;
  if (count > MODEL_ROWS_MAX) return ERR_LIMIT;
  for (int32_t i = 0; i < count; i++) {
    h->segments[i] = segments[i].rows;
    assert(!segments[i].rows.sampling && segments[i].rows.tap_count == 0);
    assert(segments[i].rows.ranking || segments[i].rows.no_logits);
  }
  int rc = forward_check(k, h->segments, count, h->config.layer.vocab);
  if (rc == ERR_OK) rc = forward_reserve(&h->batch, h->segments, count, h->mem);
  if (rc != ERR_OK) return rc;
  h->batch.segment_count = 0;
  const head_weights *w = &h->weights;
  if (w->own) rc = head_rows_flush(w->own, w->output_memory, w->id_memory);
  if (rc != ERR_OK) return rc;
  build(h, k, segments, count);
  rc = forward_run(&h->batch, h->device, k, run_graph, h, &h->answer);
  if (rc == ERR_OK) forward_done(&h->batch, k, h->segments, count);
  return rc;
}

void draft_head_clear_text(draft_head *h, int32_t seq) {
  if (h->weights.own) head_rows_clear(h->weights.own, seq);
}

void draft_head_add_text(draft_head *h, int32_t seq, const int32_t *tokens, int32_t count) {
  if (h->weights.own) head_rows_add(h->weights.own, seq, tokens, count);
}

/* --- what it tells --- */

const head_config *draft_head_shape(const draft_head *h) {
  return &h->config;
}

size_t draft_head_bytes(const draft_head *h) {
  return h->weights.bytes;
}

uint64_t draft_head_device_us(const draft_head *h) {
  return h->answer.device_us;
}

bool draft_head_prepared(const draft_head *h) {
  return h->answer.prepared;
}

const ops_ranked *draft_head_ranked(const draft_head *h, int32_t segment, int32_t row) {
  return forward_ranked(&h->batch, h->device, segment, row);
}

void draft_head_rank_all(const draft_head *h) {
  forward_rank_all(&h->batch, h->device);
}

const float *draft_head_state(const draft_head *h, int32_t segment, int32_t row) {
  int32_t at = forward_row(&h->batch, segment, row), line = at < 0 ? -1 : h->batch.head_line[at];
  return line < 0 ? NULL : h->device->table->captured(h->device, 0, line);
}
