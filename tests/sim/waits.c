#include "tests/sim/waits.h"

#include "orchestrator/sessions/session_limits.h"
#include "target_worker/session_store.h"
#include "wire/roster.h"

/* A frame and its reply get lost again and again, while they are repeated every 300 or 500 ms. */
#define LUCK_US 6000000

/* What may still hold an answer up when all faults are over. */
typedef struct wait {
  uint64_t us;
  const char *exceeded;
} wait;

static const wait waits[] = {
    /* places that were left behind are free after a lease */
    [SESSIONS_WAITING] = {SESSION_STORE_LEASE_US + LUCK_US,
                          "a session waits for a target for longer than leases last"},
    [SESSIONS_OPENING] = {SESSION_STORE_LEASE_US + LUCK_US,
                          "a session waits for OPENED, or for room, for longer than leases last"},
    [SESSIONS_RUNNING] = {ROSTER_LOST_US + LUCK_US,
                          "a session waits for tokens for longer than it takes to miss its target"},
    [SESSIONS_ENDING] = {SESSIONS_END_TRIES * SESSIONS_REPEAT_US + LUCK_US,
                         "a session waits for ENDED for longer than END is repeated"},
    [SESSIONS_FINISHED] = {LUCK_US, "an answer that has ended waits for a disk that writes"}};

void waits_trouble(world *w, uint64_t us) {
  uint64_t until = net_now(w->net) + us;
  if (until > w->calm_us) w->calm_us = until;
}

/* A target that shuts down takes nobody, and how long it needs is up to those that it has. */
static bool any_drains(const world *w) {
  for (int i = TARGET_A; i <= TARGET_B; i++)
    if (w->nodes[i].draining) return true;
  return false;
}

/* It may have to wait in each of the states that it has been in, one after the other. */
static uint64_t allowed(const client *c) {
  uint64_t us = 0;
  for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
    if (c->states >> i & 1) us += waits[i].us;
  return us;
}

void waits_check(world *w, client *c, const sessions_view *v) {
  uint64_t now = net_now(w->net);
  if (any_drains(w)) waits_trouble(w, 0);
  if (v->length > c->length || w->resting) {
    c->length = v->length;
    c->moved_us = now;
    c->states = 0;
  }
  c->state = v->state;
  c->states |= 1u << v->state;
  uint64_t stood = now - c->moved_us, since = c->moved_us > w->calm_us ? c->moved_us : w->calm_us;
  if (stood > w->totals->longest_stall_us) w->totals->longest_stall_us = stood;
  if (now < since) return;
  if (now - since > w->totals->longest_wait_us) w->totals->longest_wait_us = now - since;
  if (now - since > allowed(c)) world_fail(w, waits[v->state].exceeded);
}
