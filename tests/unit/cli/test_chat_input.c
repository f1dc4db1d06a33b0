/* libs: cli */
/* What a line means that is typed in a conversation. */
#include "orchestrator/cli/chat_input.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void expect_input(const char *line, chat_input_kind kind, const char *text) {
  chat_input t;
  chat_input_parse(line, strlen(line), &t);
  assert_int_equal(t.kind, kind);
  if (!text) return;
  assert_int_equal(t.size, strlen(text));
  assert_memory_equal(t.text, text, t.size);
}

static void test_what_each_line_means(void **state) {
  (void)state;
  expect_input("", CHAT_INPUT_NOTHING, NULL);
  expect_input(" \t\r\n", CHAT_INPUT_NOTHING, NULL);
  expect_input("Hello \n", CHAT_INPUT_MESSAGE, "Hello");
  expect_input("two\nlines", CHAT_INPUT_MESSAGE, "two\nlines");
  expect_input(" /usr is a folder", CHAT_INPUT_MESSAGE, " /usr is a folder");
  expect_input("/help", CHAT_INPUT_HELP, "");
  expect_input("/exit  ", CHAT_INPUT_EXIT, "");
  expect_input("/quit", CHAT_INPUT_EXIT, "");
  expect_input("/clear", CHAT_INPUT_CLEAR, "");
  expect_input("/new", CHAT_INPUT_CLEAR, "");
  expect_input("/regen", CHAT_INPUT_REGEN, "");
  expect_input("/regen 0.8 7 ", CHAT_INPUT_REGEN, "0.8 7");
  expect_input("/continue", CHAT_INPUT_CONTINUE, "");
  expect_input("/stats", CHAT_INPUT_STATS, "");
  expect_input("/read  a file.txt ", CHAT_INPUT_READ, "a file.txt");
  expect_input("/read", CHAT_INPUT_BAD, "which? /read FILE");
  expect_input("/clear all", CHAT_INPUT_BAD, "/clear stands alone on its line");
  expect_input("/usr is a folder", CHAT_INPUT_BAD, NULL);
  expect_input("/", CHAT_INPUT_BAD, NULL);
  expect_input(
      "/helpme", CHAT_INPUT_BAD,
      "there is no command /helpme: /help tells them; a message that begins with / needs a blank before");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_each_line_means),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
