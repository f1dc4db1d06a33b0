/* libs: ledger wire speculative base */
/* What the ledger keeps of a request comes back as it was, to the last bit; anything else is refused by its
 * name. */
#include "orchestrator/ledger/options_json.h"
#include "tests/support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

static const msg_options some = {.max_tokens = 100,
                                 .temperature = 0.8f,
                                 .top_k = 40,
                                 .top_p = 0.95f,
                                 .min_p = 0.05f,
                                 .repeat_penalty = 1.1f,
                                 .seed = 7,
                                 .choice = 3,
                                 .context = 4096,
                                 .budget = 15,
                                 .lockstep = true,
                                 .selfcheck = 2,
                                 .single = true,
                                 .stops = (const int32_t[]){2, 5},
                                 .stop_count = 2};

static void check_back(const msg_options *o) {
  msg_options got;
  int32_t stops[WIRE_STOPS_MAX];
  msg_bias bias;
  char *grammar;
  err e = {0};
  char *text = options_json_text(o);
  assert_non_null(text);
  if (options_json_read(text, &got, stops, &bias, &grammar, &e)) fail_msg("%s: %s", text, e.text);
  assert_int_equal(got.max_tokens, o->max_tokens);
  assert_int_equal(got.top_k, o->top_k);
  assert_true(got.seed == o->seed);
  assert_int_equal(got.choice, o->choice);
  assert_int_equal(got.context, o->context);
  assert_int_equal(got.budget, o->budget);
  assert_int_equal(got.lockstep, o->lockstep);
  assert_int_equal(got.selfcheck, o->selfcheck);
  assert_int_equal(got.single, o->single);
  const float floats[][2] = {{got.temperature, o->temperature},
                             {got.top_p, o->top_p},
                             {got.min_p, o->min_p},
                             {got.repeat_penalty, o->repeat_penalty},
                             {got.presence_penalty, o->presence_penalty},
                             {got.frequency_penalty, o->frequency_penalty}};
  for (size_t i = 0; i < 6; i++) assert_memory_equal(&floats[i][0], &floats[i][1], sizeof(float));
  assert_int_equal(got.stop_count, o->stop_count);
  for (int32_t i = 0; i < o->stop_count; i++) assert_int_equal(got.stops[i], o->stops[i]);
  assert_int_equal(got.bias_count, o->bias_count);
  for (int32_t i = 0; i < o->bias_count; i++) {
    assert_int_equal(got.bias_tokens[i], o->bias_tokens[i]);
    assert_memory_equal(&got.bias_values[i], &o->bias_values[i], sizeof(float));
  }
  assert_memory_equal(&got.partial, &o->partial, sizeof got.partial);
  assert_int_equal(got.grammar_size, o->grammar_size);
  assert_true((grammar != NULL) == (o->grammar_size > 0) && got.grammar == grammar);
  if (grammar) assert_memory_equal(grammar, o->grammar, o->grammar_size);
  free(grammar);
  free(text);
}

static void test_a_grammar_is_read_back(void **state) {
  (void)state;
  static char large[WIRE_GRAMMAR_MAX];
  msg_options o = some;
  o.grammar = "root ::= \"\xc3\xa4\\n\"\n";
  o.grammar_size = (uint32_t)strlen(o.grammar);
  check_back(&o);
  memset(large, '#', sizeof large);
  o.grammar = large;
  o.grammar_size = sizeof large;
  check_back(&o);
}

static void test_partial_kv_is_read_back(void **state) {
  (void)state;
  msg_options o = some;
  o.partial = (msg_partial){WIRE_PARTIAL_LOSSY, 32, 1, 40, 9, 64, 2000, 16};
  check_back(&o);
  o.partial = (msg_partial){.mode = WIRE_PARTIAL_OFF};
  check_back(&o);
}

