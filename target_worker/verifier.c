#include "target_worker/verifier.h"

#include <stdlib.h>
#include <string.h>

int verifier_init(verifier *r, int32_t context, bool is_virtual, int32_t credit, err *e) {
  *r = (verifier){.asked_until_us = UINT64_MAX, .map_size = context / KV_BLOCK + 1, .credit = credit};
  if (!is_virtual) return ERR_OK;
  r->maps = calloc((size_t)ENGINE_JOBS_MAX * (size_t)r->map_size, sizeof *r->maps);
  return r->maps ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for the worker's state");
}

void verifier_fini(verifier *r) {
  free(r->maps);
}

/* --- jobs --- */

static void job_prefill(const session *s, int32_t rows, bool measures, engine_job *job) {
  job->kind = ENGINE_PREFILL;
  job->measures = measures;
  job->count = rows;
  job->selfcheck = false;
  memcpy(job->tokens, s->committed.tokens + s->kv_rows, (size_t)rows * sizeof *job->tokens);
}

static void job_verify(session *s, int32_t nodes, engine_job *job) {
  int32_t slots[WIRE_BUDGET_MAX], parents[WIRE_BUDGET_MAX], room = schedule_room(s);
  nodes = schedule_nodes(s, nodes, slots, parents);
  job->kind = ENGINE_VERIFY;
  job->count = nodes + 1;
  job->tokens[0] = s->committed.tokens[s->committed.length - 1];
  job->parents[0] = -1;
  for (int32_t i = 0; i < nodes; i++) {
    job->tokens[i + 1] = s->live.nodes[slots[i]].token;
    job->parents[i + 1] = parents[i] + 1;
  }
  const msg_options *o = &s->options;
  job->sampling = msg_sampling(o);
  job->history = NULL;
  if (o->repeat_penalty != 1) {
    memcpy(s->penalised, s->committed.tokens, (size_t)s->committed.length * sizeof *s->penalised);
    job->history = s->penalised;
  }
  memcpy(job->stops, s->stop_tokens, sizeof job->stops);
  job->stop_count = o->stop_count;
  job->sampled_max = o->single ? 1 : room < nodes + 1 ? room : nodes + 1;
  job->selfcheck =
      nodes > 0 && o->selfcheck > 0 && s->stats.rounds % (uint64_t)o->selfcheck == (uint64_t)o->selfcheck - 1;
}

/* What this round has waited, and whether it was in vain. */
static void note_wait(session *s, uint64_t now) {
  bool nodes = s->has_tree && s->live.live_count > 0;
  bool waited = s->wait_until_us > s->ready_us;
  s->waited_us = waited && now > s->ready_us ? now - s->ready_us : 0;
  s->stats.wait_us += s->waited_us;
  if (waited && !nodes && schedule_drafts_done(s))
    wait_verified(&s->history, 1); /* nothing was the answer */
  else if (waited && !nodes)
    wait_missed(&s->history);
  s->wait_until_us = 0;
}

/* A copy, because an OPEN or END may change the session's own while the job is under way. */
static void job_blocks(session *s, int32_t *map, engine_job *job) {
  job->blocks = NULL;
  if (!s->remap) return;
  memcpy(map, s->blocks, (size_t)s->block_count * sizeof *map);
  job->blocks = map;
  job->block_count = s->block_count;
  job->rows_given = s->rows_given;
  s->remap = s->rows_given = false;
}

static void next_job(verifier *r, session *s, const schedule_pick *pick, int32_t *map, uint64_t now,
                     engine_job *job) {
  s->job = ++r->serial;
  s->kv_valid = INT32_MAX;
  job->serial = s->job;
  job->slot = s->slot;
  job->kv_length = s->kv_rows;
  job->ready_us = s->ready_us;
  job_blocks(s, map, job);
  if (pick->kind == SCHEDULE_PREFILL) {
    job_prefill(s, pick->rows, r->forward.measures, job);
    return;
  }
  note_wait(s, now);
  if (pick->offered > 0 && pick->rows == 0 && r->forward.count == 1)
    wait_verified(&s->history, 1); /* such nodes are not worth waiting for */
  job_verify(s, pick->rows, job);
}

bool verifier_next(verifier *r, session_store *store, uint64_t now, engine_batch *batch) {
  schedule *f = &r->forward;
  schedule_forward(store, &r->widths, &r->turns, r->credit, now, f);
  r->asked_until_us = f->count ? UINT64_MAX : f->until_us; /* else asked again with its results */
  batch->count = f->count;
  for (int32_t i = 0; i < f->count; i++) {
    const schedule_pick *pick = &f->picks[i];
    int32_t *map = r->maps ? r->maps + (size_t)i * (size_t)r->map_size : NULL;
    next_job(r, &store->places[pick->place], pick, map, now, &batch->jobs[i]);
  }
  return f->count > 0;
}

/* --- cost --- */

/* Of the sessions that step. */
static int32_t step_rows(const verifier *r) {
  int32_t rows = r->forward.steps;
  for (int32_t i = 0; i < r->forward.steps; i++) rows += r->forward.picks[i].rows;
  return rows;
}

static bool has_prompts(const verifier *r) {
  return r->forward.steps != r->forward.count;
}

/* Rows of the forward where its time tells what so many rows of steps cost; else 0. */
static int32_t measured_rows(const verifier *r) {
  if (r->forward.measures) return r->forward.picks[0].rows;
  return has_prompts(r) || step_rows(r) > WIDTH_ROWS_MAX ? 0 : step_rows(r);
}

