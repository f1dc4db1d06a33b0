#include "common/base/ring.h"

#include <assert.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CACHE_LINE      64
#define SPINS_PER_CLOCK 16 /* pauses between two looks at the clock */

struct ring {
  uint32_t mask, item_size;
  _Alignas(CACHE_LINE) _Atomic uint32_t put;   /* items ever put */
  _Alignas(CACHE_LINE) _Atomic uint32_t taken; /* items ever taken */
  /* What the taker sleeps on. It grows with every put that finds the taker asleep, so a put between the
   * taker's last look and its sleep is not missed. */
  _Alignas(CACHE_LINE) _Atomic uint32_t calls;
  _Atomic bool asleep, closed;
  _Alignas(CACHE_LINE) unsigned char items[];
};

static uint32_t power_of_two(uint32_t n) {
  uint32_t p = 1;
  while (p < n) p *= 2;
  return p;
}

ring *ring_alloc(uint32_t items, uint32_t item_size) {
  assert(items >= 1 && items <= RING_ITEMS_MAX && item_size >= 1);
  uint32_t room = power_of_two(items);
  size_t size = sizeof(ring) + (size_t)room * item_size;
  ring *r = aligned_alloc(CACHE_LINE, (size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
  if (!r) return NULL;
  *r = (ring){.mask = room - 1, .item_size = item_size};
  return r;
}

void ring_free(ring *r) {
  free(r);
}

static void *item_at(ring *r, uint32_t n) {
  return r->items + (size_t)(n & r->mask) * r->item_size;
}

/* The sequentially consistent store before, and load here, are one half of the bargain; ring_sleep has the
 * other: at least one side sees what the other wrote. */
static void wake(ring *r) {
  if (!atomic_load(&r->asleep)) return;
  atomic_fetch_add(&r->calls, 1);
  syscall(SYS_futex, &r->calls, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

bool ring_put(ring *r, const void *item) {
  uint32_t n = atomic_load_explicit(&r->put, memory_order_relaxed);
  if (n - atomic_load_explicit(&r->taken, memory_order_acquire) > r->mask) return false;
  memcpy(item_at(r, n), item, r->item_size);
  atomic_store(&r->put, n + 1);
  wake(r);
  return true;
}

void ring_close(ring *r) {
  atomic_store(&r->closed, true);
  wake(r);
}

bool ring_take(ring *r, void *item) {
  uint32_t n = atomic_load_explicit(&r->taken, memory_order_relaxed);
  if (atomic_load_explicit(&r->put, memory_order_acquire) == n) return false;
  memcpy(item, item_at(r, n), r->item_size);
  atomic_store_explicit(&r->taken, n + 1, memory_order_release);
  return true;
}

static inline void cpu_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool has_news(ring *r) {
  return atomic_load(&r->put) != atomic_load_explicit(&r->taken, memory_order_relaxed) ||
         atomic_load(&r->closed);
}

static bool spin(ring *r, uint32_t us) {
  uint64_t end = now_ns() + us * UINT64_C(1000);
  do {
    for (int i = 0; i < SPINS_PER_CLOCK; i++) {
      if (has_news(r)) return true;
      cpu_pause();
    }
  } while (now_ns() < end);
  return false;
}

static void ring_sleep(ring *r) {
  uint32_t calls = atomic_load(&r->calls);
  atomic_store(&r->asleep, true);
  if (!has_news(r)) syscall(SYS_futex, &r->calls, FUTEX_WAIT_PRIVATE, calls, NULL, NULL, 0);
  atomic_store(&r->asleep, false);
}

bool ring_wait(ring *r, void *item, uint32_t spin_us) {
  while (!ring_take(r, item)) {
    /* Closed before the look, so nothing can come after it. */
    bool closed = atomic_load(&r->closed);
    if (closed) return ring_take(r, item);
    if (!spin(r, spin_us)) ring_sleep(r);
  }
  return true;
}
