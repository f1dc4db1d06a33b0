/* libs: service sessions ledger wire text file speculative base */
#include "orchestrator/service/session_line.h"
#include "orchestrator/ledger/options_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int32_t stops[] = {2, 7};
static const msg_options options = {.temperature = 0.8f,
                                    .top_p = 0.95f,
                                    .min_p = 1.0f / 3,
                                    .repeat_penalty = 1.1f,
                                    .seed = UINT64_MAX - 5,
                                    .max_tokens = 100,
                                    .context = 64,
                                    .stops = stops,
                                    .stop_count = 2};

/* As `tandem session show --json' has it; the texts are of no interest to import. */
static json_t *make_object(void) {
  json_t *o =
      json_pack("{s:s, s:s, s:s, s:s, s:s, s:f, s:f, s:[i,i,i], s:[i,i], s:n, s:s, s:{s:s}, s:n}", "id",
                "fedcba9876543210", "state", "running", "model", "/a/m\xc3\xa9.gguf", "model_fingerprint",
                "00112233445566778899aabbccddeeff", "numerics_id", "int8", "created", 1763881600.123457,
                "updated", 1763881601.0, "prompt_ids", 1, 2, 3, "token_ids", 0, INT32_MAX, "prompt_text",
                "text", "an answer", "request", "title", "t", "stats");
  assert_non_null(o);
  json_object_set_new(o, "options", options_json_object(&options));
  return o;
}

static char *make_line(json_t *o) {
  ledger_session s = {.hash_seed = UINT64_C(0xf00d000000000001), .epoch = 17};
  char *text = session_line_write(o, &s);
  assert_non_null(text);
  return text;
}

static void test_a_line_is_read_as_it_was_written(void **state) {
  (void)state;
  json_t *o = make_object();
  char *text = make_line(o);
  ledger_session s;
  err e = {0};
  assert_ptr_equal(strstr(text, "{\"format\":\"tandem session\",\"version\":1,"), text);
  assert_null(strchr(text, '\n'));
  if (session_line_read(text, strlen(text), &s, &e)) fail_msg("%s", e.text);
  assert_true(s.id == UINT64_C(0xfedcba9876543210));
  assert_true(s.hash_seed == UINT64_C(0xf00d000000000001));
  assert_int_equal(s.epoch, 17);
  assert_int_equal(s.state, LEDGER_INTERRUPTED);
  assert_int_equal(s.created, 1763881600123457);
  assert_int_equal(s.updated, 1763881601000000);
  assert_string_equal(s.model, "/a/m\xc3\xa9.gguf");
  assert_string_equal(s.numerics, "int8");
  assert_string_equal(s.about, "{\"title\":\"t\"}");
  assert_null(s.stats);
  assert_int_equal(s.fingerprint.bytes[15], 0xff);
  assert_int_equal(s.prompt_length, 3);
  assert_int_equal(s.length, 5);
  assert_int_equal(s.tokens[4], INT32_MAX);
  assert_true(s.options.seed == options.seed);
  assert_memory_equal(&s.options.min_p, &options.min_p, sizeof(float));
  assert_int_equal(s.options.stop_count, 2);
  ledger_session_fini(&s);
  free(text);
  json_decref(o);
}

/* Another program may write it again: with other blanks, in another order. */
static void test_its_values_count_and_not_its_bytes(void **state) {
  (void)state;
  json_t *o = make_object();
  char *text = make_line(o);
  json_t *again = json_loads(text, 0, NULL);
  char *other = json_dumps(again, JSON_SORT_KEYS | JSON_INDENT(3) | JSON_REAL_PRECISION(17));
  ledger_session s;
  err e = {0};
  if (session_line_read(other, strlen(other), &s, &e)) fail_msg("%s", e.text);
  ledger_session_fini(&s);
  free(other);
  free(text);
  json_decref(again);
  json_decref(o);
}

static void expect_refused(const char *text, size_t size, int code, const char *phrase) {
  ledger_session s;
  err e = {0};
  int rc = session_line_read(text, size, &s, &e);
  ledger_session_fini(&s);
  if (rc != code || !strstr(e.text, phrase)) fail_msg("%d '%s' for '%s' in %.400s", rc, e.text, phrase, text);
}

/* Every byte of it: no change that means something else is taken. */
static void test_any_change_is_refused(void **state) {
  (void)state;
  json_t *o = make_object();
  char *text = make_line(o);
  size_t size = strlen(text);
  for (size_t i = 0; i < size; i++) {
    ledger_session s;
    err e = {0};
    char was = text[i];
    text[i] = was == '1' ? '2' : '1';
    if (session_line_read(text, size, &s, &e) == ERR_OK) fail_msg("byte %zu: %s", i, text);
    ledger_session_fini(&s);
    text[i] = was;
    expect_refused(text, i, ERR_FORMAT, "cut off"); /* and every beginning of it */
  }
  free(text);
  json_decref(o);
}

