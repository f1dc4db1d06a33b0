/* frames.h - what must hold of frames when they go out: who may know what, and who may say what. */
#pragma once

#include "tests/sim/world.h"

void frames_check(world *w, int from, int to, const msg *m);
/* In some worlds a second draft is told all that the orchestrator tells the first one. */
void frames_copy(world *w, int from, int to, const msg *m);
