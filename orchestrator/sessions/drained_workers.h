/* drained_workers.h - the workers that an operator has drained: they keep the sessions that they have and get
 * no others. They are known by their incarnation, so a lost connection does not bring one back, and a new
 * start does. The memory is fixed: the entry that was added first makes room for a new one. */
#pragma once

#include "wire/roster.h"

typedef struct drained_workers { /* all zero when it is empty */
  wire_id list[ROSTER_MAX];      /* zero: a free entry */
  int32_t next;                  /* the entry that a further worker takes */
} drained_workers;

void drained_workers_add(drained_workers *d, wire_id incarnation);
bool drained_workers_has(const drained_workers *d, wire_id incarnation);
void drained_workers_remove(drained_workers *d, wire_id incarnation);
