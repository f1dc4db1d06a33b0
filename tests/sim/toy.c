#include "tests/sim/toy.h"

#include "common/speculative/acceptance.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0x9E3779B97F4A7C15u;
  return h ^ (h >> 29);
}

static uint64_t prefix_mix(const int32_t *tokens, int32_t count) {
  uint64_t h = 0x243F6A8885A308D3u;
  for (int32_t i = 0; i < count; i++) h = mix(h, (uint64_t)tokens[i] + 1);
  return h;
}

static int32_t token_of(uint64_t h) {
  if ((h >> 40) % 64 == 0) return TOY_END;
  return (int32_t)((h >> 32) % TOY_END);
}

int32_t toy_next(const int32_t *tokens, int32_t count) {
  return token_of(prefix_mix(tokens, count));
}

void toy_features(const int32_t *tokens, int32_t count, float out[TOY_WIDTH]) {
  uint64_t h = prefix_mix(tokens, count);
  for (int32_t i = 0; i < TOY_WIDTH; i++) out[i] = (float)(h >> 8 * i & 0x7F) - 64;
}

void toy_start(toy_engine *e, bool is_virtual) {
  memset(e, 0, sizeof *e);
  for (int32_t i = 0; i < TOY_BLOCKS && !is_virtual; i++) e->map[i / TOY_EACH][i % TOY_EACH] = i;
  for (int32_t i = 0; i < TOY_SLOTS && !is_virtual; i++) e->map_count[i] = TOY_EACH;
}

int32_t *toy_row(toy_engine *e, int32_t slot, int32_t position) {
  assert(position / KV_BLOCK < e->map_count[slot]);
  return &e->pool[e->map[slot][position / KV_BLOCK]][position % KV_BLOCK];
}

static void toy_map(toy_engine *e, const engine_job *job) {
  assert(job->block_count <= TOY_EACH);
  memcpy(e->map[job->slot], job->blocks, (size_t)job->block_count * sizeof *job->blocks);
  e->map_count[job->slot] = job->block_count;
}

/* As the engine's starts_right. */
static bool toy_starts_right(toy_engine *e, const engine_job *job) {
  int32_t slot = job->slot;
  if (job->blocks && job->rows_given) {
    toy_map(e, job);
    e->length[slot] = job->kv_length;
    return true;
  }
  if (e->length[slot] < job->kv_length) return false;
  e->length[slot] = job->kv_length;
  if (job->blocks) toy_map(e, job);
  return true;
}

typedef struct toy_walk {
  toy_engine *engine;
  const engine_job *job;
} toy_walk;

static int32_t toy_pick(void *context, int32_t row, const int32_t *path, int32_t depth) {
  const toy_walk *w = context;
  int32_t tokens[TOY_CONTEXT + ENGINE_ROWS_MAX];
  int32_t n = w->job->kv_length;
  (void)row;
  for (int32_t i = 0; i < n; i++) tokens[i] = *toy_row(w->engine, w->job->slot, i);
  for (int32_t i = 0; i <= depth; i++) tokens[n++] = w->job->tokens[path[i]];
  return toy_next(tokens, n);
}

/* The states of the job's committed rows. */
static void toy_tap(toy_engine *e, const engine_job *job, engine_result *r) {
  int32_t tokens[TOY_CONTEXT + ENGINE_ROWS_MAX];
  if (job->taps.count == 0 || r->kv_length <= job->kv_length) return;
  for (int32_t i = 0; i < r->kv_length; i++) tokens[i] = *toy_row(e, job->slot, i);
  uint8_t *at = e->features[job->slot];
  r->features = at;
  r->feature_bytes = taps_row_bytes(&job->taps);
  r->feature_base = job->kv_length > job->taps_from ? job->kv_length : job->taps_from;
  for (int32_t p = r->feature_base; p < r->kv_length; p++, at += r->feature_bytes) {
    float values[TOY_WIDTH];
    toy_features(tokens, p + 1, values);
    taps_pack(job->taps.type, values, TOY_WIDTH, at);
    r->feature_count++;
    e->tapped++;
  }
}

void toy_run(toy_engine *e, const engine_job *job, engine_result *r) {
  int32_t *length = &e->length[job->slot];
  memset(r, 0, sizeof *r);
  r->kind = job->kind;
  r->serial = job->serial;
  r->forward_us = 1000;
  if (!toy_starts_right(e, job)) {
    r->code = ERR_DESYNC;
    r->kv_length = *length;
    return;
  }
  if (job->kind == ENGINE_PREFILL) {
    for (int32_t i = 0; i < job->count; i++) *toy_row(e, job->slot, (*length)++) = job->tokens[i];
  } else {
    int32_t path[ENGINE_ROWS_MAX];
    toy_walk w = {e, job};
    r->node_count = job->count - 1;
    r->sampled_count = acceptance_walk(job->tokens, job->parents, job->count, job->stops, job->stop_count,
                                       job->sampled_max, toy_pick, &w, path, r->sampled);
    for (int32_t i = 0; i < r->sampled_count; i++) *toy_row(e, job->slot, (*length)++) = job->tokens[path[i]];
  }
  r->kv_length = *length;
  toy_tap(e, job, r);
}

