#include "target_worker/engine.h"

#include "common/base/clock.h"
#include "common/base/log_limit.h"
#include "common/base/program.h"
#include "common/speculative/acceptance.h"
#include "target_worker/fused_rows.h"
#include "target_worker/tap_rows.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Lines of the log about forwards that are repeated. */
#define REPEAT_LINES    4
#define REPEAT_EVERY_US 60000000

#define SHARED_MOST 4096 /* rows of two sequences that are compared: those of chat headers, and more */

#define LOGPROBS_EACH (ENGINE_ROWS_MAX * WIRE_LOGPROBS_MAX) /* of a job */

/* The tokens on the way to each row of a tree, without the root: the end of its history. */
typedef struct row_paths {
  model_path of[ENGINE_ROWS_MAX];
  int32_t tokens[ENGINE_ROWS_MAX * (ENGINE_ROWS_MAX - 1) / 2];
} row_paths;

/* What the target over partial KV adds to a job. */
typedef struct guess {
  partial_chain chain;
  engine_job job; /* the whole */
} guess;

struct engine {
  engine_options options;
  row_paths *paths; /* [ENGINE_JOBS_MAX]: of the jobs in hand, where a penalty, a grammar or log-probabilities
                       need them */
  sampler *sampler; /* from the first job on that wants log-probabilities or has a grammar, */
  ranking_token *logprobs; /* [ENGINE_JOBS_MAX][LOGPROBS_EACH]: and what they are */
  tap_rows taps;           /* of the batch in hand, where drafts read features, */
  fused_rows fused;        /* and where they read them fused */
  int32_t *sequences;      /* [options.sequences]: the cache's sequence of each slot */
  partial_kv *partial;     /* NULL: there is none; */
  bool planned;            /* it has planned the forward under way */
  guess *guesses;          /* [ENGINE_JOBS_MAX]: of the jobs in hand */

  /* The engine thread's. */
  engine_counters counters;
  uint64_t decodes, trees; /* VERIFY jobs, those with nodes: what the faults count */
  bool at_once;            /* the batch in hand */
  uint64_t forwarded_us;   /* when the last forward ended, if it was of one VERIFY that succeeded; else 0 */
  int32_t forwarded_slot;
  log_limit repeats, fusions; /* that the log tells */
};

/* --- faults, for tests --- */

#define FAULT_TEXT_MAX 64

static const struct {
  const char *name;
  engine_fault_kind kind;
  bool rows;
} fault_names[] = {
    {"kv-rollback", ENGINE_FAULT_KV_ROLLBACK, true},  {"slow-step", ENGINE_FAULT_SLOW_STEP, false},
    {"step-error", ENGINE_FAULT_STEP_ERROR, false},   {"verify-error", ENGINE_FAULT_VERIFY_ERROR, false},
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
                   "a fault is kv-rollback:AFTER:BY, slow-step:MS, step-error:AFTER, verify-error:AFTER or "
                   "wrong-token:AFTER, not '%s'",
                   text);
  int64_t number, by = 0;
  int rc = program_int("AFTER of a fault", after, 1, INT64_MAX, &number, e);
  if (rc == ERR_OK && rows) rc = program_int("BY of a fault", rows, 1, WIRE_CONTEXT_MAX, &by, e);
  if (rc == ERR_OK) *f = (engine_fault){fault_names[i].kind, (uint64_t)number, (int32_t)by};
  return rc;
}

/* --- a job --- */

/* A job of the batch in hand. */
typedef struct active_job {
  engine *g;
  const engine_job *job; /* with the nodes that it goes through the model with: */
  const engine_job *own; /* those that it was given, or a chain over partial KV */
  engine_result *r;
  int32_t seq, segment; /* of the cache; of the forward */
  bool faulty;          /* a test wants its forward to fail, */
  bool wrong;           /* or its first token to be wrong */
  bool unread;          /* the device did not give the tokens that its forward has ranked */
  bool weighs;          /* its forward weighs the cache's blocks, for partial KV */
  bool kept;            /* the rows keep their logits, from which tokens are picked here */
  int stuck; /* why no token can be chosen after the last row that was looked at: ERR_LIMIT, ERR_FORMAT; or 0
              */
  uint64_t forwarded_us; /* when the forward of a VERIFY ended, if the next step can follow it at once */
  row_paths *paths;
  ranking_token *logprobs; /* [][job->logprobs] of the tokens picked; NULL: none are wanted */
  int32_t picked;          /* index of the token that is picked next */
  bool tapped;             /* the forward has kept its rows' states: */
  size_t features_at;      /* in g->taps.rows */
  bool choosing;           /* the forward chooses the tokens by `sampling`, otherwise by `ranking` */
  model_sampling sampling;
  model_ranking ranking;
} active_job;

