/* libs: api */
/* The order in which waiting calls of several API keys get places. */
#include "orchestrator/service/api/call_turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define CALLS_MAX 101

/* Calls wait in this order, one letter each, whose key it names; each has so many choices. Lists the keys in
 * the order in which `places` places go to them. */
static const char *order_of(const char *keys, int32_t choices, int32_t places) {
  static char order[256];
  static call calls[CALLS_MAX];
  call_turns turns = {0};
  int32_t count = 0, given = 0;
  for (; keys[count]; count++) {
    assert_true(count < CALLS_MAX);
    calls[count] = (call){.key = keys[count] - 'a', .count = choices};
    if (count > 0) calls[count - 1].next = &calls[count];
  }
  for (call *c; given < places && (c = call_turns_next(&turns, calls)); c->begun++)
    order[given++] = (char)('a' + c->key);
  order[given] = 0;
  return order;
}

static void test_a_key_with_many_calls_starves_no_other(void **state) {
  (void)state;
  char keys[CALLS_MAX + 1];
  for (int32_t i = 0; i < 100; i++) keys[i] = 'a';
  keys[100] = 'b';
  keys[101] = 0;
  assert_string_equal(order_of(keys, 1, 5), "abaaa");
}

static void test_keys_take_turns_until_none_waits(void **state) {
  (void)state;
  assert_string_equal(order_of("aaaabbc", 1, 99), "abcabaa");
  assert_string_equal(order_of("", 1, 99), "");
}

static void test_choices_count_as_calls_do(void **state) {
  (void)state;
  assert_string_equal(order_of("ab", 3, 99), "ababab");
}

static void test_a_key_that_comes_later_is_next(void **state) {
  (void)state;
  call first = {.key = 0, .count = 9}, late = {.key = 1, .count = 2};
  call_turns turns = {0};
  for (int32_t i = 0; i < 4; i++, first.begun++) assert_ptr_equal(call_turns_next(&turns, &first), &first);
  first.next = &late; /* it does not make up for the turns that it was not there for */
  for (int32_t i = 0; i < 4; i++) {
    call *expected = i % 2 ? &first : &late;
    assert_ptr_equal(call_turns_next(&turns, &first), expected);
    expected->begun++;
  }
}

static void test_calls_of_one_key_keep_their_order(void **state) {
  (void)state;
  call second = {.key = 0, .count = 1}, first = {.next = &second, .count = 1};
  call_turns turns = {0};
  assert_ptr_equal(call_turns_next(&turns, &first), &first);
  first.begun++;
  assert_ptr_equal(call_turns_next(&turns, &first), &second);
  second.begun++;
  assert_null(call_turns_next(&turns, &first));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_key_with_many_calls_starves_no_other),
      cmocka_unit_test(test_keys_take_turns_until_none_waits),
      cmocka_unit_test(test_choices_count_as_calls_do),
      cmocka_unit_test(test_a_key_that_comes_later_is_next),
      cmocka_unit_test(test_calls_of_one_key_keep_their_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
