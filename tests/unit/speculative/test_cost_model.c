/* libs: speculative */
#include "common/speculative/cost_model.h"

#include "common/speculative/policy_constants.h"
#include "tests/support/random.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

static void measure(cost_model *c, int32_t rows, double us, int times) {
  for (int i = 0; i < times; i++) cost_model_measured(c, rows, 0, us);
}

static void test_nothing_measured_costs_nothing(void **state) {
  (void)state;
  cost_model c = {0};
  assert_true(cost_model_us(&c, 1, 100) == 0);
  assert_false(cost_model_fresh(&c, COST_ROWS_MAX));
}

static void test_unknown_widths_lie_on_the_line_between_known_ones(void **state) {
  (void)state;
  cost_model c = {0};
  measure(&c, 1, 1000, 3);
  measure(&c, 9, 1800, 3);
  assert_true(fabs(cost_model_us(&c, 5, 0) - 1400) < 1);
  assert_true(fabs(cost_model_us(&c, 17, 0) - 2600) < 1); /* beyond, it goes on */
}

/* POLICY_SLOPE: with one width known, a row more costs a little, so that wider forwards are tried. */
static void test_a_row_beyond_the_known_costs_a_little(void **state) {
  (void)state;
  cost_model c = {0};
  measure(&c, 1, 1000, 3);
  assert_true(fabs(cost_model_us(&c, 2, 0) - 1000 * (1 + POLICY_SLOPE)) < 1);
  measure(&c, 16, 1000, 3); /* rows are free up to 16 */
  assert_true(cost_model_us(&c, 17, 0) > 1000 * (1 + POLICY_SLOPE / 2));
}

/* Whatever held up a narrow forward, it costs no more than a wider one does. */
static void test_narrower_never_costs_more_than_wider(void **state) {
  (void)state;
  uint64_t rng = 7;
  cost_model c = {0};
  for (int i = 0; i < 3000; i++) {
    int32_t rows = 1 + (int32_t)random_below(&rng, 32);
    cost_model_measured(&c, rows, 0, (1000 + 60 * rows) * (0.7 + random_below(&rng, 60) / 100.0));
    for (int32_t k = 1; k < 32; k++) {
      if (!cost_model_known(&c, k) || !cost_model_known(&c, k + 1) || k >= rows) continue;
      assert_true(cost_model_us(&c, k, 0) <= cost_model_us(&c, rows, 0) + 1e-6);
    }
  }
}

/* Where long contexts happened to be slow, positions look dear and rows cheap: a plain step is not made
 * cheaper than any forward was. */
static void test_positions_that_look_dear_make_no_plain_step_cheap(void **state) {
  (void)state;
  cost_model c = {0};
  for (int i = 0; i < 3; i++) cost_model_measured(&c, 1, 100, 750);
  for (int i = 0; i < 40; i++) cost_model_measured(&c, 8, i % 2 ? 800 : 1600, i % 2 ? 1000 : 1600);
  assert_true(cost_model_position_us(&c) > 0.5);
  assert_true(fabs(cost_model_us(&c, 1, 100) - 750) < 1);
}

/* An unlucky first try of a width does not make it look dear for good. */
static void test_a_first_sample_is_bounded_by_what_was_expected(void **state) {
  (void)state;
  cost_model c = {0};
  measure(&c, 1, 1000, 10);
  measure(&c, 4, 50000, 1);
  assert_true(cost_model_us(&c, 4, 0) <= POLICY_OUTLIER * 1000 * (1 + 3 * POLICY_SLOPE) + 1);
  measure(&c, 4, 5000, 10); /* but if it is so dear, that is learnt soon */
  assert_true(cost_model_us(&c, 4, 0) > 4000);
}

/* POLICY_DOUBT and POLICY_AGAIN: the capture of a graph happens once. */
static void test_a_first_sample_far_above_the_expected_time_is_soon_measured_again(void **state) {
  (void)state;
  cost_model c = {0};
  measure(&c, 1, 1000, 3);
  measure(&c, 8, 3000, 1);
  measure(&c, 1, 1000, POLICY_AGAIN);
  assert_true(cost_model_known(&c, 8));
  measure(&c, 1, 1000, 1);
  assert_false(cost_model_known(&c, 8));
  assert_true(cost_model_us(&c, 8, 0) < 1500);
  measure(&c, 8, 1600, 1);
  assert_true(fabs(cost_model_us(&c, 8, 0) - 1600) < 1);
  measure(&c, 1, 1000, POLICY_AGAIN + 1);
  assert_true(cost_model_known(&c, 8)); /* and that is believed */
}

/* The lower of both counts, also where the second one comes while the first is still believed. */
static void test_a_second_sample_only_lowers_a_doubtful_first_one(void **state) {
  (void)state;
  for (int dear = 0; dear < 2; dear++) {
    cost_model c = {0};
    measure(&c, 1, 1000, 3);
    measure(&c, 8, 2000, 1);
    measure(&c, 8, dear ? 9000 : 1600, 1);
    assert_true(fabs(cost_model_us(&c, 8, 0) - (dear ? 2000 : 1600)) < 1);
  }
}

