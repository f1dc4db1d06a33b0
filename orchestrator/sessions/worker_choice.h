/* worker_choice.h - chooses the registered worker that serves a session best. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* So many cached tokens of the prompt weigh as much as one session less. */
#define WORKER_CHOICE_TOKENS 512

typedef struct worker_choice_worker {
  int32_t load;        /* the sessions that it has */
  int32_t cached;      /* tokens of the prompt that its prefix cache probably holds */
  int32_t session_max; /* the sessions that it takes at a time, as it said; 0: no limit of its own */
  bool same_numerics;  /* the same as those that the session began with, or any numerics will do */
  bool refused;        /* it has refused this session, or is known to refuse it */
} worker_choice_worker;

/* Returns an index in list[count], or -1 when the list is empty. The criteria, in this order: the worker has
 * not refused the session; it has room; its numerics are the same; its load, less a credit for cached tokens,
 * is the least. The first of equals wins. No worker is excluded: one that seems full may have room when it is
 * asked, and says so if it has not. */
int32_t worker_choice_best(const worker_choice_worker *list, int32_t count);
