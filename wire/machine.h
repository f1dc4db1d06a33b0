/* machine.h - the shape of every program's logic: step(state, event, now) -> actions. Sockets, clocks and
 * threads are outside; wire/machine_host runs a machine in production, tests/sim under a virtual clock and a
 * seeded network. */
#pragma once

#include "wire/actions.h"
#include "wire/event.h"

#define MACHINE_NEVER UINT64_MAX

typedef struct machine {
  void *self;
  void (*step)(void *self, const event *e, uint64_t now_us, actions *out);
  uint64_t (*deadline)(const void *self); /* when the next EVENT_TICK is wanted; MACHINE_NEVER */
} machine;
