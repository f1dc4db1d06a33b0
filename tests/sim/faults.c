#include "tests/sim/faults.h"

#include "orchestrator/ledger/ledger_epochs.h"
#include "tests/sim/programs.h"
#include "tests/sim/waits.h"
#include <string.h>

#define FAULTS_LEAST 8
#define MISSES       30      /* strikes that found nothing to hit, before there are fewer faults */
#define FAULTS_MORE  8       /* at most */
#define BETWEEN_US   60000   /* two faults, at most */
#define WAITS_US     150000  /* for a frame of its type, at most */
#define REACTION_US  400     /* from that frame to the fault, at most */
#define PAUSE_US     5000000 /* at most, like the next one; most are short */
#define LINK_US      6000000 /* of a partition */
#define STALLED_US   3000000 /* of a disk, at most */
#define QUEUE        6       /* frames that a full queue holds */
#define DRIFT        40      /* 1/1024: about 4 % */
#define JUMP_US      20000000
#define TAKEN_US     2000000 /* for which another orchestrator has a session, at most */
#define TAKEN_TOKENS 12
#define TAKEN_EPOCHS 4
#define ALLOCATIONS  400 /* until one fails, at most */

/* Something is to end again after a while: whose name is in `kind`. */
static bool lasts(world *w, uint64_t us, alarm_kind kind, int index) {
  waits_trouble(w, us);
  world_alarm(w, us, kind, index, 0);
  return true;
}

static uint64_t mostly_short(world *w, uint64_t most) {
  return world_pick(w, 1 + world_pick(w, most));
}

static int any_target(world *w) {
  return TARGET_A + (int)world_pick(w, 2);
}

static int any_draft(world *w) {
  return DRAFT_A + (int)world_pick(w, 2);
}

/* --- each of them: false where there is nothing that it could hit --- */

static bool kill_one(world *w, int index) {
  bool lives = index == ORCH ? w->sessions != NULL : w->nodes[index].target || w->nodes[index].draft;
  if (lives) programs_kill(w, index);
  return lives;
}

static bool kill_target(world *w) {
  return kill_one(w, any_target(w));
}

static bool kill_draft(world *w) {
  return kill_one(w, any_draft(w));
}

static bool kill_orchestrator(world *w) {
  return kill_one(w, ORCH);
}

static bool pause_one(world *w, int index) {
  net_pause(w->net, index, true);
  return lasts(w, 100000 + mostly_short(w, PAUSE_US), ALARM_RESUME, index);
}

static bool pause_target(world *w) {
  return pause_one(w, any_target(w));
}

static bool pause_draft(world *w) {
  return pause_one(w, any_draft(w));
}

static bool pause_orchestrator(world *w) {
  return pause_one(w, ORCH);
}

static bool drain_one(world *w, int index) {
  const worker_node *n = &w->nodes[index];
  bool lives = (n->target || n->draft) && !n->draining && !net_is_paused(w->net, index);
  if (lives) programs_drain(w, index);
  return lives;
}

static bool drain_target(world *w) {
  return drain_one(w, any_target(w));
}

static bool drain_draft(world *w) {
  return drain_one(w, any_draft(w));
}

static bool hang_engine(world *w) {
  return w->nodes[any_target(w)].hangs = true;
}

static bool fail_engine(world *w) {
  return w->nodes[any_target(w)].fails = true;
}

static bool starve_session(world *w) {
  return w->nodes[any_target(w)].starves = true;
}

static bool lose_target_device(world *w) {
  return w->nodes[any_target(w)].lost = true;
}

static bool lose_draft_device(world *w) {
  return w->nodes[any_draft(w)].lost = true;
}

/* A session of this target that runs, has output, and has no job under way. */
static session *victim(world *w, int index) {
  target *t = w->nodes[index].target;
  uint64_t first = world_pick(w, TOY_SLOTS);
  for (uint64_t i = 0; t && i < TOY_SLOTS; i++) {
    session *s = &target_sessions(t)->slots[(first + i) % TOY_SLOTS];
    if (s->state == SESSION_RUNNING && !s->job.serial && s->committed.length > s->request.prompt_length)
      return s;
  }
  return NULL;
}

/* The target takes another token for one that it has committed. The orchestrator has it: of the others nobody
 * else knows. Nor may others read its block. */
