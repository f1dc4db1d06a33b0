/* libs: base */
/* What is said of long work, and that nothing is said of short work. */
#include "common/base/progress.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define SECOND 1000000u
#define BEGAN  (7 * (uint64_t)SECOND)

static const logger LOG = {"tandem-target", LOG_INFO};

static progress begun(bool rewrites) {
  progress p = progress_begin("loading the model", &LOG, false);
  p.rewrites = rewrites;
  p.began_us = BEGAN;
  return p;
}

static void expect(progress *p, double done, double seconds, progress_kind kind, const char *text) {
  char out[160] = "";
  assert_int_equal(progress_tell(p, done, BEGAN + (uint64_t)(seconds * SECOND), out, sizeof out), kind);
  assert_string_equal(out, text);
}

static void nothing_is_said_of_what_is_soon_done(void **state) {
  (void)state;
  for (int terminal = 0; terminal < 2; terminal++) {
    progress p = begun(terminal);
    expect(&p, 0, 0, PROGRESS_NOTHING, "");
    expect(&p, 0.9, 0.99, PROGRESS_NOTHING, "");
    expect(&p, 1, 0.999, PROGRESS_NOTHING, "");
    p = begun(terminal);
    expect(&p, 1, 1.5, PROGRESS_NOTHING, ""); /* the first that could be said is that it is over */
  }
}

static void a_terminal_gets_each_percent_and_is_clean_at_the_end(void **state) {
  (void)state;
  progress p = begun(true);
  expect(&p, 0.101, 1.1, PROGRESS_REWRITE, "\rtandem-target: loading the model:  10 %");
  expect(&p, 0.105, 1.2, PROGRESS_NOTHING, "");
  expect(&p, 0.111, 1.2, PROGRESS_REWRITE, "\rtandem-target: loading the model:  11 %");
  expect(&p, 0.999, 9, PROGRESS_REWRITE, "\rtandem-target: loading the model:  99 %");
  expect(&p, 1, 9.1, PROGRESS_REWRITE, "\r\033[K");
  expect(&p, 1, 9.2, PROGRESS_NOTHING, "");
}

/* Is a line rewritten where stderr is such a terminal? */
static bool rewrites(const char *term, const char *no_color, bool alone) {
  term ? setenv("TERM", term, 1) : unsetenv("TERM");
  no_color ? setenv("NO_COLOR", no_color, 1) : unsetenv("NO_COLOR");
  return progress_begin("loading the model", &LOG, alone).rewrites;
}

static void a_terminal_gets_lines_if_it_is_dumb_or_the_user_wants_no_colours(void **state) {
  (void)state;
  int before = dup(STDERR_FILENO), pty = posix_openpt(O_RDWR | O_NOCTTY);
  assert_true(pty >= 0 && grantpt(pty) == 0 && unlockpt(pty) == 0);
  int terminal = open(ptsname(pty), O_RDWR | O_NOCTTY);
  assert_true(terminal >= 0);
  dup2(terminal, STDERR_FILENO);
  bool usual = rewrites("xterm", NULL, true), empty = rewrites("xterm", "", true);
  bool dumb = rewrites("dumb", NULL, true), unknown = rewrites(NULL, NULL, true);
  bool plain = rewrites("xterm", "1", true), shared = rewrites("xterm", NULL, false);
  dup2(before, STDERR_FILENO);
  close(before);
  close(terminal);
  close(pty);
  assert_true(usual && empty);
  assert_false(dumb || unknown || plain || shared);
}

static void a_log_gets_a_line_now_and_then_and_one_at_the_end(void **state) {
  (void)state;
  progress p = begun(false);
  expect(&p, 0.05, 1.2, PROGRESS_LINE, "loading the model: 5 % after 1 s");
  expect(&p, 0.30, 11.1, PROGRESS_NOTHING, "");
  expect(&p, 0.31, 11.3, PROGRESS_LINE, "loading the model: 31 % after 11 s");
  expect(&p, 0.99, 12, PROGRESS_NOTHING, "");
  expect(&p, 1, 12.4, PROGRESS_LINE, "loading the model: 100 % after 12 s");
  expect(&p, 1, 40, PROGRESS_NOTHING, "");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nothing_is_said_of_what_is_soon_done),
      cmocka_unit_test(a_terminal_gets_each_percent_and_is_clean_at_the_end),
      cmocka_unit_test(a_terminal_gets_lines_if_it_is_dumb_or_the_user_wants_no_colours),
      cmocka_unit_test(a_log_gets_a_line_now_and_then_and_one_at_the_end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
