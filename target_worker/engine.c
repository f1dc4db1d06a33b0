#include "target_worker/engine.h"

#include "common/base/batch_thread.h"
#include "common/base/clock.h"
#include "common/base/program.h"
#include "common/speculative/acceptance.h"
#include "kernels/ops.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct engine {
  engine_options options;
  sampler *sampler;
  int32_t *sequences; /* [options.sequences]: the cache's sequence of each slot */
  batch_thread *thread;

  /* The engine thread's. */
  engine_results results;
  engine_counters counters;
  uint64_t decodes, trees; /* VERIFY jobs, those with nodes: what the faults count */
  bool at_once;            /* the batch in hand */
  uint64_t forwarded_us;   /* when the last forward ended, if it was of one VERIFY that succeeded; else 0 */
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

/* --- a job --- */

/* A job's surroundings. */
typedef struct work {
  engine *g;
  const engine_job *job;
  engine_result *r;
  int32_t seq, segment;  /* of the cache; of the forward */
  bool faulty;           /* its forward is to fail: a test's wish */
  bool wrong;            /* its first token is to be another one */
  uint64_t forwarded_us; /* when the forward of a VERIFY ended, if a next round can follow it at once */
  model_sampling sampling;
  bool choosing;                        /* the forward chooses the tokens itself, by `sampling` */
  int32_t path_tokens[ENGINE_ROWS_MAX]; /* of the rows walked, without the root: the end of the history */
} work;

/* Rows vanish behind the machine's back: it will find fewer than it believes in. */
static void drop_rows(engine *g, int32_t seq, int32_t rows) {
  int32_t length = kv_length(g->options.kv, seq);
  kv_rollback(g->options.kv, seq, rows < length ? length - rows : 0);
}

static void fault_before(work *w) {
  engine *g = w->g;
  const engine_fault *f = &g->options.fault;
  if (w->job->kind != ENGINE_VERIFY) return;
  bool tree = w->job->count > 1, decode_due = ++g->decodes == f->after;
  if (tree) g->trees++;
  bool tree_due = tree && g->trees == f->after;
  if (decode_due && f->kind == ENGINE_FAULT_KV_ROLLBACK) drop_rows(g, w->seq, f->rows);
  w->faulty = tree_due && f->kind == ENGINE_FAULT_VERIFY_ERROR;
  w->wrong = tree_due && f->kind == ENGINE_FAULT_WRONG_TOKEN;
}

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
    int32_t token = model_sampled(w->g->options.model, w->segment, row);
    assert(token >= 0);
    return token;
  }
  const float *logits = model_logits(w->g->options.model, w->segment, row);
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

/* --- accepting, after a forward --- */

