/* libs: service wire speculative text file base */
/* Request lines: what each may say, to the ends of its range. */
#include "orchestrator/service/prompt.h"
#include "orchestrator/service/request_json.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/same_request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { B = GB_SPECIAL_COUNT, HELLO = GB_SPECIAL_COUNT + 256 + 3 };

static text_model model, ids_only;

static int open_model(void **state) {
  (void)state;
  gguf_builder b = gb_begin(3);
  gguf *g;
  err e;
  gb_vocabulary(&b, 0);
  gb_end(&b);
  assert_int_equal(gguf_open_memory(&g, b.bytes, b.size, NULL), ERR_OK);
  assert_int_equal(tokenizer_open(&model.tokens, g, NULL), ERR_OK);
  if (chat_template_open(&model.chat, model.tokens, "chatml", &e)) fail_msg("%s", e.text);
  gguf_close(g);
  gb_free(&b);
  model.config.vocab = ids_only.config.vocab = tokenizer_size(model.tokens);
  return 0;
}

static int close_model(void **state) {
  (void)state;
  text_model_close(&model);
  return 0;
}

/* With a stop string of their own; what they draft is on. */
static request defaults;

static int make_defaults(void **state) {
  request_init(&defaults);
  defaults.context = 4096;
  if (request_add_stop(&defaults, "stop", "before", 6, NULL)) return -1;
  return open_model(state);
}

static int free_defaults(void **state) {
  request_fini(&defaults);
  return close_model(state);
}

typedef struct reading {
  request r;
  json_t *id;
  tokenizer_ids ids;
  err e;
  int code;
} reading;

/* As the queue does it: the line is read, checked and encoded. */
static reading read_with(const char *line, const request *from) {
  reading r = {0};
  r.code = request_json_read(line, strlen(line), from, model.config.vocab, &r.r, &r.id, &r.e);
  if (r.code == ERR_OK) r.code = request_check(&r.r, &r.e);
  if (r.code == ERR_OK) r.code = prompt_encode(&r.r, &model, &r.ids, &r.e);
  return r;
}

static void release(reading *r) {
  json_decref(r->id);
  request_fini(&r->r);
  tokenizer_ids_fini(&r->ids);
}

/* {"id": 1, "prompt_ids": [5], REST} */
static reading read_rest(const char *rest) {
  char line[1000];
  snprintf(line, sizeof line, "{\"id\": 1, \"prompt_ids\": [5]%s%s}", *rest ? ", " : "", rest);
  return read_with(line, &defaults);
}

static void expect_refused(const char *line, int code, const char *phrase) {
  reading r = read_with(line, &defaults);
  if (r.code != code || !strstr(r.e.text, phrase)) fail_msg("%s: %s %s", line, err_name(r.code), r.e.text);
  release(&r);
}

static void expect_rest_refused(const char *rest, const char *phrase) {
  reading r = read_rest(rest);
  if (r.code != ERR_ARG || !strstr(r.e.text, phrase)) fail_msg("%s: %s %s", rest, err_name(r.code), r.e.text);
  release(&r);
}

static void test_what_a_line_does_not_say_is_as_in_the_defaults(void **state) {
  (void)state;
  reading r = read_rest("");
  assert_int_equal(r.code, ERR_OK);
  assert_true(same_options(&r.r, &defaults));
  assert_int_equal(r.ids.count, 1);
  assert_int_equal(r.ids.ids[0], 5);
  release(&r);
}

