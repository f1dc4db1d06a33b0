/* libs: operate */
/* What `tandem top' makes of what a server tells. */
#include "orchestrator/operate/top_screen.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char metrics[] = "# HELP vllm:num_requests_running Answers that are being decoded.\n"
                              "vllm:num_requests_running{model_name=\"m 1\"} 1\n"
                              "vllm:num_requests_waiting{model_name=\"m 1\"} 3\n"
                              "vllm:generation_tokens_total{model_name=\"m 1\"} 100\n"
                              "vllm:request_success_total{model_name=\"m 1\",finished_reason=\"stop\"} 4\n"
                              "vllm:request_success_total{model_name=\"m 1\",finished_reason=\"error\"} 2\n"
                              "tandem:slots{model_name=\"m 1\"} 4\n"
                              "tandem:wire_sent_bytes_total 1500";

static json_t *slots(int tokens) {
  return json_pack("[{s:i, s:b, s:s, s:i, s:b, s:{s:i, s:i}}, {s:i, s:b}]", "id", 0, "is_processing", 1,
                   "request", "cmpl-1\x1b", "n_prompt_tokens", 7, "speculative", 1, "next_token", "n_decoded",
                   tokens, "n_remain", 5, "id", 1, "is_processing", 0);
}

static void test_figures_are_read(void **state) {
  (void)state;
  top_sample s;
  json_t *list = slots(20);
  top_sample_read(&s, metrics, list, 7);
  assert_true(s.running == 1 && s.waiting == 3 && s.slots == 4 && s.ended == 6 && s.failed == 2);
  assert_true(s.tokens == 120); /* 20 of them still run */
  assert_true(s.sent_bytes == 1500 && s.received_bytes == 0 && s.time_us == 7);
  assert_true(top_sample_metric(metrics, "vllm:num_requests", NULL) == 0); /* a name is a whole one */
  json_decref(list);
}

static void test_a_rate_is_growth_in_a_second(void **state) {
  (void)state;
  const top_sample from = {.time_us = 1000000}, to = {.time_us = 1500000};
  assert_true(top_sample_rate(10, 20, &from, &to) == 20);
  assert_true(top_sample_rate(10, 5, &from, &to) == 0); /* the server was started again */
  assert_true(top_sample_rate(10, 20, &from, &from) == 0);
}

static char *screen(const top_screen *s) {
  char *text = NULL;
  size_t size;
  FILE *to = open_memstream(&text, &size);
  top_screen_print(to, s);
  fclose(to);
  return text;
}

static void test_a_screen_shows_what_happens_now(void **state) {
  (void)state;
  top_screen s = {.url = "http://h:1"};
  const top_sample a = {.time_us = 1000000, .running = 1, .slots = 4, .tokens = 100, .ended = 3},
                   b = {.time_us = 2000000,
                        .running = 1,
                        .slots = 4,
                        .tokens = 150,
                        .ended = 4,
                        .failed = 1,
                        .verifies = 10,
                        .drafted = 30,
                        .accepted = 15,
                        .sent_bytes = 1000,
                        .received_bytes = 4000};
  top_screen_add(&s, &a, slots(1), json_array());
  char *text = screen(&s);
  assert_non_null(
      strstr(text, "tokens      0.0 tok/s, 100 in all\nacceptance  no draft token was verified yet\n"));
  free(text);
  top_screen_add(&s, &b, slots(20), json_array());
  text = screen(&s);
  assert_string_equal(text,
                      "tandem at http://h:1\n\n"
                      "answers     1 of 4 running, 0 waiting, 4 ended, 1 of them with an error\n"
                      "tokens      50.0 tok/s, 150 in all\n"
                      "acceptance  2.50 tokens a verify step, 50 % of draft tokens, in the last minute\n"
                      "wire        1.0 kB/s to workers, 4.0 kB/s from them, 100 bytes a token\n\n"
                      "WORKER    ROLE    STATE    SESSIONS  WHAT\n\n"
                      "ANSWER                                     PROMPT    TOKENS   AT MOST  DRAFT\n"
                      "cmpl-1?                                         7        20         5  on\n");
  free(text);
  top_screen_fini(&s);
}

static void add_and_find(top_screen *s, top_sample *a, const char *part) {
  a->time_us += 1000000;
  top_screen_add(s, a, NULL, NULL);
  char *text = screen(s);
  if (!strstr(text, part)) fail_msg("no '%s' in %s", part, text);
  free(text);
}

/* The answers before are forgotten, unless there were no others. */
static void test_acceptance_is_that_of_the_last_minute(void **state) {
  (void)state;
  static const char minute[] = "3.00 tokens a verify step, 50 % of draft tokens, in the last minute";
  top_screen s = {.url = ""};
  top_sample a = {.verifies = 998, .drafted = 996};
  for (int i = 0; i < 2 * TOP_SCREEN_WINDOW; i++)
    add_and_find(&s, &a, "1.00 tokens a verify step, 0 % of draft tokens, since the server began");
  a.verifies += 2;
  a.drafted += 8;
  a.accepted += 4;
  for (int i = 1; i < TOP_SCREEN_WINDOW; i++) add_and_find(&s, &a, minute);
  add_and_find(&s, &a, "1.00 tokens a verify step, 0 % of draft tokens, since the server began");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_figures_are_read),
      cmocka_unit_test(test_a_rate_is_growth_in_a_second),
      cmocka_unit_test(test_a_screen_shows_what_happens_now),
      cmocka_unit_test(test_acceptance_is_that_of_the_last_minute),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