/* The cache loses rows without the machine's knowledge. */
static void drop_rows(engine *g, int32_t seq, int32_t rows) {
  int32_t length = kv_length(g->options.kv, seq);
  kv_rollback(g->options.kv, seq, rows < length ? length - rows : 0);
}

static void wait_ms(uint64_t ms) {
  const struct timespec time = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
  nanosleep(&time, NULL);
}

static void fault_before(active_job *a) {
  engine *g = a->g;
  const engine_fault *f = &g->options.fault;
  if (a->job->kind != ENGINE_VERIFY) return;
  if (f->kind == ENGINE_FAULT_SLOW_STEP) wait_ms(f->after);
  bool tree = a->job->count > 1, decode_due = ++g->decodes == f->after;
  if (tree) g->trees++;
  bool tree_due = tree && g->trees == f->after;
  if (decode_due && f->kind == ENGINE_FAULT_KV_ROLLBACK) drop_rows(g, a->seq, f->rows);
  a->faulty = (tree_due && f->kind == ENGINE_FAULT_VERIFY_ERROR) ||
              (g->decodes >= f->after && f->kind == ENGINE_FAULT_STEP_ERROR);
  a->wrong = tree_due && f->kind == ENGINE_FAULT_WRONG_TOKEN;
}

static void list_paths(const engine_job *job, row_paths *to) {
  int32_t *at = to->tokens;
  to->of[0] = (model_path){at, 0};
  for (int32_t i = 1; i < job->count; i++) {
    const model_path *before = &to->of[job->parents[i]];
    to->of[i] = (model_path){at, before->count + 1};
    memcpy(at, before->tokens, (size_t)before->count * sizeof *at);
    at += before->count;
    *at++ = job->tokens[i];
  }
}

/* Filters and penalties rank the tokens; without them a choice is cheaper. */
static void set_choosing(active_job *a) {
  const engine_job *job = a->job;
  const sampler_options *o = &job->sampling;
  const sampler_row any = {.history_count = job->history != NULL, .bias_count = job->bias_count};
  a->sampling = (model_sampling){sampler_scale(o), o->seed, o->choice};
  a->choosing = !sampler_needs_logits(o, &any, model_shape(a->g->options.model)->vocab);
  a->ranking = (model_ranking){.options = *o,
                               .count = 1,
                               .bias_tokens = job->bias_tokens,
                               .bias_values = job->bias_values,
                               .bias_count = job->bias_count};
  a->kept = job->logprobs > 0 || job->grammar;
  if (a->kept || (!a->choosing && job->history)) list_paths(job, a->paths);
  if (!job->history) return;
  a->ranking.history = job->history;
  a->ranking.history_count = job->kv_length + 1;
  a->ranking.prompt_count = job->prompt_length;
  a->ranking.paths = a->paths->of;
}

static void set_use(const active_job *a, model_segment *s) {
  if (a->kept) return;
  if (a->choosing)
    s->sampling = &a->sampling;
  else
    s->ranking = &a->ranking;
}

/* -1: there is no token. */
static int32_t pick_by_grammar(active_job *a, const model_path *path, const sampler_row *about,
                               const float *logits, int32_t position) {
  const engine_job *job = a->job;
  int rc = grammar_matcher_move(job->grammar, job->history + job->prompt_length,
                                job->kv_length + 1 - job->prompt_length, path->tokens, path->count);
  int32_t token =
      rc ? -1 : grammar_matcher_pick(job->grammar, a->g->sampler, &job->sampling, about, logits, position);
  if (token < 0)
    a->stuck = sampler_are_numbers(logits, model_shape(a->g->options.model)->vocab) ? ERR_LIMIT : ERR_FORMAT;
  return token;
}

/* From the row's logits, by the definition of what a device chooses and ranks. */
static int32_t pick_kept(active_job *a, int32_t row) {
  const model_ranking *k = &a->ranking;
  const model_path *path = &a->paths->of[row];
  const float *logits = model_logits(a->g->options.model, a->segment, row);
  const sampler_row about = {.history = k->history,
                             .history_count = k->history_count,
                             .extra = k->history ? path->tokens : NULL,
                             .extra_count = k->history ? path->count : 0,
                             .prompt_count = k->prompt_count,
                             .bias_tokens = k->bias_tokens,
                             .bias_values = k->bias_values,
                             .bias_count = k->bias_count};
  if (!logits) a->unread = true;
  if (a->unread) return -1;
  int32_t position = a->job->kv_length + 1 + path->count;
  int32_t token = a->job->grammar ? pick_by_grammar(a, path, &about, logits, position)
                                  : sampler_pick(a->g->sampler, &k->options, &about, logits, position);
  if (token < 0 && !a->stuck) a->stuck = ERR_FORMAT;
  if (!a->logprobs || token < 0) return token;
  sampler_logprobs(a->g->sampler, logits, token, a->job->logprobs - 1,
                   a->logprobs + a->picked++ * a->job->logprobs);
  return token;
}

