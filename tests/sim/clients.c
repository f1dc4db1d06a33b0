#include "tests/sim/clients.h"

#include "tests/sim/oracles.h"
#include <string.h>

#define OUTPUT_MAX      60
#define OUTPUT_MAX_LONG (TOY_CONTEXT - TURNS_MAX)

/* A client with a stop string: the answer ends with the third 3, which is cut. */
static int32_t admit_threes(void *context, const int32_t *tokens, int32_t count, bool *stop) {
  client *c = context;
  for (int32_t i = 0; i < count; i++) {
    if (tokens[i] != 3 || ++c->stop_count_seen < 3) continue;
    *stop = true;
    return i;
  }
  return count;
}

static msg_options plan_options(world *w, client *c) {
  int32_t most = w->is_long ? OUTPUT_MAX_LONG : OUTPUT_MAX;
  return (msg_options){.top_p = 1,
                       .repeat_penalty = 1,
                       .max_tokens = 20 + (int32_t)world_pick(w, (uint64_t)most - 19),
                       .context = TOY_CONTEXT,
                       .stops = c->stops,
                       .stop_count = w->is_long ? 0 : 1, /* a long answer runs into its limit */
                       .budget = (int32_t)world_pick(w, 12),
                       .lockstep = world_pick(w, 6) == 0};
}

static void plan_client(world *w, client *c) {
  c->prompt_length = 1 + (int32_t)world_pick(w, w->is_virtual ? 48 : 12);
  for (int32_t i = 0; i < c->prompt_length; i++) c->prompt[i] = (int32_t)world_pick(w, TOY_END);
  const client *other = &w->clients[world_pick(w, CLIENTS_MAX)]; /* what it has asked may be in a cache */
  if (other->prompt_length && world_pick(w, 2))
    memcpy(c->prompt, other->prompt, (w->is_virtual ? 40 : 10) * sizeof *c->prompt);
  c->stops[0] = TOY_END;
  c->request = (sessions_request){
      .prompt = c->prompt, .prompt_length = c->prompt_length, .draft = world_pick(w, 8) != 0};
  c->request.accepted = c->prompt_length % 2; /* half of them ask */
  c->request.options = plan_options(w, c);
  /* Liars hold a step in lockstep up, and so does a second draft of whose END the target is not told. */
  bool held_up = w->byzantine_drafts || w->byzantine_targets || w->several;
  if (c->request.options.budget == 0 || !c->request.draft || held_up) c->request.options.lockstep = false;
  if (world_pick(w, 6) == 0) {
    c->request.admit = admit_threes;
    c->request.admit_context = c;
  }
  w->totals->lockstep += c->request.options.lockstep;
}

void clients_plan(world *w) {
  w->client_count = 1 + (int)world_pick(w, CLIENTS_MAX);
  for (int i = 0; i < w->client_count; i++) {
    plan_client(w, &w->clients[i]);
    world_alarm(w, world_pick(w, 300000), ALARM_START, i, 0);
    if (world_pick(w, 10) == 0) world_alarm(w, world_pick(w, 600000), ALARM_CANCEL, i, 0);
  }
}

/* The prompt is what an earlier one and its answer were, and a little more, or at times a little less. */
static void go_on(world *w, client *c, const int32_t *tokens, int32_t length) {
  if (length > TURNS_MAX || world_pick(w, 3) == 0) return;
  if (length > 4 && world_pick(w, 4) == 0) length -= (int32_t)world_pick(w, 4);
  memcpy(c->prompt, tokens, (size_t)length * sizeof *tokens);
  for (uint64_t more = world_pick(w, 6); more > 0 && length < TURNS_MAX; more--)
    c->prompt[length++] = (int32_t)world_pick(w, TOY_END);
  c->request.prompt_length = c->prompt_length = length;
}

static void release(world *w, uint64_t id) {
  actions a;
  actions_init(&a);
  memory_enter(ORCH);
  if (w->sessions) sessions_release(w->sessions, id, net_clock(w->net, ORCH), &a);
  memory_leave();
  if (w->sessions) w->ledger.forget(w->ledger.self, id);
  net_perform(w->net, ORCH, &a);
  storage_drop(&w->disk, id);
  actions_fini(&a);
}

void clients_plan_again(world *w) {
  for (int i = 0; i < w->client_count; i++) {
    client *c = &w->clients[i], old = *c;
    if (!c->released) release(w, c->id);
    *c = (client){0};
    plan_client(w, c);
    if (old.shown > 0) go_on(w, c, old.plain, old.shown);
    world_alarm(w, world_pick(w, 100000), ALARM_START, i, 0);
  }
}

/* One that asks when there are SESSIONS_MAX sessions makes a program let go of one that has ended. */
static void make_room(world *w, const client *asks) {
  int held = 0;
  client *ended = NULL;
  for (client *c = w->clients; c < w->clients + w->client_count; c++) {
    bool holds = c != asks && c->started && !c->released;
    held += holds;
    if (holds && c->finished) ended = c;
  }
  w->totals->limits[LIMIT_SESSIONS]++;
  if (held < SESSIONS_MAX) world_fail(w, "a session finds no place though there is one");
  if (!ended) return;
  release(w, ended->id);
  ended->released = true;
}

