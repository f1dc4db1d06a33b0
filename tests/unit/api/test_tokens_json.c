/* libs: api */
/* /tokenize and /detokenize with a vocabulary that begins each text with a token of its own. */
#include "orchestrator/service/api/tokens_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* "Ã" is the first byte of "é" in the byte alphabet. */
static const char vocabulary[] =
    "{\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true}],"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\u00c3\":3},\"merges\":[\"a b\"]},"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
    "\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
    "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[4]}}}}";
static text_model model = {.config.vocab = 5};

static int setup(void **state) {
  (void)state;
  const tokenizer_texts texts = {.tokenizer = vocabulary, .tokenizer_size = sizeof vocabulary - 1};
  err e = {0};
  if (tokenizer_open_texts(&model.tokens, &texts, 0, &e)) fail_msg("%s", e.text);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  tokenizer_close(model.tokens);
  return 0;
}

typedef int convert(const char *text, const text_model *m, json_t **out, call_error *e);

static int tokenize(const char *text, const text_model *m, json_t **out, call_error *e) {
  json_t *body = json_loads(text, 0, NULL);
  int rc = tokens_json_tokenize(body, m, 77, out, e);
  json_decref(body);
  return rc;
}

static int detokenize(const char *text, const text_model *m, json_t **out, call_error *e) {
  json_t *body = json_loads(text, 0, NULL);
  int rc = tokens_json_detokenize(body, m, out, e);
  json_decref(body);
  return rc;
}

static void expect(convert *to, const char *body, const char *expected) {
  call_error e = {0};
  json_t *got, *wanted = json_loads(expected, 0, NULL);
  assert_non_null(wanted);
  if (to(body, &model, &got, &e)) fail_msg("%s: %s", body, e.why.text);
  char *text = json_dumps(got, JSON_COMPACT);
  if (!json_equal(got, wanted)) fail_msg("%s: %s is not %s", body, text, expected);
  free(text);
  json_decref(got);
  json_decref(wanted);
}

#define REST "\"max_model_len\": 77"

static void test_content_begins_where_it_is_asked_to(void **state) {
  (void)state;
  expect(tokenize, "{\"content\": \"aab\"}", "{\"tokens\": [0, 2], \"count\": 2, " REST "}");
  expect(tokenize, "{\"content\": \"ab\", \"add_special\": true}",
         "{\"tokens\": [4, 2], \"count\": 2, " REST "}");
}

static void test_a_prompt_begins_as_a_completion_does(void **state) {
  (void)state;
  expect(tokenize, "{\"prompt\": \"ab\"}", "{\"tokens\": [4, 2], \"count\": 2, " REST "}");
  expect(tokenize, "{\"prompt\": \"<s>ab\"}", "{\"tokens\": [4, 2], \"count\": 2, " REST "}");
  expect(tokenize, "{\"prompt\": \"<s>ab\", \"parse_special\": false}",
         "{\"tokens\": [4, 2], \"count\": 2, " REST "}");
  expect(tokenize, "{\"prompt\": \"ab\", \"add_special_tokens\": false}",
         "{\"tokens\": [2], \"count\": 1, " REST "}");
}

static void test_pieces_that_are_no_characters_are_bytes(void **state) {
  (void)state;
  expect(tokenize, "{\"content\": \"a\u00e9\", \"with_pieces\": true}",
         "{\"tokens\": [{\"id\": 0, \"piece\": \"a\"}, {\"id\": 3, \"piece\": [195]}], \"count\": 2, " REST
         "}");
}

static void test_text_of_tokens(void **state) {
  (void)state;
  expect(detokenize, "{\"tokens\": [4, 2, 3]}",
         "{\"content\": \"<s>ab\ufffd\", \"prompt\": \"<s>ab\ufffd\"}");
  expect(detokenize, "{\"tokens\": []}", "{\"content\": \"\", \"prompt\": \"\"}");
}

static void test_refusals(void **state) {
  (void)state;
  static const text_model mute = {.config.vocab = 5};
  call_error e = {0};
  json_t *out;
  assert_int_equal(tokenize("{\"content\": \"a\"}", &mute, &out, &e), ERR_UNSUPPORTED);
  assert_int_equal(detokenize("{\"tokens\": [0]}", &mute, &out, &e), ERR_UNSUPPORTED);
  assert_int_equal(tokenize("{\"prompt\": \"\"}", &model, &out, &e), ERR_ARG); /* as a completion's */
  assert_int_equal(detokenize("{\"tokens\": [5]}", &model, &out, &e), ERR_ARG);
  assert_string_equal(e.param, "tokens");
  const char *unwanted =
      "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"add_generation_prompt\": false}";
  assert_int_equal(tokenize(unwanted, &model, &out, &e), ERR_UNSUPPORTED);
  assert_string_equal(e.param, "add_generation_prompt");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_content_begins_where_it_is_asked_to),
                                     cmocka_unit_test(test_a_prompt_begins_as_a_completion_does),
                                     cmocka_unit_test(test_pieces_that_are_no_characters_are_bytes),
                                     cmocka_unit_test(test_text_of_tokens), cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
