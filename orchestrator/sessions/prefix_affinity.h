/* prefix_affinity.h - which worker has read the beginning of a prompt before: the orchestrator's memory of
 * what was answered where. A hint: workers forget too, by rules of their own, and only speed depends on it.
 * Fixed memory, no allocation; what is written over is forgotten. */
#pragma once

#include <stdint.h>

#define PREFIX_AFFINITY_STRIDE 64    /* tokens: beginnings are told apart in steps of so many */
#define PREFIX_AFFINITY_PLACES 16384 /* beginnings: half a million tokens of 2 workers */

typedef struct prefix_affinity { /* all zero at first */
  uint64_t places[PREFIX_AFFINITY_PLACES];
} prefix_affinity;

/* `worker` (not 0) holds tokens[count]. */
void prefix_affinity_note(prefix_affinity *a, uint64_t worker, const int32_t *tokens, int32_t count);
/* How many of the first tokens[count] it is known to hold: a multiple of the stride. */
int32_t prefix_affinity_held(const prefix_affinity *a, uint64_t worker, const int32_t *tokens, int32_t count);
