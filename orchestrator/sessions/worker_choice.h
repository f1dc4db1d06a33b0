/* worker_choice.h - which of the registered workers serves a session best. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* So many cached tokens of the prompt weigh as much as one session less. */
#define WORKER_CHOICE_TOKENS 512

typedef struct worker_choice_worker {
  int32_t load;        /* the sessions that it has */
  int32_t cached;      /* tokens of the prompt that it has probably in its prefix cache */
  int32_t session_max; /* the sessions that it takes at a time, as it said; 0: no limit of its own */
  bool same_numerics;  /* the same as those that the session began with, or any numerics will do */
  bool refused;        /* it has refused this session, or would */
} worker_choice_worker;

/* Index in list[count], or -1 when the list is empty. These count, in this order: the worker has not refused
 * the session, it has room, its numerics are the same, it has the least load less what it has cached; of
 * equals the first is chosen. Nobody is left out: a worker that is full now answers so, and may have room by
 * then. */
int32_t worker_choice_best(const worker_choice_worker *list, int32_t count);
