/* libs: kernels */
/* The thread pool: every chunk once, whatever the number of threads and however they wait. Also run by TSan.
 */
#include "kernels/cpu/thread_pool.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/support/patience.h"
#include "tests/support/thread_state.h"

#define CHUNKS      257
#define THREADS_MAX 4
#define ROUNDS      400
#define SPIN_US     20
#define LONG_PAUSE  (5 * SPIN_US) /* microseconds: workers sleep by then */

typedef struct tally {
  int32_t threads;
  int32_t seen[CHUNKS]; /* plain on purpose: TSan reports a chunk that two threads run */
  int32_t input;        /* written by the caller before each run */
  _Atomic int32_t bad;
} tally;

static void count_chunk(void *context, int32_t chunk, int32_t thread) {
  tally *t = context;
  if (thread < 0 || thread >= t->threads) atomic_fetch_add(&t->bad, 1);
  t->seen[chunk] += t->input;
}

static void run_rounds(int32_t threads, int32_t chunks, useconds_t pause) {
  tally t = {.threads = threads};
  thread_pool *p = thread_pool_open(threads, SPIN_US);
  assert_non_null(p);
  int32_t rounds = pause ? ROUNDS / 20 : ROUNDS, expected = 0;
  for (int32_t r = 0; r < rounds; r++) {
    t.input = r + 1;
    expected += t.input;
    thread_pool_run(p, chunks, count_chunk, &t);
    if (pause) usleep(pause);
  }
  for (int32_t i = 0; i < chunks; i++) assert_int_equal(t.seen[i], expected);
  assert_int_equal(t.bad, 0);
  thread_pool_close(p);
}

static void every_chunk_runs_once(void **state) {
  (void)state;
  const int32_t chunks[] = {1, 2, 3, 64, CHUNKS};
  for (int32_t threads = 1; threads <= THREADS_MAX; threads++) {
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) run_rounds(threads, chunks[i], 0);
  }
}

static void sleeping_workers_wake(void **state) {
  (void)state;
  for (int32_t threads = 2; threads <= THREADS_MAX; threads++) run_rounds(threads, CHUNKS, LONG_PAUSE);
}

static void slow_chunk(void *context, int32_t chunk, int32_t thread) {
  (void)thread;
  if (chunk == 0) usleep(20 * LONG_PAUSE);
  atomic_fetch_add((_Atomic int32_t *)context, 1);
}

/* The caller, or a worker, takes the slow chunk; the others have to wait for it asleep. */
static void a_slow_chunk_is_waited_for(void **state) {
  (void)state;
  thread_pool *p = thread_pool_open(THREADS_MAX, SPIN_US);
  _Atomic int32_t done = 0;
  for (int32_t r = 1; r <= 20; r++) {
    thread_pool_run(p, THREADS_MAX, slow_chunk, &done);
    assert_int_equal(done, r * THREADS_MAX);
  }
  thread_pool_close(p);
}

/* The first chunk of a share ends when all others but those have: somebody has to take the rest of it. */
static void wait_for_others(void *context, int32_t chunk, int32_t thread) {
  _Atomic int32_t *done = context;
  (void)thread;
  if (chunk == CHUNKS / THREADS_MAX + 1) /* where the second share begins */
    for (uint64_t end = clock_us() + PATIENCE_US; *done < CHUNKS - 1 && clock_us() < end;) usleep(100);
  atomic_fetch_add(done, *done < CHUNKS - 1 && chunk == CHUNKS / THREADS_MAX + 1 ? CHUNKS : 1);
}

static void the_rest_of_a_slow_threads_share_is_done_by_others(void **state) {
  (void)state;
  thread_pool *p = thread_pool_open(THREADS_MAX, SPIN_US);
  for (int32_t r = 0; r < 20; r++) {
    _Atomic int32_t done = 0;
    thread_pool_run(p, CHUNKS, wait_for_others, &done);
    assert_int_equal(done, CHUNKS);
  }
  thread_pool_close(p);
}