/* POLICY_STALE: a width that has not been seen for long is unknown again, and tried anew. */
static void test_an_old_width_is_forgotten(void **state) {
  (void)state;
  cost_model c = {0};
  measure(&c, 4, 9000, 3);
  measure(&c, 1, 1000, POLICY_STALE);
  assert_true(cost_model_known(&c, 4));
  measure(&c, 1, 1000, 1);
  assert_false(cost_model_known(&c, 4));
  assert_true(cost_model_us(&c, 4, 0) < 2000);
  measure(&c, 4, 1200, 1); /* and nothing is left of what it was */
  assert_true(fabs(cost_model_us(&c, 4, 0) - 1200) < 1);
  assert_true(cost_model_fresh(&c, 1));
  measure(&c, 4, 1200, POLICY_STALE + 1);
  assert_true(cost_model_known(&c, 1));  /* a plain step is always known, */
  assert_false(cost_model_fresh(&c, 3)); /* but it should be measured now */
}

/* The KV cache: time grows with what rows read, as the pieces of a prompt show. */
static void test_a_prompt_tells_what_positions_cost(void **state) {
  (void)state;
  uint64_t rng = 3;
  cost_model c = {0};
  cost_model_measured(&c, 1, 100, 3000);
  for (int32_t kv = 0; kv < 2000; kv += 128)
    cost_model_read(&c, 128.0 * kv, 40000 + 0.6 * 128 * kv + random_below(&rng, 1000));
  assert_true(fabs(cost_model_position_us(&c) - 0.6) < 0.1);
  assert_true(fabs(cost_model_us(&c, 1, 2100) - 4200) < 250); /* never measured so far back */
}

/* POLICY_SPREAD: noise at one place in the cache says nothing of positions. */
static void test_noise_is_not_taken_for_a_slope(void **state) {
  (void)state;
  uint64_t rng = 5;
  cost_model c = {0};
  double most = 0;
  for (int32_t kv = 100; kv < 300; kv++) {
    cost_model_measured(&c, 1, kv, 3000 + random_below(&rng, 400));
    most = fmax(most, cost_model_position_us(&c));
  }
  assert_true(fabs(cost_model_us(&c, 1, 300) - 3200) < 150);
  assert_true(most < 3);
}

/* POLICY_SPREAD_SHARE: nor does it far back, where a slope counts for more. What was recorded on a GPU: each
 * step of four rows reads 16 positions more than the last, and one took a tenth longer. */
static void test_noise_far_back_is_not_taken_for_a_slope(void **state) {
  (void)state;
  enum { FAR = 30000 };
  cost_model c = {0};
  cost_model_measured(&c, 1, FAR, 1780);
  for (int32_t i = 0; i < 60; i++) {
    cost_model_measured(&c, 4, 4.0 * (FAR + 4 * i), i % 10 == 9 ? 3190 : 2900);
    assert_true(cost_model_position_us(&c) * FAR < 90);
    assert_true(fabs(cost_model_us(&c, 1, FAR) - 1780) < 30);
    assert_true(cost_model_us(&c, 8, 8.0 * FAR) < 5000);
  }
}

/* But chunks of a long prompt, and sessions of several lengths, are believed. */
static void test_a_slope_is_found_far_back(void **state) {
  (void)state;
  uint64_t rng = 9;
  cost_model read = {0}, mixed = {0};
  for (int32_t kv = 0; kv < 30000; kv += 512) cost_model_read(&read, 64.0 * kv, 2500 + 0.005 * 64 * kv);
  cost_model_measured(&read, 1, 30000, 1780);
  assert_true(fabs(cost_model_position_us(&read) - 0.005) < 0.001);
  for (int32_t i = 0; i < 200; i++) {
    const int32_t kv = 20000 + 10000 * (i % 2);
    cost_model_measured(&mixed, 1, kv, 1000 + 0.02 * kv + random_below(&rng, 60));
  }
  assert_true(fabs(cost_model_position_us(&mixed) - 0.02) < 0.005);
}

/* POLICY_PROBE rows at first, then twice what is known. */
static void test_wider_forwards_are_tried_by_doubling(void **state) {
  (void)state;
  cost_model c = {0};
  assert_int_equal(cost_model_widest_try(&c, 1), POLICY_PROBE);
  measure(&c, 1, 1000, 1);
  assert_int_equal(cost_model_widest_try(&c, 1), POLICY_PROBE);
  measure(&c, 4, 1000, 1);
  assert_int_equal(cost_model_widest_try(&c, 1), 8);
  assert_int_equal(cost_model_widest_try(&c, 8), 8 + POLICY_PROBE - 1);
  measure(&c, 200, 9000, 1);
  assert_int_equal(cost_model_widest_try(&c, 1), COST_ROWS_MAX);
}

