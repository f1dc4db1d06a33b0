#include "draft_worker/drafters/batch_drafter.h"

#include <assert.h>
#include <string.h>

void batch_drafter_init(batch_drafter *d, int32_t rows, const float (*measured)[CALIBRATION_WEIGHTS]) {
  assert(rows > 0 && rows <= DRAFT_QUERIES_MAX);
  d->rows = rows;
  calibration_init(&d->first, measured);
  d->learnt = d->first;
}

/* --- sessions --- */

int batch_drafter_open(void *self, int32_t slot, const drafter_session *s) {
  batch_session *x = &((batch_drafter *)self)->sessions[slot];
  if (x->sent > s->kept) x->sent = s->kept;
  x->failed = false;
  x->lockstep = s->options->lockstep;
  x->sampling = msg_sampling(s->options);
  x->prompt_length = s->prompt_length;
  msg_options mine;
  msg_bias_copy(&mine, s->options, &((batch_drafter *)self)->biases[slot]);
  x->bias_count = mine.bias_count;
  return ERR_OK;
}

/* What the engine holds stays. */
void batch_drafter_close(void *self, int32_t slot) {
  batch_session *s = &((batch_drafter *)self)->sessions[slot];
  *s = (batch_session){.sent = s->sent};
}

void batch_drafter_observe(void *self, const draft_candidate *list, int32_t count, int32_t token) {
  calibration_learn(&((batch_drafter *)self)->learnt, list, count, token);
}

/* --- gathering a batch --- */

void batch_drafter_begin(void *self, draft_batch *b) {
  batch_drafter *d = self;
  b->job_count = b->query_count = b->token_count = b->feature_count = 0;
  d->batch = b;
  d->batch_number++;
}

bool batch_drafter_end(void *self) {
  batch_drafter *d = self;
  bool any = d->batch->job_count > 0;
  d->batch = NULL;
  return any;
}

draft_job *batch_drafter_job(batch_drafter *d, int32_t slot) {
  draft_batch *b = d->batch;
  batch_session *s = &d->sessions[slot];
  if (s->batch == d->batch_number) return &b->jobs[s->job];
  if (b->job_count == DRAFT_JOBS_MAX) return NULL;
  s->batch = d->batch_number;
  draft_job *j = &b->jobs[s->job = b->job_count++];
  *j = (draft_job){.slot = slot,
                   .base = s->sent,
                   .first = b->token_count,
                   .first_query = b->query_count,
                   .whole = true,
                   .sampling = s->sampling,
                   .prompt_length = s->prompt_length,
                   .bias_tokens = d->job_biases[s->job].tokens,
                   .bias_values = d->job_biases[s->job].values,
                   .bias_count = s->bias_count};
  if (s->bias_count > 0) d->job_biases[s->job] = d->biases[slot];
  return j;
}

bool batch_drafter_failed(const batch_drafter *d, int32_t slot) {
  return d->lost || d->sessions[slot].failed;
}

int32_t batch_drafter_advance(void *self, int32_t slot, const prefix *committed) {
  batch_drafter *d = self;
  batch_session *s = &d->sessions[slot];
  draft_batch *b = d->batch;
  if (batch_drafter_failed(d, slot)) return DRAFTER_ABSENT;
  int32_t left = committed->length - s->sent, room = b ? DRAFT_CHUNK - b->token_count : 0;
  draft_job *j = left > 0 && room > 0 ? batch_drafter_job(d, slot) : NULL;
  if (!j) return s->sent;
  j->count = left < room ? left : room;
  memcpy(b->tokens + j->first, committed->tokens + s->sent, (size_t)j->count * sizeof *b->tokens);
  b->token_count += j->count;
  s->sent += j->count;
  j->whole = s->sent == committed->length;
  return s->sent;
}

bool batch_drafter_submit(void *self, const draft_query *q) {
  batch_drafter *d = self;
  draft_batch *b = d->batch;
  draft_job *j = b && b->query_count < d->rows ? batch_drafter_job(d, q->slot) : NULL;
  if (!j) return false;
  if (j->query_count == 0) j->first_query = b->query_count;
  assert(j->whole && j->first_query + j->query_count == b->query_count);
  j->query_count++;
  d->positions[b->query_count] = d->sessions[q->slot].sent + q->depth; /* all of C has been sent */
  b->queries[b->query_count++] = *q;
  return true;
}

/* --- replies --- */

uint64_t batch_drafter_done(void *self, const draft_results *r) {
  batch_drafter *d = self;
  d->results = r;
  d->failures_taken = d->results_taken = 0;
  return r->us;
}

/* In lockstep the scores are always those of the start, so that counts repeat. */
static void reply_of(const batch_drafter *d, int32_t query, draft_reply *out) {
  const draft_result *r = &d->results->results[query];
  const calibration *c = d->sessions[r->slot].lockstep ? &d->first : &d->learnt;
  const calibration_choice choice = {&d->sessions[r->slot].sampling, d->positions[query]};
  *out = (draft_reply){.slot = r->slot, .handle = r->handle, .count = r->count};
  calibration_candidates(c, &choice, r->list, r->count, out->list);
}

/* The engine has forgotten the session: if it is opened again, all of C is sent again. */
static void take_failure(batch_drafter *d, const draft_failure *f, draft_reply *out) {
  d->sessions[f->slot].sent = 0;
  d->sessions[f->slot].failed = true;
  if (f->code == ERR_DEVICE) d->lost = true;
  *out = (draft_reply){.slot = f->slot, .code = f->code};
}

bool batch_drafter_take(void *self, draft_reply *out) {
  batch_drafter *d = self;
  const draft_results *r = d->results;
  if (r && d->failures_taken < r->failure_count) {
    take_failure(d, &r->failures[d->failures_taken++], out);
    return true;
  }
  if (r && d->results_taken < r->result_count) {
    reply_of(d, d->results_taken++, out);
    return true;
  }
  d->results = NULL;
  return false;
}