#define EXPECT(rest, condition)                                                                              \
  do {                                                                                                       \
    reading r = read_rest(rest);                                                                             \
    if (r.code != ERR_OK) fail_msg("%s: %s", rest, r.e.text);                                                \
    if (!(condition)) fail_msg("%s: not %s", rest, #condition);                                              \
    release(&r);                                                                                             \
  } while (0)

static void test_options_to_the_ends_of_their_ranges(void **state) {
  (void)state;
  EXPECT("\"budget\": 0", r.r.budget == 0);
  EXPECT("\"budget\": 64", r.r.budget == 64);
  EXPECT("\"enable_specpv\": false", r.r.partial.mode == WIRE_PARTIAL_OFF);
  EXPECT("\"max_tokens\": 1", r.r.max_tokens == 1);
  EXPECT("\"max_tokens\": 1048576", r.r.max_tokens == 1048576);
  EXPECT("\"max_tokens\": -1", r.r.max_tokens == WIRE_CONTEXT_MAX);
  EXPECT("\"top_k\": 0", r.r.sampling.top_k == 0);
  EXPECT("\"top_k\": 1048576", r.r.sampling.top_k == 1048576);
  EXPECT("\"temperature\": 0", r.r.sampling.temperature == 0);
  EXPECT("\"temperature\": 100", r.r.sampling.temperature == 100);
  EXPECT("\"temperature\": 0.8", r.r.sampling.temperature == 0.8f);
  EXPECT("\"top_p\": 1", r.r.sampling.top_p == 1);
  EXPECT("\"top_p\": 1e-6", r.r.sampling.top_p == 1e-6f);
  EXPECT("\"min_p\": 0", r.r.sampling.min_p == 0);
  EXPECT("\"min_p\": 0.5", r.r.sampling.min_p == 0.5f);
  EXPECT("\"repeat_penalty\": 10", r.r.sampling.repeat_penalty == 10);
  EXPECT("\"presence_penalty\": -2", r.r.sampling.presence_penalty == -2);
  EXPECT("\"frequency_penalty\": 2", r.r.sampling.frequency_penalty == 2);
  EXPECT("\"logit_bias\": {}", r.r.bias_count == 0);
  EXPECT("\"logit_bias\": {\"15\": -100, \"2147483647\": 1e-3}",
         r.r.bias_count == 2 && r.r.bias.tokens[0] == 15 && r.r.bias.values[0] == -100 &&
             r.r.bias.tokens[1] == INT32_MAX && r.r.bias.values[1] == 1e-3f);
  EXPECT("\"seed\": 0", r.r.sampling.seed == 0);
  EXPECT("\"seed\": 9223372036854775807", r.r.sampling.seed == INT64_MAX);
  EXPECT("\"force_single_token\": true", r.r.single_token);
  EXPECT("\"force_single_token\": false", !r.r.single_token);
  EXPECT("\"draft\": false", !r.r.speculate);
  EXPECT("\"draft\": true", r.r.speculate);
}

static void test_options_outside_their_ranges_are_refused(void **state) {
  (void)state;
  expect_rest_refused("\"budget\": 65", "from 0 to 64");
  expect_rest_refused("\"enable_specpv\": true",
                      "\"enable_specpv\" is of partial KV, but this server runs without");
  expect_rest_refused("\"budget\": -1", "budget");
  expect_rest_refused("\"budget\": 1.5", "budget");
  expect_rest_refused("\"max_tokens\": 0", "from 1 to 1048576, or -1");
  expect_rest_refused("\"max_tokens\": -2", "max_tokens");
  expect_rest_refused("\"top_k\": -1", "top_k");
  expect_rest_refused("\"max_tokens\": 1048577", "max_tokens");
  expect_rest_refused("\"max_tokens\": 4294967297", "max_tokens");
  expect_rest_refused("\"top_k\": -1", "top_k");
  expect_rest_refused("\"top_k\": 1048577", "top_k");
  expect_rest_refused("\"temperature\": 100.001", "temperature");
  expect_rest_refused("\"temperature\": -0.001", "temperature");
  expect_rest_refused("\"temperature\": \"1\"", "temperature");
  expect_rest_refused("\"top_p\": 0", "top_p");
  expect_rest_refused("\"top_p\": 1.001", "top_p");
  expect_rest_refused("\"min_p\": 1", "min_p");
  expect_rest_refused("\"min_p\": -0.1", "min_p");
  expect_rest_refused("\"repeat_penalty\": 0", "repeat_penalty");
  expect_rest_refused("\"repeat_penalty\": 10.1", "repeat_penalty");
  expect_rest_refused("\"presence_penalty\": 2.001", "from -2 to 2");
  expect_rest_refused("\"frequency_penalty\": -2.001", "from -2 to 2");
  expect_rest_refused("\"logit_bias\": []", "logit_bias");
  expect_rest_refused("\"logit_bias\": {\"a\": 1}", "no token id");
  expect_rest_refused("\"logit_bias\": {\"\": 1}", "no token id");
  expect_rest_refused("\"logit_bias\": {\"1a\": 1}", "no token id");
  expect_rest_refused("\"logit_bias\": {\"-1\": 1}", "no token id");
  expect_rest_refused("\"logit_bias\": {\"2147483648\": 1}", "no token id");
  expect_rest_refused("\"logit_bias\": {\"1\": 100.1}", "from -100 to 100");
  expect_rest_refused("\"logit_bias\": {\"1\": \"5\"}", "from -100 to 100");
  expect_rest_refused("\"seed\": -1", "seed");
  expect_rest_refused("\"seed\": 1.5", "seed");
  expect_rest_refused("\"force_single_token\": 1", "force_single_token");
  expect_rest_refused("\"draft\": \"ngram\"", "draft");
}

static void test_no_draft_can_be_asked_for_where_there_is_none(void **state) {
  (void)state;
  request plain = defaults;
  plain.speculate = false;
  reading r = read_with("{\"id\": 1, \"prompt_ids\": [5], \"draft\": true}", &plain);
  assert_int_equal(r.code, ERR_ARG);
  release(&r);
  r = read_with("{\"id\": 1, \"prompt_ids\": [5], \"draft\": false}", &plain);
  assert_int_equal(r.code, ERR_OK);
  release(&r);
}

static void test_stops_replace_the_default_ones(void **state) {
  (void)state;
  EXPECT("\"stop\": \"x\"", r.r.stop_count == 1 && strcmp(r.r.stops[0], "x") == 0);
  EXPECT("\"stop\": []", r.r.stop_count == 0);
  EXPECT("\"stop\": [\"a\", \"\\u00e9\"]",
         r.r.stop_count == 2 && strcmp(r.r.stops[0], "a") == 0 && strcmp(r.r.stops[1], "\xc3\xa9") == 0);
  expect_rest_refused("\"stop\": 5", "\"stop\"");
  expect_rest_refused("\"stop\": \"\"", "empty");
  expect_rest_refused("\"stop\": [\"a\", 5]", "[1]");
  expect_rest_refused("\"stop\": [\"\", \"a\"]", "empty");
  expect_rest_refused("\"stop\": \"a\\u0000b\"", "NUL");
  char rest[400] = "\"stop\": [\"0\"";
  for (int i = 1; i < DETOKENIZER_STOP_MAX; i++) strcat(rest, ", \"x\"");
  char full[500];
  snprintf(full, sizeof full, "%s]", rest);
  EXPECT(full, r.r.stop_count == DETOKENIZER_STOP_MAX);
  snprintf(full, sizeof full, "%s, \"one more\"]", rest);
  expect_rest_refused(full, "times at most");
  for (int size = DETOKENIZER_STOP_BYTES_MAX; size <= DETOKENIZER_STOP_BYTES_MAX + 1; size++) {
    snprintf(full, sizeof full, "\"stop\": \"%0*d\"", size, 0);
    if (size == DETOKENIZER_STOP_BYTES_MAX)
      EXPECT(full, r.r.stop_count == 1);
    else
      expect_rest_refused(full, "bytes");
  }
}

static void test_three_ways_to_give_a_prompt(void **state) {
  (void)state;
  reading r = read_with("{\"id\": \"a\", \"prompt\": \"hello\"}", &defaults), with_system;
  assert_int_equal(r.code, ERR_OK); /* through the template */
  assert_true(r.ids.count > 5);
  reading same =
      read_with("{\"id\": 2, \"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}", &defaults);
  assert_int_equal(same.code, ERR_OK);
  assert_int_equal(same.ids.count, r.ids.count);
  assert_memory_equal(same.ids.ids, r.ids.ids, r.ids.count * sizeof *r.ids.ids);
  release(&same);
  request f = defaults;
  f.system = (char *)"hello";
  with_system = read_with("{\"id\": 2, \"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}", &f);
  same = read_with("{\"id\": 2, \"messages\": [{\"role\": \"system\", \"content\": \"hello\"}, {\"role\": "
                   "\"user\", \"content\": \"hello\"}]}",
                   &f);
  assert_true(with_system.ids.count == same.ids.count && same.ids.count != r.ids.count); /* its own, once */
  assert_memory_equal(with_system.ids.ids, same.ids.ids, same.ids.count * sizeof *same.ids.ids);
  release(&same);
  release(&with_system);
  release(&r);
}

static void test_a_raw_prompt_takes_no_template(void **state) {
  (void)state;
  request f = defaults;
  f.raw = true;
  reading r = read_with("{\"id\": 1, \"prompt\": \"hello<|im_end|>\"}", &f);
  assert_int_equal(r.code, ERR_OK);
  assert_int_equal(r.ids.count, 2);
  assert_int_equal(r.ids.ids[0], HELLO);
  assert_int_equal(r.ids.ids[1], 2);
  release(&r);
  f.no_special = true;
  r = read_with("{\"id\": 1, \"prompt\": \"hello<|im_end|>\"}", &f);
  assert_true(r.ids.count > 2);
  release(&r);
  r = read_with("{\"id\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", &f);
  assert_int_equal(r.code, ERR_ARG); /* the template is left out */
  release(&r);
}

static void test_bad_prompts_are_refused(void **state) {
  (void)state;
  char line[300];
  snprintf(line, sizeof line, "{\"id\": 1, \"prompt_ids\": [0, %d]}", model.config.vocab - 1);
  reading r = read_with(line, &defaults);
  assert_int_equal(r.code, ERR_OK);
  assert_int_equal(r.ids.ids[1], model.config.vocab - 1);
  release(&r);
  snprintf(line, sizeof line, "{\"id\": 1, \"prompt_ids\": [0, %d]}", model.config.vocab);
  expect_refused(line, ERR_ARG, "[1]");
  expect_refused("{\"id\": 1, \"prompt_ids\": [-1]}", ERR_ARG, "[0]");
  expect_refused("{\"id\": 1, \"prompt_ids\": [1.0]}", ERR_ARG, "[0]");
  expect_refused("{\"id\": 1, \"prompt_ids\": 1}", ERR_ARG, "array");
  expect_refused("{\"id\": 1, \"prompt\": 1}", ERR_ARG, "string");
  expect_refused("{\"id\": 1, \"prompt\": \"\"}", ERR_ARG, "empty");
  expect_refused("{\"id\": 1, \"prompt\": \"a\", \"prompt_ids\": [1]}", ERR_ARG, "both");
  expect_refused("{\"id\": 1}", ERR_ARG, "none of");
  expect_refused("{\"id\": 1, \"messages\": []}", ERR_ARG, "1 to");
  expect_refused("{\"id\": 1, \"messages\": {}}", ERR_ARG, "1 to");
  expect_refused(
      "{\"id\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"user\"}]}", ERR_ARG,
      "[1]");
}

static void test_messages_up_to_their_limit(void **state) {
  (void)state;
  static const char one[] = "{\"role\": \"user\", \"content\": \"x\"}";
  request f = defaults;
  f.system = (char *)"s"; /* one more than the line's */
  for (int count = REQUEST_JSON_MESSAGES_MAX; count <= REQUEST_JSON_MESSAGES_MAX + 1; count++) {
    char *line = malloc((size_t)count * (sizeof one + 1) + 64), *at = line;
    at += sprintf(at, "{\"id\": 1, \"messages\": [%s", one);
    for (int i = 1; i < count; i++) at += sprintf(at, ", %s", one);
    strcpy(at, "]}");
    reading r = read_with(line, &f);
    assert_int_equal(r.code, count == REQUEST_JSON_MESSAGES_MAX ? ERR_OK : ERR_ARG);
    release(&r);
    free(line);
  }
}

static void test_ids_of_lines(void **state) {
  (void)state;
  static const char *const good[] = {"1", "-1", "0", "\"\"", "\"a\"", "9223372036854775807"};
  static const char *const bad[] = {"1.5", "null", "[1]", "{}", "true"};
  char line[100];
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    snprintf(line, sizeof line, "{\"prompt_ids\": [5], \"id\": %s}", good[i]);
    reading r = read_with(line, &defaults);
    assert_int_equal(r.code, ERR_OK);
    char *text = json_dumps(r.id, JSON_ENCODE_ANY);
    assert_string_equal(text, good[i]);
    free(text);
    release(&r);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    snprintf(line, sizeof line, "{\"prompt_ids\": [5], \"id\": %s}", bad[i]);
    expect_refused(line, ERR_ARG, "\"id\"");
  }
  reading r = read_with("{\"prompt_ids\": [5]}", &defaults); /* nobody has to number his lines */
  assert_int_equal(r.code, ERR_OK);
  assert_null(r.id);
  release(&r);
  r = read_with("{\"id\": 4, \"prompt\": 5}", &defaults); /* told also where the line is bad */
  assert_int_equal(json_integer_value(r.id), 4);
  release(&r);
}

