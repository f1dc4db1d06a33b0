/* replay.h - proposes what a recording of completions holds, and is right with a given probability. For tests
 * and benchmarks. */
#pragma once

#include "draft_worker/drafters/immediate.h"

extern const immediate_kind replay_kind; /* shared: replay_recording */

typedef struct replay_recording replay_recording;
/* FILE is an output of `tandem batch`. rate: probability that the first candidate is right; sibling: that the
 * right token is then the second one. ERR_IO, ERR_FORMAT with the line. */
int replay_recording_open(replay_recording **out, const char *path, double rate, double sibling,
                          uint64_t seed, err *e);
/* "FILE:RATE" or "FILE:RATE:S", as it follows "replay:" on the command line. ERR_ARG. */
int replay_recording_open_argument(replay_recording **out, const char *argument, uint64_t seed, err *e);
void replay_recording_close(replay_recording *r); /* NULL is allowed */
