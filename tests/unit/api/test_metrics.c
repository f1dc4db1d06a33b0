/* libs: api */
/* /metrics: what answers add up to, and that Prometheus can read it. */
#include "orchestrator/service/api/metrics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const metrics_now now = {
    .model_name = "a \"model\"\\\n", .running = 2, .waiting = 3, .slots = 4, .ready = true};
#define LABEL "model_name=\"a \\\"model\\\"\\\\\\n\""

static bool has_line(const char *text, const char *line) {
  size_t size = strlen(line);
  for (const char *at = text; at; at = strchr(at, '\n'), at = at ? at + 1 : NULL)
    if (strncmp(at, line, size) == 0 && at[size] == '\n') return true;
  return false;
}

static void expect(const metrics *m, const char *line) {
  char *text = metrics_text(m, &now);
  assert_non_null(text);
  bool there = has_line(text, line);
  if (!there) fail_msg("no line %s in:\n%s", line, text);
  free(text);
}

static const uint64_t per_pos[] = {6, 2, 0};

/* 20 tokens of a prompt of 7; the first text after 30 ms, the rest in 19 x 4 ms. */
static completion ended(wire_finish finish) {
  return (completion){.finish = finish,
                      .id = 1,
                      .prompt = {.count = 7},
                      .count = 20,
                      .first_count = 1,
                      .start_us = 1000000,
                      .first_token_us = 1030000,
                      .first_shown_us = 1030000,
                      .end_us = 1106000,
                      .stats = {.forwards = 12,
                                .rounds = 9,
                                .rows = 30,
                                .accepted = 8,
                                .verdicts = 11,
                                .ahead_hits = 4,
                                .survivors = 13,
                                .rewound = 22,
                                .plain_steps = 3,
                                .wait_us = 250000,
                                .resets = 1,
                                .dropped = 5,
                                .accepted_per_pos = per_pos,
                                .position_count = 3}};
}

static void test_nothing_was_asked_yet(void **state) {
  (void)state;
  const metrics m = {0};
  expect(&m, "vllm:num_requests_running{" LABEL "} 2");
  expect(&m, "vllm:num_requests_waiting{" LABEL "} 3");
  expect(&m, "tandem:slots{" LABEL "} 4");
  expect(&m, "tandem:target_ready{" LABEL "} 1");
  expect(&m, "vllm:generation_tokens_total{" LABEL "} 0");
  expect(&m, "vllm:spec_decode_num_accepted_tokens_per_pos_total{" LABEL ",position=\"0\"} 0");
  expect(&m, "vllm:time_to_first_token_seconds_bucket{" LABEL ",le=\"+Inf\"} 0");
  expect(&m, "vllm:time_to_first_token_seconds_count{" LABEL "} 0");
}

