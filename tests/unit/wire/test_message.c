/* libs: wire speculative base */
#include "wire/message.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static msg_options good_options(void) {
  return (msg_options){.top_p = 1, .repeat_penalty = 1, .max_tokens = 5};
}

static void test_a_message_has_its_name(void **state) {
  (void)state;
  assert_string_equal(msg_name(MSG_HELLO), "HELLO");
  assert_string_equal(msg_name(MSG_TREE_RESET), "TREE_RESET");
  assert_string_equal(msg_name((msg_type)99), "?");
}

static const int32_t stop_tokens[WIRE_STOPS_MAX + 1];

#define ROW(code, field, number)                                                                             \
  { code, #field " = " #number, offsetof(msg_options, field), false, number, 0 }
#define REAL(code, field, number)                                                                            \
  { code, #field " = " #number, offsetof(msg_options, field), true, 0, number }

/* One option of a good request is set to a value. */
static const struct options_row {
  int code;
  const char *name;
  size_t offset;
  bool is_float;
  int32_t whole;
  float real;
} rows[] = {
    REAL(ERR_OK, temperature, 0.0f),
    REAL(ERR_OK, temperature, SAMPLER_TEMPERATURE_MAX),
    REAL(ERR_ARG, temperature, -0.1f),
    REAL(ERR_ARG, temperature, 2 * SAMPLER_TEMPERATURE_MAX),
    REAL(ERR_ARG, temperature, NAN),
    REAL(ERR_ARG, temperature, INFINITY),
    REAL(ERR_ARG, top_p, 0.0f),
    REAL(ERR_ARG, top_p, NAN),
    REAL(ERR_ARG, min_p, 1.0f),
    REAL(ERR_ARG, min_p, -INFINITY),
    REAL(ERR_ARG, repeat_penalty, 0.0f),
    REAL(ERR_ARG, repeat_penalty, NAN),
    REAL(ERR_OK, presence_penalty, -2.0f),
    REAL(ERR_ARG, presence_penalty, 2.5f),
    REAL(ERR_OK, frequency_penalty, 2.0f),
    REAL(ERR_ARG, frequency_penalty, NAN),
    ROW(ERR_OK, top_k, 0),
    ROW(ERR_ARG, top_k, -1),
    ROW(ERR_OK, max_tokens, 1),
    ROW(ERR_OK, max_tokens, INT32_MAX),
    ROW(ERR_ARG, max_tokens, 0),
    ROW(ERR_ARG, max_tokens, INT32_MIN),
    ROW(ERR_OK, context, 0),
    ROW(ERR_OK, context, WIRE_CONTEXT_MAX),
    ROW(ERR_ARG, context, -1),
    ROW(ERR_ARG, context, WIRE_CONTEXT_MAX + 1),
    ROW(ERR_OK, budget, 0),
    ROW(ERR_OK, budget, WIRE_BUDGET_MAX),
    ROW(ERR_ARG, budget, -1),
    ROW(ERR_ARG, budget, WIRE_BUDGET_MAX + 1),
    ROW(ERR_OK, selfcheck, 1),
    ROW(ERR_ARG, selfcheck, -1),
    ROW(ERR_OK, stop_count, WIRE_STOPS_MAX),
    ROW(ERR_LIMIT, stop_count, WIRE_STOPS_MAX + 1),
    ROW(ERR_LIMIT, stop_count, -1),
    ROW(ERR_LIMIT, bias_count, SAMPLER_BIAS_MAX + 1),
    ROW(ERR_LIMIT, bias_count, -1),
};

static void test_every_option_has_its_range(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct options_row *row = &rows[i];
    msg_options o = good_options();
    err e = {0};
    o.stops = stop_tokens;
    if (row->is_float)
      memcpy((char *)&o + row->offset, &row->real, sizeof row->real);
    else
      memcpy((char *)&o + row->offset, &row->whole, sizeof row->whole);
    if (msg_options_check(&o, &e) != row->code) fail_msg("%s: not %s", row->name, err_name(row->code));
    if (row->code != ERR_OK && !e.text[0]) fail_msg("%s: no sentence", row->name);
  }
}

static void test_a_stop_is_a_token(void **state) {
  (void)state;
  msg_options o = good_options();
  err e = {0};
  o.stops = (const int32_t[]){7, -1};
  o.stop_count = 1;
  assert_int_equal(msg_options_check(&o, &e), ERR_OK);
  o.stop_count = 2;
  assert_int_equal(msg_options_check(&o, &e), ERR_ARG);
  assert_string_equal(e.text, "stop token -1 is not a token");
}

static void test_a_bias_has_ranges(void **state) {
  (void)state;
  const int32_t tokens[] = {0, INT32_MAX, -1};
  float values[] = {-100, 100, 0};
  msg_options o = good_options();
  err e = {0};
  o.bias_tokens = tokens;
  o.bias_values = values;
  o.bias_count = 2;
  assert_int_equal(msg_options_check(&o, &e), ERR_OK);
  o.bias_count = 3;
  assert_int_equal(msg_options_check(&o, &e), ERR_ARG);
  assert_string_equal(e.text, "token -1 of a logit bias is not a token");
  o.bias_count = 2;
  static const float outside[] = {100.5f, -100.5f, NAN, INFINITY};
  for (int i = 0; i < 4; i++) {
    values[1] = outside[i];
    assert_int_equal(msg_options_check(&o, &e), ERR_ARG);
  }
}

static void test_a_copy_has_its_own_stops_and_bias(void **state) {
  (void)state;
  const int32_t tokens[] = {5, 6};
  const float values[] = {1, 2};
  int32_t stops[WIRE_STOPS_MAX];
  msg_bias bias;
  msg_options o = good_options(), copy;
  o.stops = tokens, o.stop_count = 1;
  o.bias_tokens = tokens, o.bias_values = values, o.bias_count = 2;
  msg_options_copy(&copy, &o, stops, &bias);
  assert_true(copy.max_tokens == 5 && copy.stops == stops && copy.stop_count == 1 && stops[0] == 5);
  assert_true(copy.bias_tokens == bias.tokens && copy.bias_values == bias.values && copy.bias_count == 2);
  assert_true(bias.tokens[1] == 6 && bias.values[1] == 2);
}

static void test_what_came_into_version_3_is_told_apart(void **state) {
  (void)state;
  msg_options o = good_options();
  o.repeat_penalty = 1.5f, o.temperature = 1, o.top_k = 4;
  assert_false(msg_options_extras(&o));
  o.presence_penalty = -1;
  assert_true(msg_options_extras(&o));
  o.presence_penalty = 0, o.frequency_penalty = 0.1f;
  assert_true(msg_options_extras(&o));
  o.frequency_penalty = 0, o.bias_count = 1;
  assert_true(msg_options_extras(&o));
  o.bias_count = 0, o.grammar_size = 1;
  assert_true(msg_options_extras(&o));
}

static void test_partial_kv_must_fit(void **state) {
  (void)state;
  static const struct {
    msg_partial p;
    const char *why; /* NULL: it fits */
  } cases[] = {
      {{WIRE_PARTIAL_EXACT, 16, 2, 64, 8, 128, 1184, 32}, NULL},
      {{WIRE_PARTIAL_LOSSY, 16, 0, 0, 4, 33, 64, 32}, NULL},
      {{WIRE_PARTIAL_EXACT, 64, 0, 8, 2, 66, 640, 32}, NULL},
      {{WIRE_PARTIAL_EXACT, 16, 0, 0, 3, 33, 48, 32}, NULL},
      {{WIRE_PARTIAL_OFF, 0, 0, 0, 0, 0, 0, 0}, NULL},
      {{WIRE_PARTIAL_OWN, 1, -1, 0, 0, 0, 0, 99}, NULL}, /* not looked at */
      {{WIRE_PARTIAL_EXACT, 16, 2, 64, 8, 128, 1183, 32},
       "partial KV of 1184 tokens (2 + 64 + 8 blocks of 16) is more than the threshold of 1183: raise that, "
       "or "
       "show fewer blocks"},
      {{WIRE_PARTIAL_EXACT, 24, 2, 64, 8, 128, 4096, 32},
       "partial KV: a block has 24 tokens, but must have a multiple of 16"},
      {{WIRE_PARTIAL_EXACT, 0, 2, 64, 8, 128, 4096, 32},
       "partial KV: tokens of a block must be from 16 to 4096, not 0"},
      {{WIRE_PARTIAL_LOSSY, 64, 2, 8, 1, 128, 4096, 32},
       "partial KV: a window of 1 blocks of 64 may show 1 tokens alone, fewer than the 33 that a pass "
       "commits: "
       "show more of the last blocks, or refresh more often"},
      {{WIRE_PARTIAL_EXACT, 16, 2, 64, 8, 32, 4096, 32},
       "partial KV: a buffer of 32 tokens has no room for the 32 that are guessed between passes and one "
       "more: "
       "raise the buffer, or refresh more often"},
      {{WIRE_PARTIAL_EXACT, 16, -1, 64, 8, 128, 4096, 32},
       "partial KV: sink blocks must be from 0 to 65536, not -1"},
      {{WIRE_PARTIAL_EXACT, 16, 2, 64, 8, 128, 4096, 33},
       "partial KV: the refresh interval must be from 1 to 32, not 33"},
      {{WIRE_PARTIAL_EXACT, 4096, 65536, 65536, 65536, 128, 1 << 20, 32},
       "partial KV of 805306368 tokens (65536 + 65536 + 65536 blocks of 4096) is more than the threshold of "
       "1048576: raise that, or show fewer blocks"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    msg_options o = good_options();
    err e = {0};
    o.partial = cases[i].p;
    assert_int_equal(msg_options_check(&o, &e), cases[i].why ? ERR_ARG : ERR_OK);
    if (cases[i].why) assert_string_equal(e.text, cases[i].why);
  }
}

static const hash16 here = {{1}}, there = {{2}}, untold = {{0}};

static wire_string text_of(const char *s) {
  return (wire_string){s, (uint32_t)strlen(s)};
}

static msg_hello hello_of(hash16 host, const char *device) {
  return (msg_hello){.host = host, .device = text_of(device)};
}

static void test_programs_on_one_device_of_one_host_are_colocated(void **state) {
  (void)state;
  static const struct {
    const hash16 *host;
    const char *device;
    bool colocated; /* with a program on the processors here */
  } table[] = {
      {&here, "cpu", true},        {&there, "cpu", false}, {&untold, "cpu", false},
      {&here, "cuda:0", false},    {&here, "cpu:c", true}, {&here, "cpu:avx512", true},
      {&there, "cpu:avx2", false}, {&here, "cpus", false}, {&here, "cp", false},
      {&here, "gpu", false},       {&here, "", false},     {&here, "cpu:avx2 beside", false},
      {&here, "cpu:beside", true},
  };
  static const char *const own[] = {"cpu", "cpu:avx2"}; /* the same processors, whatever their set */
  for (size_t i = 0; i < 2 * sizeof table / sizeof *table; i++) {
    msg_hello self = hello_of(here, own[i % 2]), other = hello_of(*table[i / 2].host, table[i / 2].device);
    assert_int_equal(msg_colocated(&self, &other), table[i / 2].colocated);
    assert_int_equal(msg_colocated(&other, &self), table[i / 2].colocated);
  }
}

static void test_a_program_may_compute_beside_another(void **state) {
  (void)state;
  static const struct {
    const hash16 *host;
    const char *device;
    bool beside; /* a program on the processors here */
  } table[] = {{&here, "cpu:avx2 beside", true}, {&here, "cpu:c beside", true},
               {&there, "cpu:c beside", false},  {&here, "cpu:avx2", false},
               {&here, "cuda:0 beside", false},  {&untold, "cpu:c beside", false}};
  const msg_hello self = hello_of(here, "cpu:avx512"), gpu = hello_of(here, "cuda:0");
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    msg_hello other = hello_of(*table[i].host, table[i].device);
    assert_int_equal(msg_beside(&self, &other), table[i].beside);
    assert_int_equal(msg_beside(&other, &self), table[i].beside);
    assert_false(msg_beside(&gpu, &other)); /* a GPU is shared without a word to its programs */
  }
}

static void test_every_other_device_is_one_of_its_own(void **state) {
  (void)state;
  assert_true(msg_same_device(text_of("cuda:0"), text_of("cuda:0")));
  assert_false(msg_same_device(text_of("cuda:0"), text_of("cuda:1")));
  assert_false(msg_same_device(text_of("cuda:0"), text_of("cuda")));
  assert_false(msg_same_device(text_of("cuda:0"), text_of("cuda:01")));
  assert_false(msg_same_device(text_of(""), text_of("")));
}

static void test_who_tells_nothing_is_colocated_with_nobody(void **state) {
  (void)state;
  msg_hello silent = hello_of(untold, ""), nowhere = hello_of(untold, "cpu"), idle = hello_of(here, "");
  assert_false(msg_colocated(&silent, &silent));
  assert_false(msg_colocated(&nowhere, &nowhere));
  assert_false(msg_colocated(&idle, &idle));
}

static void test_an_open_fits_what_is_held_or_says_why_not(void **state) {
  (void)state;
  static const int32_t tokens[] = {5, 6, 7, 8};
  prefix held, whole;
  assert_int_equal(prefix_init(&held, 8, 42), ERR_OK);
  assert_int_equal(prefix_init(&whole, 8, 42), ERR_OK);
  for (int i = 0; i < 4; i++) prefix_append(&whole, tokens + i, 1);
  prefix_append(&held, tokens, 2);
  msg_open o = {.hash_seed = 42, .tokens = tokens, .token_count = 4, .hash = prefix_hash(&whole)};
  assert_null(msg_open_misfit(&o, NULL));
  assert_null(msg_open_misfit(&o, &held));
  o = (msg_open){.hash_seed = 42,
                 .base_length = 2,
                 .base_hash = prefix_hash(&held),
                 .tokens = tokens + 2,
                 .token_count = 2,
                 .hash = prefix_hash(&whole)};
  assert_null(msg_open_misfit(&o, &held));
  assert_non_null(msg_open_misfit(&o, NULL));
  o.hash_seed = 43;
  assert_non_null(msg_open_misfit(&o, &held));
  o.hash_seed = 42;
  o.hash.bytes[0] ^= 1;
  assert_non_null(msg_open_misfit(&o, &held));
  prefix_fini(&held);
  prefix_fini(&whole);
}

static void test_a_brief_is_short_and_printable(void **state) {
  (void)state;
  char text[400];
  memset(text, 'x', sizeof text);
  memcpy(text, "a\n\x1b\xe2\x80\xae", 6);
  const wire_brief b = wire_brief_of((wire_string){text, sizeof text});
  assert_int_equal(strlen(b.text), WIRE_BRIEF_MAX);
  assert_memory_equal(b.text, "a?????x", 7);
  assert_string_equal(wire_brief_of((wire_string){0}).text, "");
}

static void test_a_string_may_be_null_and_ids_are_compared(void **state) {
  (void)state;
  assert_int_equal(wire_text(NULL).size, 0);
  assert_int_equal(wire_text("abc").size, 3);
  assert_true(wire_id_equal((wire_id){{1}}, (wire_id){{1}}));
  assert_false(wire_id_equal((wire_id){{1}}, (wire_id){{2}}));
}

/* The hashes of the OPEN agree with each other: it is the base that is another one here. */
static void test_an_open_of_another_base_does_not_fit(void **state) {
  (void)state;
  prefix held, theirs;
  assert_int_equal(prefix_init(&held, 8, 42), ERR_OK);
  assert_int_equal(prefix_init(&theirs, 8, 42), ERR_OK);
  assert_int_equal(prefix_append(&held, (const int32_t[]){5, 6, 7}, 3), ERR_OK);
  assert_int_equal(prefix_append(&theirs, (const int32_t[]){5, 9, 7}, 3), ERR_OK);
  static const int32_t rest[] = {8};
  msg_open o = {.hash_seed = 42, .base_length = 3, .base_hash = prefix_hash(&theirs)};
  assert_int_equal(prefix_append(&theirs, rest, 1), ERR_OK);
  o.tokens = rest;
  o.token_count = 1;
  o.hash = prefix_hash(&theirs);
  assert_null(msg_open_misfit(&o, &theirs));
  assert_string_equal(msg_open_misfit(&o, &held), "the base is not held here");
  prefix_fini(&held);
  prefix_fini(&theirs);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_message_has_its_name),
      cmocka_unit_test(test_every_option_has_its_range),
      cmocka_unit_test(test_a_stop_is_a_token),
      cmocka_unit_test(test_a_bias_has_ranges),
      cmocka_unit_test(test_a_copy_has_its_own_stops_and_bias),
      cmocka_unit_test(test_what_came_into_version_3_is_told_apart),
      cmocka_unit_test(test_partial_kv_must_fit),
      cmocka_unit_test(test_programs_on_one_device_of_one_host_are_colocated),
      cmocka_unit_test(test_a_program_may_compute_beside_another),
      cmocka_unit_test(test_every_other_device_is_one_of_its_own),
      cmocka_unit_test(test_who_tells_nothing_is_colocated_with_nobody),
      cmocka_unit_test(test_a_brief_is_short_and_printable),
      cmocka_unit_test(test_a_string_may_be_null_and_ids_are_compared),
      cmocka_unit_test(test_an_open_fits_what_is_held_or_says_why_not),
      cmocka_unit_test(test_an_open_of_another_base_does_not_fit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
