/* accept_gate.h - limits how many connections come in at a listener between two looks of the loop.
 *
 * ZeroMQ accepts on a thread of its own and tells the loop afterwards. Each connection costs memory, so
 * whoever connects faster than the loop looks, or while it stands, could take as much as he likes. Therefore
 * this program has its own accept, which ZeroMQ calls in place of libc's: what comes to a shut gate is closed
 * at once. A program of ours calls again 50 ms later. Private to wire/. */
#pragma once

#include "common/base/clock.h"
#include "common/base/log_limit.h"

#define ACCEPT_GATE_MAX      8
#define ACCEPT_GATE_EVERY_US 1000000 /* while the loop does not look, one more comes in */
#define ACCEPT_GATE_RESERVE  24      /* descriptors that no connection gets */
#define ACCEPT_GATE_PAUSE_US 10000

typedef struct accept_gate {
  int listener; /* the descriptor that listens */
  clock_source clock;
  log_limit let_in;
  struct accept_gate *next;
} accept_gate;

/* `g` lives until it is removed. The clock is read on any thread. */
void accept_gate_add(accept_gate *g, int listener, clock_source clock);
void accept_gate_remove(accept_gate *g); /* NULL, and one that was never added, are allowed */
/* The loop has looked at all connections that it was told of. Returns how many have come to the shut gate
 * since it looked last. */
uint64_t accept_gate_look(accept_gate *g);