static void test_unknown_keys_are_refused(void **state) {
  (void)state;
  static const char *const results[] = {"text",
                                        "token_ids",
                                        "prompt_tokens",
                                        "finish_reason",
                                        "error",
                                        "numerics_id",
                                        "numerics_changed",
                                        "stats",
                                        "session",
                                        "state",
                                        "model",
                                        "model_fingerprint",
                                        "created",
                                        "updated",
                                        "prompt_text",
                                        "options",
                                        "request"};
  char rest[64];
  for (size_t i = 0; i < sizeof results / sizeof *results; i++) { /* what an answer says is no request */
    snprintf(rest, sizeof rest, "\"%s\": [{}]", results[i]);
    EXPECT(rest, same_options(&r.r, &defaults));
  }
  expect_rest_refused("\"specpv_n_sink_block\": 1", "did you mean \"specpv_n_sink_blocks\"?");
  expect_rest_refused("\"bugdet\": 1", "did you mean \"budget\"?");
  expect_rest_refused("\"stopp\": \"x\"", "did you mean \"stop\"?");
  expect_rest_refused("\"message\": []", "did you mean \"messages\"?");
  expect_rest_refused("\"sesion\": 1", "unknown key \"sesion\""); /* not a word of a result */
  reading r = read_rest("\"textt\": 1");
  assert_true(r.code == ERR_ARG && !strstr(r.e.text, "did you mean"));
  release(&r);
  expect_rest_refused("\"zebra crossings\": 1", "unknown key");
}

