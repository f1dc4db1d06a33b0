#include "target_worker/verifier.h"

#include "common/base/min.h"
#include "target_worker/feature_stream.h"
#include "target_worker/session_grammar.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

int verifier_init(verifier *v, int32_t context, bool is_virtual, const msg_partial *partial, err *e) {
  *v = (verifier){.wait_until_us = UINT64_MAX,
                  .map_size = context / KV_BLOCK + 1,
                  .context = context,
                  .partial = partial};
  if (is_virtual) v->maps = calloc((size_t)ENGINE_JOBS_MAX * (size_t)v->map_size, sizeof *v->maps);
  if (partial) v->texts = calloc((size_t)ENGINE_JOBS_MAX * (size_t)context, sizeof *v->texts);
  const bool taken = (v->maps || !is_virtual) && (v->texts || !partial);
  return taken ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for the worker's state");
}

void verifier_fini(verifier *v) {
  feature_fusion_fini(&v->fusion);
  free(v->maps);
  free(v->texts);
}

/* --- jobs --- */

static void job_prefill(const session *s, int32_t rows, bool measures, engine_job *job) {
  job->kind = ENGINE_PREFILL;
  job->measures = measures;
  job->count = rows;
  job->selfcheck = false;
  memcpy(job->tokens, s->committed.tokens + s->cache.rows, (size_t)rows * sizeof *job->tokens);
}

static void job_nodes(const session *s, schedule_pick *pick, engine_job *job) {
  job->count = pick->rows + 1;
  job->tokens[0] = s->committed.tokens[s->committed.length - 1];
  job->parents[0] = -1;
  for (int32_t i = 0; i < pick->rows; i++) {
    job->tokens[i + 1] = pick->tokens[i] = s->drafts.tree.nodes[pick->nodes[i]].token;
    job->parents[i + 1] = pick->parents[i] + 1;
  }
}

static void job_sampling(session *s, engine_job *job) {
  const msg_options *o = &s->request.options;
  job->sampling = msg_sampling(o);
  job->history = NULL;
  job->prompt_length = s->request.prompt_length;
  job->grammar = session_grammar_take(s);
  if (sampler_penalises(&job->sampling) || job->grammar) {
    memcpy(s->job.history, s->committed.tokens, (size_t)s->committed.length * sizeof *s->job.history);
    job->history = s->job.history;
  }
  memcpy(job->stops, s->request.stop_tokens, sizeof job->stops);
  job->stop_count = o->stop_count;
  job->logprobs = o->logprobs;
  job->sampled_max = o->single ? 1 : min_i32(session_room(s), job->count);
  job->bias_count = o->bias_count;
  if (o->bias_count == 0) return;
  *s->job.bias = s->request.bias;
  job->bias_tokens = s->job.bias->tokens;
  job->bias_values = s->job.bias->values;
}

/* Nodes that the engine may add by itself. */
static int32_t partial_room(const session *s) {
  const int32_t rows = s->committed.capacity - s->committed.length,
                credit = SCHEDULE_CREDIT - (s->committed.length - s->stream.acked);
  return min_i32(min_i32(session_room(s) - 1, rows - 1), min_i32(credit - 1, PARTIAL_ROWS_MAX));
}

/* What the engine does not know of C, to text[]. */
static void job_text(session *s, int32_t *text, engine_job *job) {
  const prefix *c = &s->committed;
  job->text_from = prefix_has(c, s->job.known, s->job.known_hash) ? s->job.known : 0;
  memcpy(text, c->tokens + job->text_from, (size_t)(c->length - job->text_from) * sizeof *text);
  job->text = text;
  s->job.known = c->length;
  s->job.known_hash = prefix_hash(c);
}