static double average(double old, double value) {
  return old == 0 ? value : old + (value - old) / 8;
}

static double round_us(const engine_result *x) {
  return (double)(x->forward_us + x->accept_us + x->commit_us);
}

/* What the forward cost this session. With others in it a plain row costs what it always does, and nodes as
 * much more as the forward took longer for them, in shares of such a row: where many sessions fill a forward,
 * a row more costs almost as much as a plain one. By what such forwards take on average: what disturbs one of
 * them is not the nodes' doing. */
static double share_us(const verifier *r, const session *s, const engine_result *x) {
  double us = round_us(x), usual = s->pay.plain_us_per_token;
  if (r->forward.count == 1) return us;
  if (s->pay.crowds && !has_prompts(r)) return us / r->forward.count; /* it slows all rows */
  if (usual == 0) usual = us / r->forward.count;
  int32_t rows = step_rows(r);
  if (x->node_count == 0 || rows > WIDTH_ROWS_MAX) return usual;
  double more = width_cost(&r->widths, rows) - width_cost(&r->widths, rows - x->node_count);
  double plain = width_cost(&r->widths, r->forward.steps) / r->forward.steps;
  return plain > 0 && more > 0 ? usual * (1 + more / plain) : usual;
}

void verifier_measure(verifier *r, const engine_results *results) {
  int32_t rows = measured_rows(r);
  double us = 0;
  if (rows == 0) return;
  for (int32_t i = 0; i < results->count; i++) {
    if (results->of[i].code != ERR_OK) return;
    us += (double)(results->of[i].accept_us + results->of[i].commit_us);
  }
  us += (double)results->of[0].forward_us;
  if (us > 0) width_measured(&r->widths, rows, us);
}

/* --- results --- */

static session *job_owner(session_store *store, uint64_t serial) {
  for (int32_t i = 0; i < store->count; i++)
    if (store->places[i].state != SESSION_FREE && store->places[i].job == serial) return &store->places[i];
  return NULL;
}

session *verifier_end(session_store *store, const engine_result *r, bool *stale) {
  session *s = job_owner(store, r->serial);
  if (!s) return NULL; /* the next job of its slot starts from its own kv_length */
  *stale = s->kv_valid != INT32_MAX;
  s->job = 0;
  if (!s->rows_given) /* else it has other blocks by now */
    s->kv_rows = r->kv_length < s->kv_valid ? r->kv_length : s->kv_valid;
  s->kv_valid = INT32_MAX;
  session_store_publish(store, s, r->kv_settled);
  if (r->kind == ENGINE_PREFILL) s->stats.prefill_us += r->forward_us;
  return s;
}

static void count_stats(session_stats *n, const engine_result *x) {
  int32_t accepted = x->sampled_count - 1;
  n->forwards++;
  n->rows += (uint64_t)x->node_count;
  n->accepted += (uint64_t)accepted;
  n->queue_us += x->queue_us;
  n->forward_us += x->forward_us;
  n->accept_us += x->accept_us;
  n->commit_us += x->commit_us;
  if (x->node_count)
    n->rounds++;
  else
    n->plain_steps++;
  for (int32_t i = 0; i < accepted && i < WIRE_POSITIONS_MAX; i++) n->accepted_per_pos[i]++;
}

/* What it says of whether speculation pays. */
static void learn(verifier *r, session *s, const engine_result *x) {
  double us = share_us(r, s, x);
  if (x->node_count || s->waited_us) s->verify_us = average(s->verify_us, us);
  if (!x->node_count) s->plain_us = average(s->plain_us, us);
  if (x->node_count) wait_verified(&s->history, x->sampled_count);
  if (s->record.steps == 0) width_begin(&s->record, &r->earned);
  width_stepped(&s->record, x->sampled_count - 1);
  r->earned = s->record;
  /* Waiting in vain is what speculation cost, not what a plain step costs: the next verify with nodes owes
   * it. */
  s->wait_owed_us += s->waited_us;
  pay_record(&s->pay, x->node_count, x->sampled_count, us + (x->node_count ? (double)s->wait_owed_us : 0));
  if (x->node_count) s->wait_owed_us = 0;
  if (s->pay.crowds) r->crowded = s->pay;
}

static void note_step(session_store *store, session *s, uint64_t now) {
  uint64_t us = s->stepped_us ? now - s->stepped_us : 0;
  if (us > store->longest_step_us) store->longest_step_us = us;
  s->stepped_us = now;
}

/* One whose result is still to be looked at will. */
static bool another_can_run(const verifier *r, const session_store *store, const session *s, uint64_t now) {
  for (int32_t i = 0; i < store->count; i++) {
    const session *other = &store->places[i];
    uint64_t until;
    if (other == s || other->state != SESSION_RUNNING) continue;
    if (other->job) return true;
    schedule_kind kind = schedule_session(other, r->credit, now, &until);
    if (kind == SCHEDULE_PREFILL || kind == SCHEDULE_STEP) return true;
  }
  return false;
}

void verifier_verified(verifier *r, session_store *store, session *s, const engine_result *result,
                       uint64_t now) {
  count_stats(&s->stats, result);
  learn(r, s, result);
  note_step(store, s, now);
  bool draft = session_draft_count(s) > 0 && schedule_may_speculate(s),
       others = another_can_run(r, store, s, now);
  s->wait_until_us = now + wait_for(&s->history, draft, others, 0, s->plain_us, s->verify_us);
}
