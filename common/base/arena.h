/* arena.h - memory that lives until the next reset: a decoded frame, the actions of one step.
 *
 * Grows by chunks up to a limit; a reset keeps the memory, so a steady state allocates nothing. */
#pragma once

#include <stddef.h>

typedef struct arena_chunk arena_chunk;
typedef struct arena {
  arena_chunk *first, *current;
  size_t limit, used; /* bytes */
} arena;

void arena_init(arena *a, size_t limit);
void arena_fini(arena *a);
void arena_reset(arena *a);

/* 16-byte aligned, not zeroed; NULL when the limit would be passed or memory is out. Size 0 gives a valid
 * pointer. */
void *arena_take(arena *a, size_t size);
/* A copy of `size` bytes; NULL as above. */
void *arena_copy(arena *a, const void *data, size_t size);
