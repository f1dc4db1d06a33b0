/* rest.h - what a target and its drafts know of a session when nothing has been lost for a while. */
#pragma once

#include "tests/sim/world.h"

/* They hold the same C, and the target's live nodes are those of its drafts, however many there are. */
void rest_compare(world *w, const session *s);
