/* libs: base */
#include "common/base/program_flags.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct taken {
  char model[40], number[40];
  int raw, ended;
} taken;

static error_t parse(int key, char *text, struct argp_state *state) {
  taken *t = state->input;
  switch (key) {
  case 'm':
    snprintf(t->model, sizeof t->model, "%s", text);
    return 0;
  case 300:
    if (strspn(text, "0123456789") != strlen(text)) argp_error(state, "--max-tokens is '%s'", text);
    snprintf(t->number, sizeof t->number, "%s", text);
    return 0;
  case 301:
    t->raw++;
    return 0;
  case ARGP_KEY_ARG:
    return 0;
  case ARGP_KEY_END:
    t->ended++;
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp_option options[] = {{0, 'm', "FILE", 0, "the model", 1},
                                             {"model", 0, 0, OPTION_ALIAS, 0, 1},
                                             {0, 0, 0, 0, "A heading:", 2},
                                             {"max-tokens", 300, "N", 0, "most tokens", 2},
                                             {"raw", 301, 0, 0, "no template", 2},
                                             {"secret", 301, 0, OPTION_HIDDEN, "for tests", 2},
                                             {0}};
static const struct argp parser = {.options = options, .parser = parse};

static int forget(void **state) {
  (void)state;
  unsetenv("TANDEM_MODEL"), unsetenv("TANDEM_MAX_TOKENS"), unsetenv("TANDEM_RAW"), unsetenv("TANDEM_SECRET");
  return 0;
}

#define ARGV(...)                                                                                            \
  (char *[]) {                                                                                               \
    "program", __VA_ARGS__, NULL                                                                             \
  }
static taken parse_all(char **argv) {
  taken t = {0};
  int argc = 0;
  while (argv[argc]) argc++;
  program_parse_flags(&parser, argc, argv, &t);
  assert_int_equal(t.ended, 1);
  return t;
}

/* What a child that parses this says there, and its exit status. */
static int say(const struct argp *p, char **argv, int where, char *text, size_t size) {
  int ends[2], status;
  assert_int_equal(pipe(ends), 0);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], where);
    argp_err_exit_status = 42;
    _Alignas(max_align_t) char input[256] = {0};
    int argc = 0;
    while (argv[argc]) argc++;
    program_parse_flags(p, argc, argv, input);
    _exit(41);
  }
  close(ends[1]);
  size_t got = 0;
  for (ssize_t n; got < size - 1 && (n = read(ends[0], text + got, size - 1 - got)) > 0;) got += (size_t)n;
  text[got] = 0;
  close(ends[0]);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

static void refusal_of(const struct argp *p, char **argv, char *text, size_t size) {
  assert_int_equal(say(p, argv, STDERR_FILENO, text, size), 42);
}

static void refusal(char **argv, char *text, size_t size) {
  refusal_of(&parser, argv, text, size);
}

static void the_environment_is_read_first(void **state) {
  (void)state;
  setenv("TANDEM_MAX_TOKENS", "7", 1);
  setenv("TANDEM_MODEL", "here", 1);
  setenv("TANDEM_RAW", "1", 1);
  setenv("TANDEM_SECRET", "1", 1); /* not for everybody */
  taken t = parse_all(ARGV("x"));
  assert_string_equal(t.number, "7");
  assert_string_equal(t.model, "here");
  assert_int_equal(t.raw, 1);
  t = parse_all(ARGV("--max-tokens", "9", "-m", "there"));
  assert_string_equal(t.number, "9");
  assert_string_equal(t.model, "there");
  setenv("TANDEM_RAW", "0", 1);
  assert_int_equal(parse_all(ARGV("x")).raw, 0);
}

static void a_wrong_variable_is_named(void **state) {
  (void)state;
  char text[1000];
  setenv("TANDEM_MAX_TOKENS", "many", 1);
  refusal(ARGV("x"), text, sizeof text);
  assert_non_null(strstr(text, "TANDEM_MAX_TOKENS"));
  assert_non_null(strstr(text, "many"));
  unsetenv("TANDEM_MAX_TOKENS");
  setenv("TANDEM_RAW", "yes", 1);
  refusal(ARGV("x"), text, sizeof text);
  assert_non_null(strstr(text, "TANDEM_RAW"));
}

static void help_is_shown(void **state) {
  (void)state;
  static const char *const asked[] = {"-h", "--help", "--hel", "--usage"};
  setenv("TANDEM_RAW", "yes", 1); /* help is what one needs then */
  for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
    char text[1000];
    assert_int_equal(
        say(&parser, ARGV("-m", "-h", (char *)(uintptr_t)asked[i]), STDOUT_FILENO, text, sizeof text), 0);
    assert_non_null(strstr(text, "--max-tokens"));
  }
}

