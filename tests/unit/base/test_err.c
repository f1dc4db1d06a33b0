/* libs: base */
#include "common/base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static void fills_and_returns(void **state) {
  (void)state;
  err e = {0};
  assert_int_equal(err_set(&e, ERR_ARG, "--threads is %d: give at least %s", 0, "1"), ERR_ARG);
  assert_int_equal(e.code, ERR_ARG);
  assert_string_equal(e.text, "--threads is 0: give at least 1");
  assert_int_equal(err_set(NULL, ERR_IO, "nobody listens %d", 1), ERR_IO);
}

static void long_text_is_cut(void **state) {
  (void)state;
  struct {
    err e;
    char guard[8];
  } s;
  memset(&s, 'x', sizeof s);
  err_set(&s.e, ERR_FORMAT, "%0*d", 2 * ERR_TEXT_MAX, 7);
  assert_int_equal(strlen(s.e.text), ERR_TEXT_MAX - 1);
  assert_memory_equal(s.guard, "xxxxxxxx", 8);
}

/* Codes travel on the wire: their numbers and names are a contract, so they stand here once more. */
static void numbers_are_the_protocol(void **state) {
  (void)state;
  static const struct {
    int code, number;
    const char *name;
  } contract[] = {
      {ERR_OK, 0, "ok"},
      {ERR_NOMEM, -1, "out_of_memory"},
      {ERR_IO, -2, "io"},
      {ERR_FORMAT, -3, "bad_format"},
      {ERR_LIMIT, -4, "limit"},
      {ERR_ARG, -5, "bad_argument"},
      {ERR_FULL, -6, "full"},
      {ERR_STATE, -7, "bad_state"},
      {ERR_TIMEOUT, -8, "timeout"},
      {ERR_UNSUPPORTED, -9, "unsupported"},
      {ERR_PROTOCOL, -10, "protocol"},
      {ERR_VERSION, -11, "version"},
      {ERR_MISMATCH, -12, "mismatch"},
      {ERR_DESYNC, -13, "desync"},
      {ERR_GONE, -14, "gone"},
      {ERR_STALE, -15, "stale"},
      {ERR_TICKET, -16, "bad_ticket"},
      {ERR_CANCELLED, -17, "cancelled"},
      {ERR_DRAINING, -18, "draining"},
      {ERR_INTERNAL, -19, "internal"},
      {ERR_DEVICE, -20, "device_lost"},
  };
  for (size_t i = 0; i < sizeof contract / sizeof *contract; i++) {
    assert_int_equal(contract[i].code, contract[i].number);
    assert_string_equal(err_name(contract[i].code), contract[i].name);
  }
  assert_string_equal(err_name(1), "unknown");
  assert_string_equal(err_name(-1000), "unknown");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fills_and_returns),
      cmocka_unit_test(long_text_is_cut),
      cmocka_unit_test(numbers_are_the_protocol),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