static void job_partial(const verifier *v, session *s, const schedule_pick *pick, int32_t *text,
                        engine_job *job) {
  const msg_options *o = &s->request.options;
  const bool is_own = o->partial.mode == WIRE_PARTIAL_OWN,
             off = o->partial.mode == WIRE_PARTIAL_OFF || o->single, failed = s->speculation.disabled;
  job->partial_most = 0;
  job->partial_drafted = session_draft_count(s) > 0;
  job->partial_why = PARTIAL_NONE;
  job->text = NULL;
  if (!v->partial || pick->kind != SCHEDULE_STEP) return;
  const int32_t room = partial_room(s);
  job->partial_why = off ? PARTIAL_OFF : failed ? PARTIAL_FAILED : room < 1 ? PARTIAL_ROOM : PARTIAL_NONE;
  if (job->partial_why != PARTIAL_NONE) return;
  job->partial = is_own ? *v->partial : o->partial;
  job->partial_most = min_i32(room, job->partial.refresh);
  if (job->kv_length >= job->partial.threshold) job_text(s, text, job);
}

static void job_verify(session *s, schedule_pick *pick, engine_job *job) {
  uint64_t selfcheck = (uint64_t)s->request.options.selfcheck;
  job->kind = ENGINE_VERIFY;
  job_nodes(s, pick, job);
  job_sampling(s, job);
  const bool lossy = job->partial_most > 0 && job->partial.mode == WIRE_PARTIAL_LOSSY,
             speculates = pick->rows > 0 || job->partial_most > 0;
  job->selfcheck = speculates && !lossy && selfcheck > 0 && s->stats.rounds % selfcheck == selfcheck - 1;
}

/* A copy, because an OPEN or END may change the session's own while the job is under way. */
static void job_blocks(session *s, int32_t *map, engine_job *job) {
  job->blocks = NULL;
  if (!s->cache.remap) return;
  memcpy(map, s->cache.blocks, (size_t)s->cache.block_count * sizeof *map);
  job->blocks = map;
  job->block_count = s->cache.block_count;
  job->rows_given = s->cache.rows_given;
  s->cache.remap = s->cache.rows_given = false;
}

/* Job i of the forward. */
static void job_fill(verifier *v, const session_store *store, int32_t i, uint64_t now, engine_job *job) {
  schedule_pick *pick = &v->forward.picks[i];
  session *s = &store->slots[pick->slot];
  int32_t *map = v->maps ? v->maps + (size_t)i * (size_t)v->map_size : NULL,
          *text = v->texts ? v->texts + (size_t)i * (size_t)v->context : NULL;
  s->job.serial = ++v->serial;
  s->job.valid_rows = INT32_MAX;
  job->serial = s->job.serial;
  job->slot = s->slot;
  job->session = s->id;
  job->kv_length = s->cache.rows;
  job->ready_us = s->job.ready_us;
  job_blocks(s, map, job);
  job->taps = s->drafts.features.taps;
  job->fuses = feature_fusion_in_forward(store, s);
  job_partial(v, s, pick, text, job);
  if (job->taps.count > 0) job->taps_from = feature_stream_from(s);
  if (pick->kind == SCHEDULE_PREFILL) {
    job_prefill(s, pick->rows, v->forward.measures, job);
    return;
  }
  double promised = 0;
  s->job.offered = pick->offered;
  for (int32_t n = 0; n < pick->rows; n++)
    promised += exp((double)s->drafts.tree.nodes[pick->nodes[n]].total);
  s->stats.wait_us += speculation_begin_step(&s->speculation, s->job.ready_us, now, pick->offered, pick->rows,
                                             promised, session_drafts_done(s));
  job_verify(s, pick, job);
}

bool verifier_next(verifier *v, session_store *store, uint64_t now, engine_batch *batch) {
  schedule *f = &v->forward;
  batch->beside = f->beside; /* as the forward whose states it is */
  if (feature_fusion_next(&v->fusion, store, &v->serial, batch)) return true;
  schedule_forward(store, &v->speculation, &v->rotation, now, f);
  batch->beside = f->beside;
  v->wait_until_us =
      f->count ? UINT64_MAX : f->until_us; /* with results the scheduler is asked again anyway */
  batch->count = f->count;
  for (int32_t i = 0; i < f->count; i++) job_fill(v, store, i, now, &batch->jobs[i]);
  return f->count > 0;
}

/* --- cost --- */

/* What the forward carried. */
static speculation_forward carried(const schedule *f) {
  speculation_forward x = {.steps = f->steps, .rows = f->steps, .disturbed = f->disturbed};
  if (f->measures) return (speculation_forward){.steps = 1, .rows = f->picks[0].rows};
  for (int32_t i = 0; i < f->steps; i++) {
    const schedule_pick *pick = &f->picks[i];
    x.rows += pick->rows;
    x.plain_reads += pick->reads;
    x.reads += (double)(pick->rows + 1) * pick->reads;
  }
  for (int32_t i = f->steps; i < f->count; i++) x.prompt_rows += f->picks[i].rows;
  return x;
}

