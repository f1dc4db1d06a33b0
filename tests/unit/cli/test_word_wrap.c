/* libs: cli */
/* Where the lines of an answer break on a terminal. */
#include "orchestrator/cli/word_wrap.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char got[20000];
static size_t got_size;

static int put(void *context, const char *text, size_t size) {
  (void)context;
  assert_true(got_size + size < sizeof got);
  memcpy(got + got_size, text, size);
  got[got_size += size] = 0;
  return 0;
}

static size_t character_size(const char *text) {
  size_t n = 1;
  while (((unsigned char)text[n] & 0xc0) == 0x80) n++;
  return *text == '\033' ? strcspn(text, "m") + 1 : n;
}

/* As a whole, and one character at a time. */
static void expect(size_t columns, const char *text, const char *want) {
  for (int pieces = 0; pieces < 2; pieces++) {
    word_wrap *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->put = put;
    got_size = 0;
    got[0] = 0;
    for (size_t at = 0, size; text[at]; at += size) {
      size = pieces ? character_size(text + at) : strlen(text);
      assert_int_equal(word_wrap_add(w, columns, text + at, size), 0);
    }
    assert_int_equal(word_wrap_end(w, columns), 0);
    assert_string_equal(got, want);
    free(w);
  }
}

static void test_words_stay_whole(void **state) {
  (void)state;
  expect(10, "", "");
  expect(10, "one two three four", "one two\nthree four");
  expect(10, "0123456789 x", "0123456789\nx");
  expect(10, "012345678 x", "012345678\nx");
  expect(10, "01234567 x\ny", "01234567 x\ny");
  expect(10, "one\n\n  two", "one\n\n  two");
  expect(10, "one two   \nthree", "one two   \nthree");
  expect(10, "0123456789   \nx", "0123456789\nx"); /* blanks would begin a line of their own */
  expect(10, "a\tb", "a\tb");
  expect(10, "a\tbcd", "a\nbcd"); /* a tab goes to column 8 */
  expect((size_t)-1, "any number of columns", "any number of columns");
}

static void test_a_word_that_fits_no_line_is_broken_by_the_terminal(void **state) {
  (void)state;
  expect(5, "ab 0123456789 cd", "ab\n0123456789\ncd");
  expect(5, "0123456 89 x", "0123456 89\nx");
}

static void test_columns_are_counted_and_not_bytes(void **state) {
  (void)state;
  expect(6, "\xc3\xa9t\xc3\xa9 \xc3\xa9t", "\xc3\xa9t\xc3\xa9 \xc3\xa9t");
  expect(5, "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e", "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e");
  expect(5, "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e abc",
         "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\nabc"); /* two each */
  expect(5, "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e ab", "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e ab");
  expect(7, "\033[32mone\033[36m two\033[0m", "\033[32mone\033[36m two\033[0m");
  expect(6, "\033[32mone\033[36m two\033[0m", "\033[32mone\033[36m\ntwo\033[0m");
}

static void test_a_word_may_have_any_size(void **state) {
  (void)state;
  static char text[3 * WORD_WRAP_HELD_MAX];
  memset(text, 'x', sizeof text - 1);
  expect((size_t)-1, text, text);
}

static int refuse(void *context, const char *text, size_t size) {
  (void)context, (void)text, (void)size;
  return -1;
}

static void test_an_error_is_returned(void **state) {
  (void)state;
  word_wrap *w = calloc(1, sizeof *w);
  assert_non_null(w);
  w->put = refuse;
  assert_int_equal(word_wrap_add(w, 10, "one", 3), 0);
  assert_int_equal(word_wrap_add(w, 10, " two", 4), -1);
  assert_int_equal(word_wrap_end(w, 10), -1);
  free(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_words_stay_whole),
      cmocka_unit_test(test_a_word_that_fits_no_line_is_broken_by_the_terminal),
      cmocka_unit_test(test_columns_are_counted_and_not_bytes),
      cmocka_unit_test(test_a_word_may_have_any_size),
      cmocka_unit_test(test_an_error_is_returned),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
