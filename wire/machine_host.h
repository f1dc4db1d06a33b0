/* machine_host.h - runs one machine under libuv and ZeroMQ: it carries out the machine's actions, wakes it at
 * its deadlines and drains it on SIGTERM. Everything happens on the loop's thread, except
 * machine_host_step_elsewhere: a lock is held during each step, so that an engine's thread may give the
 * machine its result itself and go on with the next batch without waiting for another thread to wake
 * (engine_host.h).
 *
 * After the process has stalled, the messages that wait in the sockets are read before the late tick, so that
 * no peer counts as silent while its messages are still unread.
 *
 * Deadlines are kept to the microsecond by a timerfd, because the timers of libuv know milliseconds only.
 * SIGTERM and SIGINT give EVENT_DRAIN; a second one, or SIGHUP, ends the loop at once. A signal that was
 * ignored when the program began stays ignored, and SIGPIPE is always ignored. A steady state allocates
 * nothing. */
#pragma once

#include "wire/machine.h"
#include "wire/transport.h"

#define MACHINE_HOST_EXIT_SIGNAL 130 /* exit status when signals end the loop at once */

typedef struct machine_host machine_host;

typedef struct machine_host_options {
  machine machine; /* step NULL: comes later, by machine_host_set_machine */
  wire_id self;    /* the program's incarnation */
  wire_role role;  /* as transport_options has these three */
  const char *keys;
  bool allow_plaintext;
  uint32_t busy_poll_us; /* transport.h */
  /* NULL: clock_us. With another one the host sets no timer: call machine_host_clock_moved. It is read on any
   * thread. */
  clock_source clock;
  const logger *log;
  /* Called after every step of the machine on the loop's thread, while nobody else may step it. The step's
   * messages go out afterwards, because that takes longer and the engine should get its batch first. May be
   * NULL. */
  void (*after_step)(void *context);
  void *context;
} machine_host_options;

int machine_host_open(machine_host **out, uv_loop_t *loop, const machine_host_options *o, err *e);
/* Run the loop once more afterwards (uv_run until it returns), because only then is everything freed. NULL is
 * allowed. */
void machine_host_close(machine_host *h);
transport *machine_host_transport(machine_host *h);

/* Sets the machine later, for a machine that must know the address that was bound. Until then messages and
 * signals are ignored. Also looks at its deadline again, even if the same machine was set before. */
void machine_host_set_machine(machine_host *h, machine m);

/* Gives the machine an event now and carries out what it wants. */
void machine_host_step(machine_host *h, const event *e);
/* On another thread than the loop's, one such thread at a time: gives the machine an event now, then calls
 * `after`, during which nobody else may step it. The loop's thread is woken if the step has made an action
 * for it or has brought the machine's deadline nearer, or if `after` returns true; it then calls after_step.
 * Must not be called after machine_host_close. */
void machine_host_step_elsewhere(machine_host *h, const event *e, bool (*after)(void *context),
                                 void *context);
/* The clock that the host was given has moved: a deadline may have come. */
void machine_host_clock_moved(machine_host *h);
/* Carries out actions that were made outside a step (a *_connect call); resets them. */
void machine_host_perform(machine_host *h, actions *a);

/* Stops the loop; the first call's code counts. */
void machine_host_exit(machine_host *h, int code);
/* Exit status that an ACTION_EXIT asked for, or -1. The loop is stopped by it. */
int machine_host_exit_code(const machine_host *h);
