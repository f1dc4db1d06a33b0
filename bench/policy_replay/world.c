#include "bench/policy_replay/world.h"

#include "common/speculative/acceptance.h"
#include "draft_worker/drafters/model_drafter.h"
#include "draft_worker/drafters/ngram.h"
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BETWEEN_US 15    /* from the end of a forward to its result */
#define TOLL_US    20    /* of the target's processors, for each message */
#define SEQUENCE   0.03  /* plain steps for each further session of a forward: its attention, its own cache */
#define PREFILL    0.137 /* plain steps for a row of a prompt that is read in a wide forward */
#define CROWDED    1.8   /* how much longer a forward takes while the other program computes beside it */
#define BUDGET     15

enum { ORCH, TARGET, DRAFT };
enum { ALARM_WORK = 1 };

/* What computes: a forward under way. */
typedef struct processor {
  bool busy;
  double left_us; /* if nothing else computes */
  uint64_t began_us;
} processor;

typedef struct running {
  uint64_t id;
  const recording *of;
  int32_t index;
  uint64_t first_us, last_us;
} running;

typedef struct world {
  const world_options *o;
  const recording *list;
  int32_t count, next;
  world_answer *answers;
  world_totals *totals;
  net *net;
  net_totals frames;
  ledger ledger;
  sessions_machine *sessions;
  target *target;
  drafter drafter; /* of the draft */
  draft *draft;
  uint64_t incarnations, updated_us, frames_seen, first_us, last_us;
  processor cpus[2]; /* the target's, the draft's */
  engine_batch batch;
  engine_results results;
  draft_batch wanted;
  draft_results said;
  draft_context context;
  running running[WORLD_SESSIONS_MAX];
} world;

/* --- the target's engine --- */

typedef struct walk {
  const recording *of;
  int32_t kv_length;
} walk;

static int32_t recorded_token(void *context, int32_t row, const int32_t *path, int32_t depth) {
  const walk *x = context;
  int32_t at = x->kv_length + depth + 1;
  (void)row, (void)path;
  return at < x->of->length ? x->of->tokens[at] : 0;
}

static running *running_of(world *w, uint64_t serial) {
  const session_store *store = target_sessions(w->target);
  for (int32_t i = 0; i < store->count; i++)
    for (int32_t k = 0; k < w->o->sessions; k++)
      if (store->slots[i].job.serial == serial && w->running[k].id == store->slots[i].id)
        return &w->running[k];
  abort();
}

static void run_job(world *w, const engine_job *job, engine_result *r) {
  int32_t path[ENGINE_ROWS_MAX];
  running *x = running_of(w, job->serial);
  walk at = {x->of, job->kv_length};
  *r = (engine_result){.kind = job->kind, .serial = job->serial, .kv_length = job->kv_length + job->count};
  r->queue_us = net_now(w->net) - job->ready_us;
  if (job->kind == ENGINE_VERIFY) {
    r->node_count = job->count - 1;
    r->sampled_count = acceptance_walk(job->tokens, job->parents, job->count, job->stops, job->stop_count,
                                       job->sampled_max, recorded_token, &at, path, r->sampled);
    r->kv_length = job->kv_length + r->sampled_count;
    if (!x->first_us) x->first_us = net_now(w->net);
    if (!w->first_us) w->first_us = net_now(w->net);
  }
}

/* A step of the device is a run of equal costs. */
static int32_t width(void *context, int32_t rows) {
  const world_options *o = ((world *)context)->o;
  while (rows < WORLD_ROWS_MAX && o->costs[rows + 1] == o->costs[rows]) rows++;
  return rows;
}

static double forward_us(const world *w) {
  const world_options *o = w->o;
  int32_t rows = 0, read = 0, sessions = 0;
  double kv = 0;
  for (int32_t i = 0; i < w->batch.count; i++) {
    const engine_job *job = &w->batch.jobs[i];
    bool reads = job->kind == ENGINE_PREFILL && !job->measures;
    *(reads ? &read : &rows) += job->count;
    sessions += !reads;
    kv += (double)job->count * job->kv_length;
  }
  double steps = o->costs[rows] + read * PREFILL + (sessions > 1 ? (sessions - 1) * SEQUENCE : 0);
  if (rows == 0 && steps < 1) steps = 1;
  return (steps + kv / 1000 * o->kv_cost) * WORLD_STEP_US;
}

/* --- time --- */