static bool alter_prefix(world *w) {
  int index = any_target(w);
  session *s = victim(w, index);
  if (!s || s->stream.acked <= s->request.prompt_length) return false;
  int32_t length = s->committed.length, known = s->stream.acked - s->request.prompt_length;
  int32_t at = s->request.prompt_length + (int32_t)world_pick(w, (uint64_t)known);
  if (s->cache.remap || at < s->cache.published * KV_BLOCK) return false; /* or the row is not its own */
  int32_t tokens[TOY_CONTEXT];
  memcpy(tokens, s->committed.tokens, (size_t)length * sizeof *tokens);
  tokens[at] = (tokens[at] + 1) % TOY_END;
  prefix_truncate(&s->committed, at);
  prefix_append(&s->committed, tokens + at, length - at);
  toy_engine *e = &w->nodes[index].engine;
  if (e->length[s->slot] > at) *toy_row(e, s->slot, at) = tokens[at];
  w->forges = true;
  return true;
}

static bool roll_back(world *w) {
  int index = any_target(w);
  session *s = victim(w, index);
  if (!s) return false;
  toy_engine *e = &w->nodes[index].engine;
  e->length[s->slot] -= (int32_t)world_pick(w, (uint64_t)e->length[s->slot] + 1);
  return true;
}

/* Two programs that talk to each other: everybody but the two targets and the two drafts. */
static void any_pair(world *w, int *a, int *b) {
  *a = (int)world_pick(w, 3);
  *b = *a == ORCH ? TARGET_A + (int)world_pick(w, 4) : any_draft(w);
}

static bool cut_one_way(world *w) {
  int a, b;
  any_pair(w, &a, &b);
  bool forth = world_pick(w, 2);
  net_cut(w->net, forth ? a : b, forth ? b : a, true);
  return lasts(w, 50000 + mostly_short(w, LINK_US), ALARM_HEAL, 0);
}

static bool cut_both_ways(world *w) {
  int a, b;
  any_pair(w, &a, &b);
  net_cut(w->net, a, b, true);
  net_cut(w->net, b, a, true);
  return lasts(w, 50000 + mostly_short(w, LINK_US), ALARM_HEAL, 0);
}

static bool reconnect(world *w) {
  net_reconnect(w->net, TARGET_A + (int)world_pick(w, 4));
  return true;
}

static bool fill_queues(world *w) {
  net_set_queue(w->net, QUEUE);
  return lasts(w, 10000 + world_pick(w, 200000), ALARM_HEAL, 0);
}

static bool jump(world *w) {
  net_jump(w->net, (int)world_pick(w, NODES), world_pick(w, JUMP_US));
  return true;
}

static bool drift(world *w) {
  net_set_drift(w->net, (int)world_pick(w, NODES), (uint32_t)world_pick(w, DRIFT));
  return true;
}

static bool stall_disk(world *w) {
  uint64_t us = 10000 + world_pick(w, STALLED_US);
  w->disk.stalled_until_us = net_now(w->net) + us;
  return lasts(w, us, ALARM_ROOM, 0);
}

static bool fill_disk(world *w) {
  w->disk.full = true;
  w->disk.lies = world_pick(w, 2);
  return lasts(w, 10000 + world_pick(w, STALLED_US), ALARM_ROOM, 0);
}

/* A session that is on the disk, and neither at its end nor taken. */
static client *any_kept(world *w, storage_record **out) {
  uint64_t first = world_pick(w, CLIENTS_MAX);
  for (uint64_t i = 0; i < CLIENTS_MAX; i++) {
    client *c = &w->clients[(first + i) % CLIENTS_MAX];
    storage_record *x = storage_any(&w->disk, c->id);
    bool runs = x && x->disk.begun && !x->disk.ended && !c->finished && !c->cancelled;
    *out = x;
    if (runs && !x->taken && !x->lost && x->disk.length <= c->plain_length) return c;
  }
  return NULL;
}

/* It decodes some tokens of it, perhaps all, and lets it go after a while. */
static bool take_session(world *w) {
  storage_record *x;
  client *c = any_kept(w, &x);
  if (!c) return false;
  int32_t left = c->plain_length - x->disk.length;
  int32_t more = (int32_t)world_pick(w, 1 + (uint64_t)(left < TAKEN_TOKENS ? left : TAKEN_TOKENS));
  storage_take(x, 1 + LEDGER_EPOCHS_AHEAD + (uint32_t)world_pick(w, TAKEN_EPOCHS), c->plain + x->disk.length,
               more, more == left && world_pick(w, 2));
  return lasts(w, 1000 + mostly_short(w, TAKEN_US), ALARM_FREE, (int)(c - w->clients));
}