/* The target's token after a row of the last forward; -1, which is no row's token: the device does not give
 * it. */
static int32_t pick(active_job *a, int32_t row) {
  const model *m = a->g->options.model;
  if (a->kept) return pick_kept(a, row);
  if (a->choosing) {
    int32_t token = model_sampled(m, a->segment, row);
    if (token < 0) a->stuck = ERR_FORMAT;
    return token;
  }
  const ops_ranked *best = model_ranked(m, a->segment, row);
  if (!best) a->unread = true;
  if (a->unread) return -1;
  if (best->count == 0) a->stuck = ERR_FORMAT;
  return best->count > 0 ? best->list[0].token : -1;
}

/* What is guessed lossily is accepted, whatever the whole cache gives. */
static int32_t pick_on_walk(void *context, int32_t row, const int32_t *path, int32_t depth) {
  (void)path, (void)depth;
  active_job *a = context;
  const engine_job *job = a->job;
  const int32_t token = pick(a, row);
  const bool lossy = a->r->guessed > 0 && job->partial.mode == WIRE_PARTIAL_LOSSY;
  if (!lossy || token < 0 || row + 1 >= job->count) return token;
  a->r->lossy += token != job->tokens[row + 1];
  return job->tokens[row + 1];
}

/* Nothing of the job is left in the cache. A loss is told once, by the machine. */
static void fail(active_job *a, int rc) {
  engine *g = a->g;
  if (rc != ERR_DEVICE)
    log_line(g->options.log, LOG_ERROR, "a forward of %d rows after %d failed: %s", a->job->count,
             a->job->kv_length, err_name(rc));
  kv_rollback(g->options.kv, a->seq, a->job->kv_length);
  g->counters.failures++;
  a->forwarded_us = 0;
  a->r->sampled_count = 0;
  a->r->code = rc == ERR_DEVICE ? ERR_DEVICE : ERR_INTERNAL;
}

/* The same at every try: it ends the answer. */
static void give_up(active_job *a) {
  kv_rollback(a->g->options.kv, a->seq, a->job->kv_length);
  a->forwarded_us = 0;
  a->r->sampled_count = 0;
  a->r->code = a->stuck;
}

/* --- accepting, after a forward --- */

/* The committed rows' states, for drafts; path NULL: the first `count` rows. */
static void take_features(active_job *a, const int32_t *path, int32_t count) {
  engine *g = a->g;
  if (!a->tapped) return;
  a->features_at = tap_rows_take(&g->taps, g->options.model, a->segment, a->job, path, count, a->r);
  g->counters.tapped_rows += (uint64_t)a->r->feature_count;
  if (a->job->fuses) g->counters.fused_rows += (uint64_t)a->r->feature_count;
}

/* Row i of a step that is decoded again. */
static int append_one(active_job *a, int32_t i) {
  const engine_options *o = &a->g->options;
  const int32_t *sampled = a->r->sampled;
  model_segment s = {
      .seq = a->seq, .kind = MODEL_APPEND, .count = 1, .tokens = i == 0 ? a->job->tokens : &sampled[i - 1]};
  a->segment = 0;
  a->picked = i;
  if (a->ranking.paths || a->kept) a->paths->of[0] = (model_path){sampled, i};
  set_use(a, &s);
  return model_forward(o->model, o->kv, &s, 1);
}

/* Decodes the step once more, one token after the other. Where the tokens differ, the plain ones are right.
 */
static void selfcheck(active_job *a) {
  engine_result *r = a->r;
  kv_rollback(a->g->options.kv, a->seq, a->job->kv_length);
  a->g->counters.selfchecks++;
  a->forwarded_us = 0;
  for (int32_t i = 0; i < r->sampled_count; i++) {
    int rc = append_one(a, i);
    if (rc != ERR_OK) {
      fail(a, rc);
      return;
    }
    int32_t token = pick(a, 0);
    if (a->unread || a->stuck) {
      fail(a, ERR_INTERNAL);
      return;
    }
    if (token == r->sampled[i]) continue;
    r->sampled[i] = token;
    r->sampled_count = i + 1;
    r->selfcheck_differs = true;
  }
}