static void test_answers_add_up(void **state) {
  (void)state;
  metrics m = {0};
  completion c = ended(WIRE_FINISH_STOP);
  metrics_add(&m, &c, 0);
  metrics_add(&m, &c, 2000000);
  expect(&m, "vllm:prompt_tokens_total{" LABEL "} 14");
  expect(&m, "vllm:generation_tokens_total{" LABEL "} 40");
  expect(&m, "vllm:spec_decode_num_drafts_total{" LABEL "} 18");
  expect(&m, "vllm:spec_decode_num_draft_tokens_total{" LABEL "} 60");
  expect(&m, "vllm:spec_decode_num_accepted_tokens_total{" LABEL "} 16");
  expect(&m, "tandem:verdicts_total{" LABEL "} 22");
  expect(&m, "tandem:ahead_hits_total{" LABEL "} 8");
  expect(&m, "tandem:survivors_total{" LABEL "} 26");
  expect(&m, "tandem:rewound_tokens_total{" LABEL "} 44");
  expect(&m, "tandem:plain_steps_total{" LABEL "} 6");
  expect(&m, "tandem:tree_resets_total{" LABEL "} 2");
  expect(&m, "tandem:stale_frames_total{" LABEL "} 10");
  expect(&m, "tandem:target_wait_seconds_total{" LABEL "} 0.5");
  expect(&m, "vllm:spec_decode_num_accepted_tokens_per_pos_total{" LABEL ",position=\"0\"} 12");
  expect(&m, "vllm:spec_decode_num_accepted_tokens_per_pos_total{" LABEL ",position=\"1\"} 4");
  expect(&m, "vllm:request_success_total{" LABEL ",finished_reason=\"stop\"} 2");
  expect(&m, "vllm:request_prompt_tokens_bucket{" LABEL ",le=\"5\"} 0");
  expect(&m, "vllm:request_prompt_tokens_bucket{" LABEL ",le=\"10\"} 2");
  expect(&m, "vllm:request_generation_tokens_sum{" LABEL "} 40");
  expect(&m, "vllm:request_prefill_time_seconds_sum{" LABEL "} 0.06");
  expect(&m, "vllm:request_decode_time_seconds_sum{" LABEL "} 0.152");
  expect(&m, "vllm:request_inference_time_seconds_sum{" LABEL "} 0.212");
  /* One has its first text after 30 ms, the other after 2,030 ms. */
  expect(&m, "vllm:time_to_first_token_seconds_bucket{" LABEL ",le=\"0.025\"} 0");
  expect(&m, "vllm:time_to_first_token_seconds_bucket{" LABEL ",le=\"0.05\"} 1");
  expect(&m, "vllm:time_to_first_token_seconds_bucket{" LABEL ",le=\"1\"} 1");
  expect(&m, "vllm:time_to_first_token_seconds_bucket{" LABEL ",le=\"2.5\"} 2");
  expect(&m, "vllm:time_to_first_token_seconds_bucket{" LABEL ",le=\"+Inf\"} 2");
  expect(&m, "vllm:time_to_first_token_seconds_sum{" LABEL "} 2.06");
  expect(&m, "vllm:time_to_first_token_seconds_count{" LABEL "} 2");
  expect(&m, "vllm:request_queue_time_seconds_bucket{" LABEL ",le=\"2\"} 2"); /* a bound counts as below */
  expect(&m, "vllm:request_queue_time_seconds_bucket{" LABEL ",le=\"1.5\"} 1");
  expect(&m, "vllm:e2e_request_latency_seconds_sum{" LABEL "} 2.212");
  expect(&m, "vllm:request_time_per_output_token_seconds_bucket{" LABEL ",le=\"0.0025\"} 0");
  expect(&m, "vllm:request_time_per_output_token_seconds_bucket{" LABEL ",le=\"0.005\"} 2");
}

static void test_every_end_has_its_reason(void **state) {
  (void)state;
  static const struct {
    wire_finish finish;
    const char *line;
  } ends[] = {{WIRE_FINISH_STOP, "vllm:request_success_total{" LABEL ",finished_reason=\"stop\"} 1"},
              {WIRE_FINISH_LENGTH, "vllm:request_success_total{" LABEL ",finished_reason=\"length\"} 1"},
              {WIRE_FINISH_CANCELLED, "vllm:request_success_total{" LABEL ",finished_reason=\"abort\"} 1"},
              {WIRE_FINISH_ERROR, "vllm:request_success_total{" LABEL ",finished_reason=\"error\"} 1"}};
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
    metrics m = {0};
    completion c = ended(ends[i].finish);
    metrics_add(&m, &c, 0);
    expect(&m, ends[i].line);
  }
}

/* Beyond all bounds, and without any text. */
static void test_what_no_bucket_has(void **state) {
  (void)state;
  metrics m = {0};
  completion slow = ended(WIRE_FINISH_STOP), none = {.finish = WIRE_FINISH_ERROR, .id = 2};
  metrics_add(&m, &slow, 1000000000);
  metrics_add(&m, &none, 0);
  expect(&m, "vllm:time_to_first_token_seconds_bucket{" LABEL ",le=\"10\"} 0");
  expect(&m, "vllm:time_to_first_token_seconds_bucket{" LABEL ",le=\"+Inf\"} 1");
  expect(&m, "vllm:e2e_request_latency_seconds_count{" LABEL "} 2");
}

/* Every line is a comment or a value, and every name has its type before it. */
static void test_each_name_has_a_type(void **state) {
  (void)state;
  const metrics m = {0};
  char *text = metrics_text(&m, &now), *rest = text, name[128] = "";
  for (char *line; (line = strsep(&rest, "\n")) && rest;) {
    if (sscanf(line, "# TYPE %127s", name) == 1 || strncmp(line, "# HELP ", 7) == 0) continue;
    assert_int_equal(strncmp(line, name, strlen(name)), 0);
    char *end, *value = strrchr(line, ' ');
    assert_non_null(value);
    strtod(value + 1, &end);
    assert_int_equal(*end, 0);
  }
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nothing_was_asked_yet),    cmocka_unit_test(test_answers_add_up),
      cmocka_unit_test(test_every_end_has_its_reason), cmocka_unit_test(test_what_no_bucket_has),
      cmocka_unit_test(test_each_name_has_a_type),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
