/* prefix_affinity.h - which worker has computed the beginning of a prompt before, as far as the orchestrator
 * remembers. It is a hint: workers drop their caches by rules of their own, and only speed depends on it. The
 * memory is fixed; what is written over is forgotten. */
#pragma once

#include <stdint.h>

#define PREFIX_AFFINITY_STRIDE 64    /* beginnings are remembered in steps of so many tokens */
#define PREFIX_AFFINITY_SLOTS  16384 /* enough for half a million tokens at each of 2 workers */

typedef struct prefix_affinity { /* all zero when it is empty */
  uint64_t keys[PREFIX_AFFINITY_SLOTS];
} prefix_affinity;

/* The worker (not 0) has computed tokens[count]. */
void prefix_affinity_add(prefix_affinity *a, uint64_t worker, const int32_t *tokens, int32_t count);
/* How many of the first tokens[count] the worker is known to have computed: a multiple of the stride. */
int32_t prefix_affinity_length(const prefix_affinity *a, uint64_t worker, const int32_t *tokens,
                               int32_t count);
