/* libs: base */
#include "common/base/json_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void is_written(const char *value, const char *want) {
  json_t *o = json_pack("{s:s}", "t", value);
  assert_non_null(o);
  char *text = json_text(o, JSON_COMPACT);
  char whole[200];
  snprintf(whole, sizeof whole, "{\"t\":\"%s\"}", want);
  assert_string_equal(text, whole);
  json_t *read = json_loads(text, 0, NULL);
  assert_true(json_equal(o, read)); /* the same, for whoever parses it */
  json_decref(read);
  json_decref(o);
  free(text);
}

static void test_what_moves_a_terminal_is_escaped(void **state) {
  (void)state;
  is_written("a\x7f"
             "b",
             "a\\u007Fb");
  is_written("\xc2\x80\xc2\x9b"
             "31m\xc2\x9f",
             "\\u0080\\u009B31m\\u009F");
  is_written("\xe2\x80\xaa\xe2\x80\xae", "\\u202A\\u202E");
  is_written("\xe2\x81\xa6\xe2\x81\xa9", "\\u2066\\u2069");
  is_written("\xd8\x9c\xe2\x80\x8e\xe2\x80\x8f\xd7\x90", "\\u061C\\u200E\\u200F\xd7\x90");
  is_written("\xe2\x80\xa8\xe2\x80\xa9", "\\u2028\\u2029");
  is_written("\x1b[0m\n", "\\u001B[0m\\n");
}

static void test_all_else_stays(void **state) {
  (void)state;
  static const char *const same[] = {"",
                                     "plain",
                                     "\xc2\xa0\xc2\xbf\xc3\x9f",
                                     "\xe2\x80\xa7\xe2\x80\xaf",
                                     "\xe2\x81\xa5\xe2\x81\xaa",
                                     "\xe2\x80\x8d\xe2\x80\x90\xd7\x90",
                                     "\xf0\x9f\x98\x80"};
  for (size_t i = 0; i < sizeof same / sizeof *same; i++) is_written(same[i], same[i]);
}

/* In every place of a text, also at its ends and one after the other. */
static void test_any_number_is_escaped(void **state) {
  (void)state;
  char value[64] = "", want[200] = "";
  for (int i = 0; i < 20; i++) {
    strcat(value, "\x7f");
    strcat(want, "\\u007F");
  }
  is_written(value, want);
}

static void test_nothing_is_written_for_no_value(void **state) {
  (void)state;
  assert_null(json_text(NULL, 0));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_moves_a_terminal_is_escaped),
      cmocka_unit_test(test_all_else_stays),
      cmocka_unit_test(test_any_number_is_escaped),
      cmocka_unit_test(test_nothing_is_written_for_no_value),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
