/* libs: base */
#include "common/base/batch_thread.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/support/patience.h"

enum { LOG_MAX = 1 << 16 };

typedef struct batch {
  uint64_t number;
  uint64_t body[9]; /* all equal to number: a torn copy shows */
} batch;

static batch batch_of(uint64_t n) {
  batch b = {.number = n};
  for (int i = 0; i < 9; i++) b.body[i] = n;
  return b;
}

/* What the thread did: read by the test after stop, or behind `done`. */
typedef struct work {
  batch_thread *thread;
  pthread_t self; /* of the thread */
  int begins, ends;
  uint64_t log[LOG_MAX];
  int32_t count; /* runs */
  bool torn, elsewhere, all_signals_blocked;

  uint64_t chain;    /* turns that give a batch after one that was submitted; UINT64_MAX: always */
  uint64_t next;     /* what the next batch holds */
  sem_t done;        /* posted when it falls asleep */
  sem_t running, go; /* of a run that is held up */
  bool held;
  _Atomic bool over;
} work;

static void begin(void *context) {
  work *w = context;
  sigset_t set;
  w->begins++;
  w->self = pthread_self();
  pthread_sigmask(SIG_SETMASK, NULL, &set);
  w->all_signals_blocked =
      sigismember(&set, SIGINT) && sigismember(&set, SIGTERM) && sigismember(&set, SIGUSR1);
}

static void end(void *context) {
  work *w = context;
  w->ends++;
}

static void note(work *w, const batch *b) {
  w->elsewhere |= !pthread_equal(w->self, pthread_self()) || w->begins != 1 || w->ends != 0;
  for (int i = 0; i < 9; i++) w->torn |= b->body[i] != b->number;
  if (w->count < LOG_MAX) w->log[w->count] = b->number;
  w->count++;
}

static void run(void *context, const void *given) {
  work *w = context;
  note(w, given);
  if (!w->held) return;
  sem_post(&w->running);
  sem_wait(&w->go);
  usleep(1000); /* who does not wait for this run is gone by then */
  atomic_store(&w->over, true);
}

static bool next_batch(void *context, void *next) {
  work *w = context;
  if (w->chain > 0) {
    if (w->chain != UINT64_MAX) w->chain--;
    *(batch *)next = batch_of(w->next++);
    return true;
  }
  sem_post(&w->done);
  return false;
}

static void work_init(work *w) {
  memset(w, 0, sizeof *w);
  sem_init(&w->done, 0, 0);
  sem_init(&w->running, 0, 0);
  sem_init(&w->go, 0, 0);
}

static void open_with(work *w, bool (*how)(void *, void *), void (*what)(void *, const void *)) {
  const batch_thread_options o = {
      .batch_bytes = sizeof(batch), .begin = begin, .run = what, .next_batch = how, .end = end, .context = w};
  err e = {0};
  if (batch_thread_open(&w->thread, &o, &e)) fail_msg("%s", e.text);
}

static void expect_clean(const work *w) {
  assert_int_equal(w->begins, 1);
  assert_int_equal(w->ends, 1);
  assert_false(w->torn);
  assert_false(w->elsewhere);
  assert_true(w->all_signals_blocked);
}

static work *fresh(void) {
  static work w;
  work_init(&w);
  return &w;
}

static void submit(work *w, uint64_t n) {
  batch b = batch_of(n);
  assert_true(batch_thread_submit(w->thread, &b));
  memset(&b, 0xff, sizeof b); /* it was copied */
}

/* Some by submit, some by turns, one after the other. */
static void one_after_the_other(void **state) {
  (void)state;
  work *w = fresh();
  uint64_t n = 0;
  open_with(w, next_batch, run);
  for (int i = 0; i < 2000; i++) {
    uint64_t more = (uint64_t)(i % 4);
    w->chain = more;
    w->next = n + 1;
    submit(w, n);
    sem_wait(&w->done);
    n += 1 + more;
    assert_int_equal(w->count, n);
    if (i % 7 == 0) usleep(200); /* it sleeps */
  }
  batch_thread_stop(w->thread);
  expect_clean(w);
  for (uint64_t i = 0; i < n; i++) assert_int_equal(w->log[i], i);
  batch b = batch_of(n);
  assert_false(batch_thread_submit(w->thread, &b));
  batch_thread_close(w->thread);
  assert_int_equal(w->count, n);
}

