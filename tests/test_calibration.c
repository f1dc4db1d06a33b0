/* libs: drafters speculative base */
#include "draft_worker/drafters/calibration.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static draft_answer answer_of(int32_t count, const float *values) {
  draft_answer a = {.count = count};
  for (int32_t i = 0; i < count; i++) a.list[i] = (sampler_ranked){i, values[i]};
  return a;
}

static void a_clear_first_is_worth_more_than_a_doubtful_one(void **state) {
  (void)state;
  uint8_t clear[DRAFTER_CANDIDATES_MAX], doubtful[DRAFTER_CANDIDATES_MAX];
  draft_answer a = answer_of(3, (float[]){9, 1, 0}), b = answer_of(3, (float[]){1, 0.9f, 0.8f});
  calibration_cases(&a, clear);
  calibration_cases(&b, doubtful);
  assert_true(calibration_score(NULL, clear[0]) > calibration_score(NULL, doubtful[0]));
  assert_true(calibration_score(NULL, clear[1]) < calibration_score(NULL, doubtful[1]));
  assert_true(calibration_score(NULL, clear[0]) <= 0);
}

static void values_that_are_no_numbers(void **state) {
  (void)state;
  uint8_t cases[DRAFTER_CANDIDATES_MAX];
  draft_answer a = answer_of(3, (float[]){INFINITY, 1, -INFINITY});
  calibration_cases(&a, cases);
  for (int32_t i = 0; i < 3; i++) {
    assert_true(cases[i] < CALIBRATION_CASES);
    assert_true(calibration_score(NULL, cases[i]) <= 0);
  }
}

/* Whatever the share promised: after enough observations the score is the rate that was seen. */
static void rates_are_learnt(void **state) {
  (void)state;
  calibration_table t = {{0}, {0}};
  uint8_t cases[DRAFTER_CANDIDATES_MAX];
  draft_answer a = answer_of(2, (float[]){5, 0});
  draft_candidate list[2] = {{0, 0}, {1, 0}};
  calibration_cases(&a, cases);
  for (int32_t i = 0; i < 20000; i++)
    calibration_learn(&t, list, cases, 2, i % 4 == 0 ? 0 : i % 4 == 1 ? 1 : 7);
  assert_true(fabsf(calibration_score(&t, cases[0]) - logf(0.25f)) < 0.02f);
  assert_true(fabsf(calibration_score(&t, cases[1]) - logf(0.25f)) < 0.02f);
  for (int32_t i = 0; i < 20000; i++) calibration_learn(&t, list, cases, 2, 0); /* and forgotten */
  assert_true(calibration_score(&t, cases[0]) > logf(0.95f));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_clear_first_is_worth_more_than_a_doubtful_one),
      cmocka_unit_test(values_that_are_no_numbers),
      cmocka_unit_test(rates_are_learnt),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
