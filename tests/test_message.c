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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_message_has_its_name),
      cmocka_unit_test(test_every_option_has_its_range),
      cmocka_unit_test(test_a_stop_is_a_token),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
