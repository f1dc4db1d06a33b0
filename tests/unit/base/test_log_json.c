/* libs: base */
/* Lines of the log as objects. */
#include "common/base/log.h"
#include "common/base/log_json.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ID "00000000000002a7"

static json_t *object_of(const char *text) {
  char *line = log_json_line("tandem", "warning", 1769847300000042, text);
  assert_non_null(line);
  assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
  json_t *o = json_loads(line, 0, NULL);
  assert_non_null(o);
  free(line);
  return o;
}

static void test_a_line_has_its_time_level_and_program(void **state) {
  (void)state;
  json_t *o = object_of("a \"b\"\n\x01");
  json_t *want = json_pack("{s:s, s:s, s:s, s:s}", "time", "2026-01-31T08:15:00.000042Z", "level", "warning",
                           "program", "tandem", "text", "a \"b\"\n\x01");
  assert_true(json_equal(o, want));
  json_decref(want);
  json_decref(o);
}

static void test_bytes_that_are_no_text_become_ascii(void **state) {
  (void)state;
  json_t *o = object_of("caf\xc3\xa9"), *bad = object_of("caf\xe9 \xc3\xa9");
  assert_string_equal(json_string_value(json_object_get(o, "text")), "caf\xc3\xa9");
  assert_string_equal(json_string_value(json_object_get(bad, "text")), "caf? ??");
  json_decref(o);
  json_decref(bad);
}

static void test_what_a_line_is_about_is_what_it_begins_with(void **state) {
  (void)state;
  static const struct {
    const char *text, *request, *session;
  } table[] = {
      {"session " ID ": its target hangs", NULL, ID},
      {"session " ID " decodes plainly", NULL, ID},
      {"request a:: session " ID ": choice 0", "a:", ID},
      {"request r: too long", "r", NULL},
      {"request r", NULL, NULL},
      {"session " ID "0: no id", NULL, NULL},
      {"session 2a7: no id", NULL, NULL},
      {"a peer says: session " ID ": request r: x", NULL, NULL},
      {"", NULL, NULL},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    json_t *o = object_of(table[i].text);
    const char *request = json_string_value(json_object_get(o, "request"));
    const char *session = json_string_value(json_object_get(o, "session"));
    if (!request != !table[i].request || !session != !table[i].session) fail_msg("%s", table[i].text);
    if (request) assert_string_equal(request, table[i].request);
    if (session) assert_string_equal(session, table[i].session);
    assert_string_equal(json_string_value(json_object_get(o, "text")), table[i].text);
    json_decref(o);
  }
}

/* What log_line writes to stderr. */
static const char *written(log_format format, const char *text) {
  static char out[4096];
  int ends[2], old = dup(STDERR_FILENO);
  const logger l = {"p", LOG_INFO};
  assert_int_equal(pipe(ends), 0);
  dup2(ends[1], STDERR_FILENO);
  log_use_format(format);
  log_line(&l, LOG_ERROR, "%s", text);
  log_line(&l, LOG_DEBUG, "too much");
  log_use_format(LOG_AS_TEXT);
  dup2(old, STDERR_FILENO);
  close(ends[1]);
  ssize_t size = read(ends[0], out, sizeof out - 1);
  out[size > 0 ? size : 0] = 0;
  close(ends[0]);
  close(old);
  return out;
}

static void test_the_log_is_text_unless_it_is_asked_for_json(void **state) {
  (void)state;
  char long_text[3000];
  memset(long_text, '"', sizeof long_text);
  long_text[sizeof long_text - 1] = 0;
  assert_string_equal(written(LOG_AS_TEXT, "why"), "p: error: why\n");
  assert_non_null(
      strstr(written(LOG_AS_JSON, "why"), "\"level\":\"error\",\"program\":\"p\",\"text\":\"why\"}\n"));
  assert_int_equal(strlen(written(LOG_AS_TEXT, long_text)), 1023);
  json_t *o = json_loads(written(LOG_AS_JSON, long_text), 0, NULL); /* cut, and whole */
  assert_int_equal(strlen(json_string_value(json_object_get(o, "text"))), 1023);
  json_decref(o);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_line_has_its_time_level_and_program),
      cmocka_unit_test(test_bytes_that_are_no_text_become_ascii),
      cmocka_unit_test(test_what_a_line_is_about_is_what_it_begins_with),
      cmocka_unit_test(test_the_log_is_text_unless_it_is_asked_for_json),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
