/* libs: speculative */
#include "common/speculative/average.h"

#include "common/speculative/policy_constants.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

static void test_the_first_samples_count_alike(void **state) {
  (void)state;
  average a = {0};
  for (int i = 1; i <= 4; i++) average_add(&a, i);
  assert_true(fabs(a.mean - 2.5) < 1e-9);
  assert_int_equal(a.count, 4);
}

static void test_later_samples_count_an_eighth(void **state) {
  (void)state;
  average a = {.mean = 100, .count = 1000};
  average_add(&a, 180);
  assert_true(fabs(a.mean - (100 + 80 * POLICY_GAIN)) < 1e-9);
  assert_true(POLICY_GAIN == 0.125);
}

/* POLICY_OUTLIER: a forward that lost its processor for a second moves the mean no more than a slow one. */
static void test_an_outlier_counts_as_a_few_means(void **state) {
  (void)state;
  average slow = {.mean = 100, .count = 1000}, lost = slow;
  average_add(&slow, POLICY_OUTLIER * 100);
  average_add(&lost, 1e6);
  assert_true(slow.mean == lost.mean && slow.deviation == lost.deviation);
}

static void test_the_deviation_follows_the_spread(void **state) {
  (void)state;
  average a = {0};
  for (int i = 0; i < 200; i++) average_add(&a, i % 2 ? 900 : 1100);
  assert_true(fabs(a.mean - 1000) < 30);
  assert_true(fabs(a.deviation - 100) < 30);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_first_samples_count_alike),
      cmocka_unit_test(test_later_samples_count_an_eighth),
      cmocka_unit_test(test_an_outlier_counts_as_a_few_means),
      cmocka_unit_test(test_the_deviation_follows_the_spread),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
