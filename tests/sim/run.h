/* run.h - one seed of the simulation. */
#pragma once

#include "tests/sim/world.h"

/* NULL, or why the seed failed. refused: which allocation of its machines fails (0: what the seed says).
 * *digest sums up all that happened. */
const char *run_seed(uint64_t seed, uint64_t refused, totals *t, uint64_t *digest);