static void a_wrong_flag_has_a_nearest_one(void **state) {
  (void)state;
  static const struct {
    const char *given, *meant;        /* NULL: nothing is near */
  } table[] = {{"--max-token", NULL}, /* the beginning of a flag is the flag */
               {"--max-tokns", "did you mean --max-tokens?"},
               {"--mxa-tokens=5", "did you mean --max-tokens?"},
               {"--modell", "did you mean --model?"},
               {"--hepl", "did you mean --help?"},
               {"--secrets", "there is no flag --secrets\n"},
               {"--mx-tokens", "did you mean --max-tokens?"},
               {"--n-predit", "did you mean --max-tokens?"}, /* as llama.cpp has it, nearly */
               {"-max-tokens", "there is no flag -max-tokens: did you mean --max-tokens?"},
               {"-model=x", "there is no flag -model: did you mean --model?"},
               {"-n-predict", "did you mean --max-tokens?"}};
  char text[1000];
  for (size_t i = 1; i < sizeof table / sizeof *table; i++) {
    refusal(ARGV("-m", "x", (char *)(uintptr_t)table[i].given), text, sizeof text);
    if (!strstr(text, table[i].meant)) fail_msg("%s: %s", table[i].given, text);
  }
  assert_string_equal(parse_all(ARGV((char *)(uintptr_t)table[0].given, "5")).number, "5");
}

static void what_llama_cpp_calls_it(void **state) {
  (void)state;
  static const struct {
    char *argv[3];
    const char *number;
  } taken_as_ours[] = {{{"-n", "7"}, "7"},     {{"-n7"}, "7"},
                       {{"-n=7"}, "7"},        {{"--n-predict", "7"}, "7"},
                       {{"--predict=7"}, "7"}, {{"-n", "5", "--max-tokens=7"}, "7"},
                       {{"--max", "7"}, "7"},  {{"--max-tokens=7"}, "7"}};
  for (size_t i = 0; i < sizeof taken_as_ours / sizeof *taken_as_ours; i++) {
    char *const *a = taken_as_ours[i].argv;
    assert_string_equal(parse_all(ARGV(a[0], a[1], a[2])).number, taken_as_ours[i].number);
  }
  static const struct {
    const char *given, *answer;
  } refused[] = {{"-mg", "program: there is no flag -mg here: --device NAME says what computes: `tandem "
                         "--list-devices' tells the names\n"},
                 {"-mg=1", "there is no flag -mg here: --device NAME says"},
                 {"--ignore-eos", "there is no flag --ignore-eos here: leave it out"},
                 {"-ngl", "program: -ngl has no value\n"},
                 {"--ctx-size=4", "program: there is no flag --ctx-size here: it is --ctx of `tandem run'\n"},
                 {"-c4096", "there is no flag -c here: it is --ctx"},
                 {"-md", "it is --model-draft of `tandem run'"},
                 {"--temperature", "it is --temp of `tandem run'"},
                 {"--parallel=4", "--sessions N of `tandem batch'"}};
  char text[1000];
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    refusal(ARGV("-m", "x", (char *)(uintptr_t)refused[i].given), text, sizeof text);
    if (!strstr(text, refused[i].answer)) fail_msg("%s: %s", refused[i].given, text);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
  }
  refusal(ARGV("-n", "many"), text, sizeof text);
  assert_non_null(strstr(text, "--max-tokens is 'many'"));
  refusal(ARGV("-nothing"), text, sizeof text); /* is no -n with a value */
  assert_null(strstr(text, "max-tokens"));
}

/* Its value goes with it, and nothing else does. */
static void what_would_change_nothing_is_passed_over(void **state) {
  (void)state;
  static const struct {
    char *argv[6];
  } table[] = {{{"-ngl", "99"}},
               {{"-ngl=99"}},
               {{"--n-gpu-layers=99"}},
               {{"-fa"}},
               {{"-fa", "on"}},
               {{"--flash-attn=off"}},
               {{"-fa", "auto", "--mlock"}},
               {{"--no-mmap", "-b", "512", "-ub", "64"}},
               {{"--draft-p-min", "0.75"}},
               {{"-ts", "-n"}}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    char *const *a = table[i].argv;
    assert_string_equal(parse_all(ARGV("-n7", a[0], a[1], a[2], a[3], a[4])).number, "7");
  }
}

static void values_are_not_flags(void **state) {
  (void)state;
  assert_string_equal(parse_all(ARGV("-m", "--modle")).model, "--modle");
  assert_string_equal(parse_all(ARGV("--model", "--modle")).model, "--modle");
  parse_all(ARGV("--", "--modle", "-ngl", "-n"));
  assert_string_equal(parse_all(ARGV("-m", "-ngl")).model, "-ngl");
  assert_string_equal(parse_all(ARGV("--model", "-n")).model, "-n");
  parse_all(ARGV("-"));
}

