/* libs: serve_bench */
/* What the answers of a load come to. */
#include "bench/serve/figures.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define COUNT 100

static uint32_t gaps[COUNT][2];

/* Answer i (1 to COUNT) begins at i ms, has its first text after i ms, the second 2 i ms and the third 3 i ms
 * behind that one, and ends with it. */
static load_answer whole(int i) {
  uint64_t ms = 1000;
  load_answer a = {.begin_us = (uint64_t)i * ms};
  answer_stream_init(&a.stream);
  a.stream.first_us = a.begin_us + (uint64_t)i * ms;
  a.stream.last_us = a.end_us = a.stream.first_us + 5 * (uint64_t)i * ms;
  gaps[i - 1][0] = 2 * (uint32_t)i * 1000;
  gaps[i - 1][1] = 3 * (uint32_t)i * 1000;
  a.stream.gaps_us = gaps[i - 1];
  a.stream.gap_count = 2;
  a.stream.tokens = 11;
  a.stream.text = (answer_text){.bytes = (char *)"abc", .size = 3};
  return a;
}

static void make(load_answer *out) {
  for (int i = 0; i < COUNT; i++) out[COUNT - 1 - i] = whole(i + 1); /* in no order */
}

static void expect(double seen, double wanted) {
  if (seen < wanted - 1e-6 || seen > wanted + 1e-6) fail_msg("%g, not %g", seen, wanted);
}

static void test_percentiles_are_nearest_ranks(void **state) {
  (void)state;
  load_answer answers[COUNT];
  figures f;
  make(answers);
  assert_int_equal(figures_make(&f, answers, COUNT), ERR_OK);
  expect(f.first.p50, 50), expect(f.first.p90, 90), expect(f.first.p99, 99), expect(f.first.mean, 50.5);
  expect(f.whole.p50, 6 * 50), expect(f.whole.p99, 6 * 99);
  expect(f.token.p90, 5.0 * 90 / 10); /* 10 tokens after the first one */
  expect(f.between.mean, 2.5 * 50.5);
  expect(f.seconds, (COUNT + 6.0 * COUNT - 1) / 1000);
  expect(figures_tokens_per_second(&f), 11 * COUNT / f.seconds);
  assert_int_equal(f.tokens, 11 * COUNT);
  assert_int_equal(f.failed, 0);
  assert_int_equal(f.drafted, -1);
  assert_null(f.error);
  assert_int_equal(figures_make(&f, answers, 3), ERR_OK); /* 98, 99, 100 */
  expect(f.first.p50, 99), expect(f.first.p90, 100);
}

static void test_failed_answers_count_for_nothing_else(void **state) {
  (void)state;
  load_answer answers[COUNT];
  figures f;
  make(answers);
  for (int i = 0; i < COUNT - 1; i++)
    snprintf(answers[i].stream.error, sizeof answers[i].stream.error, "no %d", i);
  assert_int_equal(figures_make(&f, answers, COUNT), ERR_OK);
  assert_int_equal(f.failed, COUNT - 1);
  assert_string_equal(f.error, "no 0");
  assert_int_equal(f.tokens, 11);
  expect(f.first.p99, 1); /* the last in the list began first */
}

static void test_a_server_that_tells_no_tokens(void **state) {
  (void)state;
  load_answer a = whole(1);
  figures f;
  a.stream.tokens = -1;
  assert_int_equal(figures_make(&f, &a, 1), ERR_OK);
  assert_int_equal(f.tokens, 3); /* events with text */
}

static void test_an_answer_without_text(void **state) {
  (void)state;
  load_answer a = {.begin_us = 5, .end_us = 1005};
  figures f;
  answer_stream_init(&a.stream);
  a.stream.tokens = 0;
  assert_int_equal(figures_make(&f, &a, 1), ERR_OK);
  expect(f.first.p50, 0), expect(f.token.p50, 0), expect(f.whole.p50, 1);
}

static void test_what_a_draft_gave_is_summed(void **state) {
  (void)state;
  load_answer answers[COUNT];
  figures f;
  make(answers);
  answers[3].stream.drafted = 8, answers[3].stream.accepted = 5;
  answers[9].stream.drafted = 2, answers[9].stream.accepted = 0;
  assert_int_equal(figures_make(&f, answers, COUNT), ERR_OK);
  assert_int_equal(f.drafted, 10);
  assert_int_equal(f.accepted, 5);
}

static void test_answers_that_differ(void **state) {
  (void)state;
  load_answer a[COUNT], b[COUNT];
  make(a), make(b);
  assert_int_equal(figures_differing(a, b, COUNT), 0);
  b[7].stream.text.bytes = (char *)"abd";
  b[8].stream.text.size = 2;
  b[9].stream.text.size = 0;
  b[10].stream.text.size = 0;
  snprintf(b[10].stream.error, sizeof b[10].stream.error, "cut"); /* failed, which is told elsewhere */
  assert_int_equal(figures_differing(a, b, COUNT), 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_percentiles_are_nearest_ranks),
      cmocka_unit_test(test_failed_answers_count_for_nothing_else),
      cmocka_unit_test(test_a_server_that_tells_no_tokens),
      cmocka_unit_test(test_an_answer_without_text),
      cmocka_unit_test(test_what_a_draft_gave_is_summed),
      cmocka_unit_test(test_answers_that_differ),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
