#include "target_worker/engine.h"

#include "common/base/clock.h"
#include "common/base/program.h"
#include "common/base/ring.h"
#include "common/spec/accept.h"
#include "kernels/ops.h"
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct engine {
  engine_options options;
  sampler *sampler;
  int32_t *sequences; /* [options.sequences]: the cache's sequence of each slot */
  ring *jobs, *results;
  pthread_t thread;
  bool started;
  uint32_t under_way; /* the submitting thread's */
  _Atomic bool stopping;

  /* The engine thread's. */
  engine_job job;
  engine_result result;
  engine_counters counters;
  uint64_t decodes, trees; /* VERIFY jobs, those with nodes: what the faults count */
  uint64_t forwarded_us;   /* when the last job's forward ended, if it was a VERIFY that succeeded; else 0 */
  int32_t forwarded_slot;
};

/* --- faults, for tests --- */

#define FAULT_TEXT_MAX 64

static const struct {
  const char *name;
  engine_fault_kind kind;
  bool rows;
} fault_names[] = {
    {"kv-rollback", ENGINE_FAULT_KV_ROLLBACK, true},
    {"verify-error", ENGINE_FAULT_VERIFY_ERROR, false},
    {"wrong-token", ENGINE_FAULT_WRONG_TOKEN, false},
};
#define FAULT_NAMES (sizeof fault_names / sizeof *fault_names)

int engine_fault_parse(engine_fault *f, const char *text, err *e) {
  *f = (engine_fault){ENGINE_FAULT_NONE, 0, 0};
  if (!text || !*text) return ERR_OK;
  char copy[FAULT_TEXT_MAX] = "", *rest = copy;
  if (strlen(text) < sizeof copy) strcpy(copy, text);
  const char *name = strsep(&rest, ":"), *after = strsep(&rest, ":"), *rows = strsep(&rest, ":");
  size_t i = 0;
  while (i < FAULT_NAMES && strcmp(name, fault_names[i].name) != 0) i++;
  if (i == FAULT_NAMES || rest || !after || fault_names[i].rows != (rows != NULL))
    return err_set(e, ERR_ARG,
                   "a fault is kv-rollback:AFTER:BY, verify-error:AFTER or wrong-token:AFTER, not '%s'",
                   text);
  int64_t number, by = 0;
  int rc = program_int("AFTER of a fault", after, 1, INT64_MAX, &number, e);
  if (rc == ERR_OK && rows) rc = program_int("BY of a fault", rows, 1, WIRE_CONTEXT_MAX, &by, e);
  if (rc == ERR_OK) *f = (engine_fault){fault_names[i].kind, (uint64_t)number, (int32_t)by};
  return rc;
}

/* Behind the machine's back: it will find fewer rows than it believes in. */
static void fault_before(engine *g, const engine_job *job, int32_t seq) {
  const engine_fault *f = &g->options.fault;
  if (job->kind != ENGINE_VERIFY) return;
  g->decodes++;
  if (job->count > 1) g->trees++;
  if (f->kind != ENGINE_FAULT_KV_ROLLBACK || g->decodes != f->after) return;
  int32_t length = kv_length(g->options.kv, seq);
  kv_rollback(g->options.kv, seq, f->rows < length ? length - f->rows : 0);
}

static bool fault_in_tree(const engine *g, engine_fault_kind kind) {
  return g->options.fault.kind == kind && g->trees == g->options.fault.after;
}

/* --- one job --- */

/* A job's surroundings. */
typedef struct work {
  engine *g;
  const engine_job *job;
  engine_result *r;
  int32_t seq;
  uint64_t forwarded_us; /* when the forward of a VERIFY ended, if a next round can follow it at once */
  model_sampling sampling;
  bool choosing;                        /* the forward chooses the tokens itself, by `sampling` */
  int32_t path_tokens[ENGINE_ROWS_MAX]; /* of the rows walked, without the root: the end of the history */
} work;

