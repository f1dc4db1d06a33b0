/* arena.h - memory that lives until the next reset: a decoded frame, the actions of one step.
 *
 * Grows by chunks up to a limit; a reset keeps the memory, so a steady state allocates nothing. What none of
 * ARENA_TRIM_RESETS uses in a row has needed goes back to the system, so a burst does not stay. */
#pragma once

#include <stddef.h>

#define ARENA_TRIM_RESETS 1024

typedef struct arena_chunk arena_chunk;
typedef struct arena {
  arena_chunk *first, *current;
  size_t limit, used; /* bytes */
  size_t most;        /* that were used at one of the last `resets` resets */
  int resets;
} arena;

void arena_init(arena *a, size_t limit);
void arena_fini(arena *a);
void arena_reset(arena *a);

/* 16-byte aligned, not zeroed; NULL when the limit would be passed or memory is out. Size 0 gives a valid
 * pointer. */
void *arena_take(arena *a, size_t size);
/* A copy of `size` bytes; NULL as above. */
void *arena_copy(arena *a, const void *data, size_t size);