static void test_what_is_no_line(void **state) {
  (void)state;
  expect_refused("", ERR_FORMAT, "JSON");
  expect_refused("{", ERR_FORMAT, "JSON");
  expect_refused("7", ERR_FORMAT, "JSON");
  expect_refused("[1]", ERR_FORMAT, "not a JSON object");
  expect_refused("{\"id\": 1, \"id\": 2, \"prompt\": \"x\"}", ERR_FORMAT, "JSON");
  expect_refused("{\"id\": 1, \"prompt\": \"\xff\"}", ERR_FORMAT, "JSON");
  char *line = malloc(REQUEST_JSON_LINE_MAX + 1);
  request r;
  json_t *id;
  err e = {0};
  memset(line, ' ', REQUEST_JSON_LINE_MAX + 1);
  memcpy(line, "{\"id\":1,\"prompt_ids\":[5]}", 25);
  assert_int_equal(request_json_read(line, REQUEST_JSON_LINE_MAX, &defaults, 50, &r, &id, &e), ERR_OK);
  request_fini(&r);
  json_decref(id);
  assert_int_equal(request_json_read(line, REQUEST_JSON_LINE_MAX + 1, &defaults, 50, &r, &id, &e), ERR_LIMIT);
  assert_null(id);
  request_fini(&r);
  free(line);
}

