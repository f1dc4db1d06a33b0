/* limit.h - a limit of the programs, and the smaller one of the simulation (tests/sim), which is compiled
 * with TANDEM_SMALL_LIMITS: there each of them is reached. */
#pragma once

#ifdef TANDEM_SMALL_LIMITS
#define LIMIT(usual, small) (small)
#else
#define LIMIT(usual, small) (usual)
#endif