/* Starts the session, or lets it go on. Where the disk is full, memory short or no place free it is tried
 * again. */
static void start(world *w, client *c) {
  actions a;
  err e = {0};
  actions_init(&a);
  uint64_t before = memory_refused();
  memory_enter(ORCH);
  uint64_t id = sessions_start(w->sessions, &c->request, net_clock(w->net, ORCH), &a, &e);
  memory_leave();
  bool starved = memory_refused() > before, full = !id && e.code == ERR_FULL;
  bool refused = !id && (w->disk.full || starved || full);
  if (full) make_room(w, c);
  w->totals->starts_refused += !id && starved;
  c->request.resume = NULL;
  c->started = id != 0;
  c->moved_us = net_now(w->net);
  if (id) c->id = id;
  if (refused)
    world_alarm(w, 50000, ALARM_START, (int)(c - w->clients), 0);
  else if (!id)
    world_fail(w, "sessions_start refused a request");
  net_perform(w->net, ORCH, &a);
  actions_fini(&a);
}

/* A session that the disk has: it goes on, or it had its end. */
static void resume(world *w, client *c, const storage_record *r) {
  const int32_t *output = r->tokens + r->prompt_length;
  int32_t count = r->disk.length - r->prompt_length;
  bool whole = count >= c->request.options.max_tokens ||
               (count > 0 && c->plain_finish == WIRE_FINISH_STOP && output[count - 1] == TOY_END);
  if (r->disk.ended || whole || c->cancelled) {
    w->totals->ended_on_disk++;
    oracles_judge_disk(w, c, r);
    return;
  }
  sessions_resume x = {.session = r->session,
                       .hash_seed = r->hash_seed,
                       .epoch = r->disk.epoch,
                       .output = output,
                       .output_length = count,
                       .numerics = "toy"};
  c->stop_count_seen = 0;
  for (int32_t i = 0; i < count; i++) c->stop_count_seen += output[i] == 3;
  storage_claim(&w->disk, r->session);
  c->request.resume = &x;
  w->totals->resumed++;
  start(w, c);
}

static void later(world *w, const client *c) {
  world_alarm(w, 50000, ALARM_START, (int)(c - w->clients), 0);
}

/* What the disk does not have was never sent, let alone shown: it is asked again. */
static void return_one(world *w, client *c) {
  const storage_record *r = storage_find(&w->disk, c->id);
  c->epoch_passed = c->epoch_sent;
  c->length = 0;
  if (r && r->taken) {
    c->started = false;
    later(w, c);
    return;
  }
  if (r && r->foreign > c->epoch_passed) c->epoch_passed = r->foreign;
  if (r) {
    resume(w, c, r);
    return;
  }
  if (c->shown > 0) world_fail(w, "a session that was shown is not on the disk");
  if (c->cancelled) {
    c->finished = true;
    return;
  }
  w->totals->begun_again += c->id != 0;
  c->stop_count_seen = 0;
  c->epoch_sent = c->epoch_passed = 0;
  c->id = 0;
  start(w, c);
}

void clients_return(world *w) {
  for (int i = 0; i < w->client_count; i++)
    if (w->clients[i].started && !w->clients[i].finished) return_one(w, &w->clients[i]);
}

void clients_start(world *w, client *c) {
  if (c->finished || c->cancelled) {
    c->finished = true;
    return;
  }
  if (!w->sessions) { /* nobody listens */
    later(w, c);
    return;
  }
  oracles_expect(c);
  if (c->id)
    return_one(w, c);
  else
    start(w, c);
}

static void move_on(world *w, client *c) {
  actions a;
  actions_init(&a);
  sessions_release(w->sessions, c->id, net_clock(w->net, ORCH), &a);
  w->ledger.forget(w->ledger.self, c->id);
  net_perform(w->net, ORCH, &a);
  actions_fini(&a);
  c->started = c->lost = false;
  c->finished = c->cancelled;
  if (!c->finished) later(w, c);
}

void clients_move_on(world *w) {
  for (int i = 0; i < w->client_count; i++)
    if (w->clients[i].lost) move_on(w, &w->clients[i]);
}

void clients_cancel(world *w, client *c) {
  actions a;
  if (!c->started || !w->sessions) return;
  actions_init(&a);
  memory_enter(ORCH);
  sessions_cancel(w->sessions, c->id, net_clock(w->net, ORCH), &a);
  memory_leave();
  c->cancelled = true;
  net_perform(w->net, ORCH, &a);
  actions_fini(&a);
}

bool clients_finished(const world *w) {
  for (int i = 0; i < w->client_count; i++)
    if (!w->clients[i].finished) return false;
  return true;
}
