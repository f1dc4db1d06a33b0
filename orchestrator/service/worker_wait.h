/* worker_wait.h - how long tandem waits for a worker that it has started and that has not registered. Pure.
 *
 * A large model takes as long as its disk does, so only the time counts in which the program neither reads
 * nor computes, as on a file system that does not respond. */
#pragma once

#include <stdint.h>

#define WORKER_WAIT_NOTICE_S 5
#define WORKER_WAIT_MAX_S    60
#define WORKER_WAIT_LEAST    20 /* work that is more than a program's turning over in its sleep */

typedef struct worker_wait {
  int32_t idle_s;
  uint64_t work; /* when it had last done something */
} worker_wait;

typedef enum { WORKER_WAIT_ON, WORKER_WAIT_TELL, WORKER_WAIT_GIVE_UP } worker_wait_verdict;

/* Called each second. work: hundredths of a second of a processor and MiB read, since the program began. */
worker_wait_verdict worker_wait_second(worker_wait *w, uint64_t work);
