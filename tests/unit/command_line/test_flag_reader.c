/* libs: command_line base */
/* How words, variables and files become values, shown with the flags of `tandem run' and of a target. */
#include "common/command_line/flag_reader.h"

#include "common/base/exit_status.h"
#include "common/command_line/nearest_word.h"
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/scratch.h"

typedef struct taken {
  flag_values v;
  int ended;
  char own[200]; /* "name=text " of what the program reads itself */
} taken;

static int take_own(void *context, flag_id id, const char *text, err *e) {
  taken *t = context;
  size_t size = strlen(t->own);
  snprintf(t->own + size, sizeof t->own - size, "%s=%s ", flag_of(id)->name, text ? text : "-");
  return text && strcmp(text, "bad") == 0 ? err_set(e, ERR_ARG, "--%s is bad", flag_of(id)->name) : ERR_OK;
}

static int end(void *context, err *e) {
  (void)e;
  ((taken *)context)->ended++;
  return ERR_OK;
}

static void read_flags(flag_command command, char **argv, taken *t) {
  *t = (taken){.v = flag_defaults};
  const flag_program reader = {
      .command = command, .values = &t->v, .context = t, .own = take_own, .whole = end};
  int argc = 0;
  while (argv[argc]) argc++;
  flag_read_all(&reader, argc, argv);
}

static int forget(void **state) {
  (void)state;
  unsetenv("TANDEM_MODEL"), unsetenv("TANDEM_MAX_TOKENS"), unsetenv("TANDEM_RAW"), unsetenv("TANDEM_PROMPT");
  return 0;
}

#define ARGV(...)                                                                                            \
  (char *[]) {                                                                                               \
    "program", __VA_ARGS__, NULL                                                                             \
  }
static taken parse_all(char **argv) {
  taken t;
  read_flags(COMMAND_RUN, argv, &t);
  assert_int_equal(t.ended, 1);
  return t;
}

/* What a child that parses this says there, and its exit status. */
static int say(char **argv, int where, char *text, size_t size) {
  int ends[2], status;
  assert_int_equal(pipe(ends), 0);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], where);
    taken t;
    read_flags(COMMAND_RUN, argv, &t);
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

static void refusal(char **argv, char *text, size_t size) {
  assert_int_equal(say(argv, STDERR_FILENO, text, size), STATUS_USAGE);
}

static void the_environment_is_read_first(void **state) {
  (void)state;
  setenv("TANDEM_MAX_TOKENS", "7", 1);
  setenv("TANDEM_MODEL", "here", 1);
  setenv("TANDEM_RAW", "1", 1);
  setenv("TANDEM_PROMPT", "1", 1); /* --help does not show it */
  taken t = parse_all(ARGV("x"));
  assert_int_equal(t.v.max_tokens, 7);
  assert_string_equal(t.v.model, "here");
  assert_true(t.v.raw && t.v.from[FLAG_raw] == FLAG_FROM_VARIABLE && t.v.argument_count == 1);
  assert_string_equal(t.own, "");
  t = parse_all(ARGV("--max-tokens", "9", "-m", "there"));
  assert_int_equal(t.v.max_tokens, 9);
  assert_string_equal(t.v.model, "there");
  assert_int_equal(t.v.from[FLAG_model], FLAG_FROM_COMMAND_LINE);
  setenv("TANDEM_RAW", "0", 1);
  assert_false(parse_all(ARGV("x")).v.raw);
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
    char text[20000];
    assert_int_equal(say(ARGV("-m", "-h", (char *)(uintptr_t)asked[i]), STDOUT_FILENO, text, sizeof text), 0);
    assert_non_null(strstr(text, "--max-tokens"));
  }
}

static void a_wrong_flag_has_a_nearest_one(void **state) {
  (void)state;
  static const struct {
    const char *given, *meant;      /* NULL: nothing is near */
  } table[] = {{"--max-tok", NULL}, /* the beginning of a flag is the flag */
               {"--mo", "--mo may be --model or --model-draft"},
               {"--=x", "there is no flag --"},
               {"--max-tokns", "did you mean --max-tokens?"},
               {"--mxa-tokens=5", "did you mean --max-tokens?"},
               {"--modell", "did you mean --model?"},
               {"--hepl", "did you mean --help?"},
               {"--zzz", "there is no flag --zzz\n"},
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
  assert_int_equal(parse_all(ARGV((char *)(uintptr_t)table[0].given, "5")).v.max_tokens, 5);
}

static void what_llama_cpp_calls_it(void **state) {
  (void)state;
  static const struct {
    char *argv[3];
    int number;
  } taken_as_ours[] = {{{"-n", "7"}, 7},          {{"-n7"}, 7},           {{"-n=7"}, 7},
                       {{"--n-predict", "7"}, 7}, {{"--predict=7"}, 7},   {{"-n", "5", "--max-tokens=7"}, 7},
                       {{"--max", "7"}, 7},       {{"--max-tokens=7"}, 7}};
  for (size_t i = 0; i < sizeof taken_as_ours / sizeof *taken_as_ours; i++) {
    char *const *a = taken_as_ours[i].argv;
    assert_int_equal(parse_all(ARGV(a[0], a[1], a[2])).v.max_tokens, taken_as_ours[i].number);
  }
  static const struct {
    const char *given, *answer;
  } refused[] = {{"-mg", "program: there is no flag -mg here: --device NAME says what computes: `tandem "
                         "--list-devices' tells the names\nTry `program --help' for all flags.\n"},
                 {"-mg=1", "there is no flag -mg here: --device NAME says"},
                 {"--ignore-eos", "there is no flag --ignore-eos here: leave it out"},
                 {"-ngl", "program: -ngl has no value\nTry"},
                 {"--parallel=4", "--sessions N of `tandem batch'"}};
  char text[1000];
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    refusal(ARGV("-m", "x", (char *)(uintptr_t)refused[i].given), text, sizeof text);
    if (!strstr(text, refused[i].answer)) fail_msg("%s: %s", refused[i].given, text);
  }
  refusal(ARGV("-n", "many"), text, sizeof text);
  assert_non_null(strstr(text, "--max-tokens must be a whole number"));
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
    assert_int_equal(parse_all(ARGV("-n7", a[0], a[1], a[2], a[3], a[4])).v.max_tokens, 7);
  }
}