/* One more row of a round that is decoded again. */
static int append_one(work *w, int32_t token) {
  const engine_options *o = &w->g->options;
  w->segment = 0;
  return model_forward(
      o->model, o->kv,
      &(model_segment){
          .seq = w->seq, .kind = MODEL_APPEND, .count = 1, .tokens = &token, .sampling = sampling_of(w)},
      1);
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

static void accept_tree(work *w, uint64_t forwarded) {
  const engine_job *job = w->job;
  int32_t path[ENGINE_ROWS_MAX];
  int32_t walked = acceptance_walk(job->tokens, job->parents, job->count, job->stops, job->stop_count,
                                   job->sampled_max, pick_on_walk, w, path, w->r->sampled);
  uint64_t accepted = clock_us();
  int rc = kv_commit_late(w->g->options.kv, w->seq, path,
                          walked); /* the next forward copies: nothing lies before it */
  w->r->accept_us = accepted - forwarded;
  w->r->commit_us = clock_us() - accepted;
  if (rc != ERR_OK) {
    fail(w, rc);
    return;
  }
  w->r->sampled_count = walked;
  if (w->wrong) w->r->sampled[0] = w->r->sampled[0] == 0;
}

/* `forwarded`: when the forward ended, or the job before this one had accepted. */
static void accept(work *w, uint64_t forwarded) {
  if (w->job->kind == ENGINE_PREFILL) return;
  w->forwarded_us = forwarded;
  if (w->job->count > 1) {
    accept_tree(w, forwarded);
    return;
  }
  w->r->sampled[0] = pick(w, 0, 0);
  w->r->sampled_count = 1;
  w->r->accept_us = clock_us() - forwarded;
}

/* --- one forward for all --- */

/* Without nodes nothing of speculation is touched: rows go straight into the tail. */
static model_segment segment_of(const work *w) {
  static const model_sampling greedy = {0};
  const engine_job *job = w->job;
  bool tree = job->kind == ENGINE_VERIFY && job->count > 1,
       measures = job->kind == ENGINE_PREFILL && job->measures;
  return (model_segment){.seq = w->seq,
                         .kind = tree ? MODEL_TREE : MODEL_APPEND,
                         .count = job->count,
                         .tokens = job->tokens,
                         .parents = tree ? job->parents : NULL,
                         .all_logits = tree || measures,
                         .no_logits = job->kind == ENGINE_PREFILL && !measures,
                         .sampling = job->kind == ENGINE_VERIFY ? sampling_of(w)
                                     : measures                 ? &greedy
                                                                : NULL};
}

static void note_gap(engine *g, const work *w) {
  bool follows = g->forwarded_us && w->r->node_count > 0 && w->job->slot == g->forwarded_slot;
  if (!follows || !g->at_once) return;
  uint64_t us = clock_us() - g->forwarded_us;
  g->counters.gap_us[g->counters.gaps++ % ENGINE_GAPS_MAX] = us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

/* The rows of these jobs in one forward. If that fails each has one of its own, so that only the one at fault
 * suffers. */
static void forward(engine *g, work *const *works, int32_t count) {
  model_segment segments[ENGINE_JOBS_MAX];
  for (int32_t i = 0; i < count; i++) {
    works[i]->segment = i;
    segments[i] = segment_of(works[i]);
  }
  if (count == 1) note_gap(g, works[0]);
  uint64_t start = clock_us();
  int rc = model_forward(g->options.model, g->options.kv, segments, count);
  uint64_t end = clock_us();
  for (int32_t i = 0; i < count && rc != ERR_OK && count > 1; i++) forward(g, &works[i], 1);
  if (rc != ERR_OK && count > 1) return;
  for (int32_t i = 0; i < count; i++) {
    works[i]->r->forward_us = end - start;
    if (rc != ERR_OK)
      fail(works[i], rc);
    else
      accept(works[i], i == 0 ? end : clock_us());
  }
}

/* The cache must hold what the job starts from. Rows beyond it are of tokens that C has lost since. What was
 * still to be copied there is, so that the figures tell of every committed row; not in a virtual cache, where
 * somebody else may have these blocks by now. */
static bool starts_right(work *w) {
  const engine_job *job = w->job;
  kv_cache *kv = w->g->options.kv;
  if (job->blocks && job->rows_given) {
    kv_map(kv, w->seq, job->blocks, job->block_count, job->kv_length);
    return true;
  }
  if (kv_length(kv, w->seq) < job->kv_length) {
    w->r->code = ERR_DESYNC;
    return false;
  }
  if (kv_length(kv, w->seq) > job->kv_length) {
    if (!kv_is_virtual(kv)) kv_settle(kv, w->seq);
    kv_rollback(kv, w->seq, job->kv_length);
  }
  if (job->blocks) kv_map(kv, w->seq, job->blocks, job->block_count, -1);
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

/* May the job's rows go through the model? */
static bool prepare(work *w, uint64_t start) {
  const engine_job *job = w->job;
  assert(job->slot >= 0 && job->slot < w->g->options.sequences && job->count >= 1);
  assert(job->count <= (job->kind == ENGINE_PREFILL ? ENGINE_CHUNK : ENGINE_ROWS_MAX));
  *w->r = (engine_result){.kind = job->kind, .serial = job->serial, .code = ERR_OK};
  w->r->node_count = job->kind == ENGINE_VERIFY ? job->count - 1 : 0;
  w->r->queue_us = start > job->ready_us ? start - job->ready_us : 0;
  if (job->kind == ENGINE_VERIFY) set_choosing(w);
  fault_before(w);
  if (!starts_right(w)) return false;
  int rc = w->faulty ? ERR_INTERNAL : ERR_OK;
  if (rc == ERR_OK && w->r->node_count > 0) rc = kv_stage(w->g->options.kv, w->seq, job->parents, job->count);
  if (rc != ERR_OK) fail(w, rc);
  return rc == ERR_OK;
}

static void finish(work *w) {
  engine *g = w->g;
  if (w->job->selfcheck && w->r->code == ERR_OK) selfcheck(w);
  if (w->job->kind == ENGINE_VERIFY)
    count_decode(g, w->r);
  else
    g->counters.prefills++;
  if (w->job->kind == ENGINE_PREFILL && w->job->measures)
    g->counters.measured_rows += (uint64_t)w->job->count;
  w->r->kv_length = kv_length(g->options.kv, w->seq);
  w->r->kv_settled = w->r->kv_length - kv_late(g->options.kv, w->seq);
}

void engine_run(engine *g, const engine_batch *batch, engine_results *out) {
  assert(batch->count >= 1 && batch->count <= ENGINE_JOBS_MAX);
  work works[ENGINE_JOBS_MAX], *ready[ENGINE_JOBS_MAX];
  int32_t ready_count = 0;
  uint64_t start = clock_us();
  out->count = batch->count;
  g->at_once = batch->at_once;
  for (int32_t i = 0; i < batch->count; i++) {
    const engine_job *job = &batch->jobs[i];
    works[i] = (work){.g = g, .job = job, .r = &out->of[i], .seq = g->sequences[job->slot]};
    if (prepare(&works[i], start)) ready[ready_count++] = &works[i];
  }
  if (ready_count > 0) forward(g, ready, ready_count);
  for (int32_t i = 0; i < batch->count; i++) finish(&works[i]);
  g->counters.batches++;
  g->forwarded_us = batch->count == 1 ? works[0].forwarded_us : 0;
  g->forwarded_slot = batch->jobs[0].slot;
}

/* --- the thread --- */

static void pin(void *context) {
  engine *g = context;
  const engine_options *o = &g->options;
  if (o->pin_count && !ops_cpu_pin(model_device(o->model), o->pin, o->pin_count))
    log_line(o->log, LOG_WARNING, "the system does not let the threads stay on the processors of --pin");
}

static void run(void *context, const void *batch) {
  engine *g = context;
  engine_run(g, batch, &g->results);
}

static bool turn(void *context, void *next) {
  engine *g = context;
  return g->options.turn(g->options.context, &g->results, next);
}

/* What the last rounds have left to a next one that never came: the counters tell of every row. */
static void settle_all(void *context) {
  engine *g = context;
  for (int32_t i = 0; i < g->options.sequences; i++) kv_settle(g->options.kv, g->sequences[i]);
}

static int start_thread(engine *g, err *e) {
  const batch_thread_options o = {sizeof(engine_batch), pin, run, turn, settle_all, g};
  return batch_thread_open(&g->thread, &o, e);
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
  int rc = ERR_OK;
  if (!g->sequences || sampler_alloc(&g->sampler, model_shape(o->model)->vocab) != ERR_OK)
    rc = err_set(e, ERR_NOMEM, "no memory for the engine");
  if (rc == ERR_OK) rc = take_sequences(g, e);
  if (rc == ERR_OK) rc = start_thread(g, e);
  if (rc != ERR_OK) {
    engine_close(g);
    return rc;
  }
  *out = g;
  return ERR_OK;
}

void engine_stop(engine *g) {
  batch_thread_stop(g->thread);
}

void engine_close(engine *g) {
  if (!g) return;
  batch_thread_close(g->thread);
  for (int32_t i = 0; g->sequences && i < g->options.sequences; i++)
    if (g->sequences[i] >= 0) kv_release(g->options.kv, g->sequences[i]);
  sampler_free(g->sampler);
  free(g->sequences);
  free(g);
}

bool engine_submit(engine *g, const engine_batch *batch) {
  return batch_thread_submit(g->thread, batch);
}

const engine_counters *engine_count(const engine *g) {
  return &g->counters;
}