/* A forward keeps no logits where nobody but itself has to see them. */
static void set_choosing(work *w) {
  const sampler_options *o = &w->job->sampling;
  const sampler_row any = {.history_count = w->job->history != NULL};
  w->sampling = (model_sampling){sampler_scale(o), o->seed, o->choice};
  w->choosing = !sampler_needs_logits(o, &any, model_shape(w->g->options.model)->vocab);
}

static const model_sampling *sampling_of(const work *w) {
  return w->choosing ? &w->sampling : NULL;
}

/* The target's token after C and path_tokens[0..depth), from a row of the last forward. */
static int32_t pick(const work *w, int32_t row, int32_t depth) {
  const engine_job *job = w->job;
  if (w->choosing) {
    int32_t token = model_choice(w->g->options.model, 0, row);
    assert(token >= 0);
    return token;
  }
  const float *logits = model_logits(w->g->options.model, 0, row);
  assert(logits);
  sampler_row history = {0};
  if (job->history) {
    history.history = job->history;
    history.history_count = job->kv_length + 1;
    history.extra = w->path_tokens;
    history.extra_count = depth;
  }
  return sampler_pick(w->g->sampler, &job->sampling, &history, logits, job->kv_length + depth + 1);
}

static int32_t pick_on_walk(void *context, int32_t row, const int32_t *path, int32_t depth) {
  work *w = context;
  (void)path;
  if (depth > 0) w->path_tokens[depth - 1] = w->job->tokens[row];
  return pick(w, row, depth);
}

/* Nothing of the job stays in the cache. */
static void fail(work *w, int rc) {
  engine *g = w->g;
  log_line(g->options.log, LOG_ERROR, "a forward of %d rows after %d failed: %s", w->job->count,
           w->job->kv_length, err_name(rc));
  kv_rollback(g->options.kv, w->seq, w->job->kv_length);
  g->counters.failures++;
  w->forwarded_us = 0;
  w->r->sampled_count = 0;
  w->r->code = ERR_INTERNAL;
}

static int forward(const work *w, const model_segment *s) {
  return model_forward(w->g->options.model, w->g->options.kv, s, 1);
}

static int append_one(const work *w, int32_t token) {
  return forward(
      w, &(model_segment){
             .seq = w->seq, .kind = MODEL_APPEND, .count = 1, .tokens = &token, .sampling = sampling_of(w)});
}

static void prefill(work *w) {
  uint64_t start = clock_us();
  int rc = forward(w, &(model_segment){.seq = w->seq,
                                       .kind = MODEL_APPEND,
                                       .count = w->job->count,
                                       .tokens = w->job->tokens,
                                       .no_logits = true});
  w->r->forward_us = clock_us() - start;
  w->g->counters.prefills++;
  if (rc != ERR_OK) fail(w, rc);
}

/* Without nodes nothing of speculation is touched: the row goes straight into the tail. */
static void decode(work *w) {
  uint64_t start = clock_us();
  int rc = append_one(w, w->job->tokens[0]);
  uint64_t end = clock_us();
  w->r->forward_us = end - start;
  if (rc != ERR_OK) {
    fail(w, rc);
    return;
  }
  w->forwarded_us = end;
  w->r->sampled[0] = pick(w, 0, 0);
  w->r->sampled_count = 1;
  w->r->accept_us = clock_us() - end;
}

