/* libs: spec base */
#include "common/spec/width.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define NEAR 1e-6

static void assert_near(double got, double expected, double bound) {
  if (!(fabs(got - expected) <= bound)) fail_msg("%.9g instead of %.9g", got, expected);
}

/* A machine on which rows are free to four, then dear. */
static width_costs machine(void) {
  width_costs w = {0};
  for (int32_t rows = 1; rows <= 9; rows++)
    width_measured(&w, rows, rows <= 4 ? 1000 : 1000 + 500 * (rows - 4));
  return w;
}

static void logs(const double *p, float *out, int32_t count) {
  for (int32_t i = 0; i < count; i++) out[i] = (float)log(p[i]);
}

static void nothing_is_known_at_first(void **state) {
  (void)state;
  width_costs w = {0};
  const float totals[3] = {-1, -2, -3};
  assert_int_equal(width_best(&w, 1, totals, 3), 3);
  assert_near(width_cost(&w, 7), 0, 0);
}

static void free_rows_are_filled_and_dear_ones_only_when_they_pay(void **state) {
  (void)state;
  width_costs w = machine();
  float totals[8];
  logs((double[]){0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2}, totals, 8);
  /* tokens / cost: 3.4 / 1000 with three nodes; 4 / 1500 with four */
  assert_int_equal(width_best(&w, 1, totals, 8), 3);
  logs((double[]){0.01, 0.001}, totals, 2); /* a free row is worth any promise */
  assert_int_equal(width_best(&w, 1, totals, 2), 2);
  for (int32_t rows = 2; rows <= 9; rows++)
    for (int i = 0; i < 200; i++)
      width_measured(&w, rows, 1000 + 50 * (rows - 1)); /* now five in a hundred a row */
  logs((double[]){0.9, 0.8, 0.7, 0.6, 0.5, 0.01, 0.01, 0.01}, totals, 8);
  assert_int_equal(width_best(&w, 1, totals, 8), 5);
  logs((double[]){0.04, 0.04}, totals, 2); /* a row costs more than it promises */
  assert_int_equal(width_best(&w, 1, totals, 2), 0);
}

static void what_was_not_measured_lies_on_the_line(void **state) {
  (void)state;
  width_costs w = {0};
  width_measured(&w, 1, 1000);
  assert_near(width_cost(&w, 1), 1000, NEAR);
  assert_near(width_cost(&w, 3), 1000 * (1 + 2 * WIDTH_SLOPE), NEAR);
  width_measured(&w, 5, 3000);
  assert_near(width_cost(&w, 2), 1500, NEAR);
  assert_near(width_cost(&w, 4), 2500, NEAR);
  assert_near(width_cost(&w, 6), 3000 * (1 + WIDTH_SLOPE), NEAR);
}

/* A first try is at most twice as wide as what is known, and sixteen rows. */
static void tries_grow(void **state) {
  (void)state;
  width_costs w = {0};
  float totals[100] = {0};
  assert_int_equal(width_best(&w, 1, totals, 100), WIDTH_TRY - 1);
  assert_int_equal(width_best(&w, 8, totals, 100), WIDTH_TRY - 8);
  assert_int_equal(width_best(&w, 10, totals, 100), 10);
  width_measured(&w, 8, 1000);
  assert_int_equal(width_best(&w, 8, totals, 100), WIDTH_TRY - 8);
  width_measured(&w, 12, 1000);
  assert_int_equal(width_best(&w, 8, totals, 100), 2 * 12 - 8);
}

/* One bad moment must not rule out a width for good. */
static void old_measurements_are_forgotten(void **state) {
  (void)state;
  width_costs w = {0};
  width_measured(&w, 1, 1000);
  width_measured(&w, 4, 9000);
  float totals[3];
  logs((double[]){0.5, 0.4, 0.3}, totals, 3);
  assert_int_equal(width_best(&w, 1, totals, 3), 0);
  for (int i = 0; i <= WIDTH_FRESH; i++) width_measured(&w, 1, 1000);
  assert_int_equal(width_best(&w, 1, totals, 3), 3);
  width_measured(&w, 4, 1100);
  assert_near(width_cost(&w, 4), 1100, NEAR);
}

static void an_outlier_counts_little(void **state) {
  (void)state;
  width_costs w = {0};
  width_measured(&w, 2, 1000);
  width_measured(&w, 2, 100000);
  assert_near(width_cost(&w, 2), 1125, NEAR);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nothing_is_known_at_first),
      cmocka_unit_test(free_rows_are_filled_and_dear_ones_only_when_they_pay),
      cmocka_unit_test(what_was_not_measured_lies_on_the_line),
      cmocka_unit_test(tries_grow),
      cmocka_unit_test(old_measurements_are_forgotten),
      cmocka_unit_test(an_outlier_counts_little),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
