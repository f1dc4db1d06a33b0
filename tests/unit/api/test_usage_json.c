/* libs: api */
/* What an answer says of its speculation: `metrics.speculative_decoding`. */
#include "orchestrator/service/api/usage_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static json_t *metrics_of(completion *c, int32_t count) {
  json_t *o = usage_json_metrics(&c, count);
  assert_non_null(o);
  assert_int_equal(json_object_size(o), 1);
  return o;
}

/* Nine verify steps: 4 accepted nothing, 3 one token, none two, 2 three. */
static void test_steps_are_counted_by_what_they_accepted(void **state) {
  (void)state;
  completion c = {.finish = WIRE_FINISH_STOP,
                  .count = 20,
                  .draft_method = "ngram",
                  .draft_wanted = true,
                  .accepted_per_pos = {5, 2, 2, 0, 0},
                  .stats = {.forwards = 11, .rounds = 9, .rows = 30, .accepted = 9, .position_count = 5}};
  c.stats.accepted_per_pos = c.accepted_per_pos;
  json_t *o = metrics_of(&c, 1), *expected = json_pack("[i, i, i, i]", 4, 3, 0, 2);
  const json_t *s = json_object_get(o, "speculative_decoding");
  assert_true(json_equal(json_object_get(s, "acceptance_histogram"), expected));
  assert_true(json_real_value(json_object_get(s, "mean_acceptance_length")) == 2);
  assert_true(json_real_value(json_object_get(s, "draft_acceptance_rate")) == 9.0 / 30);
  assert_int_equal(json_integer_value(json_object_get(s, "num_spec_steps")), 9);
  assert_int_equal(json_integer_value(json_object_get(s, "num_accepted_draft_tokens")), 9);
  assert_int_equal(json_integer_value(json_object_get(s, "num_draft_tokens")), 30);
  assert_string_equal(json_string_value(json_object_get(s, "method")), "ngram");
  assert_true(json_is_null(json_object_get(s, "off_reason")) && json_is_null(json_object_get(s, "gain")));
  json_decref(o);
  json_decref(expected);
}

/* A chain may be longer than the positions that are counted. */
static void test_the_last_count_is_of_all_longer_ones(void **state) {
  (void)state;
  completion c = {.finish = WIRE_FINISH_STOP,
                  .accepted_per_pos = {3, 3},
                  .stats = {.rounds = 3, .rows = 30, .accepted = 12, .position_count = 2}};
  c.stats.accepted_per_pos = c.accepted_per_pos;
  json_t *o = metrics_of(&c, 1), *expected = json_pack("[i, i, i]", 0, 0, 3);
  assert_true(json_equal(json_object_get(json_object_get(o, "speculative_decoding"), "acceptance_histogram"),
                         expected));
  json_decref(o);
  json_decref(expected);
}

static void test_without_verify_steps_nothing_is_divided(void **state) {
  (void)state;
  completion c = {.finish = WIRE_FINISH_STOP, .count = 20, .stats = {.forwards = 20, .plain_steps = 20}};
  json_t *o = metrics_of(&c, 1);
  const json_t *s = json_object_get(o, "speculative_decoding");
  assert_int_equal(json_array_size(json_object_get(s, "acceptance_histogram")), 0);
  assert_true(json_is_null(json_object_get(s, "mean_acceptance_length")));
  assert_true(json_is_null(json_object_get(s, "draft_acceptance_rate")));
  assert_int_equal(json_integer_value(json_object_get(s, "num_spec_steps")), 0);
  json_decref(o);
}

static void test_several_answers_have_none(void **state) {
  (void)state;
  completion c = {.finish = WIRE_FINISH_STOP};
  json_t *o = metrics_of(&c, 2);
  assert_true(json_is_null(json_object_get(o, "speculative_decoding")));
  json_decref(o);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_steps_are_counted_by_what_they_accepted),
      cmocka_unit_test(test_the_last_count_is_of_all_longer_ones),
      cmocka_unit_test(test_without_verify_steps_nothing_is_divided),
      cmocka_unit_test(test_several_answers_have_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
