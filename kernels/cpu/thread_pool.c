#include "kernels/cpu/thread_pool.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CACHE_LINE      64
#define SPINS_PER_CLOCK 16 /* pauses between two looks at the clock */
#define CHUNK_BITS      20
#define CHUNK_MASK      ((UINT64_C(1) << CHUNK_BITS) - 1)

typedef struct worker {
  thread_pool *pool;
  int32_t index;
  pthread_t thread;
} worker;

struct thread_pool {
  int32_t threads, started;
  worker *workers; /* [threads - 1] */

  /* The piece of work; written by the caller while no chunk of it can be taken. */
  thread_pool_body *body;
  void *context;

  _Alignas(CACHE_LINE) _Atomic uint64_t state; /* chunks << CHUNK_BITS | next chunk to take */
  _Alignas(CACHE_LINE) _Atomic uint32_t left;  /* chunks not done yet */
  _Atomic uint32_t caller_sleeps;
  _Alignas(CACHE_LINE) _Atomic uint32_t epoch; /* grows with every piece of work */
  _Atomic uint32_t sleepers;
  _Atomic bool closing;
};

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

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/* Spins while *word == value, at most THREAD_POOL_SPIN_US. Returns what it saw last. */
static uint32_t spin_while(_Atomic uint32_t *word, uint32_t value) {
  uint64_t end = 0;
  for (;;) {
    for (int i = 0; i < SPINS_PER_CLOCK; i++) {
      uint32_t now = atomic_load_explicit(word, memory_order_acquire);
      if (now != value) return now;
      cpu_pause();
    }
    uint64_t t = now_ns();
    if (!end)
      end = t + THREAD_POOL_SPIN_US * 1000u;
    else if (t >= end)
      return value;
  }
}

/* A successful exchange proves that the piece of work in `state` is live: it cannot end before this chunk is
 * done, so `body` and `context`, read afterwards, are its own. */
static bool take_chunk(thread_pool *p, int32_t *chunk) {
  uint64_t s = atomic_load_explicit(&p->state, memory_order_relaxed);
  while ((s & CHUNK_MASK) < s >> CHUNK_BITS) {
    if (atomic_compare_exchange_weak_explicit(&p->state, &s, s + 1, memory_order_acq_rel,
                                              memory_order_relaxed)) {
      *chunk = (int32_t)(s & CHUNK_MASK);
      return true;
    }
  }
  return false;
}

/* Takes chunks until none is left, and counts them in one step. */
static void work(thread_pool *p, int32_t thread) {
  uint32_t done = 0;
  for (int32_t chunk; take_chunk(p, &chunk); done++) p->body(p->context, chunk, thread);
  if (!done) return;
  if (atomic_fetch_sub(&p->left, done) == done && atomic_load(&p->caller_sleeps)) futex_wake(&p->left, 1);
}

static void *worker_main(void *argument) {
  worker *w = argument;
  thread_pool *p = w->pool;
  uint32_t seen = 0;
  for (;;) {
    uint32_t epoch = spin_while(&p->epoch, seen);
    while (epoch == seen) {
      atomic_fetch_add(&p->sleepers, 1);
      futex_wait(&p->epoch, seen);
      atomic_fetch_sub(&p->sleepers, 1);
      epoch = atomic_load_explicit(&p->epoch, memory_order_acquire);
    }
    seen = epoch;
    if (atomic_load(&p->closing)) return NULL;
    work(p, w->index);
  }
}

static void publish(thread_pool *p) {
  atomic_fetch_add(&p->epoch, 1);
  if (atomic_load(&p->sleepers)) futex_wake(&p->epoch, INT_MAX);
}

thread_pool *thread_pool_open(int32_t threads) {
  assert(threads >= 1);
  thread_pool *p = aligned_alloc(CACHE_LINE, sizeof *p);
  if (!p) return NULL;
  *p = (thread_pool){.threads = threads};
  if (threads == 1) return p;
  p->workers = calloc((size_t)threads - 1, sizeof *p->workers);
  if (!p->workers) {
    thread_pool_close(p);
    return NULL;
  }
  for (int32_t i = 0; i < threads - 1; i++) {
    p->workers[i] = (worker){.pool = p, .index = i + 1};
    if (pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]) != 0) {
      thread_pool_close(p);
      return NULL;
    }
    p->started++;
  }
  return p;
}

void thread_pool_close(thread_pool *p) {
  if (!p) return;
  atomic_store(&p->closing, true);
  publish(p);
  for (int32_t i = 0; i < p->started; i++) pthread_join(p->workers[i].thread, NULL);
  free(p->workers);
  free(p);
}

static bool pin(pthread_t thread, int32_t cpu) {
  cpu_set_t one;
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  return pthread_setaffinity_np(thread, sizeof one, &one) == 0;
}

bool thread_pool_pin(thread_pool *p, const int32_t *cpus, int32_t count) {
  assert(count >= 1);
  bool pinned = pin(pthread_self(), cpus[0]);
  for (int32_t i = 0; i < p->started; i++)
    pinned &= pin(p->workers[i].thread, cpus[p->workers[i].index % count]);
  return pinned;
}

static void wait_all_done(thread_pool *p) {
  uint32_t left;
  while ((left = atomic_load_explicit(&p->left, memory_order_acquire)) != 0) {
    if (spin_while(&p->left, left) != left) continue;
    atomic_store(&p->caller_sleeps, 1);
    left = atomic_load(&p->left);
    if (left) futex_wait(&p->left, left);
    atomic_store(&p->caller_sleeps, 0);
  }
}

void thread_pool_run(thread_pool *p, int32_t chunks, thread_pool_body *body, void *context) {
  assert(chunks >= 0 && chunks <= THREAD_POOL_CHUNKS_MAX);
  if (p->threads == 1 || chunks <= 1) {
    for (int32_t i = 0; i < chunks; i++) body(context, i, 0);
    return;
  }
  p->body = body;
  p->context = context;
  atomic_store_explicit(&p->left, (uint32_t)chunks, memory_order_relaxed);
  atomic_store_explicit(&p->state, (uint64_t)chunks << CHUNK_BITS, memory_order_release);
  publish(p);
  work(p, 0);
  wait_all_done(p);
}
