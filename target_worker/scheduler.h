/* scheduler.h - which rows go through the next forward (continuous batching). Pure.
 *
 * A forward carries the root of every session that can step, those nodes of all of them that are worth their
 * cost, and chunks of one or more prompts. */
#pragma once

#include "target_worker/engine.h"
#include "target_worker/session_store.h"

typedef enum {
  SCHEDULE_IDLE,    /* nothing to do before an event */
  SCHEDULE_PREFILL, /* rows of C are missing in the cache */
  SCHEDULE_STEP,    /* a plain step or a verify, now */
  SCHEDULE_WAIT     /* could step, but waits for its draft until *until_us */
} schedule_kind;

#define SCHEDULE_CREDIT 256 /* tokens that a session may be ahead of the last acknowledged one */

/* What could this session do now? */
schedule_kind schedule_session(const session *s, uint64_t now_us, uint64_t *until_us);
/* Lockstep: when it stops waiting for its draft's done mark; UINT64_MAX when that is not what it waits for.
 */
uint64_t schedule_lockstep_deadline(const session *s);

#define SCHEDULE_STEPS_MAX    28 /* sessions that step in one forward; the others step in the next one */
#define SCHEDULE_PREFILLS_MAX 4  /* sessions whose prompts are prefilled in one forward */
#define SCHEDULE_NODES_MAX    64 /* nodes of all sessions in free pace */
/* Rows of all sessions that step, without those nodes: a session in lockstep that would exceed it has to
 * wait. */
#define SCHEDULE_ROWS_MAX 256
#define SCHEDULE_MEASURED                                                                                    \
  128 /* tokens of a prompt that is long enough to measure the cost of a verify with */
#define SCHEDULE_BESIDE                                                                                      \
  32 /* rows of prompts beside sessions that step, which bounds how long they are held up */
_Static_assert(SCHEDULE_STEPS_MAX + SCHEDULE_PREFILLS_MAX <= ENGINE_JOBS_MAX, "every pick is a job");
_Static_assert(SCHEDULE_ROWS_MAX + SCHEDULE_NODES_MAX + ENGINE_CHUNK <= MODEL_ROWS_MAX,
               "the rows of all jobs fit one forward");
_Static_assert(SCHEDULE_STEPS_MAX + SCHEDULE_NODES_MAX <= COST_ROWS_MAX,
               "the cost model covers every forward of steps");

typedef struct schedule_pick {
  int32_t slot; /* of the store */
  schedule_kind kind;
  int32_t rows;    /* PREFILL: of C; STEP: nodes beside the root, the first of `nodes` */
  int32_t offered; /* STEP: nodes that there were to choose from */
  int32_t nodes[WIRE_BUDGET_MAX], parents[WIRE_BUDGET_MAX]; /* STEP: [offered] as tree_select writes them */
  int32_t reads; /* STEP: positions of the cache that a row reads */
} schedule_pick;

/* Which slots the last forward ended with, so that the next one goes on behind them; all zero at the start.
 */
typedef struct schedule_rotation {
  int32_t step, prefill;
} schedule_rotation;

typedef struct schedule {
  int32_t count; /* 0: nothing may run now */
  int32_t steps; /* the first picks are steps, so many; the rest are prefills */
  bool
      measures; /* the one pick is a prefill that measures what a forward of its width costs (policy_piece) */
  schedule_pick picks[ENGINE_JOBS_MAX];
  bool quiet;        /* no draft computes beside its steps on the same processors */
  uint64_t until_us; /* count 0: when to ask again, UINT64_MAX: after an event */
} schedule;

/* Everything that can run is in the forward as long as there is room; what has no room is in the next one. */
void schedule_forward(const session_store *store, const speculation_shared *all, schedule_rotation *last,
                      uint64_t now_us, schedule *out);

/* False without a budget, after an error, and, in free pace, while drafting does not pay. */
bool schedule_may_speculate(const session *s);
/* How many nodes the next verify may carry: the request's budget, and what is left of tokens and context. */
int32_t schedule_budget(const session *s);