/* With a right checksum: one that was made by somebody else. */
static const struct {
  const char *key, *value, *phrase;
  int code;
} wrong[] = {
    {"format", "\"other\"", "no line of `tandem session export'", ERR_FORMAT},
    {"format", NULL, "no line of `tandem session export'", ERR_FORMAT},
    {"version", "2", "version 2", ERR_VERSION},
    {"version", NULL, "version 0", ERR_VERSION},
    {"id", "\"12\"", "\"id\"", ERR_FORMAT},
    {"id", "\"FEDCBA9876543210\"", "\"id\"", ERR_FORMAT},
    {"state", "\"happy\"", "\"state\"", ERR_FORMAT},
    {"state", "\"Ended\"", "\"state\"", ERR_FORMAT},
    {"state", "null", "\"state\"", ERR_FORMAT},
    {"model", "7", "\"model\"", ERR_FORMAT},
    {"model_fingerprint", "\"\"", "\"model_fingerprint\"", ERR_FORMAT},
    {"created", "-1", "\"created\"", ERR_FORMAT},
    {"created", "1e300", "\"created\"", ERR_FORMAT},
    {"updated", "\"now\"", "\"updated\"", ERR_FORMAT},
    {"request", "[]", "\"request\"", ERR_FORMAT},
    {"stats", "1", "\"stats\"", ERR_FORMAT},
    {"options", "{}", "\"options\"", ERR_FORMAT},
    {"options", NULL, "\"options\"", ERR_FORMAT},
    {"prompt_ids", "[]", "no prompt_ids", ERR_FORMAT},
    {"prompt_ids", "{}", "no prompt_ids", ERR_FORMAT},
    {"token_ids", NULL, "no token_ids", ERR_FORMAT},
    {"prompt_ids", "[1, -1]", "token number 2", ERR_FORMAT},
    {"prompt_ids", "[1.5]", "token number 1", ERR_FORMAT},
    {"token_ids", "[2147483648]", "token number 4", ERR_FORMAT},
    {"token_ids", "[\"1\"]", "token number 4", ERR_FORMAT},
};

/* The writer puts four keys of its own; those are changed afterwards, and the checksum is made again. */
static char *lie(const char *key, const char *value) {
  json_t *o = make_object(), *v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
  json_t *line = json_object();
  assert_true(v || !value);
  json_object_set_new(line, "format", json_string(SESSION_LINE_FORMAT));
  json_object_set_new(line, "version", json_integer(SESSION_LINE_VERSION));
  json_object_update(line, o);
  json_object_set_new(line, "epoch", json_integer(17));
  json_object_set_new(line, "hash_seed", json_string("f00d000000000001"));
  if (v)
    json_object_set_new(line, key, v);
  else
    json_object_del(line, key);
  char *text = json_dumps(line, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(SESSION_LINE_DIGITS)),
       sum[33];
  hash_format(hash_bytes(text, strlen(text)), sum);
  free(text);
  json_object_set_new(line, "checksum", json_string(sum));
  text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(SESSION_LINE_DIGITS));
  json_decref(line);
  json_decref(o);
  return text;
}

static void test_wrong_values_are_refused_by_name(void **state) {
  (void)state;
  ledger_session s;
  err e = {0};
  char *text = lie("stats", "{\"forwards\":1}"); /* the checksum of the test is that of the program */
  if (session_line_read(text, strlen(text), &s, &e)) fail_msg("%s", e.text);
  ledger_session_fini(&s);
  free(text);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    text = lie(wrong[i].key, wrong[i].value);
    expect_refused(text, strlen(text), wrong[i].code, wrong[i].phrase);
    free(text);
  }
  static const char *const epochs[] = {"0", "-1", "2147483648", "\"17\"", "17.5"};
  for (size_t i = 0; i < 5; i++) {
    text = lie("epoch", epochs[i]);
    expect_refused(text, strlen(text), ERR_FORMAT, "\"epoch\"");
    free(text);
  }
}

static void test_limits_are_checked(void **state) {
  (void)state;
  json_t *many = json_array();
  for (int i = 0; i < 65; i++) json_array_append_new(many, json_integer(1));
  char *list = json_dumps(many, 0), *text = lie("token_ids", list);
  expect_refused(text, strlen(text), ERR_LIMIT, "68 tokens, and its context is 64");
  free(text);
  free(list);
  json_decref(many);
  expect_refused("", SESSION_LINE_MAX + (size_t)1, ERR_LIMIT, "bytes");
  char deep[100];
  memset(deep, '[', sizeof deep);
  expect_refused(deep, sizeof deep, ERR_LIMIT, "nests");
  static const char *const others[] = {"", "7", "[]", "{}", "no"};
  for (size_t i = 0; i < 5; i++)
    expect_refused(others[i], strlen(others[i]), ERR_FORMAT, i == 3 ? "no line of" : "no JSON object");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_line_is_read_as_it_was_written),
      cmocka_unit_test(test_its_values_count_and_not_its_bytes),
      cmocka_unit_test(test_any_change_is_refused),
      cmocka_unit_test(test_wrong_values_are_refused_by_name),
      cmocka_unit_test(test_limits_are_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
