/* batch_thread.h - a thread that does one batch after the other, as an engine that owns a device does.
 *
 * A batch is given to it while it sleeps, or taken by itself between two: no thread has to wake then. Signals
 * are other threads'. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct batch_thread_options {
  uint32_t batch_bytes;
  uint32_t spin_us; /* so long it waits for a batch before it sleeps (ring.h) */
  /* All on the thread. begin, end: once, may be NULL. */
  void (*begin)(void *context);
  void (*run)(void *context, const void *batch);
  /* After a run: fills the next batch, or returns false: then it sleeps until batch_thread_submit. */
  bool (*next_batch)(void *context, void *next);
  void (*end)(void *context);
  void *context;
} batch_thread_options;

typedef struct batch_thread batch_thread;

int batch_thread_open(batch_thread **out, const batch_thread_options *o, err *e); /* ERR_NOMEM, ERR_IO */
/* Waits for the batch that was submitted; the next one is not begun any more. No submit may run beside
 * it. */
void batch_thread_stop(batch_thread *t);
void batch_thread_close(batch_thread *t); /* stop, and frees it; NULL is allowed */
/* While none is under way; the batch is copied. False: it was stopped. */
bool batch_thread_submit(batch_thread *t, const void *batch);
