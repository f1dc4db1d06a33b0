/* worker_choice.h - which of the workers that are here takes a session. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define WORKER_CHOICE_HELD                                                                                   \
  512 /* tokens of a prompt that need not be read again count as much as a session less */

typedef struct worker_choice_worker {
  int32_t load;   /* sessions that it has */
  int32_t held;   /* tokens of the prompt that it has read before; 0: it knows none of it */
  int32_t places; /* sessions that it takes at a time, by its word; 0: no limit of its own */
  bool alike;     /* its numerics are those that the answer has begun with, or any will do */
  bool refused;   /* it did not want this session */
} worker_choice_worker;

/* Index in list[count], or -1 when there is none. What counts, in this order: it has not refused the session,
 * it has a free place, its numerics are alike, it has the least load less what it holds; of equals the first.
 * Nobody is left out: who is full now says so, and may have a place by then. */
int32_t worker_choice_best(const worker_choice_worker *list, int32_t count);
