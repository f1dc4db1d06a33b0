/* scheduler.h - which session's rows go next: pure. The place for batching by marginal gain; here a fair turn. */
#pragma once

#include "target_worker/session_store.h"

typedef enum {
  SCHEDULE_IDLE,    /* nothing to do before an event */
  SCHEDULE_PREFILL, /* rows of C are missing in the cache */
  SCHEDULE_STEP,    /* a plain step or a verify, now */
  SCHEDULE_WAIT     /* would step, but waits for its draft until *until_us */
} schedule_kind;

/* What could this session do now? A session that waits for its draft holds up nobody: others run meanwhile. */
schedule_kind schedule_session(const session *s, int32_t credit, uint64_t now_us, uint64_t *until_us);

/* Next session to run after place `last`, round robin, or -1; *until_us: when to ask again if -1. */
int32_t schedule_next(const session_store *store, int32_t last, int32_t credit, uint64_t now_us,
                      schedule_kind *kind, uint64_t *until_us);

/* Neither without a budget nor after an error, nor, in free pace, while drafting does not pay. */
bool schedule_may_speculate(const session *s);
/* Every draft has said that it has nothing more to send for this C. */
bool schedule_drafts_done(const session *s);
/* How many nodes the next verify may carry: the request's budget, and what is left of tokens and context. */
int32_t schedule_budget(const session *s);
/* Tokens that may still be added to C, >= 0. */
int32_t schedule_room(const session *s);
