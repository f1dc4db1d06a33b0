/* programs.h - the programs of a world: their starts and ends, and the engines behind the workers. */
#pragma once

#include "tests/sim/world.h"

extern const char *const programs_addresses[NODES];

void programs_start(world *w, int index);
/* Killed, or gone by itself; it comes again later. */
void programs_kill(world *w, int index);
void programs_free(world *w, int index); /* at the end of the world */

/* After every step: batches for whoever can compute, and the end of who has drained. */
void programs_feed(world *w, int index);
void programs_result(world *w, int index, uint32_t life); /* of ALARM_RESULT */
void programs_leave(world *w, int index);                 /* of ALARM_LEAVE */
void programs_drain(world *w, int index);                 /* SIGTERM */
