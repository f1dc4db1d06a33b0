/* libs: drafters speculative file base */
#include "draft_worker/drafters/calibration.h"

#include "common/base/noise.h"
#include "common/file/head_calibration.h"
#include "tests/support/source_folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

static const sampler_options greedy = {.top_p = 1, .repeat_penalty = 1};
static const sampler_options warm = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5};

static calibration fresh(void) {
  calibration c;
  calibration_init(&c, NULL);
  return c;
}

static void candidates_of(const calibration *c, int32_t count, const float *values, draft_candidate *out) {
  const calibration_choice choice = {&greedy, 9};
  ranking_token ranked[DRAFT_CANDIDATES_MAX];
  for (int32_t i = 0; i < count; i++) ranked[i] = (ranking_token){i, values[i]};
  calibration_candidates(c, &choice, ranked, count, out);
}

static void test_a_clear_first_is_worth_more_than_a_doubtful_one(void **state) {
  (void)state;
  calibration c = fresh();
  draft_candidate clear[3], doubtful[3];
  candidates_of(&c, 3, (float[]){9, 1, 0}, clear);
  candidates_of(&c, 3, (float[]){1, 0.9f, 0.8f}, doubtful);
  assert_true(clear[0].score > doubtful[0].score);
  assert_true(clear[1].score < doubtful[1].score);
  assert_true(clear[0].score <= 0);
  for (int32_t i = 0; i < 3; i++) assert_int_equal(clear[i].token, i);
}

/* Values that tell nothing apart promise less together than values that do. */
static void test_match_probabilities_leave_room_for_other_tokens(void **state) {
  (void)state;
  calibration c = fresh();
  draft_candidate flat[8], steep[8];
  float flat_sum = 0, steep_sum = 0;
  candidates_of(&c, 8, (float[]){2, 2, 2, 2, 2, 2, 2, 2}, flat);
  candidates_of(&c, 8, (float[]){12, 5, 4, 4, 4, 4, 3, 3}, steep);
  for (int32_t i = 0; i < 8; i++) flat_sum += expf(flat[i].score), steep_sum += expf(steep[i].score);
  assert_true(flat_sum < 0.6f);
  assert_true(steep_sum > 0.95f && steep_sum < 1);
}

static void test_values_that_are_no_numbers_have_scores(void **state) {
  (void)state;
  calibration c = fresh();
  draft_candidate list[3];
  const float odd[][3] = {{INFINITY, 1, -INFINITY}, {NAN, NAN, NAN}, {3, NAN, 1}};
  for (size_t k = 0; k < sizeof odd / sizeof *odd; k++) {
    candidates_of(&c, 3, odd[k], list);
    for (int32_t i = 0; i < 3; i++) assert_true(list[i].score <= 0 && list[i].score > -100);
    calibration_learn(&c, list, 3, 1);
  }
  candidates_of(&c, 3, (float[]){2, 1, 0}, list);
  for (int32_t i = 0; i < 3; i++) assert_true(list[i].score <= 0 && list[i].score > -100);
}

/* Of two candidates of nearly the same value, the one whose value is noise to a larger part is chosen less
 * often, and stands behind the other. */
static void test_a_candidate_that_owes_its_rank_to_noise_scores_less(void **state) {
  (void)state;
  const noise_source noise = {warm.seed, warm.choice, 9};
  const calibration_choice choice = {&warm, 9};
  calibration c = fresh();
  draft_candidate list[2];
  int32_t lucky = 0, other = 0;
  for (int32_t i = 0; i < 100; i++) {
    if (noise_of(&noise, i) > noise_of(&noise, lucky)) lucky = i;
    if (noise_of(&noise, i) < noise_of(&noise, other)) other = i;
  }
  calibration_candidates(&c, &choice, (ranking_token[]){{lucky, 4}, {other, 3.99f}}, 2, list);
  assert_int_equal(list[0].token, other);
  assert_true(list[0].score > list[1].score);
}

