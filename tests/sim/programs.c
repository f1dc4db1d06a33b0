#include "tests/sim/programs.h"

#include "draft_worker/drafters/model_drafter.h"
#include "tests/sim/clients.h"
#include "tests/sim/limits.h"
#include "tests/sim/waits.h"
#include <assert.h>
#include <string.h>

#define LEAVE_US       50000   /* from the loss of a device to the end of its program, at most */
#define AWAY_US        2000000 /* from the end of a program to its next start, at most */
#define AGAIN_US       50000   /* from a start that has failed to the next one */
#define BLOCKS_OF_LONG 26      /* of a virtual cache where answers are long: again too few for all at once */

/* Limits are scaled down: in three of four worlds one OPEN carries so few tokens that most sessions take
 * several frames to open. */
#define PART_LEAST 2
#define PART_KINDS 8

const char *const programs_addresses[NODES] = {"orch", "target-a", "target-b", "", ""};

static uint64_t sim_random(void *context) {
  return net_random(((world *)context)->net);
}

/* --- starts --- */

static int32_t part_tokens(const world *w) {
  return w->seed % 4 ? PART_LEAST + (int32_t)(w->seed / 4 % PART_KINDS) : 0;
}

static bool start_orchestrator(world *w) {
  err e;
  memory_enter(ORCH);
  int rc = storage_open(&w->disk, &w->ledger);
  w->orchestrator = world_incarnation(w);
  sessions_options o = {.incarnation = w->orchestrator,
                        .model_hash = {{3}},
                        .vocabulary_size = TOY_VOCABULARY,
                        .targets_return = w->targets_return,
                        .part_tokens = part_tokens(w),
                        .random = sim_random,
                        .random_context = w,
                        .ledger = w->ledger};
  if (rc == ERR_OK) rc = sessions_alloc(&w->sessions, &o, &e);
  memory_leave();
  if (rc != ERR_OK) {
    storage_close(&w->disk);
    return false;
  }
  net_start(w->net, ORCH, programs_addresses[ORCH],
            memory_guarded(&w->nodes[ORCH].guard, ORCH, sessions_as_machine(w->sessions)));
  return true;
}

static bool start_target(world *w, int index) {
  worker_node *n = &w->nodes[index];
  int32_t blocks = w->is_long ? BLOCKS_OF_LONG : TOY_BLOCKS_VIRTUAL;
  target_options o = {.incarnation = n->incarnation,
                      .model_hash = {{3}},
                      .vocabulary_size = TOY_VOCABULARY,
                      .numerics_id = "toy",
                      .endpoint = programs_addresses[index],
                      .host = {{1}},
                      .device = "toy",
                      .sessions = TOY_SLOTS,
                      .context = TOY_CONTEXT,
                      .kv_blocks = w->is_virtual ? blocks : 0,
                      .verify_chunk = (int32_t)(w->seed / 16 % 4),
                      .taps = {.layers = TOY_LAYERS, .embed = TOY_EMBED}};
  err e;
  memory_enter(index);
  int rc = target_alloc(&n->target, &o, &e);
  memory_leave();
  if (rc != ERR_OK) return false;
  toy_start(&n->engine, w->is_virtual);
  memset(n->epoch_id, 0, sizeof n->epoch_id);
  net_start(w->net, index, programs_addresses[index],
            memory_guarded(&n->guard, index, target_machine(n->target)));
  actions a;
  actions_init(&a);
  target_connect(n->target, programs_addresses[ORCH], &a);
  net_perform(w->net, index, &a);
  actions_fini(&a);
  return true;
}

static bool start_draft(world *w, int index) {
  worker_node *n = &w->nodes[index];
  draft_options o = {
      .incarnation = n->incarnation, .context = TOY_CONTEXT, .session_max = TOY_READERS, .drafter_count = 1};
  err e;
  memory_enter(index);
  int rc = index == DRAFT_B ? model_drafter_open(&n->drafter, DRAFT_QUERIES_MAX, &e)
                            : immediate_open(&n->drafter, &toy_drafter, NULL, &e);
  memory_leave();
  if (rc != ERR_OK) return false;
  if (w->seed % 3) toy_read_features(&n->drafter, &n->reader, w->seed % 3 == 1 ? WIRE_F32 : WIRE_BF16);
  o.drafters[0] = n->drafter;
  if (index == DRAFT_B) {
    o.session_max = TOY_SLOTS;
    o.shorter = true;
    o.host = (hash16){{1}};
    o.numerics_id = "toy";
    o.device = w->seed % 2 ? "toy" : NULL; /* the target's own, or none that is known */
  }
  n->model = (toy_model){0};
  memory_enter(index);
  rc = draft_alloc(&n->draft, &o, &e);
  memory_leave();
  if (rc != ERR_OK) {
    drafter_free(&n->drafter);
    return false;
  }
  net_start(w->net, index, "", memory_guarded(&n->guard, index, draft_machine(n->draft)));
  actions a;
  actions_init(&a);
  draft_connect(n->draft, programs_addresses[ORCH], &a);
  net_perform(w->net, index, &a);
  actions_fini(&a);
  return true;
}

