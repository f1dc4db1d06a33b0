/* byzantine.h - drafts and targets that send well-formed frames in which nearly everything is right: hashes,
 * tickets, ids, generations and lengths of the session that they are about. */
#pragma once

#include "tests/sim/world.h"

void byzantine_begin(world *w); /* a stranger comes */
void byzantine_speak(world *w); /* of ALARM_FORGE: now, and again soon */
