/* policy_replay - what the rules of speculation make of recorded answers, without a machine's noise.
 *
 *   policy_replay FILE [--max-tokens N] [--stop ID] [--kept] [--costs ROWS:COST,...] [--each]
 *
 * FILE is what `tandem batch --draft none` wrote. The machines of the orchestrator, the target and a draft by
 * prompt lookup run under a virtual clock (tests/sim/net.h); in the engine's place stands a recording, whose
 * forwards take as many plain steps as --costs says of their rows (a line through the points that are named).
 * --stop: the token that ends a turn. Every answer has programs of its own, as `tandem run` has; with --kept
 * all of them have the same ones, as in `tandem batch`. Prints time over plain decoding. */
#include "common/speculative/accept.h"
#include "draft_worker/worker.h"
#include "orchestrator/sessions/sessions.h"
#include "target_worker/worker.h"
#include "tests/sim/net.h"
#include <assert.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP_US    2700 /* a plain step */
#define BETWEEN_US 15   /* from the end of a forward to its result */
#define CONTEXT    4096
#define ROWS_MAX   300
#define PREFILL    0.137 /* plain steps for a row of a prompt that is read in a wide forward */
#define BUDGET     15

enum { ORCH, TARGET, DRAFT };
enum { ALARM_RESULT = 1 };

/* Steps by rows, measured with bench_step on an AMD EPYC (Zen 5), 2 threads, the default model in Q4_1. */
#define COSTS_AVX512 "1:1,2:1.05,3:1.06,4:1.12,5:1.18,6:1.25,8:1.43,10:1.66,12:1.92,16:2.45,24:3.6,32:4.6"

typedef struct completion { /* plain decoding's */
  int32_t *tokens, length, prompt_length;
} completion;

typedef struct figures {
  double steps, plain; /* of the decoding, in plain steps */
  double prompts;      /* what reading the prompts took more than it would plainly */
  double worst;
  uint64_t forwards, nodes, accepted, waited_us;
  int32_t answers, tokens;
} figures;

typedef struct world {
  net *net;
  net_totals totals;
  ledger ledger;
  sessions_machine *sessions;
  target *target;
  draft *draft;
  uint64_t incarnations;
  const completion *recorded;
  bool busy;
  engine_results results;
  double costs[ROWS_MAX + 1];
  double decode_steps, prompt_steps; /* of the answer under way */
  uint64_t forwards, nodes;
  int32_t stop, stop_count, max_tokens;
  bool each;
} world;

/* --- the engine --- */

typedef struct walk {
  const completion *recorded;
  int32_t kv_length;
} walk;

static int32_t recorded_token(void *context, int32_t row, const int32_t *path, int32_t depth) {
  const walk *x = context;
  int32_t at = x->kv_length + depth + 1;
  (void)row, (void)path;
  return at < x->recorded->length ? x->recorded->tokens[at] : 0;
}

static void run_job(world *w, const engine_job *job, engine_result *r) {
  int32_t path[ENGINE_ROWS_MAX];
  walk x = {w->recorded, job->kv_length};
  *r = (engine_result){.kind = job->kind, .serial = job->serial, .kv_length = job->kv_length + job->count};
  if (job->kind == ENGINE_VERIFY) {
    r->node_count = job->count - 1;
    r->sampled_count = accept_walk(job->tokens, job->parents, job->count, job->stops, job->stop_count,
                                   job->sampled_max, recorded_token, &x, path, r->sampled);
    r->kv_length = job->kv_length + r->sampled_count;
    w->forwards++;
    w->nodes += (uint64_t)r->node_count;
  }
  r->kv_settled = r->kv_length;
}

static double prefill_steps(int32_t rows) {
  return rows * PREFILL > 1 ? rows * PREFILL : 1;
}

static void feed_engine(world *w) {
  static engine_batch b;
  if (w->busy || !target_next_batch(w->target, net_now(w->net), &b)) return;
  assert(b.count == 1); /* one answer at a time */
  const engine_job *job = &b.jobs[0];
  bool reads = job->kind == ENGINE_PREFILL;
  double steps = reads && !job->measures ? prefill_steps(job->count)
                                         : w->costs[job->count < ROWS_MAX ? job->count : ROWS_MAX];
  *(reads ? &w->prompt_steps : &w->decode_steps) += steps;
  w->results.count = 1;
  run_job(w, job, &w->results.of[0]);
  w->results.of[0].forward_us = (uint64_t)(steps * STEP_US);
  w->busy = true;
  net_alarm(w->net, net_now(w->net) + w->results.of[0].forward_us + BETWEEN_US, ALARM_RESULT);
}