static void accept_tree(active_job *a, uint64_t forwarded) {
  const engine_job *job = a->job;
  int32_t path[ENGINE_ROWS_MAX];
  int32_t walked = acceptance_walk(job->tokens, job->parents, job->count, job->stops, job->stop_count,
                                   job->sampled_max, pick_on_walk, a, path, a->r->sampled);
  if (a->unread) return;
  walked -= a->stuck != 0;
  if (walked == 0) {
    give_up(a);
    return;
  }
  uint64_t accepted = clock_us();
  int rc = kv_commit(a->g->options.kv, a->seq, path, walked);
  a->r->accept_us = accepted - forwarded;
  a->r->commit_us = clock_us() - accepted;
  if (rc != ERR_OK) {
    fail(a, rc);
    return;
  }
  a->r->sampled_count = walked;
  take_features(a, path, walked);
  if (a->wrong) a->r->sampled[0] = a->r->sampled[0] == 0;
}

/* `forwarded`: when the forward ended, or when the acceptance of the job before this one did. */
static void accept(active_job *a, uint64_t forwarded) {
  if (a->job->kind == ENGINE_PREFILL) {
    take_features(a, NULL, a->job->count);
    return;
  }
  a->forwarded_us = forwarded;
  a->picked = 0;
  if (a->job->count > 1) {
    accept_tree(a, forwarded);
    return;
  }
  a->r->sampled[0] = pick(a, 0);
  if (a->unread) return;
  if (a->stuck) {
    give_up(a);
    return;
  }
  a->r->sampled_count = 1;
  take_features(a, NULL, 1);
  a->r->accept_us = clock_us() - forwarded;
}

/* --- one forward for all --- */

/* Without nodes nothing of speculation is touched: the rows are appended where they belong. */
static model_segment segment_of(const active_job *a) {
  static const model_sampling greedy = {0};
  const engine_job *job = a->job;
  bool tree = job->kind == ENGINE_VERIFY && job->count > 1,
       measures = job->kind == ENGINE_PREFILL && job->measures;
  model_segment s = {.seq = a->seq,
                     .kind = tree ? MODEL_TREE : MODEL_APPEND,
                     .count = job->count,
                     .tokens = job->tokens,
                     .parents = tree ? job->parents : NULL,
                     .all_logits = tree || measures,
                     .no_logits = job->kind == ENGINE_PREFILL && !measures,
                     .sampling = measures ? &greedy : NULL};
  if (job->kind == ENGINE_VERIFY) set_use(a, &s);
  s.weighs = a->weighs;
  return s;
}

static bool follows_at_once(const engine *g, const active_job *a) {
  bool follows = g->forwarded_us && a->r->node_count > a->r->guessed && a->job->slot == g->forwarded_slot;
  return follows && g->at_once;
}

