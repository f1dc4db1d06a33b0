/* libs: base */
#include "common/base/ring.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/support/patience.h"
#include "tests/support/thread_state.h"

typedef struct item {
  uint64_t number;
  uint64_t body[9]; /* all equal to number: a torn copy shows */
} item;

static item item_of(uint64_t n) {
  item x = {.number = n};
  for (int i = 0; i < 9; i++) x.body[i] = n;
  return x;
}

static void assert_item(const item *x, uint64_t n) {
  assert_int_equal(x->number, n);
  for (int i = 0; i < 9; i++) assert_int_equal(x->body[i], n);
}

static void full_and_empty(void **state) {
  (void)state;
  ring *r = ring_alloc(5, sizeof(item));
  item x;
  assert_false(ring_take(r, &x));
  uint64_t put = 0, taken = 0;
  for (int turn = 0; turn < 100; turn++) { /* goes round many times */
    item y = item_of(put);
    while (ring_put(r, &y)) y = item_of(++put);
    assert_int_equal(put - taken, 8); /* 5, rounded up to a power of two */
    for (int i = 0; i < 3 + turn % 6 && ring_take(r, &x); i++) assert_item(&x, taken++);
  }
  while (ring_take(r, &x)) assert_item(&x, taken++);
  assert_int_equal(taken, put);
  ring_free(r);
}

static void closed_keeps_its_items(void **state) {
  (void)state;
  ring *r = ring_alloc(4, sizeof(item));
  item x = item_of(7), y;
  assert_true(ring_put(r, &x));
  ring_close(r);
  assert_true(ring_wait(r, &y, RING_SPIN_US));
  assert_item(&y, 7);
  assert_false(ring_wait(r, &y, RING_SPIN_US));
  ring_free(r);
}

#define PASSED 60000

static void *put_all(void *argument) {
  ring *r = argument;
  for (uint64_t n = 0; n < PASSED; n++) {
    item x = item_of(n);
    while (!ring_put(r, &x)) sched_yield();
    if (n % 997 == 0) usleep(200); /* longer than the taker spins: it sleeps and is woken */
  }
  ring_close(r);
  return NULL;
}

static void two_threads(void **state) {
  (void)state;
  ring *r = ring_alloc(16, sizeof(item));
  pthread_t putter;
  assert_int_equal(pthread_create(&putter, NULL, put_all, r), 0);
  item x;
  uint64_t n = 0;
  while (ring_wait(r, &x, RING_SPIN_US)) assert_item(&x, n++);
  pthread_join(putter, NULL);
  assert_int_equal(n, PASSED);
  ring_free(r);
}

/* Two threads that answer each other: every item meets a taker that is about to sleep, or sleeps. A lost
 * wake-up hangs, and the time limit of the test tells. */
typedef struct service {
  ring *there, *back;
} service;

static void *answer_all(void *argument) {
  service *p = argument;
  item x;
  while (ring_wait(p->there, &x, RING_SPIN_US)) {
    if (x.number % 3 == 0) usleep(RING_SPIN_US);
    if (!ring_put(p->back, &x)) abort();
  }
  return NULL;
}

static void a_request_and_its_reply(void **state) {
  (void)state;
  service p = {ring_alloc(1, sizeof(item)), ring_alloc(1, sizeof(item))};
  pthread_t answerer;
  assert_int_equal(pthread_create(&answerer, NULL, answer_all, &p), 0);
  for (uint64_t n = 0; n < 3000; n++) {
    item x = item_of(n), y;
    if (n % 2 == 0) usleep(RING_SPIN_US + n % 5);
    assert_true(ring_put(p.there, &x));
    assert_true(ring_wait(p.back, &y, RING_SPIN_US));
    assert_item(&y, n);
  }
  ring_close(p.there);
  pthread_join(answerer, NULL);
  ring_free(p.there);
  ring_free(p.back);
}

typedef struct waiter {
  ring *ring;
  _Atomic int thread; /* 0: not begun */
  bool got;
} waiter;

static void *wait_for_nothing(void *argument) {
  waiter *w = argument;
  item x;
  w->thread = gettid();
  w->got = ring_wait(w->ring, &x, RING_SPIN_US);
  return NULL;
}

/* A taker that waits for nothing sleeps, until the ring is closed. */
static void waiting_costs_nothing(void **state) {
  (void)state;
  waiter w = {.ring = ring_alloc(1, sizeof(item))};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, wait_for_nothing, &w), 0);
  WAIT_UNTIL(w.thread && thread_sleeps(w.thread));
  ring_close(w.ring);
  pthread_join(thread, NULL);
  assert_false(w.got);
  ring_free(w.ring);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(full_and_empty),        cmocka_unit_test(closed_keeps_its_items),
      cmocka_unit_test(two_threads),           cmocka_unit_test(a_request_and_its_reply),
      cmocka_unit_test(waiting_costs_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