/* --- the programs --- */

static uint64_t random_of(void *context) {
  return net_random(((world *)context)->net);
}

static wire_id incarnation(world *w) {
  wire_id id = {{0}};
  w->incarnations++;
  memcpy(id.bytes, &w->incarnations, sizeof w->incarnations);
  return id;
}

static void start(world *w) {
  err e;
  actions a;
  actions_init(&a);
  w->net = net_open(1, &w->totals);
  w->busy = false;
  int rc = ledger_memory(&w->ledger);
  sessions_options o = {
      .incarnation = incarnation(w), .random = random_of, .random_context = w, .ledger = w->ledger};
  target_options t = {.incarnation = incarnation(w),
                      .vocabulary_size = INT32_MAX,
                      .numerics_id = "recorded",
                      .endpoint = "target",
                      .sessions = 4,
                      .context = CONTEXT};
  draft_options d = {.incarnation = incarnation(w), .kind = &drafter_ngram, .context = CONTEXT};
  if (rc == ERR_OK) rc = sessions_alloc(&w->sessions, &o, &e);
  if (rc == ERR_OK) rc = target_alloc(&w->target, &t, &e);
  if (rc == ERR_OK) rc = draft_alloc(&w->draft, &d, &e);
  assert(rc == ERR_OK);
  net_start(w->net, ORCH, "orchestrator", sessions_as_machine(w->sessions));
  net_start(w->net, TARGET, "target", target_machine(w->target));
  target_connect(w->target, "orchestrator", &a);
  net_perform(w->net, TARGET, &a);
  net_start(w->net, DRAFT, "", draft_machine(w->draft));
  draft_connect(w->draft, "orchestrator", &a);
  net_perform(w->net, DRAFT, &a);
  actions_fini(&a);
  while (net_run(w->net, 1100000) != -1) continue; /* they greet each other */
}

static void stop(world *w) {
  target_free(w->target);
  draft_free(w->draft);
  sessions_free(w->sessions);
  w->ledger.close(w->ledger.self);
  net_close(w->net);
}

/* --- an answer --- */

static sessions_view play(world *w, uint64_t id) {
  sessions_view v;
  do {
    if (net_run(w->net, UINT64_MAX / 2) == ALARM_RESULT) {
      w->busy = false;
      net_step(w->net, TARGET, &(event){.kind = EVENT_RESULT, .result = &w->results});
    }
    feed_engine(w);
    if (!sessions_get(w->sessions, id, &v)) abort();
  } while (v.state != SESSIONS_FINISHED);
  return v;
}

static double plain_prompt(int32_t rows) {
  double steps = 0;
  for (; rows > 0; rows -= ENGINE_CHUNK) steps += prefill_steps(rows < ENGINE_CHUNK ? rows : ENGINE_CHUNK);
  return steps;
}

static void replay(world *w, const completion *x, figures *f) {
  err e;
  actions a;
  int32_t count = x->length - x->prompt_length;
  sessions_request r = {.prompt = x->tokens, .prompt_length = x->prompt_length, .draft = true};
  r.options = (msg_options){.top_p = 1,
                            .repeat_penalty = 1,
                            .context = CONTEXT,
                            .budget = BUDGET,
                            .stops = &w->stop,
                            .stop_count = w->stop_count,
                            .max_tokens = count < w->max_tokens ? count : w->max_tokens};
  w->recorded = x;
  w->decode_steps = w->prompt_steps = 0;
  w->forwards = w->nodes = 0;
  actions_init(&a);
  uint64_t id = sessions_start(w->sessions, &r, net_now(w->net), &a, &e);
  if (!id) {
    fprintf(stderr, "policy_replay: %s\n", e.text);
    exit(1);
  }
  net_perform(w->net, ORCH, &a);
  sessions_view v = play(w, id);
  assert(memcmp(v.tokens, x->tokens, (size_t)v.length * sizeof *v.tokens) == 0);
  double steps = w->decode_steps + (double)v.stats.wait_us / STEP_US, plain = v.length - v.prompt_length;
  if (w->each)
    printf("prompt of %d, %.0f tokens: %.3f of plain, %llu of %llu nodes in %llu forwards\n", v.prompt_length,
           plain, steps / plain, (unsigned long long)v.stats.accepted, (unsigned long long)w->nodes,
           (unsigned long long)w->forwards);
  f->answers++;
  f->tokens += v.length - v.prompt_length;
  f->steps += steps;
  f->plain += plain;
  f->prompts += w->prompt_steps - plain_prompt(v.prompt_length - 1);
  if (steps / plain > f->worst) f->worst = steps / plain;
  f->forwards += w->forwards;
  f->nodes += w->nodes;
  f->accepted += v.stats.accepted;
  f->waited_us += v.stats.wait_us;
  sessions_release(w->sessions, id, net_now(w->net), &a);
  net_perform(w->net, ORCH, &a);
  actions_fini(&a);
}

