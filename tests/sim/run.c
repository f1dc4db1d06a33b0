#include "tests/sim/run.h"

#include "orchestrator/ledger/ledger_writer.h"
#include "tests/sim/byzantine.h"
#include "tests/sim/clients.h"
#include "tests/sim/faults.h"
#include "tests/sim/frames.h"
#include "tests/sim/limits.h"
#include "tests/sim/oracles.h"
#include "tests/sim/programs.h"
#include "tests/sim/waits.h"
#include <assert.h>
#include <stdlib.h>

#define EVENTS_MIN 200 /* of one seed */
#define REST_US    5000000
#define END_US     UINT64_C(3600000000)

/* --- the disk --- */

static void disk_begin(world *w) {
  if (!w->sessions) return;
  memory_enter(ORCH);
  bool begun = storage_begin(&w->disk, net_now(w->net));
  memory_leave();
  if (begun) world_alarm(w, 50 + world_pick(w, 3000), ALARM_DISK, 0, 0);
}

/* The ledger's writer does, unless the program is stopped. */
static void wake_orchestrator(world *w) {
  if (w->sessions && !net_is_paused(w->net, ORCH)) net_step(w->net, ORCH, &(event){.kind = EVENT_TICK});
}

/* A transaction that waits for the disk goes on when it can. The alarm of one that has died with its program
 * is nothing. */
static void disk_done(world *w) {
  uint64_t now = net_now(w->net);
  if (!w->disk.writes || !w->sessions) return;
  if (now < w->disk.stalled_until_us && !w->disk.full) {
    world_alarm(w, w->disk.stalled_until_us - now, ALARM_DISK, 0, 0);
    return;
  }
  storage_finish(&w->disk);
  if (w->disk.backlog.failing) world_alarm(w, LEDGER_RETRY_US, ALARM_DISK, 0, 0);
  w->totals->transactions++;
  wake_orchestrator(w);
}

/* --- the run --- */

static void begin_rest(world *w) {
  w->resting = true;
  faults_calm(w);
  w->disk.stalled_until_us = 0;
  w->disk.full = false;
  world_alarm(w, REST_US, ALARM_WAKE, 0, 0);
}

static void end_rest(world *w) {
  memory_hold(false);
  bool liars = w->byzantine_drafts || w->byzantine_targets;
  if (!liars) oracles_rest(w); /* what was said in its name, a program does not know */
  w->resting = false;          /* until the next one, forwards that ended meanwhile have time to say so */
  if (world_pick(w, 2)) world_alarm(w, 101000 + world_pick(w, 100000), ALARM_REST, 0, 0);
}

/* What concerns one program. */
static void on_program_alarm(world *w, alarm_kind kind, int index, uint32_t detail) {
  if (kind == ALARM_RESULT)
    programs_result(w, index, detail);
  else if (kind == ALARM_REVIVE)
    programs_start(w, index);
  else if (kind == ALARM_RESUME)
    net_pause(w->net, index, false), wake_orchestrator(w);
  else if (kind == ALARM_LEAVE)
    programs_leave(w, index);
}

static void on_alarm(world *w, int number) {
  int index = number >> 12 & 0xFF;
  alarm_kind kind = (alarm_kind)(number >> 20);
  switch (kind) {
  case ALARM_START:
    clients_start(w, &w->clients[index]);
    break;
  case ALARM_CANCEL:
    clients_cancel(w, &w->clients[index]);
    break;
  case ALARM_FAULT:
    faults_next(w);
    break;
  case ALARM_STRIKE:
    if (!w->resting) faults_strike(w, index);
    break;
  case ALARM_HEAL:
    faults_heal(w);
    break;
  case ALARM_REST:
    begin_rest(w);
    break;
  case ALARM_WAKE:
    end_rest(w);
    break;
  case ALARM_FORGE:
    byzantine_speak(w);
    break;
  case ALARM_DISK:
    disk_done(w);
    break;
  case ALARM_ROOM:
    w->disk.full = false;
    break;
  case ALARM_FREE:
    storage_free(&w->disk, w->clients[index].id);
    break;
  default:
    on_program_alarm(w, kind, index, (uint32_t)number & 0xFFF);
  }
}

static void on_frame(void *context, int from, int to, const msg *m) {
  world *w = context;
  oracles_frame(w, from, to, m);
  frames_check(w, from, to, m);
  limits_frame(w, m);
  frames_copy(w, from, to, m);
  faults_frame(w, m);
}

static void world_open(world *w, uint64_t seed, uint64_t refused, totals *t) {
  *w = (world){.seed = seed, .totals = t, .net = net_open(seed, &t->net), .is_virtual = seed % 2 == 0};
  w->planned = refused != 0;
  memory_plan(refused, 1);
  w->targets_return = seed % 5 != 0;
  w->refused_before = memory_refused();
  w->is_long = world_pick(w, 16) == 0;
  net_watch(w->net, on_frame, w);
  for (int i = ORCH; i < NODES; i++) programs_start(w, i);
  faults_plan(w);
  clients_plan(w);
  byzantine_begin(w);
  world_alarm(w, 30000 + world_pick(w, w->faulty ? 1500000 : 80000), ALARM_REST, 0, 0);
}

static void world_close(world *w) {
  for (int i = 0; i < NODES; i++) programs_free(w, i);
  storage_close(&w->disk);
  net_close(w->net);
}

/* What a program could not ask to send for want of memory counts as lost. */
static void note_refused(world *w, uint64_t before) {
  if (memory_refused() == before) return;
  w->totals->refused += memory_refused() - before;
  waits_trouble(w, 0);
}

/* One event, and what follows from it: of the node that was stepped, and of the one that an alarm meant. */
static void world_step(world *w) {
  uint64_t steps = w->totals->net.events, refused = memory_refused();
  int alarm = net_run(w->net, END_US);
  if (alarm == -1) {
    world_fail(w, "an answer did not come to its end");
    return;
  }
  if (alarm >= 0) on_alarm(w, alarm);
  int node = net_last(w->net);
  if (node != ORCH && node != STRANGER) programs_feed(w, node);
  if (w->totals->net.events != steps && node != STRANGER) oracles_step(w, node), limits_step(w, node);
  if (node == ORCH) clients_move_on(w);
  disk_begin(w);
  note_refused(w, refused);
}

const char *run_seed(uint64_t seed, uint64_t refused, totals *t, uint64_t *digest) {
  int64_t live = memory_live();
  world *w = calloc(1, sizeof *w);
  assert(w);
  world_open(w, seed, refused, t);
  uint64_t before = t->net.events;
  while (!w->failure) {
    bool finished = clients_finished(w);
    if (finished && t->net.events - before >= EVENTS_MIN && w->faults_left <= 0) break;
    if (finished) clients_plan_again(w);
    world_step(w);
  }
  t->seeds++;
  *digest = net_random(w->net) ^ net_now(w->net) * 31 ^ t->net.events * 7;
  world_close(w);
  const char *failure = w->failure;
  free(w);
  memory_plan(0, 0);
  memory_hold(false);
  return failure || memory_live() == live ? failure : "memory was left behind";
}
