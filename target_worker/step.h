/* step.h - one step's surroundings, so that handlers need few arguments. For the files of the worker that
 * send. */
#pragma once

#include "target_worker/worker.h"
#include "wire/roster.h"

typedef struct step {
  target *t; /* worker.c's own */
  roster *peers;
  uint64_t now;
  actions *out;
} step;
