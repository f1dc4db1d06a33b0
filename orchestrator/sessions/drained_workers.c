#include "orchestrator/sessions/drained_workers.h"

static const wire_id none;

void drained_workers_add(drained_workers *d, wire_id incarnation) {
  if (drained_workers_has(d, incarnation)) return;
  d->list[d->next] = incarnation;
  d->next = (d->next + 1) % ROSTER_MAX;
}

bool drained_workers_has(const drained_workers *d, wire_id incarnation) {
  if (wire_id_equal(incarnation, none)) return false;
  for (int i = 0; i < ROSTER_MAX; i++)
    if (wire_id_equal(d->list[i], incarnation)) return true;
  return false;
}

void drained_workers_remove(drained_workers *d, wire_id incarnation) {
  for (int i = 0; i < ROSTER_MAX; i++)
    if (wire_id_equal(d->list[i], incarnation)) d->list[i] = none;
}
