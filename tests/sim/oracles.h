/* oracles.h - what must hold. */
#pragma once

#include "tests/sim/world.h"

void oracles_expect(client *c); /* what plain decoding gives it, from the definition */

/* After every step: of this node, of what clients see, and of who stands still. */
void oracles_step(world *w, int node);
/* Every frame that a program sends. */
void oracles_frame(world *w, int from, int to, const msg *m);
/* Nothing has been lost for a while, and no forward ended: both sides know the same C and the same nodes. */
void oracles_rest(world *w);
/* The end of a session that the disk has, but no orchestrator any more. */
void oracles_judge_disk(world *w, client *c, const storage_record *r);
