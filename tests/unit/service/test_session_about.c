/* libs: service wire speculative text file base */
/* What the ledger keeps of a request, and what comes out of it again. */
#include "orchestrator/service/session_about.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const flag_values settings = {
    .draft = "model", .draft_model = "/models/small.gguf", .draft_layers = 5, .math = 0 /* f32 */};

static void test_what_is_written_is_read(void **state) {
  (void)state;
  request r;
  session_about a;
  request_init(&r);
  r.raw = true;
  request_set_title(&r, "a title", 7, NULL);
  request_add_stop(&r, "stop", "one", 3, NULL);
  request_add_stop(&r, "stop", "\xc3\xa9", 2, NULL);
  char *text = session_about_write(&r, &settings);
  request_fini(&r);
  session_about_read(&a, text);
  free(text);
  assert_string_equal(a.title, "a title");
  assert_string_equal(a.draft, "model");
  assert_string_equal(a.draft_model, "/models/small.gguf");
  assert_string_equal(a.math, "f32");
  assert_true(a.draft_layers == 5 && a.raw && a.stop_count == 2);
  assert_string_equal(a.stops[0], "one");
  assert_string_equal(a.stops[1], "\xc3\xa9");
  session_about_fini(&a);
}

static void test_a_request_without_a_draft_has_none(void **state) {
  (void)state;
  request r;
  session_about a;
  request_init(&r);
  r.speculate = false;
  char *text = session_about_write(&r, &settings);
  session_about_read(&a, text);
  assert_string_equal(a.draft, "none");
  assert_true(!a.title && !a.raw && a.stop_count == 0);
  session_about_fini(&a);
  free(text);
}

/* A path holds wherever the session goes on. */
static void test_the_path_of_a_model_is_absolute(void **state) {
  (void)state;
  request r;
  session_about a;
  flag_values s = settings;
  char *here = realpath(".", NULL);
  request_init(&r);
  s.draft_model = ".";
  char *text = session_about_write(&r, &s);
  session_about_read(&a, text);
  assert_string_equal(a.draft_model, here);
  session_about_fini(&a);
  free(text);
  free(here);
}

static void test_what_is_no_such_object_tells_nothing(void **state) {
  (void)state;
  static const char *const texts[] = {
      NULL, "", "{", "[]", "7", "{}", "{\"stop\": 7, \"draft\": 1, \"draft_layers\": -3, \"math\": null}"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    session_about a;
    session_about_read(&a, texts[i]);
    assert_true(!a.title && !a.draft && !a.draft_model && !a.math && !a.raw);
    assert_true(a.draft_layers == 0 && a.stop_count == 0);
    session_about_fini(&a);
  }
}

static void test_no_more_stops_than_a_request_has(void **state) {
  (void)state;
  char text[1000] = "{\"stop\": [\"\", 5";
  session_about a;
  for (int i = 0; i < DETOKENIZER_STOP_MAX + 3; i++) strcat(text, ", \"x\"");
  strcat(text, "]}");
  session_about_read(&a, text);
  assert_int_equal(a.stop_count, DETOKENIZER_STOP_MAX);
  assert_string_equal(a.stops[0], "x");
  session_about_fini(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_is_written_is_read),
      cmocka_unit_test(test_a_request_without_a_draft_has_none),
      cmocka_unit_test(test_the_path_of_a_model_is_absolute),
      cmocka_unit_test(test_what_is_no_such_object_tells_nothing),
      cmocka_unit_test(test_no_more_stops_than_a_request_has),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