/* Where memory is short a program ends at once, and is started again. */
static void start_again(world *w, int index) {
  assert(memory_refused() > w->refused_before);
  w->totals->starts_refused++;
  waits_trouble(w, AGAIN_US);
  world_alarm(w, AGAIN_US, ALARM_REVIVE, index, 0);
}

void programs_start(world *w, int index) {
  worker_node *n = &w->nodes[index];
  if (index == ORCH) {
    if (start_orchestrator(w))
      clients_return(w);
    else
      start_again(w, index);
    return;
  }
  n->incarnation = world_incarnation(w);
  n->busy = n->hangs = n->fails = n->starves = n->lost = n->leaves = n->draining = false;
  n->life++;
  bool started = index < DRAFT_A ? start_target(w, index) : start_draft(w, index);
  if (!started) start_again(w, index);
}

/* --- ends --- */

/* What its drafter has compared, and its block pool counted, before it goes. */
static void count_worker(world *w, worker_node *n) {
  totals *t = w->totals;
  t->features += n->reader.compared;
  t->features_wrong += n->reader.wrong;
  if (n->reader.wrong && !w->forges) world_fail(w, "features are not those of the tokens");
  t->features_kept += n->reader.kept;
  n->reader.compared = n->reader.wrong = n->reader.kept = 0;
  if (!n->target) return;
  t->shared += target_sessions(n->target)->blocks.shared;
  t->evicted += target_sessions(n->target)->blocks.evicted;
  t->repeated += target_sessions(n->target)->repeated_rows;
}

void programs_free(world *w, int index) {
  worker_node *n = &w->nodes[index];
  if (index == ORCH) {
    sessions_free(w->sessions);
    w->sessions = NULL;
    return;
  }
  count_worker(w, n);
  target_free(n->target);
  draft_free(n->draft);
  drafter_free(&n->drafter);
  n->target = NULL;
  n->draft = NULL;
  n->life++;
}

/* The orchestrator that is the parent of its workers sees them die. */
static void tell_parent(world *w, wire_id id) {
  actions a;
  if (!w->sessions) return;
  actions_init(&a);
  memory_enter(ORCH);
  sessions_worker_died(w->sessions, id, net_clock(w->net, ORCH), &a);
  memory_leave();
  net_perform(w->net, ORCH, &a);
  actions_fini(&a);
}

void programs_kill(world *w, int index) {
  worker_node *n = &w->nodes[index];
  bool lives = index == ORCH ? w->sessions != NULL : n->target || n->draft;
  if (!lives) return;
  programs_free(w, index);
  if (index == ORCH) {
    w->totals->transactions_lost += w->disk.writes;
    storage_crash(&w->disk, world_pick(w, 2));
  }
  net_stop(w->net, index);
  uint64_t away = 20000 + world_pick(w, AWAY_US);
  waits_trouble(w, away);
  world_alarm(w, away, ALARM_REVIVE, index, 0);
  if (index != ORCH && world_pick(w, 2)) tell_parent(w, n->incarnation);
}

void programs_drain(world *w, int index) {
  worker_node *n = &w->nodes[index];
  if ((!n->target && !n->draft) || n->draining) return;
  n->draining = true;
  for (int i = 0; n->target && i < TOY_SLOTS; i++) {
    const session *s = &target_sessions(n->target)->slots[i];
    n->drained_ids[i] = s->state == SESSION_FREE ? 0 : s->id;
  }
  net_step(w->net, index, &(event){.kind = EVENT_DRAIN});
}

static void leave_drained(world *w, int index) {
  const worker_node *n = &w->nodes[index];
  if (!n->draining || n->busy) return;
  if ((n->target && target_drained(n->target)) || (n->draft && draft_drained(n->draft)))
    programs_kill(w, index);
}

void programs_leave(world *w, int index) {
  if (w->nodes[index].leaves) programs_kill(w, index);
}

/* --- engines --- */

static void note_loss(world *w, int index, int code) {
  worker_node *n = &w->nodes[index];
  if (code != ERR_DEVICE || n->leaves) return;
  n->leaves = true;
  w->totals->devices_lost++;
  world_alarm(w, world_pick(w, LEAVE_US), ALARM_LEAVE, index, 0);
}