static uint32_t difference(uint64_t a, uint64_t b) {
  uint64_t us = a > b ? a - b : 0;
  return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

/* Of a forward that began at `start` and ended at `end`. */
static void note_gap(engine *g, uint64_t start, uint64_t end) {
  engine_counters *n = &g->counters;
  uint64_t i = n->gaps++ % ENGINE_GAPS_MAX;
  n->gap_us[i] = difference(start, g->forwarded_us);
  n->idle_us[i] = difference(end, g->forwarded_us + model_device_us(g->options.model));
}

static void forward(engine *g, active_job *const *active, int32_t count, bool again);

static void tell_repeat(engine *g, const char *why) {
  if (log_limit_takes(&g->repeats, clock_us(), REPEAT_LINES, REPEAT_EVERY_US))
    log_line(g->options.log, LOG_WARNING, "a forward is repeated: %s", why);
}

static int stage(const active_job *a) {
  const engine_job *job = a->job;
  return a->r->node_count > 0 ? kv_stage(a->g->options.kv, a->seq, job->parents, job->count) : ERR_OK;
}

/* The forward is there, and its ranked tokens are not. If the device is lost, the next forward says so. */
static void read_again(active_job *a, bool again) {
  int rc = ERR_INTERNAL;
  kv_rollback(a->g->options.kv, a->seq, a->job->kv_length);
  if (!again) rc = stage(a);
  if (rc != ERR_OK) {
    fail(a, rc);
    return;
  }
  a->unread = false;
  tell_repeat(a->g, "its ranked tokens could not be read");
  forward(a->g, &a, 1, true);
}

/* --- partial KV --- */

/* A step whose tokens the forward chooses. */
static bool may_guess(const active_job *a) {
  return a->job->kind == ENGINE_VERIFY && a->job->partial_most > 0 && a->job->kv_length > 0 && a->choosing &&
         !a->kept;
}

static void note_weights(const active_job *a, int32_t segment) {
  const engine_result *r = a->r;
  if (r->sampled_count == 0) {
    partial_kv_failed(a->g->partial);
    return;
  }
  partial_kv_passed(a->g->partial, a->job->slot, a->job->session, a->job->kv_length,
                    model_mass(a->g->options.model, segment), r->guessed,
                    min_i32(r->sampled_count - 1, r->guessed), r->lossy);
}

/* Of a forward that was planned: with guesses, or plain. */
static void note_pass(engine *g, active_job *const *active, int32_t count, double us) {
  int32_t longest = 0, tokens = 0;
  for (int32_t i = 0; i < count; i++) {
    if (active[i]->r->guessed > longest) longest = active[i]->r->guessed;
    tokens += active[i]->r->sampled_count;
  }
  const bool only_weighed = active[0]->weighs && longest == 0;
  if (g->planned && !only_weighed && !model_prepared(g->options.model))
    partial_kv_measured(g->partial, count, longest, tokens, us);
}

static partial_chain *begin_chain(active_job *a, int32_t length) {
  const engine_job *job = a->job;
  partial_chain *c = &a->g->guesses[a->paths - a->g->paths].chain;
  *c = (partial_chain){.slot = job->slot,
                       .seq = a->seq,
                       .root = job->tokens[0],
                       .most = min_i32(length, job->partial_most),
                       .sampling = &a->sampling,
                       .stops = job->stops,
                       .stop_count = job->stop_count,
                       .tree = job->tokens,
                       .parents = job->parents,
                       .tree_rows = job->count};
  return c;
}

/* The chain's tokens take the place of the job's nodes. */
static void put_chain(active_job *a, const partial_chain *c) {
  engine_job *job = &a->g->guesses[a->paths - a->g->paths].job;
  *job = *a->own;
  memcpy(job->tokens + 1, c->tokens, (size_t)c->count * sizeof *job->tokens);
  for (int32_t i = 1; i <= c->count; i++) job->parents[i] = i - 1;
  job->count = job->sampled_max = c->count + 1;
  a->job = job;
  a->r->node_count = a->r->guessed = c->count;
}

static void tell_text(engine *g, const engine_job *job) {
  const partial_news n = {.session = job->session,
                          .tokens = job->text,
                          .from = job->text_from,
                          .count = job->kv_length + 1 - job->text_from,
                          .prompt_length = job->prompt_length,
                          .stops = job->stops,
                          .stop_count = job->stop_count};
  if (g->partial && job->text) partial_kv_text(g->partial, job->slot, &n);
}

static partial_reason why_not(const active_job *a) {
  if (a->job->partial_why != PARTIAL_NONE) return a->job->partial_why;
  if (a->job->kv_length == 0) return PARTIAL_SHORT;
  return may_guess(a) ? PARTIAL_NONE : PARTIAL_SAMPLING;
}

static void fall_back(engine *g, partial_reason why, int32_t sessions) {
  char text[ERR_TEXT_MAX] = "see docs/USAGE.md, partial KV";
  if (!partial_kv_falls_back(g->partial, why)) return;
  if (why == PARTIAL_RESTING) partial_kv_say(g->partial, sessions, text, sizeof text);
  log_line(g->options.log, LOG_INFO, "[partial-kv][fallback] %s: %s", partial_reason_names[why], text);
}

/* Steps of this forward are plain, each for a reason of its own, or because of others. */
static void fall_back_all(engine *g, active_job *const *ready, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    const partial_reason own = why_not(ready[i]);
    if (ready[i]->job->kind == ENGINE_VERIFY) fall_back(g, own == PARTIAL_NONE ? PARTIAL_BESIDE : own, count);
  }
}

/* Steps of nothing but sessions that may guess, to steps[]: none beside a prompt, which would wait for it. */
static bool list_steps(active_job *const *ready, int32_t count, partial_step *steps) {
  for (int32_t i = 0; i < count; i++) {
    const engine_job *job = ready[i]->job;
    if (!may_guess(ready[i])) return false;
    steps[i] =
        (partial_step){job->slot, job->session, job->kv_length, &job->partial, job->partial_drafted, 0};
  }
  return count > 0;
}

/* Tokens that each of these chains may have: the others' nodes go through the same forward. */
static int32_t chain_room(active_job *const *ready, const partial_step *steps, int32_t count) {
  int32_t chains = 0, rows = MODEL_ROWS_MAX;
  for (int32_t i = 0; i < count; i++) {
    chains += steps[i].length > 0;
    rows -= steps[i].length > 0 ? 1 : ready[i]->job->count;
  }
  return chains > 0 && rows > 0 ? rows / chains : 0;
}

static void guess_chains(engine *g, active_job *const *ready, const partial_step *steps, int32_t count) {
  partial_chain *chains[ENGINE_JOBS_MAX];
  active_job *guessing[ENGINE_JOBS_MAX];
  const int32_t room = chain_room(ready, steps, count);
  int32_t n = 0;
  for (int32_t i = 0; i < count && room > 0; i++) {
    if (steps[i].length == 0) continue;
    guessing[n] = ready[i];
    chains[n++] = begin_chain(ready[i], min_i32(steps[i].length, room));
  }
  if (n > 0) partial_kv_guess(g->partial, chains, n);
  for (int32_t i = 0; i < n; i++)
    if (chains[i]->count > 0) put_chain(guessing[i], chains[i]);
}

