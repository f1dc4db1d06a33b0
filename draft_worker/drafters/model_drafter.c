#include "draft_worker/drafters/model_drafter.h"

#include "draft_worker/drafters/calibration.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define HOPE  (-0.7f)
#define LEAST (-3.0f)

typedef struct model_session {
  int32_t sent; /* tokens of C that batches have carried */
  int32_t job;  /* of batch number `batch` */
  uint64_t batch;
  bool lockstep;
  sampler_options sampling;
} model_session;

typedef struct model_drafter {
  int32_t rows;
  model_session sessions[DRAFTER_SLOTS_MAX];
  calibration_table rates;      /* learnt from all sessions */
  draft_batch *batch;           /* being gathered, or NULL */
  uint64_t batch_number;        /* of that one, or of the last one */
  const draft_results *results; /* whose replies are being taken, or NULL */
  int32_t failures_taken, results_taken;
} model_drafter;

/* --- sessions --- */

static int open_session(void *self, int32_t slot, const drafter_session *s) {
  model_session *x = &((model_drafter *)self)->sessions[slot];
  if (x->sent > s->kept) x->sent = s->kept;
  x->lockstep = s->options->lockstep;
  x->sampling = msg_sampling(s->options);
  return ERR_OK;
}

static void close_session(void *self, int32_t slot) {
  ((model_drafter *)self)->sessions[slot] = (model_session){0};
}

static void observe(void *self, const draft_candidate *list, int32_t count, int32_t token) {
  calibration_learn(&((model_drafter *)self)->rates, list, count, token);
}

/* --- gathering a batch --- */

static void batch_begin(void *self, draft_batch *b) {
  model_drafter *d = self;
  b->job_count = b->query_count = b->token_count = 0;
  d->batch = b;
  d->batch_number++;
}

static bool batch_end(void *self) {
  model_drafter *d = self;
  bool any = d->batch->job_count > 0;
  d->batch = NULL;
  return any;
}

/* The session's job in this batch; NULL: there is no room for one more. */
static draft_job *job_of(model_drafter *d, int32_t slot) {
  draft_batch *b = d->batch;
  model_session *s = &d->sessions[slot];
  if (s->batch == d->batch_number) return &b->jobs[s->job];
  if (b->job_count == DRAFT_JOBS_MAX) return NULL;
  s->batch = d->batch_number;
  draft_job *j = &b->jobs[s->job = b->job_count++];
  *j = (draft_job){.slot = slot,
                   .base = s->sent,
                   .first = b->token_count,
                   .first_query = b->query_count,
                   .whole = true,
                   .sampling = s->sampling};
  return j;
}

/* While a batch is gathered, as much of C as has not been sent and has room. */
static int32_t advance(void *self, int32_t slot, const prefix *committed) {
  model_drafter *d = self;
  model_session *s = &d->sessions[slot];
  draft_batch *b = d->batch;
  int32_t left = committed->length - s->sent, room = b ? DRAFT_CHUNK - b->token_count : 0;
  draft_job *j = left > 0 && room > 0 ? job_of(d, slot) : NULL;
  if (!j) return s->sent;
  j->count = left < room ? left : room;
  memcpy(b->tokens + j->first, committed->tokens + s->sent, (size_t)j->count * sizeof *b->tokens);
  b->token_count += j->count;
  s->sent += j->count;
  j->whole = s->sent == committed->length;
  return s->sent;
}

/* While a batch is gathered, up to its rows; those of a session come one after the other. */
static bool submit(void *self, const draft_query *q) {
  model_drafter *d = self;
  draft_batch *b = d->batch;
  draft_job *j = b && b->query_count < d->rows ? job_of(d, q->slot) : NULL;
  if (!j) return false;
  if (j->query_count == 0) j->first_query = b->query_count;
  assert(j->whole && j->first_query + j->query_count == b->query_count);
  j->query_count++;
  b->queries[b->query_count++] = *q;
  return true;
}

/* --- replies --- */

static uint64_t batch_done(void *self, const draft_results *r) {
  model_drafter *d = self;
  d->results = r;
  d->failures_taken = d->results_taken = 0;
  return r->us;
}

/* In lockstep the scores are not calibrated, so that counts repeat. */
static void reply_of(const model_drafter *d, const draft_result *r, draft_reply *out) {
  const calibration_table *rates = d->sessions[r->slot].lockstep ? NULL : &d->rates;
  *out = (draft_reply){.slot = r->slot, .handle = r->handle, .count = r->count};
  calibration_candidates(rates, r->list, r->count, out->list);
}

static bool take(void *self, draft_reply *out) {
  model_drafter *d = self;
  const draft_results *r = d->results;
  if (r && d->failures_taken < r->failure_count) {
    const draft_failure *f = &r->failures[d->failures_taken++];
    *out = (draft_reply){.slot = f->slot, .code = f->code};
    return true;
  }
  if (r && d->results_taken < r->result_count) {
    reply_of(d, &r->results[d->results_taken++], out);
    return true;
  }
  d->results = NULL;
  return false;
}

static const drafter_kind model_kind = {.budgets_ahead = 1, /* a node costs a row of a forward */
                                        .hope = HOPE,
                                        .least = LEAST,
                                        .lasting = true,
                                        .free = free,
                                        .open = open_session,
                                        .close = close_session,
                                        .advance = advance,
                                        .observe = observe,
                                        .submit = submit,
                                        .take = take,
                                        .batch_begin = batch_begin,
                                        .batch_end = batch_end,
                                        .batch_done = batch_done};

int model_drafter_open(drafter *out, int32_t rows, err *e) {
  *out = (drafter){0};
  assert(rows > 0 && rows <= DRAFT_QUERIES_MAX);
  model_drafter *d = calloc(1, sizeof *d);
  if (!d) return err_set(e, ERR_NOMEM, "no memory for a drafter");
  d->rows = rows;
  *out = (drafter){.kind = &model_kind, .self = d, .method = MODEL_DRAFTER_METHOD, .queries_max = rows};
  return ERR_OK;
}