/* One allocation fails, soon or later, or a program gets no memory for a while. */
static bool refuse_memory(world *w) {
  if (w->planned) return true;
  memory_plan(1 + world_pick(w, 1 + world_pick(w, ALLOCATIONS)),
              world_pick(w, 2) ? 1 : 1 + world_pick(w, 40));
  return true;
}

/* clang-format off */
static bool (*const strikes[FAULT_KINDS])(world *w) = {
    [FAULT_KILL_TARGET] = kill_target, [FAULT_KILL_DRAFT] = kill_draft,
    [FAULT_KILL_ORCHESTRATOR] = kill_orchestrator, [FAULT_PAUSE_TARGET] = pause_target,
    [FAULT_PAUSE_DRAFT] = pause_draft, [FAULT_PAUSE_ORCHESTRATOR] = pause_orchestrator,
    [FAULT_DRAIN_TARGET] = drain_target, [FAULT_DRAIN_DRAFT] = drain_draft,
    [FAULT_ENGINE_HANGS] = hang_engine, [FAULT_ENGINE_FAILS] = fail_engine,
    [FAULT_ENGINE_MEMORY] = starve_session,
    [FAULT_DEVICE_OF_TARGET] = lose_target_device, [FAULT_DEVICE_OF_DRAFT] = lose_draft_device,
    [FAULT_CACHE_ROLLED_BACK] = roll_back, [FAULT_PREFIX_ALTERED] = alter_prefix,
    [FAULT_LINK_ONE_WAY] = cut_one_way, [FAULT_LINK_BOTH_WAYS] = cut_both_ways,
    [FAULT_RECONNECT] = reconnect, [FAULT_QUEUES_FULL] = fill_queues,
    [FAULT_CLOCK_JUMPS] = jump, [FAULT_CLOCK_DRIFTS] = drift,
    [FAULT_DISK_STALLS] = stall_disk, [FAULT_DISK_FULL] = fill_disk,
    [FAULT_SESSION_TAKEN] = take_session,
    [FAULT_NO_MEMORY] = refuse_memory};

const char *const faults_names[FAULT_KINDS] = {
    [FAULT_KILL_TARGET] = "targets killed", [FAULT_KILL_DRAFT] = "drafts killed",
    [FAULT_KILL_ORCHESTRATOR] = "orchestrators killed", [FAULT_PAUSE_TARGET] = "targets paused",
    [FAULT_PAUSE_DRAFT] = "drafts paused", [FAULT_PAUSE_ORCHESTRATOR] = "orchestrators paused",
    [FAULT_DRAIN_TARGET] = "targets drained", [FAULT_DRAIN_DRAFT] = "drafts drained",
    [FAULT_ENGINE_HANGS] = "engines hung", [FAULT_ENGINE_FAILS] = "forwards failed",
    [FAULT_ENGINE_MEMORY] = "sessions out of memory",
    [FAULT_DEVICE_OF_TARGET] = "devices of targets lost", [FAULT_DEVICE_OF_DRAFT] = "devices of drafts lost",
    [FAULT_CACHE_ROLLED_BACK] = "caches rolled back", [FAULT_PREFIX_ALTERED] = "prefixes altered",
    [FAULT_LINK_ONE_WAY] = "links cut one way", [FAULT_LINK_BOTH_WAYS] = "links cut both ways",
    [FAULT_RECONNECT] = "connections broken", [FAULT_QUEUES_FULL] = "queues full",
    [FAULT_CLOCK_JUMPS] = "clocks jumped", [FAULT_CLOCK_DRIFTS] = "clocks drifting",
    [FAULT_DISK_STALLS] = "disks stalled", [FAULT_DISK_FULL] = "disks full",
    [FAULT_SESSION_TAKEN] = "sessions taken over",
    [FAULT_NO_MEMORY] = "allocations failed"};
/* clang-format on */

/* --- when --- */

void faults_strike(world *w, int kind) {
  w->faults_left--;
  if (!strikes[kind](w)) {
    w->faults_left += w->missed++ < MISSES; /* it comes another time */
    return;
  }
  w->struck |= 1u << kind;
  w->totals->faults[kind]++;
}

