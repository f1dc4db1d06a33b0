/* libs: sessions wire speculative base */
#include "orchestrator/sessions/session_stats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { A = 2, B = 3 };

static const uint64_t positions[] = {5, 3, 1};
static const msg_stats some = {.forwards = 10,
                               .rounds = 4,
                               .rows = 30,
                               .accepted = 9,
                               .rewound = 21,
                               .prefill_us = 1,
                               .queue_us = 2,
                               .forward_us = 3,
                               .accept_us = 4,
                               .commit_us = 5,
                               .wait_us = 6,
                               .plain_steps = 6,
                               .resets = 7,
                               .dropped = 8,
                               .verdicts = 9,
                               .ahead_hits = 3,
                               .survivors = 17,
                               .accepted_per_pos = positions,
                               .position_count = 3};

/* The total is so many times `some`. */
static void expect_total(const session_stats *f, uint64_t times) {
  uint64_t per_pos[WIRE_POSITIONS_MAX];
  msg_stats s = session_stats_total(f, per_pos);
  const uint64_t got[] = {s.forwards, s.rounds,     s.rows,      s.accepted,   s.rewound,  s.prefill_us,
                          s.queue_us, s.forward_us, s.accept_us, s.commit_us,  s.wait_us,  s.plain_steps,
                          s.resets,   s.dropped,    s.verdicts,  s.ahead_hits, s.survivors};
  const uint64_t want[] = {10, 4, 30, 9, 21, 1, 2, 3, 4, 5, 6, 6, 7, 8, 9, 3, 17};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) assert_int_equal(got[i], times * want[i]);
  assert_int_equal(s.position_count, times ? 3 : 0);
  for (int32_t i = 0; i < s.position_count; i++)
    assert_int_equal(s.accepted_per_pos[i], times * positions[i]);
}

static void test_a_report_replaces_the_one_before(void **state) {
  (void)state;
  session_stats f = {0};
  session_stats_begin(&f, 100);
  expect_total(&f, 0);
  assert_int_equal(session_stats_missing(&f, 119), 19);
  session_stats_report(&f, &some, 119);
  session_stats_report(&f, &some, 119); /* DONE is repeated */
  expect_total(&f, 1);
  assert_int_equal(session_stats_missing(&f, 119), 0);
}

/* Target A is left and reports later, target B dies. */
static void test_the_counts_of_targets_that_were_left_are_added(void **state) {
  (void)state;
  session_stats f = {0};
  session_stats_begin(&f, 100);
  session_stats_leave(&f, A, 119);
  assert_int_equal(session_stats_missing(&f, 125), 25);
  session_stats_report_late(&f, B, &some); /* not expected */
  expect_total(&f, 0);
  session_stats_report_late(&f, A, &some);
  session_stats_report_late(&f, A, &some);
  expect_total(&f, 1);
  assert_int_equal(session_stats_missing(&f, 125), 6);
  session_stats_leave(&f, B, 125); /* for A again */
  session_stats_report(&f, &some, 144);
  expect_total(&f, 2);
  assert_int_equal(session_stats_missing(&f, 144), 6);
  session_stats_report_late(&f, A, &some);
  session_stats_report_late(&f, 0, &some);
  expect_total(&f, 2);
}

static void test_a_target_that_reported_before_it_was_left_is_counted_once(void **state) {
  (void)state;
  session_stats f = {0};
  session_stats_begin(&f, 100);
  session_stats_report(&f, &some, 119);
  session_stats_leave(&f, A, 119);
  session_stats_report_late(&f, A, &some); /* DONE is repeated */
  expect_total(&f, 1);
  assert_int_equal(session_stats_missing(&f, 119), 0);
}

static void test_tokens_of_an_earlier_run_stay_uncounted(void **state) {
  (void)state;
  session_stats f = {.missing = 40};
  session_stats_begin(&f, 140);
  session_stats_report(&f, &some, 159);
  assert_int_equal(session_stats_missing(&f, 159), 40);
}

/* It was lost for a while, and kept the session: its counts begin with its first visit. */
static void test_a_target_that_comes_back_tells_of_its_earlier_visit(void **state) {
  (void)state;
  session_stats f = {0};
  session_stats_begin(&f, 100);
  session_stats_leave(&f, A, 110);
  session_stats_report(&f, &some, 119);
  session_stats_report(&f, &some, 119);
  expect_total(&f, 1);
  assert_int_equal(session_stats_missing(&f, 119), 0);
}

/* Some tokens were on their way when B was lost, and the next target gave them anew. */
static void test_what_two_targets_have_given_is_no_earlier_visit(void **state) {
  (void)state;
  session_stats f = {0};
  session_stats_begin(&f, 100);
  session_stats_arrive(&f, (wire_id){{B}});
  session_stats_leave(&f, B, 104);
  session_stats_arrive(&f, (wire_id){{A}});
  session_stats_report(&f, &some, 119);
  assert_int_equal(session_stats_missing(&f, 119), 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_report_replaces_the_one_before),
      cmocka_unit_test(test_the_counts_of_targets_that_were_left_are_added),
      cmocka_unit_test(test_a_target_that_reported_before_it_was_left_is_counted_once),
      cmocka_unit_test(test_a_target_that_comes_back_tells_of_its_earlier_visit),
      cmocka_unit_test(test_what_two_targets_have_given_is_no_earlier_visit),
      cmocka_unit_test(test_tokens_of_an_earlier_run_stay_uncounted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