static void values_are_not_flags(void **state) {
  (void)state;
  assert_string_equal(parse_all(ARGV("-m", "--modle")).v.model, "--modle");
  assert_string_equal(parse_all(ARGV("--model", "--modle")).v.model, "--modle");
  assert_string_equal(parse_all(ARGV("--", "--modle")).v.arguments[0], "--modle");
  assert_string_equal(parse_all(ARGV("--", "-ngl")).v.arguments[0], "-ngl");
  assert_string_equal(parse_all(ARGV("-m", "-ngl")).v.model, "-ngl");
  assert_string_equal(parse_all(ARGV("--model", "-n")).v.model, "-n");
  parse_all(ARGV("-"));
}

static void there_are_as_many_arguments_as_the_command_has(void **state) {
  (void)state;
  static const struct {
    const char *first, *second, *why;
  } table[] = {{"say", "hello", "program: 'hello' is one argument too many: put the prompt in quotes"},
               {"-pa", "b", "program: 'b' is one argument too many"},
               {"hello", "x.gguf", "'x.gguf' is one argument too many: -m goes before the model's path"}};
  char text[1000];
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    refusal(ARGV((char *)(uintptr_t)table[i].first, (char *)(uintptr_t)table[i].second), text, sizeof text);
    if (!strstr(text, table[i].why)) fail_msg("%s", text);
  }
  assert_string_equal(parse_all(ARGV("-p", "a")).v.arguments[0], "a");
}

static void an_argument_may_stand_in_a_file(void **state) {
  (void)state;
  char file[SCRATCH_MAX];
  strcpy(file, scratch_path("prompt.yaml").text);
  FILE *f = fopen(file, "w");
  fputs("prompt: of the file\n", f);
  fclose(f);
  assert_string_equal(parse_all(ARGV("--config", file)).v.arguments[0], "of the file");
  taken t = parse_all(ARGV("--config", file, "nearer"));
  assert_string_equal(t.v.arguments[0], "nearer");
  assert_int_equal(t.v.argument_count, 1);
}

static void near_means_few_changes(void **state) {
  (void)state;
  static const char *const words[] = {"run", "batch", "doctor"};
  assert_string_equal(nearest_word("rnu", words, 3), "run");
  assert_string_equal(nearest_word("batsch", words, 3), "batch");
  assert_string_equal(nearest_word("doktor", words, 3), "doctor");
  assert_null(nearest_word("serve", words, 3));
  assert_null(nearest_word("a-very-long-word-that-is-longer-than-any-flag-of-any-program", words, 3));
}

/* --- values --- */

static void values_go_where_the_table_says(void **state) {
  (void)state;
  taken t = parse_all(ARGV("-m", "x", "--top-k", "3", "--top-p=0.25", "-v", "--kv", "virtual", "--kv-memory",
                           "2K", "--seed", "9", "--stop", "a", "--stop=b", "--tree", "--show=auto", "word"));
  assert_string_equal(t.v.model, "x");
  assert_true(t.v.top_k == 3 && t.v.top_p == 0.25f && t.v.verbose && t.v.kv == 1 && t.v.kv_memory == 2048);
  assert_true(t.v.seed == 9 && t.v.budget == flag_defaults.budget && t.v.argument_count == 1);
  assert_string_equal(t.own, "stop=a stop=b tree=- show=auto ");
  char out[64];
  assert_true(flag_print(flag_of(FLAG_kv), &t.v, out, sizeof out));
  assert_string_equal(out, "virtual");
  assert_true(flag_print(flag_of(FLAG_top_p), &t.v, out, sizeof out));
  assert_string_equal(out, "0.25");
}