static void note_gap(const work *w) {
  engine *g = w->g;
  if (!g->forwarded_us || !w->job->at_once || w->job->slot != g->forwarded_slot) return;
  uint64_t us = clock_us() - g->forwarded_us;
  g->counters.gap_us[g->counters.gaps++ % ENGINE_GAPS_MAX] = us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

static int forward_tree(const work *w) {
  const engine_job *job = w->job;
  if (fault_in_tree(w->g, ENGINE_FAULT_VERIFY_ERROR)) return ERR_INTERNAL;
  int rc = kv_stage(w->g->options.kv, w->seq, job->parents, job->count);
  if (rc != ERR_OK) return rc;
  note_gap(w);
  return forward(w, &(model_segment){.seq = w->seq,
                                     .kind = MODEL_TREE,
                                     .count = job->count,
                                     .tokens = job->tokens,
                                     .parents = job->parents,
                                     .all_logits = true,
                                     .sampling = sampling_of(w)});
}

/* Decodes the round once more, one token after the other. Where they differ, the plain ones are right. */
static void selfcheck(work *w) {
  engine_result *r = w->r;
  kv_settle(w->g->options.kv, w->seq);
  kv_rollback(w->g->options.kv, w->seq, w->job->kv_length);
  w->g->counters.selfchecks++;
  w->forwarded_us = 0;
  for (int32_t i = 0; i < r->sampled_count; i++) {
    if (i > 0) w->path_tokens[i - 1] = r->sampled[i - 1];
    int rc = append_one(w, i == 0 ? w->job->tokens[0] : r->sampled[i - 1]);
    if (rc != ERR_OK) {
      fail(w, rc);
      return;
    }
    int32_t token = pick(w, 0, i);
    if (token == r->sampled[i]) continue;
    r->sampled[i] = token;
    r->sampled_count = i + 1;
    r->selfcheck_differs = true;
  }
}

static void verify(work *w) {
  const engine_job *job = w->job;
  int32_t path[ENGINE_ROWS_MAX];
  uint64_t start = clock_us();
  int rc = forward_tree(w);
  uint64_t forwarded = clock_us();
  w->r->forward_us = forwarded - start;
  if (rc != ERR_OK) {
    fail(w, rc);
    return;
  }
  int32_t walked = accept_walk(job->tokens, job->parents, job->count, job->stops, job->stop_count,
                               job->sampled_max, pick_on_walk, w, path, w->r->sampled);
  uint64_t accepted = clock_us();
  w->forwarded_us = forwarded;
  rc = kv_commit_late(w->g->options.kv, w->seq, path,
                      walked); /* the next forward copies: nothing lies before it */
  w->r->accept_us = accepted - forwarded;
  w->r->commit_us = clock_us() - accepted;
  if (rc != ERR_OK) {
    fail(w, rc);
    return;
  }
  w->r->sampled_count = walked;
  if (fault_in_tree(w->g, ENGINE_FAULT_WRONG_TOKEN)) w->r->sampled[0] = w->r->sampled[0] == 0;
  if (job->selfcheck) selfcheck(w);
}

/* The cache must hold what the job starts from. Rows beyond it are of tokens that C has lost since. */
static bool starts_right(work *w) {
  kv_cache *kv = w->g->options.kv;
  int32_t length = kv_length(kv, w->seq);
  if (length < w->job->kv_length) {
    w->r->code = ERR_DESYNC;
    return false;
  }
  if (length > w->job->kv_length) {
    kv_settle(kv, w->seq);
    kv_rollback(kv, w->seq, w->job->kv_length);
  }
  return true;
}

static void count_decode(engine *g, const engine_result *r) {
  engine_counters *n = &g->counters;
  n->verifies++;
  if (r->code != ERR_OK) return;
  n->forwards++;
  n->tokens += (uint64_t)r->sampled_count;
  n->accepted += (uint64_t)r->sampled_count - 1;
}

void engine_run(engine *g, const engine_job *job, engine_result *r) {
  assert(job->slot >= 0 && job->slot < g->options.sequences && job->count >= 1);
  assert(job->count <= (job->kind == ENGINE_PREFILL ? ENGINE_CHUNK : ENGINE_ROWS_MAX));
  work w = {.g = g, .job = job, .r = r, .seq = g->sequences[job->slot]};
  uint64_t start = clock_us();
  *r = (engine_result){.kind = job->kind, .serial = job->serial, .code = ERR_OK};
  r->node_count = job->kind == ENGINE_VERIFY ? job->count - 1 : 0;
  r->queue_us = start > job->ready_us ? start - job->ready_us : 0;
  if (job->kind == ENGINE_VERIFY) set_choosing(&w);
  fault_before(g, job, w.seq);
  if (starts_right(&w)) {
    if (job->kind == ENGINE_PREFILL)
      prefill(&w);
    else if (job->count == 1)
      decode(&w);
    else
      verify(&w);
  }
  if (job->kind == ENGINE_VERIFY) count_decode(g, r);
  r->kv_length = kv_length(g->options.kv, w.seq);
  r->end_us = clock_us();
  g->forwarded_us = w.forwarded_us;
  g->forwarded_slot = job->slot;
}

/* --- the thread --- */

/* The result goes out; true: the next job is in g->job already. */
static bool pass_on(engine *g) {
  const engine_options *o = &g->options;
  if (o->turn) return o->turn(o->context, &g->result, &g->job) && !atomic_load(&g->stopping);
  bool put = ring_put(g->results, &g->result);
  assert(put); /* as many results as jobs are allowed under way */
  (void)put;
  if (o->notify) o->notify(o->context);
  return false;
}

/* What the last rounds have left to a next one that never came: the counters tell of every row. */
static void settle_all(engine *g) {
  for (int32_t i = 0; i < g->options.sequences; i++) kv_settle(g->options.kv, g->sequences[i]);
}

static void *engine_main(void *argument) {
  engine *g = argument;
  const engine_options *o = &g->options;
  if (o->pin_count && !ops_cpu_pin(model_device(o->model), o->pin, o->pin_count))
    log_line(o->log, LOG_WARNING, "the system does not let the threads stay on the processors of --pin");
  while (ring_wait(g->jobs, &g->job)) {
    do engine_run(g, &g->job, &g->result);
    while (pass_on(g));
  }
  settle_all(g);
  return NULL;
}

/* Signals are the I/O thread's. */
static bool start_thread(engine *g) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  g->started = pthread_create(&g->thread, NULL, engine_main, g) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return g->started;
}