static int draw_kind(world *w) {
  int kind = (int)world_pick(w, FAULT_KINDS);
  while (!(w->swarm >> kind & 1)) kind = (kind + 1) % FAULT_KINDS;
  return kind;
}

void faults_next(world *w) {
  static const msg_type types[] = {MSG_HELLO,    MSG_WELCOME, MSG_OPEN,   MSG_OPENED, MSG_TOKENS,
                                   MSG_ACK,      MSG_DONE,    MSG_END,    MSG_ATTACH, MSG_NODES,
                                   MSG_ATTACHED, MSG_RESEND,  MSG_DESYNC, MSG_PART};
  if (w->faults_left <= 0) return;
  world_alarm(w, 1000 + world_pick(w, BETWEEN_US) + (w->armed_type ? 0 : WAITS_US), ALARM_FAULT, 0, 0);
  if (w->resting) return;
  if (w->armed_type || world_pick(w, 3) == 0) { /* the frame did not come, or nothing is waited for */
    faults_strike(w, w->armed_type ? w->armed : draw_kind(w));
    w->armed_type = 0;
    return;
  }
  w->armed = draw_kind(w);
  w->armed_type = types[world_pick(w, sizeof types / sizeof *types)];
}

void faults_frame(world *w, const msg *m) {
  if (!w->armed_type || m->type != w->armed_type || w->resting) return;
  w->armed_type = 0;
  world_alarm(w, world_pick(w, REACTION_US), ALARM_STRIKE, w->armed, 0);
}

/* Faults for which nobody should leave a target, and a reliable network. */
static void plan_gentle(world *w) {
  static const fault_kind kinds[] = {FAULT_KILL_DRAFT,         FAULT_PAUSE_DRAFT, FAULT_DRAIN_DRAFT,
                                     FAULT_PAUSE_ORCHESTRATOR, FAULT_DISK_STALLS, FAULT_CLOCK_DRIFTS,
                                     FAULT_DEVICE_OF_DRAFT,    FAULT_RECONNECT};
  w->swarm = 0;
  for (int i = 0; i < 3; i++) w->swarm |= 1u << kinds[world_pick(w, sizeof kinds / sizeof *kinds)];
  w->byzantine_drafts = w->byzantine_targets = w->stranger = false;
  w->gentle = true;
  world_alarm(w, world_pick(w, BETWEEN_US), ALARM_FAULT, 0, 0);
}

/* One seed in eight has none; the others have a few kinds of them, often, and some have one kind again and
 * again. */
void faults_plan(world *w) {
  w->faulty = world_pick(w, 8) != 0;
  if (!w->faulty) return;
  for (int i = 1 + (int)world_pick(w, 7); i > 0; i--) w->swarm |= 1u << world_pick(w, FAULT_KINDS);
  w->faults_left = FAULTS_LEAST + (int)world_pick(w, FAULTS_MORE + 1);
  if (w->swarm == 1u << FAULT_PREFIX_ALTERED) w->swarm |= 1u << FAULT_CACHE_ROLLED_BACK;
  uint64_t byzantine = world_pick(w, 8);
  w->byzantine_drafts = byzantine < 2;
  w->byzantine_targets = byzantine == 2;
  w->stranger = byzantine == 3;
  w->several = world_pick(w, w->byzantine_drafts ? 2 : 6) == 0;
  if (world_pick(w, 16) == 0) {
    plan_gentle(w);
    return;
  }
  const net_faults faulty = {(uint32_t)world_pick(w, 150), (uint32_t)world_pick(w, 150),
                             (uint32_t)world_pick(w, 200), world_pick(w, 4) ? 0 : 10};
  if (world_pick(w, 4)) net_set_faults(w->net, faulty);
  w->forges = w->byzantine_drafts || w->byzantine_targets || faulty.forge > 0;
  world_alarm(w, world_pick(w, BETWEEN_US), ALARM_FAULT, 0, 0);
}

/* --- the end of them --- */

void faults_heal(world *w) {
  net_set_queue(w->net, 0);
  for (int i = 0; i < NODES; i++)
    for (int k = 0; k < NODES; k++) net_cut(w->net, i, k, false);
}

void faults_calm(world *w) {
  faults_heal(w);
  memory_hold(true);
  for (int i = ORCH; i < NODES; i++) net_pause(w->net, i, false);
  net_set_faults(w->net, (net_faults){0});
}