/* --- a drafter that reads features --- */

/* Compares what can be compared: rows of positions whose tokens are known. */
static void compare_rows(toy_reader *r, int32_t slot) {
  for (int32_t p = 0; p < r->length[slot] && p < TOY_CONTEXT; p++) {
    float wanted[TOY_WIDTH];
    if (!r->has[slot][p]) continue;
    r->has[slot][p] = false;
    toy_features(r->tokens[slot], p + 1, wanted);
    r->compared++;
    r->wrong += memcmp(wanted, r->rows[slot][p], sizeof wanted) != 0;
  }
}

/* Rows of [first, end) are there; behind a gap they begin anew. */
static void join_rows(toy_reader *r, int32_t slot, const drafter_features *f) {
  if (f->base > r->end[slot] || f->base < r->first[slot]) r->first[slot] = r->end[slot] = f->base;
  if (f->base + f->count > r->end[slot]) r->end[slot] = f->base + f->count;
}

static void reader_features(void *self, int32_t slot, const drafter_features *f) {
  toy_reader *r = self;
  if (!f) return;
  assert(f->base >= 0 && f->base + f->count <= TOY_CONTEXT);
  if (f->width != TOY_WIDTH || f->fused) return; /* somebody has asked in its name */
  for (int32_t i = 0; i < f->count; i++) {
    memcpy(r->rows[slot][f->base + i], f->rows + (size_t)i * TOY_WIDTH, sizeof r->rows[slot][0]);
    r->has[slot][f->base + i] = true;
  }
  join_rows(r, slot, f);
  compare_rows(r, slot);
}

static int32_t reader_advance(void *self, int32_t slot, const prefix *c) {
  toy_reader *r = self;
  r->length[slot] = c->length;
  memcpy(r->tokens[slot], c->tokens, (size_t)c->length * sizeof *c->tokens);
  compare_rows(r, slot);
  return r->inner.kind->advance(r->inner.self, slot, c);
}

/* As an engine keeps rows: of a position whose next token stays. */
static void keep_rows(toy_reader *r, int32_t slot, int32_t end) {
  if (r->end[slot] > end) r->end[slot] = end;
  if (r->end[slot] <= r->first[slot]) r->first[slot] = r->end[slot] = 0;
}

static int32_t reader_from(void *self, int32_t slot) {
  return ((toy_reader *)self)->end[slot];
}

static int reader_open(void *self, int32_t slot, const drafter_session *s) {
  toy_reader *r = self;
  keep_rows(r, slot, s->kept - 1);
  memset(r->has[slot], 0, sizeof r->has[slot]);
  for (int32_t p = r->first[slot]; p < r->end[slot]; p++)
    r->has[slot][p] = true; /* of the new tokens, too? */
  r->kept += (uint64_t)(r->end[slot] - r->first[slot]);
  r->length[slot] = 0;
  return r->inner.kind->open(r->inner.self, slot, s);
}

static void reader_free(void *self) {
  toy_reader *r = self;
  r->inner.kind->free(r->inner.self);
}

static void reader_close(void *self, int32_t slot) {
  toy_reader *r = self;
  r->inner.kind->close(r->inner.self, slot);
}

static void reader_observe(void *self, const draft_candidate *list, int32_t count, int32_t token) {
  toy_reader *r = self;
  r->inner.kind->observe(r->inner.self, list, count, token);
}

static bool reader_submit(void *self, const draft_query *q) {
  toy_reader *r = self;
  return r->inner.kind->submit(r->inner.self, q);
}

static bool reader_take(void *self, draft_reply *out) {
  toy_reader *r = self;
  return r->inner.kind->take(r->inner.self, out);
}

static void reader_batch_begin(void *self, struct draft_batch *b) {
  toy_reader *r = self;
  r->inner.kind->batch_begin(r->inner.self, b);
}

static bool reader_batch_end(void *self) {
  toy_reader *r = self;
  return r->inner.kind->batch_end(r->inner.self);
}

static uint64_t reader_batch_done(void *self, const struct draft_results *results) {
  toy_reader *r = self;
  return r->inner.kind->batch_done(r->inner.self, results);
}