static int take_sequences(engine *g, err *e) {
  for (int32_t i = 0; i < g->options.sequences; i++) {
    g->sequences[i] = kv_acquire(g->options.kv);
    if (g->sequences[i] < 0)
      return err_set(e, ERR_FULL, "the cache has no %d free sequences", g->options.sequences);
  }
  return ERR_OK;
}

int engine_open(engine **out, const engine_options *o, err *e) {
  *out = NULL;
  engine *g = calloc(1, sizeof *g);
  if (!g) return err_set(e, ERR_NOMEM, "no memory for the engine");
  g->options = *o;
  g->sequences = calloc((size_t)o->sequences, sizeof *g->sequences);
  for (int32_t i = 0; g->sequences && i < o->sequences; i++) g->sequences[i] = ERR_FULL;
  g->jobs = ring_alloc(ENGINE_QUEUE, sizeof(engine_job));
  g->results = ring_alloc(ENGINE_QUEUE, sizeof(engine_result));
  int rc = ERR_OK;
  if (!g->sequences || !g->jobs || !g->results ||
      sampler_alloc(&g->sampler, model_shape(o->model)->vocab) != ERR_OK)
    rc = err_set(e, ERR_NOMEM, "no memory for the engine");
  if (rc == ERR_OK) rc = take_sequences(g, e);
  if (rc == ERR_OK && !start_thread(g)) rc = err_set(e, ERR_IO, "the system gives no thread for the engine");
  if (rc != ERR_OK) {
    engine_close(g);
    return rc;
  }
  *out = g;
  return ERR_OK;
}

void engine_stop(engine *g) {
  if (!g->started) return;
  atomic_store(&g->stopping, true);
  ring_close(g->jobs);
  pthread_join(g->thread, NULL);
  g->started = false;
}

void engine_close(engine *g) {
  if (!g) return;
  engine_stop(g);
  for (int32_t i = 0; g->sequences && i < g->options.sequences; i++)
    if (g->sequences[i] >= 0) kv_release(g->options.kv, g->sequences[i]);
  sampler_free(g->sampler);
  ring_free(g->jobs);
  ring_free(g->results);
  free(g->sequences);
  free(g);
}

bool engine_submit(engine *g, const engine_job *job) {
  if (g->under_way == ENGINE_QUEUE || !ring_put(g->jobs, job)) return false;
  if (!g->options.turn) g->under_way++;
  return true;
}

bool engine_poll(engine *g, engine_result *out) {
  if (!ring_take(g->results, out)) return false;
  g->under_way--;
  return true;
}

const engine_counters *engine_count(const engine *g) {
  return &g->counters;
}