static void values_that_do_not_fit_end_the_program(void **state) {
  (void)state;
  static char *const bad[][2] = {{"--top-k", "-1"}, {"--top-k", "x"}, {"--budget", "65"},
                                 {"--budget", ""},  {"--top-p", "2"}, {"--kv", "dynamic"},
                                 {"--stop", "bad"}, {"--seed", "-1"}, {"--max-tokens", "0"}};
  char text[400];
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    refusal(ARGV(bad[i][0], bad[i][1]), text, sizeof text);
    assert_non_null(strstr(text, bad[i][0]));
    assert_non_null(strstr(text, bad[i][1]));
  }
  refusal(ARGV("--top-k"), text, sizeof text);
  assert_non_null(strstr(text, "--top-k requires an argument"));
  refusal(ARGV("--raw=1"), text, sizeof text);
  assert_non_null(strstr(text, "--raw takes no value"));
}

static void a_flag_has_the_range_of_its_command(void **state) {
  (void)state;
  taken t;
  read_flags(COMMAND_TARGET, ARGV("--ctx", "0", "--sessions", "1024"), &t);
  assert_true(t.v.context == 0 && t.v.sessions == 1024);
  read_flags(COMMAND_DRAFT, ARGV("--replay-seed", "18446744073709551615"), &t);
  assert_true(t.v.replay_seed == UINT64_MAX);
  char text[400];
  refusal(ARGV("--seed", "9223372036854775808"), text, sizeof text);
  assert_non_null(strstr(text, "from 0 to 9223372036854775807"));
  refusal(ARGV("--ctx", "0"), text, sizeof text);
  assert_non_null(strstr(text, "--ctx must be a whole number from 2 to"));
}

/* --- every flag, from everywhere --- */

/* The n-th of two different values that a flag takes; a switch is on or not given. */
static const char *sample_of(const flag_row *row, int n, char out[80]) {
  if (row->type == FLAG_CHOICE)
    assert_true(flag_word(row, n, out));
  else if (row->type == FLAG_INT)
    snprintf(out, 80, "%d", (int)row->high - n);
  else if (row->type == FLAG_NUMBER)
    snprintf(out, 80, "%g", row->low + n * 0.5);
  else
    snprintf(out, 80, "%d", 3 + n); /* a text, a size, a seed */
  return out;
}

static void set_variable(const flag_row *row, const char *value) {
  char name[80] = "TANDEM_";
  snprintf(name + 7, sizeof name - 7, "%s", row->name);
  for (char *c = name + 7; *c; c++) *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
  value ? setenv(name, value, 1) : unsetenv(name);
}

/* sources: a bit for each of file, variable and command line. The nearest one wins. */
static void check_sources(flag_command command, const flag_row *row, int sources) {
  char value[2][80], word[160], file[SCRATCH_MAX], printed[80];
  int nearest = sources & 4 ? FLAG_FROM_COMMAND_LINE : sources & 2 ? FLAG_FROM_VARIABLE : FLAG_FROM_FILE;
  bool takes = row->argument != NULL;
  sample_of(row, 0, value[0]), sample_of(row, 1, value[1]); /* [1] stands at the nearest */
#define VALUE(source) (nearest == (source) ? value[1] : value[0])
  strcpy(file, scratch_path("flags.yaml").text);
  FILE *f = fopen(file, "w");
  if (sources & 1) fprintf(f, "%s: %s\n", row->name, takes ? VALUE(FLAG_FROM_FILE) : "true");
  fclose(f);
  set_variable(row, sources & 2 ? takes ? VALUE(FLAG_FROM_VARIABLE) : "1" : NULL);
  snprintf(word, sizeof word, takes ? "--%s=%s" : "--%s", row->name, VALUE(FLAG_FROM_COMMAND_LINE));
  taken t;
  read_flags(command, ARGV("--config", file, sources & 4 ? word : NULL), &t);
  set_variable(row, NULL);
  assert_int_equal(t.v.from[row->id], nearest);
  if (row->type == FLAG_MANY || row->type == FLAG_SIZE)
    return; /* all of them count; it is printed in bytes */
  assert_true(flag_print(row, &t.v, printed, sizeof printed));
  if (strcmp(printed, takes ? value[1] : "true") != 0)
    fail_msg("--%s is %s, not %s", row->name, printed, value[1]);
}

static void every_flag_may_come_from_everywhere(void **state) {
  (void)state;
  for (int c = 0; c < COMMAND_COUNT; c++)
    for (const flag_row *row = flag_rows; row < flag_rows + flag_row_count; row++) {
      bool own = !row->help || row->id == FLAG_config || row->id == FLAG_version;
      if (own || !(row->commands >> c & 1)) continue;
      for (int sources = 1; sources < 8; sources++) check_sources((flag_command)c, row, sources);
    }
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
      cmocka_unit_test(there_are_as_many_arguments_as_the_command_has),
      cmocka_unit_test(an_argument_may_stand_in_a_file),
      cmocka_unit_test(near_means_few_changes),
      cmocka_unit_test(values_go_where_the_table_says),
      cmocka_unit_test(values_that_do_not_fit_end_the_program),
      cmocka_unit_test(a_flag_has_the_range_of_its_command),
      cmocka_unit_test(every_flag_may_come_from_everywhere),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