static void test_blank_lines(void **state) {
  (void)state;
  assert_true(request_json_is_blank("", 0) && request_json_is_blank(" \t\r", 3) &&
              request_json_is_blank("x", 0));
  assert_false(request_json_is_blank("  x", 3) || request_json_is_blank("\0", 1) ||
               request_json_is_blank("\n", 1));
}

static int encode_without_a_vocabulary(const char *line, tokenizer_ids *ids) {
  request r;
  json_t *id;
  err e = {0};
  int rc = request_json_read(line, strlen(line), &defaults, ids_only.config.vocab, &r, &id, &e);
  if (rc == ERR_OK) rc = prompt_encode(&r, &ids_only, ids, &e);
  request_fini(&r);
  json_decref(id);
  return rc;
}

static void test_without_a_vocabulary_a_prompt_is_ids(void **state) {
  (void)state;
  tokenizer_ids ids = {0};
  assert_int_equal(encode_without_a_vocabulary("{\"id\":1,\"prompt\":\"x\"}", &ids), ERR_UNSUPPORTED);
  assert_int_equal(encode_without_a_vocabulary("{\"id\":1,\"prompt_ids\":[5,6]}", &ids), ERR_OK);
  assert_int_equal(ids.count, 2);
  tokenizer_ids_fini(&ids);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_a_line_does_not_say_is_as_in_the_defaults),
      cmocka_unit_test(test_options_to_the_ends_of_their_ranges),
      cmocka_unit_test(test_options_outside_their_ranges_are_refused),
      cmocka_unit_test(test_no_draft_can_be_asked_for_where_there_is_none),
      cmocka_unit_test(test_stops_replace_the_default_ones),
      cmocka_unit_test(test_three_ways_to_give_a_prompt),
      cmocka_unit_test(test_a_raw_prompt_takes_no_template),
      cmocka_unit_test(test_bad_prompts_are_refused),
      cmocka_unit_test(test_messages_up_to_their_limit),
      cmocka_unit_test(test_ids_of_lines),
      cmocka_unit_test(test_unknown_keys_are_refused),
      cmocka_unit_test(test_what_is_no_line),
      cmocka_unit_test(test_blank_lines),
      cmocka_unit_test(test_without_a_vocabulary_a_prompt_is_ids),
  };
  return cmocka_run_group_tests(tests, make_defaults, free_defaults);
}
