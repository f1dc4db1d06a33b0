/* limits.h - which of the machines' limits were reached (totals.limits). They are small here:
 * common/base/limit.h. */
#pragma once

#include "tests/sim/world.h"

extern const char *const limits_names[LIMIT_KINDS];

void limits_frame(world *w, const msg *m); /* every frame that goes out */
void limits_target_batch(world *w, const engine_batch *b);
void limits_draft_batch(world *w, const draft_batch *b);
void limits_step(world *w, int node); /* after each step of a program */