/* Guesses what follows, in the rows that the forward has left, where all sessions of it may. */
static void guess_more(engine *g, active_job *const *ready, int32_t count) {
  partial_step steps[ENGINE_JOBS_MAX];
  g->planned = false;
  if (!list_steps(ready, count, steps)) {
    fall_back_all(g, ready, count);
    return;
  }
  const partial_plan plan = partial_kv_plan(g->partial, steps, count, (MODEL_ROWS_MAX - count) / count);
  g->planned = plan.learns;
  for (int32_t i = 0; i < count; i++) ready[i]->weighs = plan.weighs;
  for (int32_t i = 0; i < count && plan.why != PARTIAL_NONE; i++)
    if (steps[i].length == 0 && (steps[i].how->mode == WIRE_PARTIAL_EXACT || !plan.weighs))
      fall_back(g, plan.why, count);
  guess_chains(g, ready, steps, count);
}

/* Runs the rows of these jobs in one forward. If that fails, each job gets once more a forward of its own: so
 * only the one at fault fails, and what passes, as a lack of memory may, harms nobody. On a device that is
 * lost all fail at once. */
static void forward(engine *g, active_job *const *active, int32_t count, bool again) {
  model_segment segments[ENGINE_JOBS_MAX];
  tap_rows_forward(&g->taps);
  for (int32_t i = 0; i < count; i++) {
    active[i]->segment = i;
    segments[i] = segment_of(active[i]);
    segments[i].weighs = active[i]->weighs &= !again;
    if (!again) tap_rows_ask(&g->taps, active[i]->job, &segments[i]); /* it may be what has failed */
    active[i]->tapped = segments[i].tap_count > 0;
  }
  bool follows = count == 1 && follows_at_once(g, active[0]);
  uint64_t start = clock_us();
  int rc = model_forward(g->options.model, g->options.kv, segments, count);
  uint64_t end = clock_us();
  if (follows && rc == ERR_OK) note_gap(g, start, end);
  bool repeats = rc != ERR_OK && rc != ERR_DEVICE && !again;
  if (repeats) tell_repeat(g, err_name(rc));
  for (int32_t i = 0; i < count; i++) {
    active[i]->r->forward_us = end - start;
    active[i]->r->prepared = model_prepared(g->options.model);
    if (repeats && segments[i].weighs) partial_kv_failed(g->partial);
    if (repeats)
      forward(g, &active[i], 1, true);
    else if (rc != ERR_OK)
      fail(active[i], rc);
    else
      accept(active[i], i == 0 ? end : clock_us());
    if (rc == ERR_OK && segments[i].weighs) note_weights(active[i], i);
  }
  if (g->partial && rc == ERR_OK && !again) note_pass(g, active, count, (double)(end - start));
  for (int32_t i = 0; i < count && rc == ERR_OK; i++)
    if (active[i]->unread) read_again(active[i], again);
}

/* The cache must hold the rows that the job starts from. Rows beyond these belong to tokens that C has lost
 * since. */