/* --- the command line --- */

static bool read_answer(const char *line, completion *x) {
  json_t *o = json_loads(line, 0, NULL);
  const json_t *parts[] = {json_object_get(o, "prompt_ids"), json_object_get(o, "token_ids")};
  size_t prompt = json_array_size(parts[0]), output = json_array_size(parts[1]), n = 0;
  bool right = prompt > 0 && output > 0 && prompt + output <= CONTEXT;
  *x = (completion){.prompt_length = (int32_t)prompt, .length = (int32_t)(prompt + output)};
  x->tokens = right ? malloc((prompt + output) * sizeof *x->tokens) : NULL;
  for (int k = 0; x->tokens && k < 2; k++)
    for (size_t i = 0; i < json_array_size(parts[k]); i++)
      x->tokens[n++] = (int32_t)json_integer_value(json_array_get(parts[k], i));
  json_decref(o);
  return x->tokens;
}

/* ROWS:COST,...; beyond the last point as up to it. */
static bool read_costs(const char *text, double *costs) {
  int32_t at = 1, rows;
  double cost, before = 1, slope = 0;
  for (int used; sscanf(text, "%d:%lf%n", &rows, &cost, &used) == 2; before = cost) {
    if (rows < at || rows > ROWS_MAX || cost <= 0) return false;
    slope = rows > at ? (cost - before) / (rows - at) : 0;
    for (int32_t i = at; i <= rows; i++) costs[i] = cost - slope * (rows - i);
    at = rows;
    text += used;
    if (*text++ != ',') break;
  }
  for (int32_t i = at + 1; i <= ROWS_MAX; i++) costs[i] = costs[i - 1] + slope;
  return text[-1] == 0 && at > 1;
}

static int usage(void) {
  fprintf(
      stderr,
      "usage: policy_replay FILE [--max-tokens N] [--stop ID] [--kept] [--costs ROWS:COST,...] [--each]\n");
  return 2;
}

static void print_figures(const figures *f) {
  printf("%d answers, %d tokens: %.3f of plain, the worst %.3f; %llu of %llu nodes accepted; rows over "
         "forwards %.3f; waited %.2f %%; "
         "prompts took %.2f steps more each\n",
         f->answers, f->tokens, f->steps / f->plain, f->worst, (unsigned long long)f->accepted,
         (unsigned long long)f->nodes, (double)(f->forwards + f->nodes) / (double)f->forwards,
         100 * (double)f->waited_us / (f->plain * STEP_US), f->prompts / f->answers);
}

int main(int argc, char **argv) {
  static world w;
  figures f = {0};
  const char *costs = COSTS_AVX512;
  bool kept = false;
  w.max_tokens = CONTEXT;
  if (argc < 2) return usage();
  for (int i = 2; i < argc; i++) {
    if (strcmp(argv[i], "--kept") == 0)
      kept = true;
    else if (strcmp(argv[i], "--each") == 0)
      w.each = true;
    else if (i + 1 < argc && strcmp(argv[i], "--max-tokens") == 0)
      w.max_tokens = atoi(argv[++i]);
    else if (i + 1 < argc && strcmp(argv[i], "--stop") == 0)
      w.stop = atoi(argv[++i]), w.stop_count = 1;
    else if (i + 1 < argc && strcmp(argv[i], "--costs") == 0)
      costs = argv[++i];
    else
      return usage();
  }
  FILE *file = fopen(argv[1], "r");
  if (!file || w.max_tokens < 1 || !read_costs(costs, w.costs)) {
    fprintf(stderr, "policy_replay: %s\n",
            file ? "--max-tokens or --costs is wrong" : "cannot read FILE: make it with `tandem batch'");
    return 2;
  }
  char *line = NULL;
  size_t room = 0;
  if (kept) start(&w);
  while (getline(&line, &room, file) > 0) {
    completion x;
    if (!read_answer(line, &x)) continue;
    if (!kept) start(&w);
    replay(&w, &x, &f);
    if (!kept) stop(&w);
    free(x.tokens);
  }
  if (kept) stop(&w);
  free(line);
  fclose(file);
  if (f.answers)
    print_figures(&f);
  else
    fprintf(stderr, "policy_replay: no line with prompt_ids and token_ids\n");
  return f.answers ? 0 : 1;
}
