/* libs: target draft wire base */
/* What every worker takes from its command line, shown with the parsers of both workers. */
#include "wire/worker_program.h"

#include "common/base/exit_status.h"
#include "draft_worker/draft_arguments.h"
#include "target_worker/target_arguments.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define WORDS_MAX 32

typedef enum { TARGET, DRAFT, PROGRAMS } program;

/* The arguments of every worker, as this program takes them from a line of words. */
static flag_values taken(program which, const char *line) {
  static char text[2][400]; /* arguments point into it */
  char *argv[WORDS_MAX] = {which == TARGET ? "tandem-target" : "tandem-draft"};
  int argc = 1;
  snprintf(text[which], sizeof text[which], "%s", line);
  for (char *rest = text[which], *word; (word = strsep(&rest, " ")) && argc < WORDS_MAX - 1;)
    if (*word) argv[argc++] = word;
  return which == TARGET ? target_arguments_parse(argc, argv).given : draft_arguments_parse(argc, argv);
}

/* What the program says, and its exit status, when its words are wrong. */
static int refusal(program which, const char *line, char *said, size_t size) {
  int ends[2], status = 0;
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    taken(which, line);
    _exit(100); /* taken after all */
  }
  close(ends[1]);
  FILE *in = fdopen(ends[0], "r");
  size_t n = fread(said, 1, size - 1, in);
  said[n] = 0;
  fclose(in);
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_a_flag_gives_the_same_setting_in_both_workers(void **state) {
  (void)state;
  for (program which = 0; which < PROGRAMS; which++) {
    const flag_values a =
        taken(which, "-m some.gguf --orchestrator ipc:///o --ctx 512 --sessions 3 --threads 2 "
                     "--repack-cache /packed --counters --parent 77 --log-level debug");
    assert_string_equal(a.model, "some.gguf");
    assert_string_equal(a.orchestrator, "ipc:///o");
    assert_string_equal(a.repack_cache, "/packed");
    assert_int_equal(a.context, 512);
    assert_int_equal(a.sessions, 3);
    assert_int_equal(a.threads, 2);
    assert_int_equal(a.parent, 77);
    assert_int_equal(a.log, LOG_DEBUG);
    assert_true(a.counters);
    assert_false(a.version);
    assert_true(taken(which, "-V").version);
  }
}

static void test_what_is_not_given_is_the_default(void **state) {
  (void)state;
  for (program which = 0; which < PROGRAMS; which++) {
    const flag_values a = taken(which, "");
    assert_null(a.model);
    assert_null(a.orchestrator);
    assert_null(a.repack_cache);
    assert_int_equal(a.context, 0);
    assert_int_equal(a.sessions, 4);
    assert_true(a.threads >= 1);
    assert_int_equal(a.parent, 0);
    assert_int_equal(a.log, LOG_INFO);
    assert_false(a.counters);
  }
}

static void test_a_variable_stands_for_a_flag_and_the_flag_wins(void **state) {
  (void)state;
  setenv("TANDEM_SESSIONS", "7", 1);
  setenv("TANDEM_COUNTERS", "1", 1);
  for (program which = 0; which < PROGRAMS; which++) {
    assert_int_equal(taken(which, "").sessions, 7);
    assert_true(taken(which, "").counters);
    assert_int_equal(taken(which, "--sessions 2").sessions, 2);
  }
  unsetenv("TANDEM_SESSIONS");
  unsetenv("TANDEM_COUNTERS");
}

static void test_a_bad_value_gives_one_clear_error(void **state) {
  (void)state;
  static const struct {
    const char *line, *wanted;
  } cases[] = {{"--threads 0", "--threads must be a whole number from 1 to 256, not '0'"},
               {"--threads 257", "--threads must be"},
               {"--sessions many", "--sessions must be"},
               {"--sessions 0", "--sessions must be"},
               {"--ctx -1", "--ctx must be"},
               {"--parent 0", "--parent must be"},
               {"--log-level loud", "--log-level must be"},
               {"word", "'word' is one argument too many"},
               {"--treads 2", "did you mean --threads?"}};
  for (program which = 0; which < PROGRAMS; which++)
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
      char said[2000];
      int status = refusal(which, cases[i].line, said, sizeof said);
      if (status != STATUS_USAGE || !strstr(said, cases[i].wanted))
        fail_msg("%s: exit status %d: %s", cases[i].line, status, said);
      const char *name = which == TARGET ? "tandem-target: " : "tandem-draft: ";
      assert_memory_equal(said, name, strlen(name));
      assert_null(strstr(said + 1, name)); /* once */
    }
}

static void test_each_worker_has_its_own_limits(void **state) {
  (void)state;
  char said[2000];
  assert_int_equal(taken(TARGET, "--ctx 0").context, 0);
  assert_int_equal(refusal(DRAFT, "--ctx 0", said, sizeof said), STATUS_USAGE);
  assert_int_equal(taken(TARGET, "--sessions 1024").sessions, 1024);
  assert_int_equal(refusal(TARGET, "--sessions 1025", said, sizeof said), STATUS_USAGE);
  assert_int_equal(refusal(DRAFT, "--sessions 1024", said, sizeof said), STATUS_USAGE);
}

static void test_only_a_target_needs_a_model(void **state) {
  (void)state;
  const flag_values none = {0}, all = {.model = "m", .orchestrator = "o"}, no_model = {.orchestrator = "o"};
  assert_true(worker_program_complete(&all, true, NULL));
  assert_true(worker_program_complete(&no_model, false, NULL));
  const logger quiet = {"test", LOG_ERROR};
  assert_false(worker_program_complete(&no_model, true, &quiet));
  assert_false(worker_program_complete(&none, false, &quiet));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_flag_gives_the_same_setting_in_both_workers),
      cmocka_unit_test(test_what_is_not_given_is_the_default),
      cmocka_unit_test(test_a_variable_stands_for_a_flag_and_the_flag_wins),
      cmocka_unit_test(test_a_bad_value_gives_one_clear_error),
      cmocka_unit_test(test_each_worker_has_its_own_limits),
      cmocka_unit_test(test_only_a_target_needs_a_model),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
