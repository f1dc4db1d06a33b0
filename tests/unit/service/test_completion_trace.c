/* libs: service */
/* What a trace says of a completion. */
#include "orchestrator/service/completion_trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/scratch.h"

static scratch_path_text path;

static trace_file *open_trace(void) {
  trace_file *t;
  err e = {0};
  if (trace_file_open(&t, path.text, "tandem", &e)) fail_msg("%s", e.text);
  return t;
}

static json_t *read_trace(trace_file *t) {
  err e = {0};
  assert_int_equal(trace_file_close(t, &e), ERR_OK);
  json_t *all = json_load_file(path.text, 0, NULL);
  assert_true(json_is_array(all));
  return all;
}

static int64_t number(const json_t *o, const char *key) {
  return json_integer_value(json_object_get(o, key));
}

/* The spans: "NAME FROM-TO" and those of the arguments that are numbers, in the file's order. */
static void expect(trace_file *t, const char *wanted) {
  char text[2000] = "";
  size_t i;
  const json_t *o, *value;
  const char *key;
  json_t *all = read_trace(t);
  json_array_foreach(all, i, o) {
    char *end = text + strlen(text);
    if (strcmp(json_string_value(json_object_get(o, "ph")), "X") != 0) continue;
    end += sprintf(end, "%s %d-%d", json_string_value(json_object_get(o, "name")), (int)number(o, "ts"),
                   (int)(number(o, "ts") + number(o, "dur")));
    json_object_foreach(json_object_get(o, "args"), key, value) if (json_is_integer(value)) end +=
        sprintf(end, " %s %d", key, (int)json_integer_value(value));
    strcat(end, "\n");
  }
  assert_string_equal(text, wanted);
  json_decref(all);
}

static void look(completion_trace *t, int32_t length, int32_t logged, uint32_t epoch, uint64_t now) {
  static const uint8_t accepted[20] = {[11] = 1, [13] = 1, [14] = 1};
  const sessions_view v = {
      .length = length, .prompt_length = 10, .logged = logged, .epoch = epoch, .accepted = accepted};
  completion_trace_update(t, &v, now);
}

static void test_a_completion_is_its_queue_its_prefill_and_its_rounds(void **state) {
  (void)state;
  completion_trace t;
  trace_file *file = open_trace();
  completion_trace_begin(&t, file, 0x2a7, 50, 10, 100);
  look(&t, 10, 10, 1, 110);
  look(&t, 12, 12, 1, 200);
  look(&t, 12, 12, 1, 210);
  look(&t, 15, 15, 1, 300);
  completion_trace_end(&t, WIRE_FINISH_LENGTH, 400);
  look(&t, 16, 16, 1, 500); /* it has ended */
  expect(file, "queue 50-100\n"
               "prefill 100-200 tokens 2 accepted 1 length 12 prompt 10\n"
               "round 200-300 tokens 3 accepted 2 length 15\n"
               "answer 50-400 length 15\n");
}

static void test_tokens_of_another_epoch_came_after_a_failover(void **state) {
  (void)state;
  completion_trace t;
  trace_file *file = open_trace();
  completion_trace_begin(&t, file, 1, 0, 10, 100);
  look(&t, 11, 11, 1, 200);
  look(&t, 11, 11, 2, 250);
  look(&t, 12, 12, 2, 300);
  look(&t, 13, 13, 2, 400);
  completion_trace_end(&t, WIRE_FINISH_STOP, 400);
  expect(file, "prefill 100-200 tokens 1 accepted 0 length 11 prompt 10\n"
               "failover 200-300 tokens 1 accepted 1 length 12 epoch 2\n"
               "round 300-400 tokens 1 accepted 0 length 13\n"
               "answer 100-400 length 13\n");
}

/* On a lane of its own, where spans do not overlap. */
static void test_the_ledger_is_waited_for(void **state) {
  (void)state;
  completion_trace t;
  trace_file *file = open_trace();
  completion_trace_begin(&t, file, 1, 0, 10, 100);
  look(&t, 10, 0, 1, 110);
  look(&t, 10, 10, 1, 120);
  look(&t, 12, 10, 1, 200);
  look(&t, 14, 11, 1, 250);
  look(&t, 14, 12, 1, 300);
  look(&t, 14, 14, 1, 350);
  assert_int_not_equal(t.lane, t.ledger_lane);
  completion_trace_end(&t, WIRE_FINISH_STOP, 400);
  expect(file, "ledger 110-120 tokens 10\n"
               "prefill 100-200 tokens 2 accepted 1 length 12 prompt 10\n"
               "round 200-250 tokens 2 accepted 1 length 14\n"
               "ledger 200-300 tokens 2\n"
               "ledger 300-350 tokens 2\n"
               "answer 100-400 length 14\n");
}

static void test_lanes_and_the_process_have_names(void **state) {
  (void)state;
  completion_trace t, other;
  trace_file *file = open_trace();
  completion_trace_begin(&t, file, 0x2a7, 0, 10, 100);
  completion_trace_begin(&other, file, 0x2a8, 0, 10, 100);
  static const char *const names[] = {"tandem", "session 00000000000002a7", "ledger",
                                      "session 00000000000002a8", "ledger"};
  json_t *all = read_trace(file);
  for (int i = 0; i < 5; i++) {
    const json_t *o = json_array_get(all, (size_t)i);
    assert_string_equal(json_string_value(json_object_get(json_object_get(o, "args"), "name")), names[i]);
    assert_string_equal(json_string_value(json_object_get(o, "ph")), "M");
    assert_int_equal(number(o, "tid"), i);
    assert_int_equal(number(o, "pid"), getpid());
  }
  json_decref(all);
}

static void test_without_a_file_nothing_is_done(void **state) {
  (void)state;
  completion_trace t;
  completion_trace_begin(&t, NULL, 1, 0, 10, 100);
  look(&t, 12, 12, 1, 200);
  completion_trace_end(&t, WIRE_FINISH_STOP, 400);
  assert_int_equal(trace_file_close(NULL, NULL), ERR_OK);
}

static void test_a_file_that_cannot_be_written_is_named(void **state) {
  (void)state;
  trace_file *t;
  err e = {0};
  assert_int_equal(trace_file_open(&t, "/nowhere/t.json", "tandem", &e), ERR_IO);
  assert_non_null(strstr(e.text, "/nowhere/t.json"));
  trace_file_close(t, NULL);
  assert_int_equal(trace_file_open(&t, "/dev/full", "tandem", &e), ERR_OK);
  assert_int_equal(trace_file_close(t, &e), ERR_IO);
  assert_non_null(strstr(e.text, "/dev/full"));
}

static int make_path(void **state) {
  (void)state;
  path = scratch_path("trace");
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_completion_is_its_queue_its_prefill_and_its_rounds),
      cmocka_unit_test(test_tokens_of_another_epoch_came_after_a_failover),
      cmocka_unit_test(test_the_ledger_is_waited_for),
      cmocka_unit_test(test_lanes_and_the_process_have_names),
      cmocka_unit_test(test_without_a_file_nothing_is_done),
      cmocka_unit_test(test_a_file_that_cannot_be_written_is_named),
  };
  return cmocka_run_group_tests(tests, make_path, NULL);
}
