/* libs: cli */
/* How an answer is shown: colours, and the live line's words. stderr is no terminal here. */
#include "orchestrator/cli/show.h"
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* What reaches the reader of a pipe. */
static const char *shown(show_when when) {
  static char said[256];
  int ends[2];
  uv_loop_t loop;
  async_output out;
  show s;
  assert_int_equal(pipe(ends), 0);
  uv_loop_init(&loop);
  async_output_init(&out, &loop, ends[1], NULL, NULL);
  show_init(&s, when, &out);
  assert_int_equal(show_wants_accepted(&s), when == SHOW_ALWAYS);
  assert_int_equal(show_text(&s, "one", 3, false), ERR_OK);
  assert_int_equal(show_text(&s, " two", 4, true), ERR_OK);
  assert_int_equal(show_text(&s, " three", 6, true), ERR_OK);
  assert_int_equal(show_text(&s, " four", 5, false), ERR_OK);
  completion c = {0};
  assert_int_equal(show_end(&s, &c), ERR_OK);
  uv_run(&loop, UV_RUN_DEFAULT);
  ssize_t n = read(ends[0], said, sizeof said - 1);
  assert_true(n > 0);
  said[n] = 0;
  async_output_fini(&out);
  uv_loop_close(&loop);
  close(ends[0]);
  close(ends[1]);
  return said;
}

static void test_a_pipe_gets_colours_only_if_they_are_always_wanted(void **state) {
  (void)state;
  assert_string_equal(shown(SHOW_NEVER), "one two three four");
  assert_string_equal(shown(SHOW_AUTO), "one two three four");
  assert_string_equal(shown(SHOW_ALWAYS), "\033[36mone\033[32m two three\033[36m four\033[0m");
}

/* 41 tokens, the first one at 1 s; 20 of them accepted ones. */
static completion running(void) {
  return (completion){.fresh = 41, .fresh_accepted = 20, .first_count = 1, .first_token_us = 1000000};
}

static void test_the_live_line_says_what_was_measured(void **state) {
  (void)state;
  char line[SHOW_LINE_MAX];
  completion c = running();
  show s = {.plain = 50};
  show_line(&s, &c, 1500000, line);
  assert_string_equal(line, "80.0 tok/s, acceptance length 1.95, 1.60 times plain decoding, "
                            "20 of 41 tokens from the draft");
}

/* 20 ms for each of 40 tokens, which took 0.5 s; the measurement of this answer counts, not that of the last.
 */
static void test_the_gain_is_told_while_the_answer_comes(void **state) {
  (void)state;
  char line[SHOW_LINE_MAX], closing[SHOW_GAIN_MAX];
  completion c = running();
  show s = {.plain = 10};
  c.plain_us = 20000;
  show_line(&s, &c, 1500000, line);
  assert_non_null(strstr(line, ", 1.60 times plain decoding, "));
  c.count = c.fresh;
  c.end_us = 1500000;
  show_gain(completion_plain_speed(&c), completion_tokens_per_second(&c), closing);
  assert_non_null(strstr(line, closing)); /* what the end says */
}

static void test_a_gain_that_nobody_has_measured_is_not_invented(void **state) {
  (void)state;
  char line[SHOW_LINE_MAX], gain[SHOW_GAIN_MAX];
  completion c = running();
  show s = {.out = NULL};
  show_line(&s, &c, 1500000, line);
  assert_non_null(strstr(line, "plain decoding not measured yet"));
  show_gain(50, 0, gain);
  assert_string_equal(gain, "plain decoding not measured yet");
}

/* The next answer of a conversation is compared with the plain steps of the last one. */
static void test_the_plain_speed_of_an_answer_is_kept_for_the_next(void **state) {
  (void)state;
  completion c = running();
  async_output out = {.fd = -1};
  show s;
  show_init(&s, SHOW_NEVER, &out);
  c.plain_us = 25000;
  assert_int_equal(show_end(&s, &c), ERR_OK);
  assert_int_equal((int)s.plain, 40);
  c.plain_us = 0;
  assert_int_equal(show_end(&s, &c), ERR_OK);
  assert_int_equal((int)s.plain, 40);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_pipe_gets_colours_only_if_they_are_always_wanted),
      cmocka_unit_test(test_the_live_line_says_what_was_measured),
      cmocka_unit_test(test_the_gain_is_told_while_the_answer_comes),
      cmocka_unit_test(test_a_gain_that_nobody_has_measured_is_not_invented),
      cmocka_unit_test(test_the_plain_speed_of_an_answer_is_kept_for_the_next),
  };
  int null = open("/dev/null", O_WRONLY); /* whoever runs this may have a terminal */
  if (null < 0 || dup2(null, STDERR_FILENO) < 0) return 1;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
