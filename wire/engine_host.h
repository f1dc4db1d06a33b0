/* engine_host.h - runs a worker: its machine on an event loop, and beside it a thread for the engine, which
 * computes what the machine wants, one batch after the other.
 *
 * The loop's thread and the engine's thread step one machine, each under the lock of the machine's host. When
 * the engine has computed a batch, its own thread gives the machine the result and takes the next batch, so
 * that no thread has to wake between two forwards. When there is no batch, the engine sleeps; the loop's
 * thread, which reads messages and keeps deadlines, asks for a batch after each of its own steps and submits
 * it. So the engine never sleeps while there is a batch, and it has at most one at a time.
 *
 * Batches and results have the worker's own types; this file only copies them, by their size. */
#pragma once

#include "wire/machine_host.h"

/* What the engine does. All of it happens on the engine's thread. */
typedef struct engine_host_engine {
  void *self;
  uint32_t batch_bytes, result_bytes;
  void (*begin)(void *self); /* once, before everything; may be NULL */
  void (*run)(void *self, const void *batch, void *result);
  void (*end)(void *self); /* once, after everything; may be NULL */
  bool keeps_loop_away;    /* the loop's thread never runs on the processor that the engine's thread is on */
} engine_host_engine;

/* A machine that gives its engine batches. No two of these functions are ever called at the same time. */
typedef struct engine_host_worker {
  machine machine; /* EVENT_RESULT: `result` is what the engine made of the last batch */
  /* Fills the next batch; false: there is nothing to compute. at_once: the engine's thread asks, between two
   * batches. */
  bool (*next_batch)(void *self, uint64_t now_us, bool at_once, void *batch);
  bool (*drained)(const void *self); /* everything is finished after EVENT_DRAIN: the program may leave */
} engine_host_worker;

typedef struct engine_host_options {
  wire_id self;   /* the program's incarnation */
  wire_role role; /* as transport_options has these three */
  const char *keys;
  bool allow_plaintext;
  uint32_t busy_poll_us; /* transport.h; the engine's thread waits so too. 0 where there are few processors */
  const logger *log;
} engine_host_options;

typedef struct engine_host engine_host;

/* Opens an event loop with its sockets, so that an endpoint may be bound before there is a model. ERR_NOMEM,
 * ERR_IO. */
int engine_host_open(engine_host **out, const engine_host_options *o, err *e);
transport *engine_host_transport(engine_host *h);

/* Sets the worker: from now on its machine gets events. engine NULL: the worker computes nothing. May be
 * called once. ERR_NOMEM; ERR_IO: no thread could be started. */
int engine_host_start(engine_host *h, const engine_host_worker *w, const engine_host_engine *engine, err *e);
/* Carries out actions that were made outside a step (a *_connect call), and resets them. */
void engine_host_perform(engine_host *h, actions *a);
/* Runs until the worker has drained, its machine wants to exit, or signals end it. Returns the program's exit
 * status. */
int engine_host_run(engine_host *h);

/* Waits for the batch that is under way, whose result the machine still gets, and ends the engine's thread.
 * Only engine_host_close may follow. */
void engine_host_stop(engine_host *h);
/* Does what engine_host_stop does and frees the host. NULL is allowed. The machine must not be freed before.
 */
void engine_host_close(engine_host *h);
