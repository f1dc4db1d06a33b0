/* recorder.h - records what the policy saw and did, as a line of JSON for each step, for bench/policy_replay
 * --steps.
 *
 *   session     16 hexadecimal digits
 *   position    length of C before the step; at a session's first step, that of its prompt
 *   nodes       the live nodes at hand when the step ended, best first, parents before children:
 *               [index of the parent in this list or -1, token, score]
 *   verified    how many nodes the step carried
 *   tree        these: [index of the parent in this list or -1, token]
 *   sampled     the tokens that it gave
 *   arrived_us  from TOKENS to the first useful node for this position; 0: none came
 *   waited_us   how long the session waited for nodes before the step
 *   forward_us  time of the forward with acceptance and commit
 *   steps, rows how many sessions stepped in that forward, and with how many rows
 *   reads       positions of the cache that these rows read together
 *   prompts     the forward also carried chunks of prompts
 *   colocated   a draft computes on the target's own processors
 *   on          the session speculates after this step */
#pragma once

#include "target_worker/engine.h"
#include "target_worker/scheduler.h"
#include <stdio.h>

typedef struct recorder {
  FILE *file;
} recorder;

/* ERR_IO with the path. */
int recorder_open(recorder *r, const char *path, err *e);
void recorder_close(recorder *r); /* one that was never opened is allowed */

/* For target_options: a step of this session has ended, and its tokens are not in C yet. */
void recorder_step(void *recorder, const session *s, const schedule_pick *pick, const speculation_forward *f,
                   const engine_result *x);
