/* policy_constants.h - every number that the policy of speculation is tuned by.
 *
 * Each names its source. "Replay" means that the value was chosen among its neighbours by the table of
 * bench/policy_replay (docs/decisions/policy.md). A test that names the constant shows what it does:
 * tests/unit/speculative/test_average.c, test_cost_model.c, test_policy.c, test_pacing.c. */
#pragma once

/* clang-format off */

/* Averages. */
#define POLICY_GAIN         0.125 /* of a new sample: smoothed round-trip times, Jacobson 1988 */
#define POLICY_OUTLIER      3.0   /* means that a sample counts for at most: a thread lost its processor */

/* What forwards cost. */
#define POLICY_SLOPE        0.04 /* of the widest known, for a row more: a second row costs 0.05, measured */
#define POLICY_STALE        256  /* forwards until a width is measured anew: 3 plain steps at most, 1.2 % */
#define POLICY_DOUBT        1.5  /* of the expected time: beyond it a first sample is doubted; graphs: 3 */
#define POLICY_AGAIN        8    /* forwards until what is doubted is measured again */
#define POLICY_SPREAD       256  /* positions that must differ before their cost is believed: 5 % of a step */
#define POLICY_SPREAD_SHARE 0.25 /* of those that a plain step reads, where that is more: recorded, a GPU */
#define POLICY_PROBE        4    /* rows of a first verify, and of a prompt's end that measures one: replay */

/* Prompts beside sessions that step. */
#define POLICY_BESIDE_US    8000 /* for which they hold up each step: nobody sees it; a GPU: 128 rows */
#define POLICY_BESIDE_ROWS  32   /* at least: 19 ms on a small machine, measured */

/* What drafts promise and keep. */
#define POLICY_TRUST_PRIOR  0.6  /* of a promise, before anything is known: replay, answers of 12 tokens */
#define POLICY_TRUST_WEIGHT 2.0  /* promised nodes that this counts for: replay */
#define POLICY_TRUST_OTHERS 8.0  /* nodes that the record of all counts for: 8 sessions, recorded */
#define POLICY_WINDOW       128  /* steps over which both are remembered: replay */

/* On or off, in plain steps. */
#define POLICY_LOSS         0.01 /* of a token, which may be lost for good: 0.98 of plain is promised */
#define POLICY_FIRST        2.0  /* may be lost by a session before anything is known: replay */
#define POLICY_TRY          0.25 /* must be saved up for the next try: a verify of POLICY_PROBE rows */
#define POLICY_SAVED        8.0  /* of gains are kept, or lent to others: replay, a draft turns bad */
#define POLICY_EARNED       32.0 /* of all sessions' gains are kept: replay, an answer's end fails */
#define POLICY_DEBT         3.0  /* credits that all sessions lack at most: replay, useless drafts */
#define POLICY_FORGET       1024 /* forwards in which a loss fades: replay, with useless drafts */
#define POLICY_TELL_US      60   /* us to tell a draft and hear its nodes: measured with useless nodes */
#define POLICY_QUIET        4    /* steps until a colocated draft has ended what it computes: measured */

/* Waiting. */
#define POLICY_MISSES       3    /* waits in vain, and none is made until a node comes by itself: replay */
#define POLICY_TURN         3.0  /* plain steps that a colocated draft may take for its tree: replay */
#define POLICY_ROW          0.1  /* tokens that a row must yield: it costs 0.05 to 0.13 plain steps */
#define POLICY_LATE         4.0  /* plain steps, after which a head's nodes are dead: by delay, measured */
#define POLICY_RATIO        4.0  /* forwards of a draft in a verify that was not timed yet: such drafts pay */

/* clang-format on */