static double speed(const world *w) {
  bool both = w->cpus[0].busy && w->cpus[1].busy;
  return both && w->o->drafts.colocated ? 1 / CROWDED : 1;
}

static void advance(world *w) {
  double passed = (double)(net_now(w->net) - w->updated_us) * speed(w);
  for (int i = 0; i < 2; i++)
    if (w->cpus[i].busy) w->cpus[i].left_us -= passed;
  w->updated_us = net_now(w->net);
}

static void begin(world *w, int i, double us) {
  advance(w);
  w->cpus[i] = (processor){true, us, net_now(w->net)};
  for (int k = 0; k < 2; k++)
    if (w->cpus[k].busy)
      net_alarm(w->net, w->updated_us + (uint64_t)ceil(fmax(w->cpus[k].left_us, 0) / speed(w)), ALARM_WORK);
}

static uint64_t end(world *w, int i) {
  w->cpus[i].busy = false;
  for (int k = 0; k < 2; k++)
    if (w->cpus[k].busy)
      net_alarm(w->net, w->updated_us + (uint64_t)ceil(fmax(w->cpus[k].left_us, 0)), ALARM_WORK);
  return net_now(w->net) - w->cpus[i].began_us;
}

static bool over(const world *w, int i) {
  return w->cpus[i].busy && w->cpus[i].left_us < 0.5;
}

static void feed_target(world *w) {
  if (w->cpus[0].busy || !target_next_batch(w->target, net_now(w->net), &w->batch)) return;
  net_touch(w->net, TARGET);
  w->results.count = w->batch.count;
  for (int32_t i = 0; i < w->batch.count; i++) run_job(w, &w->batch.jobs[i], &w->results.of[i]);
  double toll = TOLL_US * (double)(w->frames.delivered - w->frames_seen);
  w->frames_seen = w->frames.delivered;
  begin(w, 0, forward_us(w) + toll + BETWEEN_US);
}

static void feed_draft(world *w) {
  if (w->cpus[1].busy || !draft_next_batch(w->draft, &w->wanted)) return;
  const draft_batch *b = &w->wanted;
  int32_t rows = b->token_count + b->query_count;
  double steps = b->token_count > 8 ? rows * PREFILL : w->o->costs[rows ? rows : 1];
  w->said.us = b->token_count > 8 ? 0 : 1;
  begin(w, 1, fmax(steps, 1) * w->o->drafts.forward * WORLD_STEP_US);
}

static void target_done(world *w) {
  uint64_t us = end(w, 0) - BETWEEN_US;
  for (int32_t i = 0; i < w->results.count; i++) {
    w->results.of[i].forward_us = us;
    if (w->results.of[i].kind != ENGINE_VERIFY) continue;
    running_of(w, w->results.of[i].serial)->last_us = net_now(w->net);
    w->last_us = net_now(w->net);
  }
  net_step(w->net, TARGET, &(event){.kind = EVENT_RESULT, .result = &w->results});
}

static void draft_done(world *w) {
  uint64_t us = end(w, 1);
  if (w->said.us) w->said.us = us;
  recorded_compute(&w->context, &w->wanted, &w->said);
  net_step(w->net, DRAFT, &(event){.kind = EVENT_RESULT, .result = &w->said});
}

