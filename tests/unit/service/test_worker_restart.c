/* libs: service base */
#include "orchestrator/service/worker_restart.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

enum { KILLED = -1, BY_ITSELF = 3 };

static child_processes_exit exit_of(int code, int starts) {
  return (child_processes_exit){.name = "tandem-target", .code = code, .starts = starts};
}

static void test_a_program_that_could_not_start_is_not_started_again(void **state) {
  (void)state;
  child_processes_exit x = exit_of(BY_ITSELF, 1);
  assert_false(worker_restart_helps(&x, false));
  assert_string_equal(worker_restart_verdict(&x), "could not start");
}

static void test_one_that_had_registered_or_was_killed_is_started_again(void **state) {
  (void)state;
  child_processes_exit by_itself = exit_of(BY_ITSELF, 1), killed = exit_of(KILLED, 1);
  assert_true(worker_restart_helps(&by_itself, true));
  assert_true(worker_restart_helps(&killed, false));
}

static void test_there_is_a_limit_to_restarts(void **state) {
  (void)state;
  child_processes_exit last = exit_of(KILLED, WORKER_RESTART_MAX),
                       more = exit_of(KILLED, WORKER_RESTART_MAX + 1);
  assert_true(worker_restart_helps(&last, true));
  assert_false(worker_restart_helps(&more, true));
  child_processes_exit often = exit_of(BY_ITSELF, WORKER_RESTART_MAX + 1);
  assert_string_equal(worker_restart_verdict(&more), "kept dying");
  assert_string_equal(worker_restart_verdict(&often), "kept dying");
}

/* One that the system has killed has said nothing. */
static void test_where_to_look_depends_on_how_it_ended(void **state) {
  (void)state;
  child_processes_exit said = exit_of(BY_ITSELF, 1), starved = exit_of(-SIGKILL, 6),
                       crashed = exit_of(-SIGSEGV, 6);
  assert_string_equal(worker_restart_remedy(&said), "see its message above");
  assert_non_null(strstr(worker_restart_remedy(&starved), "out of memory"));
  assert_non_null(strstr(worker_restart_remedy(&crashed), "report this"));
}

static void test_each_wait_is_twice_as_long_as_the_one_before(void **state) {
  (void)state;
  uint64_t sum = 0;
  for (int starts = 1; starts <= WORKER_RESTART_MAX; starts++) {
    child_processes_exit x = exit_of(KILLED, starts);
    assert_int_equal(worker_restart_delay_ms(&x), sum           ? sum + WORKER_RESTART_MS
                                                  : starts == 2 ? WORKER_RESTART_MS
                                                                : 0);
    sum += worker_restart_delay_ms(&x);
  }
  assert_true(sum < 10000); /* a session waits for a target for 30 s */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_program_that_could_not_start_is_not_started_again),
      cmocka_unit_test(test_one_that_had_registered_or_was_killed_is_started_again),
      cmocka_unit_test(test_there_is_a_limit_to_restarts),
      cmocka_unit_test(test_where_to_look_depends_on_how_it_ended),
      cmocka_unit_test(test_each_wait_is_twice_as_long_as_the_one_before),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
