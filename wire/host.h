/* host.h - runs one machine under libuv and ZeroMQ: carries its actions out, wakes it at its deadlines,
 * drains it on SIGTERM. One thread, that of the loop, but for host_step_elsewhere: a lock is held for a step,
 * so that the engine's thread may give its result itself and go on with what comes of it, without waiting for
 * a thread to wake.
 *
 * After a stall of the process, what waits in the sockets comes before the tick that is late: nobody was
 * silent whose words were not looked at.
 *
 * Deadlines are kept to the microsecond by a timerfd: the timers of libuv know milliseconds. SIGTERM and
 * SIGINT give EVENT_DRAIN, a second one ends the loop at once, and so does SIGHUP; a signal that was ignored
 * when the program began stays ignored. SIGPIPE is ignored. A steady state allocates nothing. */
#pragma once

#include "wire/machine.h"
#include "wire/transport.h"

#define HOST_EXIT_SIGNAL 130 /* exit status when signals end the loop at once */

typedef struct host host;

typedef struct host_options {
  machine machine; /* step NULL: comes later, by host_set_machine */
  wire_id self;    /* the program's incarnation */
  bool allow_plaintext;
  const logger *log;
  /* After every step of the machine on the loop's thread, while nobody else may step it, and before its
   * messages go out, which takes longer: the engine is fed first. May be NULL. */
  void (*after_step)(void *context);
  void *context;
} host_options;

int host_open(host **out, uv_loop_t *loop, const host_options *o, err *e);
/* Run the loop once more after it (uv_run until it returns): only then is everything freed. NULL is allowed.
 */
void host_close(host *h);
transport *host_transport(host *h);

/* For a machine that must know the address that was bound. Until then messages and signals find nobody. Its
 * deadline is looked at, also of one that has been set before. */
void host_set_machine(host *h, machine m);

/* Gives the machine an event now and carries out what it wants. */
void host_step(host *h, const event *e);
/* On another thread than the loop's, one such thread at a time: gives the machine an event now, then calls
 * `after`, during which nobody else may step it. The loop's thread is woken where the step has an action for
 * it, brings the machine's deadline nearer, or `after` returns true; it then calls after_step. Not after
 * host_close. */
void host_step_elsewhere(host *h, const event *e, bool (*after)(void *context), void *context);
/* Carries out actions that were made outside a step (a *_connect call); resets them. */
void host_perform(host *h, actions *a);

/* Stops the loop; the first call's code counts. */
void host_exit(host *h, int code);
/* Exit status that an ACTION_EXIT asked for, or -1. The loop is stopped by it. */
int host_exit_code(const host *h);

/* Is this an address that one may connect to? ERR_ARG says what is wrong. */
int host_check_endpoint(const char *endpoint, err *e);
