/* libs: drafters speculative base */
#include "draft_worker/drafters/calibration.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void candidates_of(const calibration_table *t, int32_t count, const float *values,
                          draft_candidate *out) {
  sampler_ranked ranked[DRAFTER_CANDIDATES_MAX];
  for (int32_t i = 0; i < count; i++) ranked[i] = (sampler_ranked){i, values[i]};
  calibration_candidates(t, ranked, count, out);
}

static void test_a_clear_first_is_worth_more_than_a_doubtful_one(void **state) {
  (void)state;
  draft_candidate clear[3], doubtful[3];
  candidates_of(NULL, 3, (float[]){9, 1, 0}, clear);
  candidates_of(NULL, 3, (float[]){1, 0.9f, 0.8f}, doubtful);
  assert_true(clear[0].score > doubtful[0].score);
  assert_true(clear[1].score < doubtful[1].score);
  assert_true(clear[0].score <= 0);
  for (int32_t i = 0; i < 3; i++) assert_int_equal(clear[i].token, i);
}

static void test_values_that_are_no_numbers_have_bins_and_scores(void **state) {
  (void)state;
  draft_candidate list[3];
  candidates_of(NULL, 3, (float[]){INFINITY, 1, -INFINITY}, list);
  for (int32_t i = 0; i < 3; i++) {
    assert_true(list[i].bin < CALIBRATION_BINS);
    assert_true(list[i].score <= 0);
  }
}

/* Whatever the share promised: after enough observations the score is the rate that was seen. */
static void test_rates_are_learnt_and_forgotten(void **state) {
  (void)state;
  calibration_table t = {{0}, {0}};
  draft_candidate list[2];
  candidates_of(&t, 2, (float[]){5, 0}, list);
  for (int32_t i = 0; i < 20000; i++) calibration_learn(&t, list, 2, i % 4 == 0 ? 0 : i % 4 == 1 ? 1 : 7);
  candidates_of(&t, 2, (float[]){5, 0}, list);
  assert_true(fabsf(list[0].score - logf(0.25f)) < 0.02f);
  assert_true(fabsf(list[1].score - logf(0.25f)) < 0.02f);
  for (int32_t i = 0; i < 20000; i++) calibration_learn(&t, list, 2, 0);
  candidates_of(&t, 2, (float[]){5, 0}, list);
  assert_true(list[0].score > logf(0.95f));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_clear_first_is_worth_more_than_a_doubtful_one),
      cmocka_unit_test(test_values_that_are_no_numbers_have_bins_and_scores),
      cmocka_unit_test(test_rates_are_learnt_and_forgotten),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
