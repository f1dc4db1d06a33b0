/* steps.h - what `tandem-target --record-steps` wrote (target_worker/recorder.h): completions, the draft
 * trees that were at hand at each position, and what forwards took by their rows. */
#pragma once

#include "bench/policy_replay/recording.h"
#include "draft_worker/drafters/drafter.h"
#include <stddef.h>

/* Reads sessions as recordings whose prompts are made up: their tokens were not recorded. Returns how many,
 * at most `most`. costs [costs_size]: "ROWS:COST,..." in plain steps, empty where too little was recorded. */
int32_t steps_read(const char *path, recording *list, int32_t most, char *costs, size_t costs_size);

/* Candidates after the first `length` tokens of a recording and a path: from the last tree that was recorded
 * at that position or before, as far as it has survived. Best first, at most DRAFT_CANDIDATES_MAX. */
int32_t steps_candidates(const recording *r, int32_t length, const int32_t *path, int32_t depth,
                         draft_candidate *out);
