#include "kernels/cpu/thread_pool.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CACHE_LINE      64
#define SPINS_PER_CLOCK 16 /* pauses between two looks at the clock */
#define CHUNK_BITS      20
#define CHUNK_MASK      ((UINT64_C(1) << CHUNK_BITS) - 1)

/* What a thread has to do with the chunks of a piece of work, in cache lines of its own. Both begin with the
 * number of the piece << CHUNK_BITS; where it is an older one, nothing has been done yet of what is live. */
typedef struct share {
  _Alignas(CACHE_LINE) _Atomic uint64_t taken; /* | the next one to take of its own */
  _Alignas(CACHE_LINE) _Atomic uint64_t done;  /* | how many it has done, also of others' */
} share;

typedef struct worker {
  thread_pool *pool;
  int32_t index;
  pthread_t thread;
} worker;

struct thread_pool {
  int32_t threads, started;
  uint64_t spin_ns;
  worker *workers; /* [threads - 1] */
  share *shares;   /* [threads] */

  /* The piece of work; written by the caller while no chunk of it can be taken. */
  _Alignas(CACHE_LINE) thread_pool_body *body;
  void *context;
  _Atomic uint64_t piece; /* its number << CHUNK_BITS | its chunks */
  _Atomic uint32_t epoch; /* grows with every piece of work */

