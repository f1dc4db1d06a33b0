/* machine.h - the shape of every program's logic: step(state, event, now) -> actions. Sockets, clocks and
 * threads are outside; wire/machine_host runs a machine in production, tests/sim under a virtual clock and a
 * seeded network. */
#pragma once

#include "wire/actions.h"

typedef enum {
  EVENT_MESSAGE,   /* peer, message */
  EVENT_CONNECTED, /* peer: the connection that an ACTION_CONNECT with this tag asked for; 0: refused */
  EVENT_TICK,      /* the deadline passed, or any other moment */
  EVENT_DRAIN,     /* SIGTERM: finish what is open, take nothing new */
  EVENT_RESULT     /* the engine is done; `result` is the machine's own type */
} event_kind;

typedef struct event {
  event_kind kind;
  peer_id peer;
  uint64_t tag;
  const msg *message;
  const void *result;
} event;

#define MACHINE_NEVER UINT64_MAX

typedef struct machine {
  void *self;
  void (*step)(void *self, const event *e, uint64_t now_us, actions *out);
  uint64_t (*deadline)(const void *self); /* when the next EVENT_TICK is wanted; MACHINE_NEVER */
} machine;
