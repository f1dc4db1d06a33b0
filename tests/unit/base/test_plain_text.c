/* libs: base */
#include "common/base/plain_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define TEXT(literal) literal, sizeof literal - 1

static void marks_and_line_ends_are_made_plain(void **state) {
  (void)state;
  static const struct {
    const char *text;
    size_t size;
    const char *plain;
    size_t plain_size;
  } cases[] = {{TEXT("plain\n"), TEXT("plain\n")},
               {TEXT("\xef\xbb\xbf\x61\r\nb\r\n"), TEXT("a\nb\n")},
               {TEXT("\xef\xbb\xbf"), TEXT("")},
               {TEXT("a\rb\r"), TEXT("a\rb\r")},
               {TEXT("a\r\r\n"), TEXT("a\r\n")},
               {TEXT("\r\n\r\n"), TEXT("\n\n")},
               {TEXT("a\xef\xbb\xbf"), TEXT("a\xef\xbb\xbf")}, /* elsewhere it is a character */
               {TEXT("\xef\xbb"), TEXT("\xef\xbb")},
               {TEXT("a\0\r\nb"), TEXT("a\0\nb")},
               {TEXT(""), TEXT("")}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[32];
    memcpy(text, cases[i].text, cases[i].size);
    assert_int_equal(plain_text_clean(text, cases[i].size), cases[i].plain_size);
    assert_memory_equal(text, cases[i].plain, cases[i].plain_size);
  }
}

static void other_encodings_are_told(void **state) {
  (void)state;
  err e = {0};
  assert_int_equal(plain_text_check(TEXT("\xff\xfeh\0i\0"), "notes.txt", &e), ERR_FORMAT);
  assert_string_equal(e.text, "notes.txt is UTF-16 or UTF-32: save it as UTF-8");
  assert_int_equal(plain_text_check(TEXT("\xfe\xff\0h"), "x", &e), ERR_FORMAT);
  assert_int_equal(plain_text_check(TEXT("\xef\xbb\xbfhi"), "x", &e), ERR_OK);
  assert_int_equal(plain_text_check(TEXT("\xff"), "x", &e), ERR_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(marks_and_line_ends_are_made_plain),
      cmocka_unit_test(other_encodings_are_told),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