/* Whatever was promised: after enough observations the score is the rate that was seen. */
static void test_rates_are_learnt_and_forgotten(void **state) {
  (void)state;
  calibration c = fresh();
  draft_candidate list[2];
  for (int32_t i = 0; i < 20000; i++) {
    candidates_of(&c, 2, (float[]){5, 0}, list);
    calibration_learn(&c, list, 2, i % 4 == 0 ? 0 : i % 4 == 1 ? 1 : 7);
  }
  for (int32_t i = 0; i < 2; i++) assert_true(fabsf(expf(list[i].score) - 0.25f) < 0.03f);
  for (int32_t i = 0; i < 20000; i++) {
    candidates_of(&c, 2, (float[]){5, 0}, list);
    calibration_learn(&c, list, 2, 0);
  }
  assert_true(list[0].score > logf(0.95f));
}

static void test_what_was_measured_is_moved_less_by_one_observation(void **state) {
  (void)state;
  calibration c = fresh(), measured;
  draft_candidate list[2];
  calibration_init(&measured, c.weights);
  candidates_of(&c, 2, (float[]){5, 0}, list);
  float before = list[0].score;
  calibration_learn(&c, list, 2, 1);
  calibration_learn(&measured, list, 2, 1);
  candidates_of(&c, 2, (float[]){5, 0}, list);
  float moved = before - list[0].score;
  candidates_of(&measured, 2, (float[]){5, 0}, list);
  assert_true(moved > 2 * (before - list[0].score) && before > list[0].score);
}

/* What is learnt at T = 0 changes nothing at T > 0, nor the other way. */
static void test_sampled_choices_have_weights_of_their_own(void **state) {
  (void)state;
  const calibration_choice choice = {&warm, 9};
  const ranking_token ranked[] = {{1, 4}, {2, 3}};
  calibration c = fresh();
  draft_candidate list[2], before[2], after[2];
  calibration_candidates(&c, &choice, ranked, 2, before);
  candidates_of(&c, 2, (float[]){4, 3}, list);
  for (int32_t i = 0; i < 100; i++) calibration_learn(&c, list, 2, 9);
  calibration_candidates(&c, &choice, ranked, 2, after);
  for (int32_t i = 0; i < 2; i++) assert_true(before[i].score == after[i].score);
  candidates_of(&c, 2, (float[]){4, 3}, before);
  for (int32_t i = 0; i < 100; i++) calibration_learn(&c, after, 2, 9);
  candidates_of(&c, 2, (float[]){4, 3}, list);
  for (int32_t i = 0; i < 2; i++) assert_true(before[i].score == list[i].score);
}

/* At T > 0 the list is not in order of rank: what is left when it is cut tells too little. */
static void test_a_list_that_was_cut_teaches_nothing(void **state) {
  (void)state;
  calibration c = fresh(), before = c;
  draft_candidate list[3];
  candidates_of(&c, 3, (float[]){4, 3, 2}, list);
  list[1] = list[2];
  calibration_learn(&c, list, 2, 1);
  assert_memory_equal(&c, &before, sizeof c);
  candidates_of(&c, 3, (float[]){4, 3, 2}, list);
  calibration_learn(&c, list, 2, 1);
  assert_memory_not_equal(&c, &before, sizeof c);
}

/* So that other models begin with what was measured for that head. */
static void test_the_default_heads_file_has_the_weights_of_the_program(void **state) {
  (void)state;
  calibration c = fresh();
  head_calibration kept;
  char path[4096];
  gguf *g;
  err e = {0};
  snprintf(path, sizeof path, "%s/heads/smollm2-135m-instruct-eagle3.gguf", source_folder());
  assert_int_equal(gguf_open(&g, path, &e), ERR_OK);
  assert_int_equal(head_calibration_read_gguf(&kept, g, &e), ERR_OK);
  gguf_close(g);
  assert_true(kept.there);
  assert_int_equal(sizeof kept.weights, sizeof c.weights);
  assert_memory_equal(kept.weights, c.weights, sizeof c.weights);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_clear_first_is_worth_more_than_a_doubtful_one),
      cmocka_unit_test(test_match_probabilities_leave_room_for_other_tokens),
      cmocka_unit_test(test_values_that_are_no_numbers_have_scores),
      cmocka_unit_test(test_a_candidate_that_owes_its_rank_to_noise_scores_less),
      cmocka_unit_test(test_rates_are_learnt_and_forgotten),
      cmocka_unit_test(test_what_was_measured_is_moved_less_by_one_observation),
      cmocka_unit_test(test_sampled_choices_have_weights_of_their_own),
      cmocka_unit_test(test_a_list_that_was_cut_teaches_nothing),
      cmocka_unit_test(test_the_default_heads_file_has_the_weights_of_the_program),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
