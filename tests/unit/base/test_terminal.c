/* libs: base */
/* What others say reaches no terminal as a command. */
#include "common/base/terminal.h"

#include "common/base/err.h"

#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TEXT(literal) literal, sizeof literal - 1
#define BAD           "\xef\xbf\xbd"

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
               {TEXT("\xff\xe2\x82"), TEXT(BAD BAD BAD)},
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

static void a_sentence_has_no_controls(void **state) {
  (void)state;
  err e;
  err_set(&e, ERR_IO, "cannot read %s", "a\x1b[31m\x7f\n");
  assert_string_equal(e.text, "cannot read a?[31m?\n");
  err_set(&e, ERR_IO, "%s",
          "\xc2\x9b"
          "31m \xc2\x80\xc2\xa0\xc3\xa9\xc2");
  assert_string_equal(e.text, "??31m ??\xc2\xa0\xc3\xa9\xc2");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(controls_are_made_visible),
      cmocka_unit_test(a_stream_is_clean_on_a_terminal_alone),
      cmocka_unit_test(a_sentence_has_no_controls),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
