/* libs: cli */
#include "orchestrator/cli/speculation_figures.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 21 };

/* 21 tokens, the last 20 of them in 200 ms. */
static completion plain_answer(int32_t tokens[TOKENS]) {
  for (int32_t i = 0; i < TOKENS; i++) tokens[i] = i;
  return (completion){.tokens = tokens,
                      .count = TOKENS,
                      .first_count = 1,
                      .first_token_us = 1000000,
                      .end_us = 1200000,
                      .stats = {.forwards = TOKENS}};
}

/* The same in 100 ms, by 11 forwards of which 6 carried 30 nodes. */
static completion drafted_answer(int32_t tokens[TOKENS], const uint64_t *per) {
  completion c = plain_answer(tokens);
  c.end_us = 1100000;
  c.stats = (msg_stats){.forwards = 11,
                        .rounds = 6,
                        .rows = 30,
                        .accepted = 10,
                        .plain_steps = 5,
                        .verdicts = 10,
                        .ahead_hits = 4,
                        .survivors = 13,
                        .accepted_per_pos = per,
                        .position_count = 3};
  return c;
}

static void is(double x, double want) {
  assert_true(x > want - 1e-9 && x < want + 1e-9);
}

static void test_figures_are_ratios_of_sums(void **state) {
  (void)state;
  const uint64_t per[3] = {5, 3, 2};
  int32_t a[TOKENS], b[TOKENS];
  completion plain = plain_answer(a), drafted = drafted_answer(b, per);
  speculation_figures f = {0};
  speculation_figures_add(&f, &plain, &drafted);
  speculation_figures_add(&f, &plain, &drafted);
  assert_int_equal(f.prompts, 2);
  assert_int_equal(f.different, 0);
  is(speculation_figures_per_verify(&f), 16.0 / 6);
  is(speculation_figures_length(&f), 21.0 / 11);
  is(speculation_figures_share(&f), 10.0 / 21);
  is(speculation_figures_at(&f, 0), 5.0 / 6);
  is(speculation_figures_at(&f, 2), 2.0 / 6);
  is(speculation_figures_ahead(&f), 8.0 / 20);
  is(speculation_figures_survivors(&f), 26.0 / 20);
  is(speculation_figures_gain(&f), 0);
  speculation_figures_add_times(&f, 20, 10000, 5000);
  speculation_figures_add_times(&f, 20, 0, 5000); /* it was not timed */
  is(speculation_figures_speed(&f.plain), 0);     /* 20 tokens are too few */
  is(speculation_figures_gain(&f), 0);
  speculation_figures_add_times(&f, 20, 10000, 5000);
  is(speculation_figures_speed(&f.plain), 100);
  is(speculation_figures_speed(&f.drafted), 200);
  is(speculation_figures_gain(&f), 2);
  f.nodes = 0;
  is(speculation_figures_gain(&f), 0); /* without a guess */
}

static void test_an_answer_with_another_token_or_length_differs(void **state) {
  (void)state;
  const uint64_t per[3] = {5, 3, 2};
  int32_t a[TOKENS], b[TOKENS];
  completion plain = plain_answer(a), drafted = drafted_answer(b, per);
  speculation_figures f = {0};
  b[TOKENS - 1]++;
  speculation_figures_add(&f, &plain, &drafted);
  assert_int_equal(f.different, 1);
  b[TOKENS - 1]--;
  drafted.count--;
  speculation_figures_add(&f, &plain, &drafted);
  assert_int_equal(f.different, 2);
}

static void test_nothing_measured_is_nothing_and_not_a_number(void **state) {
  (void)state;
  speculation_figures f = {0};
  is(speculation_figures_gain(&f), 0);
  is(speculation_figures_per_verify(&f), 0);
  is(speculation_figures_share(&f), 0);
  is(speculation_figures_survivors(&f), 0);
  char *text = NULL;
  size_t size = 0;
  FILE *to = open_memstream(&text, &size);
  const speculation_label l = {"ngram", "free", "all", 0};
  speculation_figures_print(to, &l, &f);
  speculation_figures_print_positions(to, &f);
  speculation_figures_print_ahead(to, &f);
  fclose(to);
  assert_null(strstr(text, "nan"));
  assert_null(strstr(text, "verdict"));
  assert_non_null(strstr(text, " - "));
  free(text);
}

static void test_json_has_what_the_table_has(void **state) {
  (void)state;
  const uint64_t per[3] = {5, 3, 2};
  int32_t a[TOKENS], b[TOKENS];
  completion plain = plain_answer(a), drafted = drafted_answer(b, per);
  speculation_figures f = {0};
  speculation_figures_add(&f, &plain, &drafted);
  const speculation_label l = {"model,ngram", "chain5", "writing", 0.5f};
  json_t *o = speculation_figures_json(&l, &f);
  assert_true(json_is_null(json_object_get(o, "gain")) && json_is_null(json_object_get(o, "tok_s")));
  json_decref(o);
  speculation_figures_add_times(&f, 40, 10000, 5000);
  o = speculation_figures_json(&l, &f);
  assert_string_equal(json_string_value(json_object_get(o, "tree")), "chain5");
  is(json_real_value(json_object_get(o, "temperature")), 0.5);
  assert_string_equal(json_string_value(json_object_get(o, "method")), "model,ngram");
  assert_string_equal(json_string_value(json_object_get(o, "category")), "writing");
  assert_int_equal(json_array_size(json_object_get(o, "accepted_per_pos")), 3);
  is(json_real_value(json_object_get(o, "gain")), 2);
  is(json_real_value(json_object_get(o, "tokens_per_verify")), 2.6667);
  assert_int_equal(json_integer_value(json_object_get(o, "verdicts")), 10);
  assert_int_equal(json_integer_value(json_object_get(o, "ahead_hits")), 4);
  assert_int_equal(json_integer_value(json_object_get(o, "survivors")), 13);
  is(json_real_value(json_object_get(o, "survivors_per_verdict")), 1.3);
  assert_int_equal(json_integer_value(json_object_get(o, "different")), 0);
  json_decref(o);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_figures_are_ratios_of_sums),
      cmocka_unit_test(test_an_answer_with_another_token_or_length_differs),
      cmocka_unit_test(test_nothing_measured_is_nothing_and_not_a_number),
      cmocka_unit_test(test_json_has_what_the_table_has),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