static void go_on(world *w) {
  if (net_run(w->net, UINT64_MAX / 2) == ALARM_WORK) {
    advance(w);
    if (over(w, 0)) target_done(w);
    if (over(w, 1)) draft_done(w);
  }
  feed_target(w);
  feed_draft(w);
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

static int open_drafter(world *w, err *e) {
  switch (w->o->drafts.kind) {
  case RECORDED_MODEL:
    return model_drafter_open(&w->drafter, 8, e);
  case RECORDED_REPLAY:
  case RECORDED_STEPS:
    return immediate_open(&w->drafter, &recorded_replay, &w->context, e);
  case RECORDED_NGRAM:
    break;
  }
  return immediate_open(&w->drafter, &ngram_kind, NULL, e);
}

static draft_options draft_of(world *w) {
  const recorded_draft *d = &w->o->drafts;
  draft_options o = {.incarnation = incarnation(w), .context = WORLD_CONTEXT};
  o.drafters[o.drafter_count++] = w->drafter;
  if (d->kind != RECORDED_MODEL) return o;
  o.session_max = 4;
  o.shorter = true;
  o.colocated = d->colocated;
  o.numerics_id = o.device = "recorded";
  o.host = (hash16){{1}};
  return o;
}

static void start(world *w) {
  err e;
  actions a;
  actions_init(&a);
  w->net = net_open(1, &w->frames);
  net_set_distance(w->net, TARGET, DRAFT, w->o->distance_us);
  w->updated_us = net_now(w->net);
  memset(w->cpus, 0, sizeof w->cpus);
  int rc = ledger_memory(&w->ledger);
  sessions_options o = {
      .incarnation = incarnation(w), .random = random_of, .random_context = w, .ledger = w->ledger};
  target_options t = {.incarnation = incarnation(w),
                      .vocabulary_size = INT32_MAX,
                      .numerics_id = "recorded",
                      .endpoint = "target",
                      .host = {{1}},
                      .device = "recorded",
                      .sessions = WORLD_SESSIONS_MAX,
                      .context = WORLD_CONTEXT,
                      .width = width,
                      .engine_context = w};
  if (rc == ERR_OK) rc = open_drafter(w, &e);
  draft_options d = draft_of(w);
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
  while (net_run(w->net, 1200000) != -1) continue; /* they greet each other */
}

static void stop(world *w) {
  target_free(w->target);
  draft_free(w->draft);
  drafter_free(&w->drafter);
  sessions_free(w->sessions);
  w->ledger.close(w->ledger.self);
  net_close(w->net);
}

/* --- answers --- */

static void ask(world *w, running *x) {
  err e;
  actions a;
  const recording *r = x->of = &w->list[x->index = w->next++];
  int32_t count = r->length - r->prompt_length;
  sessions_request q = {.prompt = r->tokens, .prompt_length = r->prompt_length, .draft = w->o->draft};
  q.options = (msg_options){.top_p = 1,
                            .repeat_penalty = 1,
                            .context = WORLD_CONTEXT,
                            .budget = BUDGET,
                            .stops = &w->o->stop,
                            .stop_count = w->o->stop >= 0,
                            .max_tokens = count < w->o->max_tokens ? count : w->o->max_tokens};
  w->context.current = r;
  x->first_us = x->last_us = 0;
  actions_init(&a);
  x->id = sessions_start(w->sessions, &q, net_now(w->net), &a, &e);
  if (!x->id) {
    fprintf(stderr, "policy_replay: %s\n", e.text);
    exit(1);
  }
  net_perform(w->net, ORCH, &a);
  actions_fini(&a);
}

/* Whether it has finished. */
static bool look(world *w, running *x) {
  sessions_view v;
  if (!sessions_get(w->sessions, x->id, &v)) abort();
  if (v.state != SESSIONS_FINISHED) return false;
  assert(memcmp(v.tokens, x->of->tokens, (size_t)v.length * sizeof *v.tokens) == 0);
  w->answers[x->index] = (world_answer){
      .us = (double)(x->last_us - x->first_us), .tokens = v.length - v.prompt_length, .stats = v.stats};
  w->answers[x->index].stats.accepted_per_pos = NULL;
  actions a;
  actions_init(&a);
  sessions_release(w->sessions, x->id, net_now(w->net), &a);
  net_perform(w->net, ORCH, &a);
  actions_fini(&a);
  x->id = 0;
  return true;
}

static void play(world *w) {
  int32_t left = w->count;
  if (w->o->kept) start(w);
  while (left > 0) {
    if (!w->o->kept) start(w);
    for (int32_t i = 0; i < w->o->sessions; i++)
      if (!w->running[i].id && w->next < w->count) ask(w, &w->running[i]);
    bool ended = false;
    while (!ended) {
      go_on(w);
      for (int32_t i = 0; i < w->o->sessions; i++)
        if (w->running[i].id && look(w, &w->running[i])) {
          left--;
          ended = true;
        }
    }
    if (!w->o->kept) stop(w);
  }
  if (w->o->kept) stop(w);
}

void world_play(const world_options *o, const recording *list, int32_t count, world_answer *answers,
                world_totals *totals) {
  static world w;
  assert(o->kept || o->sessions == 1);
  w = (world){.o = o, .list = list, .count = count, .answers = answers, .totals = totals};
  w.context = (draft_context){.draft = &o->drafts, .list = list, .count = count};
  play(&w);
  *totals = (world_totals){(double)(w.last_us - w.first_us), w.frames.sent};
}
