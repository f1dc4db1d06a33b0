/* libs: operate */
/* The workers of a server as people see and name them. */
#include "orchestrator/operate/worker_lines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static json_t *workers(void) {
  return json_pack("[{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:s}, {s:s, s:s, s:s, s:s, s:i, s:i}]", "id",
                   "ab12ff001122", "role", "target", "state", "drained", "numerics_id", "int8", "device",
                   "cpu", "load", 3, "session_max", 4, "endpoint", "tcp://h\x1b:1#00ff", "id", "ab340000",
                   "role", "draft", "state", "ready", "method", "ngram", "load", 0, "session_max", 0);
}

static void test_a_worker_is_found_by_its_first_digits(void **state) {
  (void)state;
  json_t *list = workers();
  err e = {0};
  assert_string_equal(worker_lines_find(list, "ab1", &e), "ab12ff001122");
  assert_string_equal(worker_lines_find(list, "ab340000", &e), "ab340000");
  assert_null(worker_lines_find(list, "ab", &e));
  assert_int_equal(e.code, ERR_ARG);
  const char *const none[] = {"", "b", "ab3400001"};
  for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
    e = (err){0};
    assert_null(worker_lines_find(list, none[i], &e));
    assert_int_equal(e.code, ERR_GONE);
  }
  json_decref(list);
}

static void test_a_line_says_who_it_is_and_how_busy(void **state) {
  (void)state;
  char *text = NULL;
  size_t size;
  FILE *to = open_memstream(&text, &size);
  json_t *list = workers();
  worker_lines_print(to, list);
  fclose(to);
  assert_string_equal(text, "WORKER    ROLE    STATE    SESSIONS  WHAT\n"
                            "ab12ff00  target  drained    3 of 4  int8 on cpu at tcp://h?:1\n"
                            "ab340000  draft   ready           0  ngram\n");
  json_decref(list);
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_worker_is_found_by_its_first_digits),
      cmocka_unit_test(test_a_line_says_who_it_is_and_how_busy),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