static void test_options_are_read_back(void **state) {
  (void)state;
  check_back(&some);
  msg_options o = {0};
  check_back(&o);
  o = some;
  o.max_tokens = o.top_k = o.context = o.budget = o.selfcheck = INT32_MAX;
  o.seed = UINT64_MAX;
  o.choice = UINT32_MAX;
  o.lockstep = o.single = false;
  check_back(&o);
  o.max_tokens = o.top_k = o.context = o.budget = o.selfcheck = INT32_MIN;
  o.seed = UINT64_C(1) << 63;
  check_back(&o);
  o.lockstep = true; /* one of two flags */
  check_back(&o);
}

static void test_every_float_is_read_back_with_its_bits(void **state) {
  (void)state;
  msg_options o = some;
  uint64_t random = 1;
  for (int i = 0; i < 20000; i++) {
    uint32_t bits = (uint32_t)random_next(&random);
    float x;
    memcpy(&x, &bits, sizeof x);
    if (!isfinite(x)) continue;
    o.temperature = x;
    o.top_p = -x;
    o.min_p = nextafterf(x, 0);
    o.repeat_penalty = (float)(i % 1000) / 100;
    check_back(&o);
  }
}

/* So that people read 0.8, not 0.800000012. */
static void test_floats_are_written_short(void **state) {
  (void)state;
  char *text = options_json_text(&some);
  static const char *const parts[] = {"\"temperature\":0.8,", "\"top_p\":0.95,", "\"min_p\":0.05,",
                                      "\"repeat_penalty\":1.1,"};
  for (size_t i = 0; i < 4; i++)
    if (!strstr(text, parts[i])) fail_msg("%s in %s", parts[i], text);
  free(text);
}

static void test_any_number_of_stops_is_read_back(void **state) {
  (void)state;
  int32_t list[WIRE_STOPS_MAX];
  msg_options o = some;
  o.stops = list;
  for (int32_t i = 0; i < WIRE_STOPS_MAX; i++) list[i] = i ? INT32_MAX - i : 0;
  for (o.stop_count = 0; o.stop_count <= WIRE_STOPS_MAX; o.stop_count++) check_back(&o);
}

static void test_any_bias_is_read_back(void **state) {
  (void)state;
  msg_bias bias;
  msg_options o = some;
  o.bias_tokens = bias.tokens;
  o.bias_values = bias.values;
  for (int32_t i = 0; i < SAMPLER_BIAS_MAX; i++) {
    bias.tokens[i] = i ? INT32_MAX - i : 0;
    bias.values[i] = i == 1 ? -100 : (float)i / 7 - 30;
  }
  for (o.bias_count = 0; o.bias_count <= SAMPLER_BIAS_MAX; o.bias_count += 64) check_back(&o);
  o.bias_count = 0;
  o.presence_penalty = -0.3f;
  check_back(&o);
  o.frequency_penalty = 1.9f;
  check_back(&o);
  o.presence_penalty = 0;
  check_back(&o);
}

/* So the text of most requests is what older programs read. */
static void test_what_does_nothing_is_not_written(void **state) {
  (void)state;
  char *text = options_json_text(&some);
  static const char *const names[] = {"presence_penalty", "frequency_penalty", "logit_bias"};
  for (size_t i = 0; i < 3; i++) assert_null(strstr(text, names[i]));
  free(text);
}

static void expect_refused(const json_t *object, const char *name) {
  msg_options out;
  int32_t stops[WIRE_STOPS_MAX];
  msg_bias bias;
  char *grammar;
  err e = {0};
  char *text = json_dumps(object, JSON_COMPACT);
  assert_int_equal(options_json_read(text, &out, stops, &bias, &grammar, &e), ERR_FORMAT);
  if (!strstr(e.text, name)) fail_msg("%s: %s", text, e.text);
  free(text);
}