  _Alignas(CACHE_LINE) _Atomic uint32_t caller_sleeps;
  _Atomic uint32_t sleepers;
  _Atomic bool closing, resting;
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

/* --- chunks --- */

/* The first chunk of a thread's share. Where there are fewer chunks than threads, the caller has one. */
static uint64_t share_begin(const thread_pool *p, uint64_t chunks, int32_t thread) {
  uint64_t threads = (uint64_t)p->threads;
  return (chunks * (uint64_t)thread + threads - 1) / threads;
}

/* The next chunk of a thread's share, whoever takes it. A successful exchange proves that the piece of work
 * is live: it cannot end before this chunk is done, so `body` and `context`, read afterwards, are its own. */
static bool take_chunk(thread_pool *p, uint64_t piece, int32_t of, int32_t *chunk) {
  _Atomic uint64_t *taken = &p->shares[of].taken;
  uint64_t number = piece >> CHUNK_BITS, chunks = piece & CHUNK_MASK;
  uint64_t begin = share_begin(p, chunks, of), end = share_begin(p, chunks, of + 1);
  uint64_t s = atomic_load_explicit(taken, memory_order_relaxed);
  while (begin < end && s >> CHUNK_BITS <= number) {
    uint64_t next = s >> CHUNK_BITS == number ? s & CHUNK_MASK : begin;
    if (next == end) return false;
    if (atomic_compare_exchange_weak_explicit(taken, &s, (number << CHUNK_BITS) + next + 1,
                                              memory_order_acq_rel, memory_order_relaxed)) {
      *chunk = (int32_t)next;
      return true;
    }
  }
  return false;
}

/* Tells of chunks that this thread has done, and wakes the caller, who looks whether they were the last. */
static void finish(thread_pool *p, uint64_t number, int32_t thread, uint64_t count) {
  _Atomic uint64_t *done = &p->shares[thread].done;
  uint64_t before = atomic_load_explicit(done, memory_order_relaxed);
  if (before >> CHUNK_BITS != number) before = number << CHUNK_BITS;
  atomic_store(done, before + count);
  if (!atomic_load(&p->caller_sleeps)) return;
  atomic_store(&p->caller_sleeps, 0);
  futex_wake(&p->caller_sleeps, 1);
}

/* Does what is left of the shares of `count` threads, its own first. False: nothing was. */
static bool work(thread_pool *p, int32_t thread, int32_t count) {
  uint64_t piece = atomic_load_explicit(&p->piece, memory_order_acquire), done = 0;
  for (int32_t i = 0; i < count; i++)
    for (int32_t chunk; take_chunk(p, piece, (thread + i) % p->threads, &chunk); done++)
      p->body(p->context, chunk, thread);
  if (done) finish(p, piece >> CHUNK_BITS, thread, done);
  return done > 0;
}

/* --- waiting --- */

typedef bool condition(const thread_pool *p, uint64_t what);

static bool has_begun(const thread_pool *p, uint64_t epoch) { /* another piece of work than this one */
  return atomic_load_explicit(&p->epoch, memory_order_acquire) != epoch;
}

static bool all_done(const thread_pool *p, uint64_t piece) {
  uint64_t done = 0;
  for (int32_t i = 0; i < p->threads; i++) {
    uint64_t d = atomic_load(&p->shares[i].done);
    if (d >> CHUNK_BITS == piece >> CHUNK_BITS) done += d & CHUNK_MASK;
  }
  return done == (piece & CHUNK_MASK);
}

/* Spins for at most spin_ns. False: the condition does not hold yet. Who has waited for a moment
 * takes over what others have not begun; at once, it would only take away their cache lines. */
static inline bool spin_until(thread_pool *p, int32_t thread, condition *holds, uint64_t what) {
  uint64_t end = 0;
  bool helps = true; /* until once there is nothing left to take */
  for (;;) {
    for (int i = 0; i < SPINS_PER_CLOCK; i++) {
      if (holds(p, what)) return true;
      cpu_pause();
    }
    if (helps && (helps = work(p, thread, p->threads))) end = 0;
    uint64_t t = now_ns();
    if (!end)
      end = t + p->spin_ns;
    else if (t >= end || atomic_load_explicit(&p->resting, memory_order_relaxed))
      return false;
  }
}

static void wait_to_begin(thread_pool *p, int32_t thread, uint32_t epoch) {
  if (spin_until(p, thread, has_begun, epoch)) return;
  while (!has_begun(p, epoch)) {
    atomic_fetch_add(&p->sleepers, 1);
    futex_wait(&p->epoch, epoch);
    atomic_fetch_sub(&p->sleepers, 1);
  }
}

static void wait_all_done(thread_pool *p, uint64_t piece) {
  while (!spin_until(p, 0, all_done, piece)) {
    atomic_store(&p->caller_sleeps, 1);
    if (!all_done(p, piece)) futex_wait(&p->caller_sleeps, 1);
    atomic_store(&p->caller_sleeps, 0);
  }
}

/* --- life --- */

static void *worker_main(void *argument) {
  const worker *w = argument;
  thread_pool *p = w->pool;
  for (uint32_t seen = 0;;) {
    wait_to_begin(p, w->index, seen);
    seen = atomic_load_explicit(&p->epoch, memory_order_acquire);
    if (atomic_load(&p->closing)) return NULL;
    work(p, w->index, 1);
  }
}

static void publish(thread_pool *p) {
  atomic_fetch_add(&p->epoch, 1);
  if (atomic_load(&p->sleepers)) futex_wake(&p->epoch, INT_MAX);
}

thread_pool *thread_pool_open(int32_t threads, int32_t spin_us) {
  assert(threads >= 1 && spin_us >= 0);
  thread_pool *p = aligned_alloc(CACHE_LINE, sizeof *p);
  if (!p) return NULL;
  *p = (thread_pool){.threads = threads, .spin_ns = (uint64_t)spin_us * 1000};
  if (threads == 1) return p;
  p->workers = calloc((size_t)threads - 1, sizeof *p->workers);
  p->shares = aligned_alloc(CACHE_LINE, (size_t)threads * sizeof *p->shares);
  if (p->shares) memset(p->shares, 0, (size_t)threads * sizeof *p->shares);
  if (!p->workers || !p->shares) {
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
  free(p->shares);
  free(p);
}

void thread_pool_rest(thread_pool *p) {
  atomic_store_explicit(&p->resting, true, memory_order_relaxed);
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

void thread_pool_run(thread_pool *p, int32_t chunks, thread_pool_body *body, void *context) {
  assert(chunks >= 0 && chunks <= THREAD_POOL_CHUNKS_MAX);
  if (p->threads == 1 || chunks <= 1) {
    for (int32_t i = 0; i < chunks; i++) body(context, i, 0);
    return;
  }
  atomic_store_explicit(&p->resting, false, memory_order_relaxed);
  p->body = body;
  p->context = context;
  uint64_t number = (atomic_load_explicit(&p->piece, memory_order_relaxed) >> CHUNK_BITS) + 1;
  uint64_t piece = number << CHUNK_BITS | (uint64_t)chunks;
  atomic_store_explicit(&p->piece, piece, memory_order_release);
  publish(p);
  work(p, 0, 1);
  wait_all_done(p, piece);
}
