/* far_queue.h - calls that wait for their turn, with copies of their arguments. */
#pragma once

#include "common/base/arena.h"

#include <stdbool.h>
#include <stddef.h>

/* Calls the inner device with the arguments. */
typedef void far_call(void *context, void *args);

typedef struct far_record far_record;
typedef struct far_queue {
  far_record *first, *last;
  arena memory; /* of the records; kept, so that a steady state allocates nothing */
} far_queue;

void far_queue_open(far_queue *q);
void far_queue_close(far_queue *q);

/* At its end; returns `bytes` for the arguments. Ends the program when memory is out. */
void *far_queue_add(far_queue *q, far_call *call, size_t bytes);
/* Makes all calls in order. Each one's arguments are overwritten when it returns: an inner device that still
 * looks at them reads garbage. */
void far_queue_run(far_queue *q, void *context);
/* Drops the calls up to and including the first one of `last`. */
void far_queue_skip(far_queue *q, far_call *last);
void far_queue_clear(far_queue *q);