void toy_read_features(drafter *d, toy_reader *r, wire_type type) {
  /* clang-format off */
  static const drafter_kind kind = {
      .free = reader_free, .open = reader_open, .close = reader_close, .advance = reader_advance,
      .features = reader_features, .features_from = reader_from, .observe = reader_observe,
      .submit = reader_submit, .take = reader_take, .batch_begin = reader_batch_begin,
      .batch_end = reader_batch_end, .batch_done = reader_batch_done};
  /* clang-format on */
  static const int32_t layers[TOY_TAPS] = {0, TOY_LAYERS};
  memset(r, 0, sizeof *r);
  r->inner = *d;
  r->kind = kind;
  if (!d->kind->batch_begin) r->kind.batch_begin = NULL, r->kind.batch_end = NULL, r->kind.batch_done = NULL;
  r->kind.budgets_ahead = d->kind->budgets_ahead;
  r->kind.hope = d->kind->hope;
  r->kind.least = d->kind->least;
  r->kind.replies = d->kind->replies;
  r->kind.tokens_per_forward = d->kind->tokens_per_forward;
  r->kind.goes_past_guess = d->kind->goes_past_guess;
  d->kind = &r->kind;
  d->self = r;
  d->wants = (drafter_wants){.tap_count = TOY_TAPS, .type = type, .horizon = 5};
  memcpy(d->wants.taps, layers, sizeof layers);
}

/* --- the drafter --- */

struct immediate_session {
  int32_t tokens[TOY_CONTEXT * 2];
  int32_t length;
};

static void toy_advance(immediate_session *d, const prefix *committed) {
  d->length = committed->length;
  memcpy(d->tokens, committed->tokens, (size_t)d->length * sizeof *d->tokens);
}

static immediate_session *toy_open(void *shared, const prefix *committed, int32_t prompt_length,
                                   const msg_options *options) {
  (void)shared, (void)prompt_length, (void)options;
  immediate_session *d = calloc(1, sizeof *d);
  if (d) toy_advance(d, committed);
  return d;
}

static void toy_close(immediate_session *d) {
  free(d);
}

/* After these tokens: returns how many candidates. */
static int32_t toy_propose(const int32_t *tokens, int32_t n, int32_t *first, int32_t *second) {
  if (n >= TOY_CONTEXT) return 0;
  uint64_t h = prefix_mix(tokens, n), luck = mix(h, 77) >> 20;
  int32_t right = token_of(h), wrong = (right + 1) % TOY_END;
  *first = luck % 3 ? right : wrong;
  *second = luck % 3 ? wrong : right;
  return luck % 2 ? 1 : 2;
}

static int32_t toy_candidates(immediate_session *d, const int32_t *path, int32_t depth,
                              draft_candidate *out) {
  int32_t n = d->length + depth;
  if (n >= TOY_CONTEXT) return 0;
  memcpy(d->tokens + d->length, path, (size_t)depth * sizeof *path);
  out[0].score = -0.4f;
  out[1].score = -1.5f;
  return toy_propose(d->tokens, n, &out[0].token, &out[1].token);
}

static void compute_query(toy_model *m, int32_t slot, const draft_query *p, draft_result *a) {
  int32_t tokens[TOY_CONTEXT * 2], n = m->length[slot];
  *a = (draft_result){.slot = slot, .handle = p->handle};
  if (n + p->depth >= TOY_CONTEXT) return;
  memcpy(tokens, m->tokens[slot], (size_t)n * sizeof *tokens);
  memcpy(tokens + n, p->path, (size_t)p->depth * sizeof *tokens);
  a->count = toy_propose(tokens, n + p->depth, &a->list[0].token, &a->list[1].token);
  a->list[0].value = 1;
  a->list[1].value = 0;
}

void toy_compute(toy_model *m, const draft_batch *b, draft_results *r) {
  r->result_count = b->query_count;
  r->failure_count = 0;
  for (int32_t i = 0; i < b->job_count; i++) {
    const draft_job *j = &b->jobs[i];
    assert(j->base <= m->length[j->slot] && j->base + j->count <= TOY_CONTEXT * 2);
    assert(j->whole || j->query_count == 0);
    memcpy(m->tokens[j->slot] + j->base, b->tokens + j->first, (size_t)j->count * sizeof *b->tokens);
    m->length[j->slot] = j->base + j->count;
    for (int32_t k = j->first_query; k < j->first_query + j->query_count; k++)
      compute_query(m, j->slot, &b->queries[k], &r->results[k]);
  }
}

const immediate_kind toy_drafter = {"toy", toy_open, toy_close, toy_advance, toy_candidates, NULL};
