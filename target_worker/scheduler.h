/* scheduler.h - decides which rows go through the next forward (continuous batching). Pure.
 *
 * A forward carries the root of every session that can step, those nodes of all of them that are worth their
 * cost, and chunks of one or more prompts. */
#pragma once

#include "common/base/limit.h"
#include "target_worker/engine.h"
#include "target_worker/session_store.h"

typedef enum {
  SCHEDULE_IDLE,    /* nothing to do before an event */
  SCHEDULE_PREFILL, /* rows of C are missing in the cache */
  SCHEDULE_STEP,    /* a plain step or a verify, now */
  SCHEDULE_WAIT     /* could step, but waits for its draft until *until_us */
} schedule_kind;

#define SCHEDULE_CREDIT 256 /* tokens that a session may be ahead of the last acknowledged one */

/* For so long after its OPEN the prompt waits for a draft that is expected to attach and to read features. */
#define SCHEDULE_ATTACH_US 20000

/* What could this session do now? */
schedule_kind schedule_session(const session *s, uint64_t now_us, uint64_t *until_us);
/* Lockstep: when the session stops waiting for its draft's done mark; UINT64_MAX: it does not wait for one.
 */
uint64_t schedule_lockstep_deadline(const session *s);

/* Of one forward: sessions that step (the others step in the next one), sessions whose prompts are prefilled,
 * and nodes of all sessions in free pace */
#define SCHEDULE_STEPS_MAX    LIMIT(28, 2)
#define SCHEDULE_PREFILLS_MAX LIMIT(4, 1)
#define SCHEDULE_NODES_MAX    LIMIT(64, 16)
/* Rows of all sessions that step, not counting nodes in free pace: a session in lockstep that would exceed
 * this has to wait. */
#define SCHEDULE_ROWS_MAX 256
/* Tokens of a prompt that is long enough to measure the cost of a verify with */
#define SCHEDULE_MEASURED 128
_Static_assert(SCHEDULE_STEPS_MAX + SCHEDULE_PREFILLS_MAX <= ENGINE_JOBS_MAX, "every pick is a job");
_Static_assert(SCHEDULE_ROWS_MAX + SCHEDULE_NODES_MAX + ENGINE_CHUNK <= MODEL_ROWS_MAX,
               "the rows of all jobs fit one forward");
_Static_assert(ENGINE_CHUNK_MAX <= MODEL_ROWS_MAX, "and those of prompts alone");
_Static_assert(SCHEDULE_STEPS_MAX + SCHEDULE_NODES_MAX <= COST_ROWS_MAX,
               "the cost model covers every forward of steps");

typedef struct schedule_pick {
  int32_t slot; /* of the store */
  schedule_kind kind;
  /* PREFILL: rows of C; STEP: how many nodes it carries beside the root, the first of `nodes`. */
  int32_t rows;
  int32_t offered;                                          /* STEP: live nodes to choose from */
  int32_t nodes[WIRE_BUDGET_MAX], parents[WIRE_BUDGET_MAX]; /* STEP: [offered] as tree_select writes them */
  int32_t
      tokens[WIRE_BUDGET_MAX]; /* STEP: [rows] of the nodes that it carries, once the job has been filled */
  int32_t reads;               /* STEP: positions of the cache that each row reads */
} schedule_pick;

/* Which slots the last forward ended with, so that the next one goes on behind them; all zero at the start.
 */
typedef struct schedule_rotation {
  int32_t step, prefill;
} schedule_rotation;

typedef struct schedule {
  int32_t count; /* 0: nothing may run now */
  int32_t steps; /* the first so many picks are steps; the rest are prefills */
  /* The only pick is a prefill that measures what a forward of its width costs (policy_piece) */
  bool measures;
  schedule_pick picks[ENGINE_JOBS_MAX];
  int32_t disturbed; /* steps of sessions whose colocated drafts may compute beside it */
  bool beside;       /* steps alone, of which some have a draft that computes on these processors now */
  uint64_t until_us; /* count 0: when to ask again, UINT64_MAX: after an event */
} schedule;

/* Rows of prompts of a forward in which no session steps, and none waits to. */
int32_t schedule_prompt_rows(const speculation_shared *all);

/* Composes the next forward from everything that can run, as long as there is room; the rest goes into the
 * one after it. */
void schedule_forward(const session_store *store, const speculation_shared *all, schedule_rotation *last,
                      uint64_t now_us, schedule *out);

/* False without a budget, after an error, and, in free pace, while drafting does not pay. */
bool schedule_may_speculate(const session *s);
/* How many nodes the next verify may carry: the request's budget, and what is left of tokens and context. */
int32_t schedule_budget(const session *s);
