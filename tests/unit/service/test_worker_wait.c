/* libs: service base */
/* Only a program that does nothing is told of, and given up. */
#include "orchestrator/service/worker_wait.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void test_one_that_does_nothing_is_told_of_once_and_given_up(void **state) {
  (void)state;
  worker_wait w = {.idle_s = 0};
  for (int32_t s = 1; s <= WORKER_WAIT_MAX_S; s++) {
    worker_wait_verdict want = s == WORKER_WAIT_NOTICE_S ? WORKER_WAIT_TELL
                               : s == WORKER_WAIT_MAX_S  ? WORKER_WAIT_GIVE_UP
                                                         : WORKER_WAIT_ON;
    assert_int_equal(worker_wait_second(&w, 3), want);
  }
  assert_int_equal(worker_wait_second(&w, 4), WORKER_WAIT_GIVE_UP);
}

/* A script that sleeps in a loop takes a little time again and again. */
static void test_turning_over_is_no_work(void **state) {
  (void)state;
  worker_wait w = {.idle_s = 0};
  worker_wait_verdict v = WORKER_WAIT_ON;
  for (uint64_t s = 1; s <= WORKER_WAIT_MAX_S; s++) v = worker_wait_second(&w, 2 + s / 6);
  assert_int_equal(v, WORKER_WAIT_GIVE_UP);
}

/* A slow disk, or a processor that others use: a third of a second in a minute is enough. */
static void test_one_that_works_may_take_any_time(void **state) {
  (void)state;
  worker_wait w = {.idle_s = 0};
  for (uint64_t s = 1; s <= 100 * WORKER_WAIT_MAX_S; s++)
    assert_int_not_equal(worker_wait_second(&w, s / 2), WORKER_WAIT_GIVE_UP);
}

static void test_one_that_was_started_again_begins_anew(void **state) {
  (void)state;
  worker_wait w = {.idle_s = 0};
  for (int32_t s = 1; s < WORKER_WAIT_MAX_S; s++) worker_wait_second(&w, 50);
  assert_int_equal(worker_wait_second(&w, 1), WORKER_WAIT_ON);
  assert_int_equal(w.idle_s, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_that_does_nothing_is_told_of_once_and_given_up),
      cmocka_unit_test(test_turning_over_is_no_work),
      cmocka_unit_test(test_one_that_works_may_take_any_time),
      cmocka_unit_test(test_one_that_was_started_again_begins_anew),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
