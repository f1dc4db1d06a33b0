/* libs: command_line base */
#include "common/command_line/habits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void flags_by_their_exact_names(void **state) {
  (void)state;
  static const struct {
    const char *theirs, *ours;
  } table[] = {{"-n", "--max-tokens"},
               {"--n-predict", "--max-tokens"},
               {"--predict", "--max-tokens"},
               {"-c", "--ctx"},
               {"--ctx-size", "--ctx"},
               {"-t", "--threads"},
               {"-s", "--seed"},
               {"-sys", "--system"},
               {"--system-prompt", "--system"},
               {"--temperature", "--temp"},
               {"--draft-max", "--budget"},
               {"--spec-draft-n-max", "--budget"},
               {"-md", "--model-draft"},
               {"-td", "--draft-threads"},
               {"--parallel", "--sessions"}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    const habit *h = habits_find(table[i].theirs, strlen(table[i].theirs));
    if (!h) fail_msg("%s", table[i].theirs);
    assert_string_equal(h->ours, table[i].ours);
  }
  assert_non_null(habits_find("--ctx-size=5", 10)); /* as far as it is told */
  static const char *const none[] = {"", "-", "--", "-nn", "--ctx", "--ctx-siz", "--ctx-size-", "n"};
  for (size_t i = 0; i < sizeof none / sizeof *none; i++) assert_null(habits_find(none[i], strlen(none[i])));
}

/* Each is either ours by another name, or there is a word of what to do; none stands twice. */
static void every_entry_says_something(void **state) {
  (void)state;
  int count;
  const habit *h = habits_all(&count);
  for (int i = 0; i < count; i++) {
    assert_true(h[i].ours ? strncmp(h[i].ours, "--", 2) == 0 : h[i].instead != NULL);
    for (const char *at = h[i].theirs; *at; at += strspn(at, " ")) {
      size_t size = strcspn(at, " ");
      assert_true(at[0] == '-' && size > 1);
      assert_ptr_equal(habits_find(at, size), &h[i]);
      at += size;
    }
  }
}

static void commands(void **state) {
  (void)state;
  static const char *const run[] = {"chat", "complete", "generate", "cli"};
  for (size_t i = 0; i < 4; i++) assert_string_equal(habits_find_command(run[i])->ours, "run");
  assert_string_equal(habits_find_command("server")->ours, "serve");
  assert_null(habits_find_command("run"));
  assert_null(habits_find_command("chats"));
  assert_null(habits_find_command(""));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(flags_by_their_exact_names),
      cmocka_unit_test(every_entry_says_something),
      cmocka_unit_test(commands),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
