/* libs: base */
/* What others say reaches no terminal as a command. */
#include "common/base/terminal.h"

#include "common/base/err.h"

#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TEXT(literal) literal, sizeof literal - 1
#define BAD           "\xef\xbf\xbd"
#define OVERRIDE      "\xe2\x80\xae" /* U+202E */
#define ISOLATE       "\xe2\x81\xa6" /* U+2066 */
#define MARK          "\xe2\x80\x8f" /* U+200F */
#define SEPARATOR     "\xe2\x80\xa8" /* U+2028 */

static void controls_are_made_visible(void **state) {
  (void)state;
  static const struct {
    const char *text;
    size_t size;
    const char *clean;
    size_t clean_size;
  } cases[] = {{TEXT("plain\ttext\n"), TEXT("plain\ttext\n")},
               {TEXT("\x1b[1mhi\x1b]0;x\a"), TEXT("^[[1mhi^[]0;x^G")},
               {TEXT("a\0b\x7f"), TEXT("a^@b^?")},
               {TEXT("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"), TEXT("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80")},
               {TEXT("\xc2\x9b"
                     "31m\xc2\xa0"),
                TEXT(BAD "31m\xc2\xa0")}, /* CSI in one character */
               {TEXT("\x9b"
                     "31m"),
                TEXT(BAD "31m")},
               {TEXT("\xff\xe2\x82"), TEXT(BAD BAD)},
               {TEXT("a" OVERRIDE "b" ISOLATE "c"), TEXT("a" BAD "b" BAD "c")},
               {TEXT("\xd7\x90" MARK "!" SEPARATOR), TEXT("\xd7\x90" MARK "!" SEPARATOR)},
               {TEXT("one\r\ntwo\rthree\r"), TEXT("one\ntwo^Mthree")},
               {TEXT(""), TEXT("")}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char out[128];
    size_t size = terminal_clean(out, cases[i].text, cases[i].size);
    assert_int_equal(size, cases[i].clean_size);
    assert_memory_equal(out, cases[i].clean, size);
  }
}

static void a_stream_is_clean_on_a_terminal_alone(void **state) {
  (void)state;
  int master, slave, ends[2];
  char got[64] = "";
  assert_int_equal(openpty(&master, &slave, NULL, NULL, NULL), 0);
  assert_int_equal(pipe(ends), 0);
  FILE *terminal = fdopen(slave, "w"), *plain = fdopen(ends[1], "w");
  FILE *clean = terminal_clean_stream(terminal);
  assert_ptr_equal(terminal_clean_stream(plain), plain);
  fprintf(clean, "%s\n", "\x1b[2Jx");
  fflush(clean);
  ssize_t size = read(master, got, sizeof got - 1);
  assert_true(size > 0);
  got[size] = 0;
  assert_string_equal(got, "^[[2Jx\r\n");
  fclose(clean);
  fclose(terminal), fclose(plain);
  close(master), close(ends[0]);
}

static void a_message_has_no_marks_either(void **state) {
  (void)state;
  static const char text[] = "\xd7\x90" MARK "\x1b" OVERRIDE SEPARATOR "\xd8\x9c.\n",
                    want[] = "\xd7\x90" BAD "^[" BAD BAD BAD ".\n";
  char out[64];
  size_t size = terminal_clean_message(out, text, sizeof text - 1);
  assert_int_equal(size, sizeof want - 1);
  assert_memory_equal(out, want, size);
}

static void a_stream_of_messages_is_clean_everywhere(void **state) {
  (void)state;
  char *got = NULL;
  size_t size = 0;
  FILE *to = open_memstream(&got, &size), *messages = terminal_message_stream(to);
  for (const char *c = "\xd7\x90" MARK "\n"; *c; c++) fputc(*c, messages);
  fputs("\x1b", messages);
  fclose(messages), fclose(to);
  assert_string_equal(got, "\xd7\x90" BAD "\n^[");
  free(got);
}

static void a_sentence_has_no_controls(void **state) {
  (void)state;
  err e;
  err_set(&e, ERR_IO, "cannot read %s", "a\x1b[31m\x7f\n");
  assert_string_equal(e.text, "cannot read a?[31m?\n");
  err_set(&e, ERR_IO, "%s", "\xc2\x9b\xc2\xa0\x9b" OVERRIDE MARK "\xd7\x90" SEPARATOR ISOLATE);
  assert_string_equal(e.text, "?\xc2\xa0???\xd7\x90??");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(controls_are_made_visible),
      cmocka_unit_test(a_stream_is_clean_on_a_terminal_alone),
      cmocka_unit_test(a_message_has_no_marks_either),
      cmocka_unit_test(a_stream_of_messages_is_clean_everywhere),
      cmocka_unit_test(a_sentence_has_no_controls),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
