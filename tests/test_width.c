/* libs: speculative base */
#include "common/speculative/width.h"

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
  assert_near(width_cost(&w, 6), 3500, NEAR);
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

/* One bad moment must not rule out a width for good: a wider forward that took less corrects it, and so does
 * a later prompt. */
static void a_bad_measurement_does_not_last(void **state) {
  (void)state;
  width_costs w = {0};
  width_measured(&w, 1, 1000);
  width_measured(&w, 4, 9000);
  float totals[3];
  logs((double[]){0.5, 0.4, 0.3}, totals, 3);
  assert_int_equal(width_best(&w, 1, totals, 3), 0);
  width_costs corrected = w;
  width_measured(&corrected, 8, 1400);
  assert_near(width_cost(&corrected, 4), 1400, NEAR);
  assert_near(width_cost(&corrected, 1), 1000, NEAR); /* that one is measured all the time */
  assert_int_equal(width_best(&corrected, 1, totals, 3), 3);
  for (int i = 0; i <= WIDTH_FRESH; i++) width_measured(&w, 1, 1000);
  width_measured(&w, 4, 1100); /* the old average does not count */
  assert_near(width_cost(&w, 4), 1100, NEAR);
}

/* Reads a prompt of so many rows as a target would; returns how many pieces were measured. */
static int32_t read_prompt(width_costs *w, int32_t rows, int32_t most) {
  int32_t count = 0;
  while (rows > 0) {
    bool measures;
    int32_t piece = width_piece(w, rows, most, &measures);
    assert_true(piece >= 1 && piece <= rows && piece <= most);
    if (measures) {
      assert_int_equal(piece, WIDTH_PROBE);
      assert_int_equal(piece, rows); /* its last ones: the first forward of a program is slower than others */
      width_measured(w, piece, 1500);
      count++;
    }
    rows -= piece;
  }
  return count;
}

static void the_first_prompt_measures(void **state) {
  (void)state;
  for (int32_t rows = 1; rows < 300; rows++) {
    width_costs w = {0};
    assert_int_equal(read_prompt(&w, rows, 128), rows >= WIDTH_PROBE);
    if (rows >= WIDTH_PROBE) assert_int_equal(read_prompt(&w, rows, 128), 0); /* now it is known */
  }
}

/* Much later another prompt looks whether a width that nobody used costs what it did. */
static void a_later_prompt_measures_again(void **state) {
  (void)state;
  width_costs w = {0};
  read_prompt(&w, 100, 128);
  for (int i = 0; i < WIDTH_OLD; i++) width_measured(&w, 1, 1000);
  assert_int_equal(read_prompt(&w, 100, 128), 0);
  width_measured(&w, 1, 1000);
  assert_int_equal(read_prompt(&w, 100, 128), 1);
}

/* Where rows are dear from the first on, more of them are not taken to be cheap. */
static void what_lies_beyond_goes_on_as_it_began(void **state) {
  (void)state;
  width_costs w = {0};
  width_measured(&w, 1, 1000);
  width_measured(&w, 4, 1600);
  assert_near(width_cost(&w, 6), 2000, NEAR);
  float totals[15];
  for (int i = 0; i < 15; i++) totals[i] = (float)log(0.15);
  assert_int_equal(width_best(&w, 1, totals, 15), 0);
  width_measured(&w, 8, 1600); /* and where they are free, not to be so for ever */
  assert_near(width_cost(&w, 10), 1600 * (1 + 2 * WIDTH_SLOPE), NEAR);
}

static void a_session_starts_small_and_earns_more(void **state) {
  (void)state;
  width_record r = {0};
  float totals[15], likely[15] = {0};
  logs((double[]){0.9, 0.8, 0.76, 0.75, 0.7, 0.6, 0.4, 0.38, 0.37, 0.3, 0.2, 0.1, 0.05, 0.04, 0.03}, totals,
       15);
  assert_int_equal(width_allowed(&r, likely, 15), WIDTH_START);
  assert_int_equal(width_allowed(&r, totals, 15), WIDTH_START);
  assert_int_equal(width_allowed(&r, totals + 4, 11), 0); /* none is probable enough for a start */
  width_stepped(&r, 0);                                   /* nothing earned */
  assert_int_equal(width_allowed(&r, likely, 15), WIDTH_START);
  width_stepped(&r, 1);
  assert_int_equal(width_allowed(&r, likely, 15), 2 * WIDTH_START);
  assert_int_equal(width_allowed(&r, totals + 4, 11), 5); /* down to half of what it was: 0.37 */
  width_stepped(&r, 5);
  assert_int_equal(width_allowed(&r, likely, 15), 4 * WIDTH_START);
  width_stepped(&r, 12);
  assert_int_equal(width_allowed(&r, likely, 15), 15);
  assert_int_equal(width_allowed(&r, totals, 15), 14);
}

/* What is known of a draft is not forgotten with a session, but a session has to confirm it. */
static void a_session_inherits_a_quarter(void **state) {
  (void)state;
  width_record before = {0}, r = {0};
  float likely[40] = {0};
  width_begin(&r, &before);
  assert_int_equal(width_allowed(&r, likely, 40), WIDTH_START);
  for (int i = 0; i < 4; i++) width_stepped(&before, 3);
  width_begin(&r, &before);
  assert_int_equal(r.accepted, 3);
  assert_int_equal(width_allowed(&r, likely, 40), 2 * WIDTH_START);
}

/* A draft that is never so sure of anything is tried all the same, only later. */
static void what_is_believed_grows_with_the_answer(void **state) {
  (void)state;
  width_record r = {0};
  float totals[3];
  logs((double[]){0.4, 0.3, 0.2}, totals, 3);
  int steps = 0;
  for (; width_allowed(&r, totals, 3) == 0; steps++) width_stepped(&r, 0);
  assert_true(steps > 12 && steps < 64);
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
      cmocka_unit_test(a_bad_measurement_does_not_last),
      cmocka_unit_test(the_first_prompt_measures),
      cmocka_unit_test(a_later_prompt_measures_again),
      cmocka_unit_test(what_lies_beyond_goes_on_as_it_began),
      cmocka_unit_test(a_session_starts_small_and_earns_more),
      cmocka_unit_test(a_session_inherits_a_quarter),
      cmocka_unit_test(what_is_believed_grows_with_the_answer),
      cmocka_unit_test(an_outlier_counts_little),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