/* What was submitted is done, however soon the end comes; nobody's signals are lost with the thread. */
static void an_end_loses_nothing(void **state) {
  (void)state;
  sigset_t some, before;
  sigemptyset(&some);
  sigaddset(&some, SIGUSR2);
  pthread_sigmask(SIG_SETMASK, &some, &before);
  for (int i = 0; i < 500; i++) {
    work *w = fresh();
    open_with(w, next_batch, run);
    if (i % 2) submit(w, 7);
    if (i % 3) batch_thread_stop(w->thread);
    batch_thread_close(w->thread);
    expect_clean(w);
    assert_int_equal(w->count, i % 2);
    if (i % 2) assert_int_equal(w->log[0], 7);
  }
  pthread_sigmask(SIG_SETMASK, &before, &some);
  for (int n = 1; n < SIGRTMIN; n++) assert_int_equal(sigismember(&some, n), n == SIGUSR2);
  batch_thread_close(NULL);
}

static void *stop(void *argument) {
  work *w = argument;
  batch_thread_stop(w->thread);
  return atomic_load(&w->over) ? w : NULL;
}

static void stop_waits_for_the_run(void **state) {
  (void)state;
  work *w = fresh();
  pthread_t stopper;
  void *waited;
  w->held = true;
  open_with(w, next_batch, run);
  submit(w, 1);
  sem_wait(&w->running);
  assert_int_equal(pthread_create(&stopper, NULL, stop, w), 0);
  sem_post(&w->go);
  pthread_join(stopper, &waited);
  assert_non_null(waited);
  expect_clean(w);
  batch_thread_close(w->thread);
  assert_int_equal(w->count, 1);
}

/* Who always has a next batch is stopped all the same, between two; all that were begun came in order. */
static void stop_ends_a_chain(void **state) {
  (void)state;
  work *w = fresh();
  alarm(PATIENCE_US / 1000000); /* a failure of this test is its end */
  w->chain = UINT64_MAX;
  w->next = 1;
  w->held = true; /* the second run waits for the stop, which comes from elsewhere */
  open_with(w, next_batch, run);
  submit(w, 0);
  sem_wait(&w->running);
  sem_post(&w->go);
  sem_wait(&w->running);
  pthread_t stopper;
  assert_int_equal(pthread_create(&stopper, NULL, stop, w), 0);
  for (int i = 0; i < LOG_MAX - 2; i++) sem_post(&w->go);
  pthread_join(stopper, NULL);
  alarm(0);
  expect_clean(w);
  assert_true(w->count >= 2 && w->count < LOG_MAX);
  for (int i = 0; i < w->count; i++) assert_int_equal(w->log[i], i);
  assert_int_equal(w->next, w->count + 1); /* the one that was filled and not begun */
  batch_thread_close(w->thread);
}

/* As a worker uses it: work comes from another thread, which submits where nothing is under way; else a
 * next_batch takes it. */
typedef struct queue {
  work work;
  pthread_mutex_t lock;
  uint64_t come, taken; /* numbers [taken, come) wait */
  bool busy;
} queue;

static bool take(queue *q, batch *out) { /* under the lock */
  q->busy = q->taken < q->come;
  if (q->busy) *out = batch_of(q->taken++);
  return q->busy;
}

static bool turn_of_queue(void *context, void *next) {
  queue *q = context;
  pthread_mutex_lock(&q->lock);
  bool more = take(q, next);
  pthread_mutex_unlock(&q->lock);
  if (!more) sem_post(&q->work.done);
  return more;
}

static void run_quickly(void *context, const void *given) {
  note(context, given);
}

static void come(queue *q) {
  batch b;
  pthread_mutex_lock(&q->lock);
  q->come++;
  bool idle = !q->busy && take(q, &b);
  pthread_mutex_unlock(&q->lock);
  if (idle) assert_true(batch_thread_submit(q->work.thread, &b));
}

static void nothing_is_lost_between_two_threads(void **state) {
  (void)state;
  static queue q;
  bool busy = true;
  work_init(&q.work);
  pthread_mutex_init(&q.lock, NULL);
  open_with(&q.work, turn_of_queue, run_quickly);
  for (uint64_t n = 0; n < LOG_MAX; n++) {
    come(&q);
    if (n % 997 == 0) usleep(200); /* longer than it spins: it sleeps and is woken */
  }
  while (busy) { /* until it has fallen asleep over an empty queue */
    sem_wait(&q.work.done);
    pthread_mutex_lock(&q.lock);
    busy = q.busy;
    pthread_mutex_unlock(&q.lock);
  }
  batch_thread_close(q.work.thread);
  expect_clean(&q.work);
  assert_int_equal(q.work.count, LOG_MAX);
  for (uint64_t n = 0; n < LOG_MAX; n++) assert_int_equal(q.work.log[n], n);
  pthread_mutex_destroy(&q.lock);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_after_the_other),
      cmocka_unit_test(an_end_loses_nothing),
      cmocka_unit_test(stop_waits_for_the_run),
      cmocka_unit_test(stop_ends_a_chain),
      cmocka_unit_test(nothing_is_lost_between_two_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
