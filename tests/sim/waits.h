/* waits.h - how long an answer may stand still: until what holds it up has ended, and from then on no longer
 * than the wait that it is in (docs/decisions/failure.md has them all). */
#pragma once

#include "tests/sim/world.h"

/* A fault that has struck holds answers up for so long. */
void waits_trouble(world *w, uint64_t us);
/* After every step of the orchestrator, of each answer that has not ended. */
void waits_check(world *w, client *c, const sessions_view *v);
