/* libs: command_line base */
#include "common/command_line/flag_variables.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char said[2000];
static bool keep; /* what the programs that are started from here would find */

/* What is said of this one variable, or of none. */
static const char *say(const char *name) {
  int ends[2], before = dup(STDERR_FILENO);
  if (name) setenv(name, "x", 1);
  assert_int_equal(pipe(ends), 0);
  dup2(ends[1], STDERR_FILENO);
  flag_variables_check("tandem");
  dup2(before, STDERR_FILENO);
  close(ends[1]), close(before);
  ssize_t n, got = 0;
  while ((n = read(ends[0], said + got, sizeof said - 1 - (size_t)got)) > 0) got += n;
  said[got] = 0;
  close(ends[0]);
  if (name) unsetenv(name);
  if (!keep) unsetenv("TANDEM_VARIABLES_CHECKED");
  return said;
}

static int clear(void **state) {
  (void)state;
  unsetenv("TANDEM_BIN"), unsetenv("TANDEM_SUBSET"), unsetenv("TANDEM_KV"),
      unsetenv("TANDEM_VARIABLES_CHECKED"); /* of whoever runs the tests */
  return 0;
}

static void known_ones_are_no_news(void **state) {
  (void)state;
  static const char *const known[] = {
      NULL,           "TANDEM_MAX_TOKENS", "TANDEM_ISA",    "TANDEM_ROWS", "TANDEM_KV", "TANDEM_BIN",
      "TANDEM_FAULT", "TANDEM_PEER",       "TANDEM_SUBSET", "TANDEMS",     "TANDEM",    "MY_TANDEM_TEMP"};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) assert_string_equal(say(known[i]), "");
}

static void others_are_named(void **state) {
  (void)state;
  static const struct {
    const char *given, *meant; /* NULL: nothing is near */
  } table[] = {{"TANDEM_MAX_TOKEN", "TANDEM_MAX_TOKENS"},
               {"TANDEM_TREADS", "TANDEM_THREADS"},
               {"TANDEM_TMEP", "TANDEM_TEMP"},
               {"TANDEM_MAXTOKENS", "TANDEM_MAX_TOKENS"},
               {"TANDEM_temp", "TANDEM_TEMP"},
               {"TANDEM_TEMPERATURE", "TANDEM_TEMP"},
               {"TANDEM_N_PREDICT", "TANDEM_MAX_TOKENS"},
               {"TANDEM_MAX-TOKENS", "TANDEM_MAX_TOKENS"},
               {"TANDEM_WHATEVER_ELSE", NULL},
               {"TANDEM_", NULL},
               {"TANDEM_A_NAME_THAT_IS_LONGER_THAN_ANY_FLAG_OF_ANY_PROGRAM_THAT_THERE_WILL_EVER_BE", NULL}};
  char wanted[300];
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    const char *m = table[i].meant;
    snprintf(wanted, sizeof wanted, "tandem: warning: nobody reads the environment variable %s%s%s%s\n",
             table[i].given, m ? ": did you mean " : "", m ? m : "", m ? "?" : "");
    assert_string_equal(say(table[i].given), wanted);
  }
}

static void programs_that_are_started_say_it_not_again(void **state) {
  (void)state;
  keep = true;
  assert_string_not_equal(say("TANDEM_TMEP"), "");
  assert_string_equal(say("TANDEM_TMEP"), "");
  keep = false;
  assert_string_equal(say("TANDEM_TMEP"), "");
  assert_string_not_equal(say("TANDEM_TMEP"), "");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(known_ones_are_no_news),
      cmocka_unit_test(others_are_named),
      cmocka_unit_test(programs_that_are_started_say_it_not_again),
  };
  return cmocka_run_group_tests(tests, clear, NULL);
}
