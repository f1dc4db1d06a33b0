/* libs: api */
/* Who may use the API. */
#include "orchestrator/service/api/api_keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/scratch.h"

static api_keys keys_of(const char *commas) {
  api_keys k = {0};
  err e = {0};
  if (api_keys_add(&k, commas, &e)) fail_msg("%s", e.text);
  return k;
}

static void test_without_keys_everybody_may(void **state) {
  (void)state;
  const api_keys none = {0};
  assert_int_equal(api_keys_find(&none, NULL), 0);
  assert_int_equal(api_keys_find(&none, "Bearer anything"), 0);
}

static void test_only_a_whole_key_fits(void **state) {
  (void)state;
  static const struct {
    const char *header;
    int32_t place;
  } cases[] = {{"Bearer one", 0},     {"bearer two-2", 1}, {"Bearer on", -1},        {"Bearer onee", -1},
               {"Bearer oneone", -1}, {"Bearer ", -1},     {"Bearer One", -1},       {"one", -1},
               {"Basic one", -1},     {"Bearer  one", -1}, {"Bearer one,two-2", -1}, {NULL, -1}};
  api_keys k = keys_of("one,two-2");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if (api_keys_find(&k, cases[i].header) != cases[i].place) fail_msg("%s", cases[i].header);
  api_keys_fini(&k);
}

static void test_what_is_no_key_is_refused(void **state) {
  (void)state;
  char longest[API_KEY_LENGTH_MAX + 2];
  memset(longest, 'k', sizeof longest);
  longest[API_KEY_LENGTH_MAX + 1] = 0;
  const char *const bad[] = {"", "a,", ",a", "a,,b", "a b", "a\tb", "\xc3\xb6", longest};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    api_keys k = {0};
    err e = {0};
    assert_int_equal(api_keys_add(&k, bad[i], &e), ERR_ARG);
    api_keys_fini(&k);
  }
  longest[API_KEY_LENGTH_MAX] = 0;
  api_keys k = keys_of(longest);
  api_keys_fini(&k);
}

static void test_keys_of_a_file(void **state) {
  (void)state;
  const scratch_path_text file = scratch_path("keys");
  const char *path = file.text;
  FILE *f = fopen(path, "w");
  fputs("\xef\xbb\xbf"
        "first\n\nsecond\r\nlast",
        f);
  fclose(f);
  api_keys k = {0};
  err e = {0};
  assert_int_equal(api_keys_read(&k, path, &e), ERR_OK);
  assert_int_equal(k.count, 3);
  assert_int_equal(api_keys_find(&k, "Bearer second"), 1);
  assert_int_equal(api_keys_find(&k, "Bearer last"), 2);
  assert_int_equal(truncate(path, 0), 0);
  assert_int_equal(api_keys_read(&k, path, &e), ERR_ARG);
  unlink(path);
  assert_int_equal(api_keys_read(&k, path, &e), ERR_ARG);
  assert_non_null(strstr(e.text, path));
  api_keys_fini(&k);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_without_keys_everybody_may),
      cmocka_unit_test(test_only_a_whole_key_fits),
      cmocka_unit_test(test_what_is_no_key_is_refused),
      cmocka_unit_test(test_keys_of_a_file),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