/* What a position costs is learnt from whole pieces. Large ones count as pieces of the usual size. */
static void read_alone(verifier *v, const schedule_pick *pick, double us) {
  if (pick->rows != ENGINE_CHUNK && pick->rows != schedule_prompt_rows(&v->speculation)) return;
  speculation_read(&v->speculation, (double)pick->reads * ENGINE_CHUNK, us * ENGINE_CHUNK / pick->rows);
}

void verifier_measure(verifier *v, const engine_results *results) {
  const schedule *f = &v->forward;
  speculation_forward x = carried(f);
  for (int32_t i = 0; i < results->count; i++) {
    if (results->of[i].code != ERR_OK) return;
    x.guessed |= results->of[i].guessed > 0; /* it has computed other rows than were scheduled */
    x.us += (double)(results->of[i].accept_us + results->of[i].commit_us);
  }
  x.us += (double)results->of[0].forward_us;
  x.unusual |= results->of[0].prepared | x.guessed;
  if (f->count == 1 && f->steps == 0 && !x.unusual) read_alone(v, &f->picks[0], x.us);
  x.unusual |= x.prompt_rows > ENGINE_CHUNK; /* each of them took less than a row beside steps will */
  speculation_measured(&v->speculation, &x);
}

/* --- results --- */

static session *job_session(session_store *store, uint64_t serial) {
  for (int32_t i = 0; i < store->count; i++) {
    session *s = &store->slots[i];
    if (s->state != SESSION_FREE && s->job.serial == serial) return s;
  }
  return NULL;
}

session *verifier_end(session_store *store, const engine_result *r, bool *stale) {
  session *s = job_session(store, r->serial);
  if (!s) return NULL; /* the next job of its slot starts from its own kv_length */
  *stale = s->job.valid_rows != INT32_MAX;
  s->job.serial = 0;
  if (!s->cache.rows_given) /* else it has other blocks by now */
    s->cache.rows = min_i32(r->kv_length, s->job.valid_rows);
  s->job.valid_rows = INT32_MAX;
  session_store_publish(store, s, r->kv_length);
  if (r->kind == ENGINE_PREFILL) s->stats.prefill_us += r->forward_us;
  return s;
}

static void stats_add(session_stats *n, const engine_result *x) {
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

static void time_step(session_store *store, session *s, uint64_t now) {
  uint64_t us = s->job.stepped_us ? now - s->job.stepped_us : 0;
  if (us > store->longest_step_us) store->longest_step_us = us;
  s->job.stepped_us = now;
}

/* A session whose result of this forward is still to be looked at will be able to run. */
static bool another_can_run(const session_store *store, const session *s, uint64_t now) {
  for (int32_t i = 0; i < store->count; i++) {
    const session *other = &store->slots[i];
    uint64_t until;
    if (other == s || other->state != SESSION_RUNNING) continue;
    if (other->job.serial) return true;
    schedule_kind kind = schedule_session(other, now, &until);
    if (kind == SCHEDULE_PREFILL || kind == SCHEDULE_STEP) return true;
  }
  return false;
}

void verifier_stepped(verifier *v, session_store *store, session *s, const engine_result *result,
                      uint64_t now) {
  stats_add(&s->stats, result);
  const int32_t tokens = result->sampled_count,
                drafted = result->guessed > 0 ? result->drafted_count : tokens;
  speculation_stepped(&s->speculation, &v->speculation, tokens, session_draft_count(s) > 0 ? drafted : 0);
  for (int32_t i = 0; v->record && result->guessed == 0 && i < v->forward.count; i++)
    if (v->forward.picks[i].slot == s->slot)
      v->record(v->record_context, s, &v->forward.picks[i], &v->speculation.forward, result);
  time_step(store, s, now);
  bool draft = session_draft_count(s) > 0 && schedule_may_speculate(s);
  speculation_wait(&s->speculation, now, draft, another_can_run(store, s, now));
}