static void nothing_to_do(void **state) {
  (void)state;
  thread_pool *p = thread_pool_open(2, SPIN_US);
  thread_pool_run(p, 0, count_chunk, NULL);
  thread_pool_close(p);
  thread_pool_close(NULL);
}

/* --- pinned --- */

typedef struct places {
  int32_t cpus[THREADS_MAX], count;
  _Atomic int32_t wrong, here, seen[THREADS_MAX];
} places;

static void look_where(void *context, int32_t chunk, int32_t thread) {
  (void)chunk;
  places *p = context;
  if (atomic_fetch_add(&p->seen[thread], 1) == 0) atomic_fetch_add(&p->here, 1);
  if (sched_getcpu() != p->cpus[thread % p->count]) atomic_fetch_add(&p->wrong, 1);
  for (uint64_t end = clock_us() + PATIENCE_US; p->here < THREADS_MAX && clock_us() < end;)
    usleep(100); /* nobody ends its first chunk before every thread has one */
}

static void threads_stay_where_they_are_pinned(void **state) {
  (void)state;
  cpu_set_t before;
  places at = {.count = 0};
  assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
  for (int32_t i = CPU_SETSIZE - 1; i >= 0 && at.count < THREADS_MAX; i--)
    if (CPU_ISSET(i, &before)) at.cpus[at.count++] = i;
  thread_pool *p = thread_pool_open(THREADS_MAX, SPIN_US);
  assert_true(thread_pool_pin(p, at.cpus, at.count));
  thread_pool_run(p, CHUNKS, look_where, &at);
  assert_int_equal(at.wrong, 0);
  for (int32_t i = 0; i < THREADS_MAX; i++) assert_true(at.seen[i] > 0);
  assert_false(thread_pool_pin(p, (const int32_t[]){CPU_SETSIZE}, 1));
  thread_pool_close(p);
  sched_setaffinity(0, sizeof before, &before);
}

/* Pools that run by turns: the one that rests sleeps at once, and wakes. */
static void a_pool_that_rests_runs_again(void **state) {
  (void)state;
  enum { LONG_US = 600 * 1000 * 1000 };
  tally t = {.threads = THREADS_MAX, .input = 1};
  thread_pool *pools[] = {thread_pool_open(THREADS_MAX, LONG_US), thread_pool_open(2, LONG_US)};
  thread_pool_rest(pools[1]);
  for (int32_t r = 0; r < 20; r++) {
    for (int i = 0; i < 2; i++) {
      thread_pool_run(pools[i], CHUNKS, count_chunk, &t);
      thread_pool_rest(pools[i]);
      if (r % 5 == 0) WAIT_UNTIL(other_threads_sleep());
    }
  }
  for (int32_t i = 0; i < CHUNKS; i++) assert_int_equal(t.seen[i], 40);
  assert_int_equal(t.bad, 0);
  for (int i = 0; i < 2; i++) thread_pool_close(pools[i]);
}

/* Waiting is sleep. */
static void idle_workers_sleep(void **state) {
  (void)state;
  tally t = {.threads = THREADS_MAX};
  thread_pool *p = thread_pool_open(THREADS_MAX, SPIN_US);
  thread_pool_run(p, CHUNKS, count_chunk, &t);
  WAIT_UNTIL(other_threads_sleep());
  thread_pool_close(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_chunk_runs_once),
      cmocka_unit_test(sleeping_workers_wake),
      cmocka_unit_test(the_rest_of_a_slow_threads_share_is_done_by_others),
      cmocka_unit_test(a_slow_chunk_is_waited_for),
      cmocka_unit_test(nothing_to_do),
      cmocka_unit_test(idle_workers_sleep),
      cmocka_unit_test(a_pool_that_rests_runs_again),
      cmocka_unit_test(threads_stay_where_they_are_pinned),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