static void test_a_damaged_bias_is_refused(void **state) {
  (void)state;
  static const char *const pairs[][2] = {
      {"presence_penalty", "\"1\""},   {"frequency_penalty", "null"},    {"logit_bias", "[]"},
      {"logit_bias", "{\"x\": 1}"},    {"logit_bias", "{\"-1\": 1}"},    {"logit_bias", "{\"5\": 101}"},
      {"logit_bias", "{\"5\": null}"}, {"logit_bias", "{\"5\": \"1\"}"},
  };
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    json_t *bad = options_json_object(&some);
    json_object_set_new(bad, pairs[i][0], json_loads(pairs[i][1], JSON_DECODE_ANY, NULL));
    expect_refused(bad, pairs[i][0]);
    json_decref(bad);
  }
  json_t *bad = options_json_object(&some), *many = json_object();
  for (int32_t i = 0; i <= SAMPLER_BIAS_MAX; i++) {
    char key[16];
    snprintf(key, sizeof key, "%d", i);
    json_object_set_new(many, key, json_integer(1));
  }
  json_object_set_new(bad, "logit_bias", many);
  expect_refused(bad, "logit_bias");
  json_decref(bad);
}

/* Each value once missing, once of another kind, once past its end. */
static void test_damaged_options_are_refused(void **state) {
  (void)state;
  json_t *good = options_json_object(&some);
  const char *key;
  json_t *value;
  int count = 0;
  json_object_foreach(good, key, value) {
    json_t *bad = json_copy(good);
    count++;
    json_object_del(bad, key);
    expect_refused(bad, key);
    json_object_set_new(bad, key, json_string("1"));
    expect_refused(bad, key);
    json_object_set_new(bad, key, json_null());
    expect_refused(bad, key);
    bool whole = json_is_integer(value) && strcmp(key, "seed") != 0, natural = strcmp(key, "choice") == 0;
    for (int side = 0; whole && side < 2; side++) {
      json_int_t least = natural ? 0 : INT32_MIN, most = natural ? UINT32_MAX : INT32_MAX;
      json_object_set_new(bad, key, json_integer(side ? most + 1 : least - 1));
      expect_refused(bad, key);
    }
    if (json_is_integer(value)) {
      json_object_set_new(bad, key, json_real(1.5));
      expect_refused(bad, key);
    }
    json_decref(bad);
  }
  assert_int_equal(count, 14);
  json_t *stops = json_array();
  json_object_set(good, "stop_ids", stops);
  for (int32_t i = 0; i <= WIRE_STOPS_MAX; i++) json_array_append_new(stops, json_integer(1));
  expect_refused(good, "stop_ids");
  static const json_int_t outside[] = {-1, INT32_MAX + INT64_C(1)};
  for (size_t i = 0; i < 2; i++) {
    json_array_clear(stops);
    json_array_append_new(stops, json_integer(outside[i]));
    expect_refused(good, "stop_ids");
  }
  json_decref(stops);
  json_decref(good);
}

static void test_other_text_is_refused(void **state) {
  (void)state;
  static const char *const texts[] = {NULL, "", "{", "7", "[]"};
  msg_options out;
  int32_t stops[WIRE_STOPS_MAX];
  msg_bias bias;
  char *grammar;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    err e = {0};
    assert_int_equal(options_json_read(texts[i], &out, stops, &bias, &grammar, &e), ERR_FORMAT);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_grammar_is_read_back),
      cmocka_unit_test(test_options_are_read_back),
      cmocka_unit_test(test_partial_kv_is_read_back),
      cmocka_unit_test(test_any_bias_is_read_back),
      cmocka_unit_test(test_what_does_nothing_is_not_written),
      cmocka_unit_test(test_a_damaged_bias_is_refused),
      cmocka_unit_test(test_every_float_is_read_back_with_its_bits),
      cmocka_unit_test(test_floats_are_written_short),
      cmocka_unit_test(test_any_number_of_stops_is_read_back),
      cmocka_unit_test(test_damaged_options_are_refused),
      cmocka_unit_test(test_other_text_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