static void fail_job(world *w, int index, const engine_job *j, engine_result *r, int code) {
  worker_node *n = &w->nodes[index];
  client *c = world_client(w, target_sessions(n->target)->slots[j->slot].id);
  if (r->code == ERR_DESYNC && code != ERR_DEVICE) return;
  if (n->engine.length[j->slot] > j->kv_length) n->engine.length[j->slot] = j->kv_length;
  *r = (engine_result){.kind = j->kind,
                       .serial = j->serial,
                       .code = code,
                       .kv_length = j->kv_length,
                       .node_count = j->kind == ENGINE_VERIFY ? j->count - 1 : 0};
  if (c && r->node_count == 0) c->failed_at |= 1u << index;
}

/* No job of the batch succeeds: its device is lost, or its memory gave out. Or it gave out for one. */
static void fail_jobs(world *w, int index, const engine_batch *batch) {
  const worker_node *n = &w->nodes[index];
  int code = n->lost ? ERR_DEVICE : n->fails ? ERR_INTERNAL : n->starves ? ERR_NOMEM : ERR_OK;
  if (code == ERR_OK) return;
  int32_t one = code == ERR_NOMEM ? (int32_t)world_pick(w, (uint64_t)batch->count) : -1;
  for (int32_t i = 0; i < batch->count; i++)
    if (one < 0 || i == one) fail_job(w, index, &batch->jobs[i], &w->nodes[index].results.of[i], code);
}

static void check_job(world *w, worker_node *n, const engine_job *j) {
  const session *s = &target_sessions(n->target)->slots[j->slot];
  bool done = j->kind != ENGINE_VERIFY || !s->request.options.lockstep || s->speculation.disabled ||
              session_draft_count(s) == 0;
  for (int32_t i = 0; i < j->count; i++)
    if (j->tokens[i] < 0 || j->tokens[i] >= TOY_VOCABULARY)
      world_fail(w, "an engine was given a token outside its vocabulary");
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++)
    done |= s->drafts.of[i].peer && s->drafts.of[i].done_base == s->committed.length;
  if (!done) world_fail(w, "a step in lockstep began before the tree was done");
}

static void feed_target(world *w, int index) {
  worker_node *n = &w->nodes[index];
  engine_batch batch;
  if (n->busy) return;
  net_touch(w->net, index);
  memory_enter(index);
  bool any = target_next_batch(n->target, net_clock(w->net, index), &batch);
  memory_leave();
  if (!any) return;
  if (n->leaves) world_fail(w, "something is to be computed on a lost device");
  limits_target_batch(w, &batch);
  n->results.count = batch.count;
  for (int32_t i = 0; i < batch.count; i++) {
    check_job(w, n, &batch.jobs[i]);
    toy_run(&n->engine, &batch.jobs[i], &n->results.of[i]);
  }
  fail_jobs(w, index, &batch);
  n->busy = true;
  if (n->hangs) waits_trouble(w, HANG_US);
  world_alarm(w, 300 + world_pick(w, 3000) + (n->hangs ? HANG_US : 0), ALARM_RESULT, index, n->life);
  n->hangs = n->fails = n->starves = false;
}

static void feed_draft(world *w, int index) {
  worker_node *n = &w->nodes[index];
  draft_batch batch;
  if (n->busy) return;
  memory_enter(index);
  bool any = draft_next_batch(n->draft, &batch);
  memory_leave();
  if (!any) return;
  net_touch(w->net, index);
  limits_draft_batch(w, &batch);
  draft_results *r = &n->draft_results;
  toy_compute(&n->model, &batch, r);
  if (n->lost) {
    r->failure_count = batch.job_count;
    for (int32_t i = 0; i < batch.job_count; i++)
      r->failures[i] = (draft_failure){batch.jobs[i].slot, ERR_DEVICE};
  }
  n->busy = true;
  world_alarm(w, 100 + world_pick(w, 2000), ALARM_RESULT, index, n->life);
}

void programs_feed(world *w, int index) {
  worker_node *n = &w->nodes[index];
  if (n->target)
    feed_target(w, index);
  else if (n->draft)
    feed_draft(w, index);
  leave_drained(w, index);
}

void programs_result(world *w, int index, uint32_t life) {
  worker_node *n = &w->nodes[index];
  if ((n->life & 0xFFF) != life || !n->busy) return;
  bool stopped = net_is_paused(w->net, index), slow = n->target && w->resting; /* it ends after the rest */
  if (stopped || slow) {
    world_alarm(w, stopped ? 10000 : 100000, ALARM_RESULT, index, life);
    return;
  }
  n->busy = false;
  if (n->target) {
    net_step(w->net, index, &(event){.kind = EVENT_RESULT, .result = &n->results});
    note_loss(w, index, n->results.of[0].code);
  } else {
    const draft_results *r = &n->draft_results;
    net_step(w->net, index, &(event){.kind = EVENT_RESULT, .result = r});
    note_loss(w, index, r->failure_count ? r->failures[0].code : ERR_OK);
  }
}
