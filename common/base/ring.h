/* ring.h - a queue between two threads: one puts in, one takes out, neither locks.
 *
 * Items are copied. The taker may wait: it spins for a while and then sleeps on a futex. RING_SPIN_US of it
 * do not starve the other program of a small machine. A put that finds nobody asleep makes
 * no system call. Memory is taken once, at init. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stdint.h>

#define RING_SPIN_US   20
#define RING_ITEMS_MAX 65536

typedef struct ring ring;

/* Room for at least `items` (in [1, RING_ITEMS_MAX]) of item_size bytes; NULL when out of memory. */
ring *ring_alloc(uint32_t items, uint32_t item_size);
void ring_free(ring *r); /* no thread uses it any more; NULL is allowed */

/* One thread: false when it is full. */
bool ring_put(ring *r, const void *item);
/* Ends a wait. Called by that thread, or by any thread after its last put. Items in the ring stay in it. */
void ring_close(ring *r);

/* The other thread: false when it is empty. */
bool ring_take(ring *r, void *item);
/* Waits for an item, awake for spin_us. False when the ring is closed and empty. */
bool ring_wait(ring *r, void *item, uint32_t spin_us);