static void near_means_few_changes(void **state) {
  (void)state;
  static const char *const words[] = {"run", "batch", "doctor"};
  assert_string_equal(program_nearest("rnu", words, 3), "run");
  assert_string_equal(program_nearest("batsch", words, 3), "batch");
  assert_string_equal(program_nearest("doktor", words, 3), "doctor");
  assert_null(program_nearest("serve", words, 3));
  assert_null(program_nearest("a-very-long-word-that-is-longer-than-any-flag-of-any-program", words, 3));
}

/* --- flags by a table --- */

typedef enum { COLOUR_RED, COLOUR_GREEN } colour;

typedef struct tabled {
  const char *file;
  bool loud;
  int32_t count, wide, other;
  float rate;
  colour colour;
} tabled;

static error_t parse_tabled(int key, char *text, struct argp_state *state) {
  static const char *const colours[] = {"red", "green"};
  static const program_flag list[] = {PROGRAM_FLAG_TEXT('f', tabled, file),
                                      PROGRAM_FLAG_SWITCH('l', tabled, loud),
                                      PROGRAM_FLAG_INT('n', tabled, count, "--count", -3, 8),
                                      PROGRAM_FLAG_INT('w', tabled, wide, "--wide", INT32_MIN, INT32_MAX),
                                      PROGRAM_FLAG_FLOAT('r', tabled, rate, "--rate", 0, 1),
                                      PROGRAM_FLAG_CHOICE('c', tabled, colour, "--colour", colours)};
  return program_take_flag(list, sizeof list / sizeof *list, key, text, state);
}

static const struct argp_option tabled_options[] = {
    {"file", 'f', "F", 0, "", 0},   {"loud", 'l', 0, 0, "", 0},
    {"count", 'n', "N", 0, "", 0},  {"rate", 'r', "R", 0, "", 0},
    {"colour", 'c', "C", 0, "", 0}, {"unknown", 'u', 0, 0, "", 0},
    {"wide", 'w', "N", 0, "", 0},   {0}};
static const struct argp tabled_parser = {.options = tabled_options, .parser = parse_tabled};

static void values_go_where_the_table_says(void **state) {
  (void)state;
  tabled t = {.count = 1, .other = 77};
  program_parse_flags(
      &tabled_parser, 9,
      (char *[]){"program", "-f", "x", "--count", "-3", "-r0.25", "--loud", "-c", "green", NULL}, &t);
  assert_string_equal(t.file, "x");
  assert_true(t.loud);
  assert_int_equal(t.count, -3);
  assert_int_equal(t.other, 77);
  assert_true(t.rate == 0.25f);
  assert_int_equal(t.colour, COLOUR_GREEN);
  program_parse_flags(&tabled_parser, 3, (char *[]){"program", "--wide=-2147483648", "-n8", NULL}, &t);
  assert_true(t.wide == INT32_MIN && t.count == 8);
  program_parse_flags(&tabled_parser, 3, (char *[]){"program", "--wide", "2147483647", NULL}, &t);
  assert_true(t.wide == INT32_MAX && t.other == 77);
}

static void values_that_do_not_fit_end_the_program(void **state) {
  (void)state;
  static char *const bad[][2] = {{"--count", "9"},         {"--count", "-4"}, {"--count", "x"},
                                 {"--wide", "2147483648"}, {"--wide", ""},    {"--rate", "1.5"},
                                 {"--colour", "blue"}};
  char text[400];
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    refusal_of(&tabled_parser, ARGV(bad[i][0], bad[i][1]), text, sizeof text);
    assert_non_null(strstr(text, bad[i][0]));
    assert_non_null(strstr(text, bad[i][1]));
  }
  refusal_of(&tabled_parser, ARGV("--unknown"), text, sizeof text); /* in no table */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(the_environment_is_read_first, forget),
      cmocka_unit_test_teardown(a_wrong_variable_is_named, forget),
      cmocka_unit_test_teardown(help_is_shown, forget),
      cmocka_unit_test(a_wrong_flag_has_a_nearest_one),
      cmocka_unit_test(what_llama_cpp_calls_it),
      cmocka_unit_test(what_would_change_nothing_is_passed_over),
      cmocka_unit_test(values_are_not_flags),
      cmocka_unit_test(near_means_few_changes),
      cmocka_unit_test(values_go_where_the_table_says),
      cmocka_unit_test(values_that_do_not_fit_end_the_program),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