/* --- a device that computes in steps --- */

static int32_t doubling(void *context, int32_t rows) { /* 1, 2, 4, 8, ... */
  int32_t width = 1;
  (void)context;
  while (width < rows) width *= 2;
  return width;
}

static int32_t eights(void *context, int32_t rows) {
  (void)context;
  return (rows + 7) / 8 * 8;
}

static void test_a_time_belongs_to_the_whole_step(void **state) {
  (void)state;
  cost_model c = {0};
  cost_model_steps(&c, doubling, NULL);
  measure(&c, 1, 1000, 3);
  measure(&c, 5, 1600, 3);
  for (int32_t rows = 5; rows <= 8; rows++) {
    assert_int_equal(cost_model_step_end(&c, rows), 8);
    assert_true(cost_model_known(&c, rows));
    assert_true(fabs(cost_model_us(&c, rows, 0) - 1600) < 1);
  }
  assert_false(cost_model_known(&c, 4));
  assert_true(fabs(cost_model_us(&c, 3, 0) - cost_model_us(&c, 4, 0)) < 1e-9);
  assert_true(cost_model_us(&c, 3, 0) > 1000 && cost_model_us(&c, 4, 0) < 1600);
  assert_true(cost_model_us(&c, 9, 0) > 1600 && cost_model_us(&c, 9, 0) == cost_model_us(&c, 16, 0));
  measure(&c, 7, 2000, 20); /* the same step */
  assert_true(cost_model_us(&c, 5, 0) > 1900);
}

/* Beyond the largest number of rows nothing is looked up. */
static void test_steps_end_with_the_table(void **state) {
  (void)state;
  cost_model c = {0};
  cost_model_steps(&c, doubling, NULL);
  assert_int_equal(cost_model_step_end(&c, 129), COST_ROWS_MAX);
  measure(&c, COST_ROWS_MAX, 9000, 1);
  assert_int_equal(cost_model_widest_try(&c, 1), COST_ROWS_MAX);
  cost_model_steps(&c, eights, NULL);
  for (int32_t rows = 1; rows <= COST_ROWS_MAX; rows++)
    assert_true(cost_model_step_end(&c, rows) >= rows && cost_model_step_end(&c, rows) <= COST_ROWS_MAX);
}

/* Where a row alone costs what 8 cost, a plain step is known by each of them, and stays so. */
static void test_a_plain_step_may_be_wide(void **state) {
  (void)state;
  cost_model c = {0};
  cost_model_steps(&c, eights, NULL);
  measure(&c, 1, 1000, 3);
  assert_true(fabs(cost_model_us(&c, 8, 0) - 1000) < 1);
  assert_int_equal(cost_model_widest_try(&c, 1), 16);
  measure(&c, 16, 1100, POLICY_STALE + 2);
  assert_true(cost_model_known(&c, 1));
}

static void test_a_first_try_fills_its_step(void **state) {
  (void)state;
  cost_model c = {0};
  cost_model_steps(&c, doubling, NULL);
  assert_int_equal(cost_model_widest_try(&c, 1), 4);
  assert_int_equal(cost_model_widest_try(&c, 2), 8); /* 5 rows cost as much */
  measure(&c, 6, 1000, 1);
  assert_int_equal(cost_model_widest_try(&c, 1), 16);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nothing_measured_costs_nothing),
      cmocka_unit_test(test_unknown_widths_lie_on_the_line_between_known_ones),
      cmocka_unit_test(test_a_row_beyond_the_known_costs_a_little),
      cmocka_unit_test(test_narrower_never_costs_more_than_wider),
      cmocka_unit_test(test_positions_that_look_dear_make_no_plain_step_cheap),
      cmocka_unit_test(test_a_first_sample_is_bounded_by_what_was_expected),
      cmocka_unit_test(test_a_first_sample_far_above_the_expected_time_is_soon_measured_again),
      cmocka_unit_test(test_a_second_sample_only_lowers_a_doubtful_first_one),
      cmocka_unit_test(test_an_old_width_is_forgotten),
      cmocka_unit_test(test_a_prompt_tells_what_positions_cost),
      cmocka_unit_test(test_noise_is_not_taken_for_a_slope),
      cmocka_unit_test(test_noise_far_back_is_not_taken_for_a_slope),
      cmocka_unit_test(test_a_slope_is_found_far_back),
      cmocka_unit_test(test_wider_forwards_are_tried_by_doubling),
      cmocka_unit_test(test_a_time_belongs_to_the_whole_step),
      cmocka_unit_test(test_steps_end_with_the_table),
      cmocka_unit_test(test_a_plain_step_may_be_wide),
      cmocka_unit_test(test_a_first_try_fills_its_step),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
