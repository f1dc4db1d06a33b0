/* wait.h - how long a target without a live node waits for its draft, and whether drafting pays: pure rules.
 *
 * All times are microseconds. Nothing here reads a clock: the caller says what happened and when. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct wait_history {  /* all zero at the start */
  double arrival_us;           /* mean time from TOKENS sent to the first useful node */
  double arrival_dev_us;       /* mean absolute deviation of it */
  double tokens_per_step;      /* mean tokens a verify with nodes yielded, bonus included */
  uint32_t arrivals, verifies; /* how many have been seen */
  uint32_t misses;             /* waits in a row that ended without a node */
  bool computes;               /* a draft that runs a model */
} wait_history;

void wait_arrived(wait_history *h, uint64_t after_us); /* the first useful node after TOKENS came */
void wait_missed(wait_history *h);                     /* a wait ran out: no node came */
void wait_verified(wait_history *h, int32_t tokens);   /* a verify with nodes yielded so many tokens, >= 1 */

#define WAIT_CAP_US     20000
#define WAIT_STEPS      3.0 /* for a draft that computes, in plain steps; half of it after each miss */
#define WAIT_MISSES_MAX 3   /* so many misses in a row: no more waiting until a node comes by itself */

/* The time to wait, counted from the moment the target became free, `since_sent_us` after its last TOKENS
 * went out. step_us: cost of a plain step; verify_us: cost of a verify of the usual width. 0 when another
 * session is runnable, no draft is attached, or waiting is not expected to earn more than it costs.
 *
 * With g tokens a verify, waiting pays while (wait + verify_us) / g < step_us. If the wait that is expected
 * by the arrivals' mean passes that test, the answer is mean + 2 deviations - since_sent_us, but never more
 * than the cap or than what waiting can earn. An arrival later than that is not waited for. Before the first
 * arrival and the first verify there is nothing to expect, and no wait: nodes that come during a plain step
 * are taken after it.
 *
 * A draft that computes weighs by itself how long its turn is worth (draft_worker/pacing.h), and how long the
 * last ones took says little of the next: for it the wait is WAIT_STEPS, and whether that pays is for
 * pay_record to find out. */
uint64_t wait_for(const wait_history *h, bool draft_attached, bool other_runnable, uint64_t since_sent_us,
                  double step_us, double verify_us);

/* --- whether it pays --- */

typedef struct pay_average { /* decaying sums: the average is us / tokens, not a mean of quotients */
  double us, tokens, forwards;
} pay_average;

typedef struct pay_state {                      /* all zero at the start */
  double plain_us_per_token, spec_us_per_token; /* moving averages */
  uint32_t plain_steps, spec_steps; /* spec_steps: verifies since speculation was last turned on */
  bool off;                         /* speculation is off for now */
  uint32_t retry_after;             /* plain steps until it is tried again */
  uint32_t backoff;                 /* grows with every failed try */
  uint32_t since_plain;             /* verifies since the last plain step */
  pay_average plain, spec;
  double window_us, window_tokens; /* plain sums of the verifies since it was turned on */
  bool crowds;                     /* a draft that computes, perhaps on the same processors (pay_crowd) */
  bool resting;                    /* off only to see what plain costs without it */
  uint32_t lead;                   /* steps of this phase that still count for nothing */
} pay_state;

#define PAY_WINDOW      16 /* verifies before the averages are judged */
#define PAY_CALIBRATE   2  /* plain steps needed to know what plain costs */
#define PAY_RETRY_FIRST 32 /* plain steps until the next try; doubles with every try that fails */
#define PAY_RETRY_MAX   4096

#define PAY_REST 8 /* plain steps of a rest */
#define PAY_LEAD                                                                                             \
  4 /* of each phase with or without a draft that computes: until it has gone quiet, or caught up */

/* A draft that computes has come. Its cost is not in the verifies alone: while it is on every step may be
 * slower, so all of them are held against plain steps that were made while it was off and quiet. The first
 * such rest begins at once, another one comes every 512 steps. Nothing is told to such a draft while it is
 * off. before: another session's state with such a draft, perhaps all zero; what has not paid there is not
 * tried here before its time. */
void pay_crowd(pay_state *p, const pay_state *before);

/* One forward ended: `tokens` (>= 1) tokens in `us`, with `nodes` tree rows beside the root. `us` should
 * include what was waited for the nodes. Returns true when `off` changed.
 *
 * Off: within the first PAY_WINDOW verifies as soon as they have lost more than a plain step, after that when
 * a token costs over 3 % more than plainly. Tried again after PAY_RETRY_FIRST plain steps, then twice as
 * many, to PAY_RETRY_MAX; four good windows set that back. */
bool pay_record(pay_state *p, int32_t nodes, int32_t tokens, double us);
/* May the next forward carry nodes? False while off, and now and then for one plain step that measures what
 * plain costs (after two verifies if that is not known, and every 512). */
bool pay_allows(const pay_state *p);