static bool starts_right(active_job *a) {
  const engine_job *job = a->job;
  kv_cache *kv = a->g->options.kv;
  if (job->blocks && job->rows_given) {
    kv_map(kv, a->seq, job->blocks, job->block_count, job->kv_length);
    return true;
  }
  if (kv_length(kv, a->seq) < job->kv_length) {
    a->r->code = ERR_DESYNC;
    return false;
  }
  if (kv_length(kv, a->seq) > job->kv_length) kv_rollback(kv, a->seq, job->kv_length);
  if (job->blocks) kv_map(kv, a->seq, job->blocks, job->block_count, -1);
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

/* Memory that is taken with the first job whose tokens are picked here, and that wants log-probabilities. */
static int take_logprobs(active_job *a) {
  engine *g = a->g;
  int rc = g->sampler ? ERR_OK : sampler_alloc(&g->sampler, model_shape(g->options.model)->vocab);
  if (rc || a->job->logprobs == 0) return rc;
  if (!g->logprobs)
    g->logprobs = malloc((size_t)ENGINE_JOBS_MAX * (size_t)LOGPROBS_EACH * sizeof *g->logprobs);
  if (rc == ERR_OK && !g->logprobs) rc = ERR_NOMEM;
  if (rc == ERR_OK) a->r->logprobs = a->logprobs = g->logprobs + (a->paths - g->paths) * LOGPROBS_EACH;
  return rc;
}

/* Checks the job; false: its rows cannot go through the model. */
static bool prepare(active_job *a, uint64_t start) {
  const engine_job *job = a->job;
  assert(job->slot >= 0 && job->slot < a->g->options.sequences && job->count >= 1);
  assert(job->count <= (job->kind != ENGINE_PREFILL ? ENGINE_ROWS_MAX
                        : job->taps.count > 0       ? ENGINE_CHUNK
                                                    : ENGINE_CHUNK_MAX));
  *a->r = (engine_result){.kind = job->kind, .serial = job->serial, .code = ERR_OK};
  a->r->node_count = job->kind == ENGINE_VERIFY ? job->count - 1 : 0;
  a->r->queue_us = start > job->ready_us ? start - job->ready_us : 0;
  if (job->kind == ENGINE_VERIFY) set_choosing(a);
  fault_before(a);
  if (!starts_right(a)) return false;
  int rc = a->faulty ? ERR_INTERNAL : ERR_OK;
  if (rc == ERR_OK && a->kept) rc = take_logprobs(a);
  if (rc != ERR_OK) fail(a, rc);
  return rc == ERR_OK;
}

/* A selfcheck may have committed fewer rows than the forward. */
static void give_features(active_job *a) {
  engine_result *r = a->r;
  int32_t most = r->kv_length - r->feature_base;
  if (r->feature_count > most) r->feature_count = most > 0 ? most : 0;
  if (r->code != ERR_OK) r->feature_count = 0;
  if (r->feature_count == 0) return;
  const uint8_t *rows = a->g->taps.rows + a->features_at;
  if (a->job->taps.fused && !a->job->fuses)
    r->states = (const float *)(const void *)rows;
  else
    r->features = rows;
}

static int32_t pick_sampled(void *context, int32_t row, const int32_t *path, int32_t depth) {
  (void)row, (void)path;
  return ((const engine_result *)context)->sampled[depth];
}

/* Tokens that the job's own nodes would have given, where a chain took their place. */
static int32_t drafted_of(const active_job *a) {
  const engine_job *own = a->own;
  int32_t path[ENGINE_ROWS_MAX], sampled[ENGINE_ROWS_MAX];
  if (a->r->guessed == 0 || a->r->sampled_count == 0) return 0;
  return acceptance_walk(own->tokens, own->parents, own->count, own->stops, own->stop_count,
                         min_i32(own->sampled_max, a->r->sampled_count), pick_sampled, a->r, path, sampled);
}

static void finish(active_job *a) {
  engine *g = a->g;
  if (a->job->selfcheck && a->r->node_count > 0 && a->r->code == ERR_OK) selfcheck(a);
  if (a->job->kind == ENGINE_VERIFY)
    count_decode(g, a->r);
  else
    g->counters.prefills++;
  if (a->job->kind == ENGINE_PREFILL && a->job->measures)
    g->counters.measured_rows += (uint64_t)a->job->count;
  a->r->drafted_count = drafted_of(a);
  a->r->kv_length = kv_length(g->options.kv, a->seq);
  give_features(a);
}

static void fuse(engine *g, const engine_batch *batch, engine_results *out) {
  engine_counters *n = &g->counters;
  uint64_t before = g->fused.done;
  fused_rows_run(&g->fused, g->options.fusion, batch->jobs, batch->count, out->of);
  n->fused_rows += g->fused.done - before;
  n->fuse_us = g->fused.us;
  if (out->of[0].code != ERR_OK) n->failures++;
  if (out->of[0].code == ERR_INTERNAL &&
      log_limit_takes(&g->fusions, clock_us(), REPEAT_LINES, REPEAT_EVERY_US))
    log_line(g->options.log, LOG_ERROR, "fc of %d sessions' states failed: their drafts go on without them",
             batch->count);
}

/* The job from `first` on whose sequence begins with most of the rows that this one's does. */
static int32_t nearest(const engine *g, active_job *const *ready, int32_t first, int32_t count) {
  int32_t best = first, most = 0;
  for (int32_t i = first; i < count; i++) {
    const int32_t shared = kv_shared(g->options.kv, ready[first - 1]->seq, ready[i]->seq, SHARED_MOST);
    if (shared > most) most = shared, best = i;
  }
  return best;
}

/* Jobs of sequences that begin with the same rows stand side by side, so that a forward reads these once. */
static void put_side_by_side(const engine *g, active_job **ready, int32_t count) {
  for (int32_t i = 1; i < count; i++) {
    const int32_t next = nearest(g, ready, i, count);
    active_job *found = ready[next];
    memmove(ready + i + 1, ready + i, (size_t)(next - i) * sizeof *ready);
    ready[i] = found;
  }
}

/* Where there is no room for a chain, the job's own nodes again. Jobs whose nodes find none leave; returns
 * how many are left. */
static int32_t stage_all(active_job **ready, int32_t count) {
  int32_t left = 0;
  for (int32_t i = 0; i < count; i++) {
    active_job *a = ready[i];
    int rc = stage(a);
    if (rc != ERR_OK && a->r->guessed > 0) {
      a->job = a->own;
      a->r->node_count = a->own->count - 1;
      a->r->guessed = 0;
      rc = stage(a);
    }
    if (rc == ERR_OK)
      ready[left++] = a;
    else
      fail(a, rc);
  }
  return left;
}

static void run_jobs(engine *g, const engine_batch *batch, engine_results *out) {
  active_job active[ENGINE_JOBS_MAX], *ready[ENGINE_JOBS_MAX];
  int32_t ready_count = 0;
  uint64_t start = clock_us();
  g->at_once = batch->at_once;
  tap_rows_begin(&g->taps);
  for (int32_t i = 0; i < batch->count; i++) {
    const engine_job *job = &batch->jobs[i];
    active[i] = (active_job){.g = g,
                             .job = job,
                             .own = job,
                             .r = &out->of[i],
                             .seq = g->sequences[job->slot],
                             .paths = &g->paths[i]};
    tell_text(g, job);
    if (prepare(&active[i], start)) ready[ready_count++] = &active[i];
  }
  put_side_by_side(g, ready, ready_count);
  if (g->partial) guess_more(g, ready, ready_count);
  const int32_t staged = stage_all(ready, ready_count);
  g->planned &= staged == ready_count; /* what fewer jobs take is not what was planned */
  ready_count = staged;
  if (ready_count > 0) forward(g, ready, ready_count, false);
  for (int32_t i = 0; i < batch->count; i++) finish(&active[i]);
  g->counters.batches++;
  g->forwarded_us = batch->count == 1 ? active[0].forwarded_us : 0;
  g->forwarded_slot = batch->jobs[0].slot;
}

void engine_run(engine *g, const engine_batch *batch, engine_results *out) {
  assert(batch->count >= 1 && batch->count <= ENGINE_JOBS_MAX);
  device *d = model_device(g->options.model);
  out->count = batch->count;
  if (d->table->beside) d->table->beside(d, batch->beside);
  if (batch->jobs[0].kind == ENGINE_FUSE)
    fuse(g, batch, out);
  else
    run_jobs(g, batch, out);
}

/* --- life --- */

static int take_sequences(engine *g, err *e) {
  for (int32_t i = 0; i < g->options.sequences; i++) {
    g->sequences[i] = kv_acquire(g->options.kv);
    if (g->sequences[i] < 0)
      return err_set(e, ERR_FULL, "the cache has no %d free sequences", g->options.sequences);
  }
  return ERR_OK;
}

static int open_partial(engine *g, err *e) {
  const engine_options *o = &g->options;
  g->guesses = calloc(ENGINE_JOBS_MAX, sizeof *g->guesses);
  if (!g->guesses) return err_set(e, ERR_NOMEM, "no memory for the engine");
  return partial_kv_open(&g->partial, o->partial, o->model, o->kv, o->sequences, o->context, e);
}

int engine_open(engine **out, const engine_options *o, err *e) {
  *out = NULL;
  engine *g = calloc(1, sizeof *g);
  if (!g) return err_set(e, ERR_NOMEM, "no memory for the engine");
  g->options = *o;
  g->sequences = calloc((size_t)o->sequences, sizeof *g->sequences);
  g->paths = calloc(ENGINE_JOBS_MAX, sizeof *g->paths);
  for (int32_t i = 0; g->sequences && i < o->sequences; i++) g->sequences[i] = ERR_FULL;
  int rc = ERR_OK;
  if (!g->sequences || !g->paths) rc = err_set(e, ERR_NOMEM, "no memory for the engine");
  if (rc == ERR_OK) rc = take_sequences(g, e);
  if (rc == ERR_OK && o->partial) rc = open_partial(g, e);
  if (rc != ERR_OK) {
    engine_close(g);
    return rc;
  }
  *out = g;
  return ERR_OK;
}

void engine_close(engine *g) {
  if (!g) return;
  for (int32_t i = 0; g->sequences && i < g->options.sequences; i++)
    if (g->sequences[i] >= 0) kv_release(g->options.kv, g->sequences[i]);
  partial_kv_close(g->partial);
  free(g->guesses);
  tap_rows_fini(&g->taps);
  fused_rows_fini(&g->fused);
  free(g->paths);
  free(g->logprobs);
  sampler_free(g->sampler);
  free(g->sequences);
  free(g);
}

const engine_counters *engine_count(const engine *g) {
  return &g->counters;
}

const partial_counters *engine_count_partial(const engine *g) {
  return g->partial ? partial_kv_count(g->partial) : NULL;
}
