/* world.h - the real machines of the orchestrator, the target and a draft under a virtual clock, with
 * recordings in place of the two models.
 *
 * The target's forwards give the recorded tokens and take as many plain steps as the cost table says of their
 * rows. A draft is prompt lookup, or one of the two recordings of drafts.h. Messages between the programs
 * take 20 to 220 us, and each of them takes a little of the target's processors. */
#pragma once

#include "bench/policy_replay/drafts.h"
#include "draft_worker/worker.h"
#include "orchestrator/sessions/sessions.h"
#include "target_worker/worker.h"
#include "tests/sim/net.h"

#define WORLD_SESSIONS_MAX 16
#define WORLD_CONTEXT      4096
#define WORLD_ROWS_MAX     400
#define WORLD_STEP_US      2700 /* a plain step after a short prompt */

typedef struct world_options {
  double costs[WORLD_ROWS_MAX + 1]; /* of a forward by its rows, in plain steps */
  double kv_cost;                   /* of a row that reads 1,000 positions, in plain steps */
  int32_t sessions;                 /* answers at a time */
  int32_t max_tokens, stop;         /* stop: a token; -1: none */
  bool kept;                        /* one start of the programs for all answers */
  bool draft;                       /* false: plain decoding */
  uint64_t distance_us;             /* from the target to its draft, one way, beside the 20 to 220 us */
  recorded_draft drafts;
} world_options;

typedef struct world_answer {
  double us; /* from the start of its first step to the end of its last */
  int32_t tokens;
  msg_stats stats;
} world_answer;

typedef struct world_totals {
  double span_us;  /* from the first step of all to the last */
  uint64_t frames; /* messages */
} world_totals;

/* Plays all recordings; answers [count]. Exits with a message when a machine fails. */
void world_play(const world_options *o, const recording *list, int32_t count, world_answer *answers,
                world_totals *totals);
