/* libs: target wire speculative base */
#include "target_worker/session_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

enum { CONTEXT = 64, VOCABULARY = 100, SEED = 7 };

static const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8};

static msg_open open_of(int32_t base, int32_t count) {
  msg_open o = {.hash_seed = SEED,
                .base_length = base,
                .tokens = tokens + base,
                .token_count = count,
                .prompt_length = 1};
  o.options = (msg_options){.top_p = 1, .repeat_penalty = 1, .max_tokens = 5, .context = CONTEXT};
  for (int32_t i = 0; i < base; i++) o.base_hash = hash_next(o.base_hash, SEED, tokens[i]);
  o.hash = o.base_hash;
  for (int32_t i = base; i < base + count; i++) o.hash = hash_next(o.hash, SEED, tokens[i]);
  return o;
}

static void test_what_cannot_be_served_is_refused(void **state) {
  (void)state;
  static const struct {
    int code;
    int32_t context, prompt_length, max_tokens, budget, count;
  } table[] = {{ERR_OK, CONTEXT, 8, 1, 0, 8},
               {ERR_OK, 8, 8, 1, 0, 8},
               {ERR_LIMIT, CONTEXT + 1, 1, 1, 0, 8},
               {ERR_LIMIT, 0, 1, 1, 0, 8},
               {ERR_LIMIT, 7, 1, 1, 0, 8},
               {ERR_ARG, CONTEXT, 9, 1, 0, 8},
               {ERR_ARG, CONTEXT, 0, 1, 0, 8},
               {ERR_ARG, CONTEXT, 1, 0, 0, 8},
               {ERR_ARG, CONTEXT, 1, 1, -1, 8},
               {ERR_ARG, CONTEXT, 1, 1, WIRE_BUDGET_MAX + 1, 8},
               {ERR_OK, CONTEXT, 1, 1, WIRE_BUDGET_MAX, 8},
               {ERR_ARG, CONTEXT, 1, 1, 0, 0}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    err e;
    msg_open o = open_of(0, table[i].count);
    o.options.context = table[i].context;
    o.prompt_length = table[i].prompt_length;
    o.options.max_tokens = table[i].max_tokens;
    o.options.budget = table[i].budget;
    if (session_open_check(&o, CONTEXT, VOCABULARY, &e) != table[i].code) fail_msg("row %d", (int)i);
  }
  msg_open o = open_of(0, 8);
  err e;
  assert_int_equal(session_open_check(&o, CONTEXT, 8, &e), ERR_ARG); /* token 8 of [0, 8) */
  assert_non_null(strstr(e.text, "token 8 at position 7"));
}

static void test_a_misfit_is_reported(void **state) {
  (void)state;
  prefix held;
  assert_int_equal(prefix_init(&held, CONTEXT, SEED), ERR_OK);
  assert_int_equal(prefix_append(&held, tokens, 5), ERR_OK);
  msg_open o = open_of(3, 5);
  assert_null(msg_open_misfit(&o, &held));
  assert_string_equal(msg_open_misfit(&o, NULL), "the base is not held here");
  o.hash.bytes[0] ^= 1;
  assert_string_equal(msg_open_misfit(&o, &held), "the tokens do not give the hash that came with them");
  o = open_of(6, 2);
  assert_string_equal(msg_open_misfit(&o, &held), "the base is not held here"); /* longer than C */
  o = open_of(3, 0);
  assert_null(msg_open_misfit(&o, &held)); /* a rollback */
  held.seed++;
  assert_string_equal(msg_open_misfit(&o, &held), "the base is not held here");
  o = open_of(0, 8);
  assert_null(msg_open_misfit(&o, NULL));
  prefix_fini(&held);
}

/* Rows of the cache that C keeps stay; the root's is made anew; a job under way is held to the same. */
static void test_rows_of_a_common_prefix_are_kept(void **state) {
  (void)state;
  static const struct {
    int32_t held, differs, base, count, kv_rows, rows; /* differs: at this position; -1: nowhere */
  } table[] = {
      {8, -1, 0, 8, 7, 7}, {8, -1, 0, 5, 7, 4}, {8, 2, 0, 8, 7, 2}, {8, -1, 4, 0, 7, 3}, {4, -1, 4, 4, 3, 3}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    session s = {.cache.rows = table[i].kv_rows, .job = {.serial = 9, .valid_rows = INT32_MAX}};
    assert_int_equal(prefix_init(&s.committed, CONTEXT, SEED), ERR_OK);
    for (int32_t k = 0; k < table[i].held; k++)
      prefix_append(&s.committed, k == table[i].differs ? &(int32_t){99} : &tokens[k], 1);
    msg_open o = open_of(table[i].base, table[i].count);
    o.options.stops = (const int32_t[]){42};
    o.options.stop_count = 1;
    session_open_adopt(&s, &o);
    assert_int_equal(s.committed.length, table[i].base + table[i].count);
    assert_true(prefix_has(&s.committed, s.committed.length, o.hash));
    assert_int_equal(s.cache.rows, table[i].rows);
    assert_true(s.job.valid_rows >= table[i].rows && s.job.valid_rows < s.committed.length);
    assert_ptr_equal(s.request.options.stops, s.request.stop_tokens);
    assert_int_equal(s.request.stop_tokens[0], 42);
    prefix_fini(&s.committed);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_cannot_be_served_is_refused),
      cmocka_unit_test(test_a_misfit_is_reported),
      cmocka_unit_test(test_rows_of_a_common_prefix_are_kept),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
