/* libs: cli */
/* A conversation's turns, what a typed line means, and what goes when the context is full. */
#include "orchestrator/cli/conversation.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void add(conversation *c, const char *role, const char *text) {
  assert_int_equal(conversation_add(c, role, text, strlen(text)), ERR_OK);
}

static void expect_turns(const conversation *c, const char *texts) {
  char said[256] = "";
  for (int32_t i = 0; i < c->count; i++) {
    strcat(said, i ? " " : "");
    strcat(said, c->turns[i].content);
    assert_int_equal(c->turns[i].size, strlen(c->turns[i].content));
  }
  assert_string_equal(said, texts);
}

static void fill(conversation *c, bool system) {
  *c = (conversation){0};
  if (system) add(c, "system", "sys");
  add(c, "user", "u1"), add(c, "assistant", "a1");
  add(c, "user", "u2"), add(c, "assistant", "a2");
  add(c, "user", "u3");
}

static void test_turns(void **state) {
  (void)state;
  conversation c;
  fill(&c, true);
  assert_true(conversation_last_is(&c, "user"));
  conversation_drop_last(&c);
  assert_true(conversation_last_is(&c, "assistant"));
  conversation_drop_oldest(&c, 1);
  expect_turns(&c, "sys u2 a2");
  conversation_clear(&c);
  expect_turns(&c, "sys");
  conversation_fini(&c);
  assert_false(conversation_last_is(&c, "user"));
  fill(&c, false);
  conversation_drop_oldest(&c, 2);
  expect_turns(&c, "u3");
  conversation_clear(&c);
  expect_turns(&c, "");
  conversation_fini(&c);
}

/* Ten tokens a turn. The prompts that were asked about are noted. */
static char asked[256];

static int64_t ten_each(void *context, const chat_message *turns, int32_t count) {
  if (context) return *(int *)context;
  for (int32_t i = 0; i < count; i++) strcat(asked, turns[i].content);
  strcat(asked, " ");
  return 10 * count;
}

static void test_too_many(void **state) {
  (void)state;
  conversation c;
  fill(&c, true);
  asked[0] = 0;
  assert_int_equal(conversation_too_many(&c, 60, ten_each, NULL), 0);
  assert_int_equal(conversation_too_many(&c, 59, ten_each, NULL), 1);
  assert_int_equal(conversation_too_many(&c, 39, ten_each, NULL), 2);
  assert_string_equal(asked, "sysu1a1u2a2u3 sysu1a1u2a2u3 sysu2a2u3 sysu1a1u2a2u3 sysu2a2u3 sysu3 ");
  assert_int_equal(conversation_too_many(&c, 19, ten_each, NULL), -1);
  int error = ERR_FORMAT;
  assert_int_equal(conversation_too_many(&c, 60, ten_each, &error), ERR_FORMAT);
  assert_int_equal(c.count, 6); /* it only tells */
  conversation_fini(&c);
  fill(&c, false);
  assert_int_equal(conversation_too_many(&c, 49, ten_each, NULL), 1);
  assert_int_equal(conversation_too_many(&c, 10, ten_each, NULL), 2);
  assert_int_equal(conversation_too_many(&c, 9, ten_each, NULL), -1);
  conversation_fini(&c);
}

static void expect_input(const char *line, input_kind kind, const char *text) {
  typed t;
  conversation_parse(line, strlen(line), &t);
  assert_int_equal(t.kind, kind);
  if (!text) return;
  assert_int_equal(t.size, strlen(text));
  assert_memory_equal(t.text, text, t.size);
}

static void test_commands(void **state) {
  (void)state;
  expect_input("", INPUT_NOTHING, NULL);
  expect_input(" \t\r\n", INPUT_NOTHING, NULL);
  expect_input("Hello \n", INPUT_MESSAGE, "Hello");
  expect_input("two\nlines", INPUT_MESSAGE, "two\nlines");
  expect_input(" /usr is a folder", INPUT_MESSAGE, " /usr is a folder");
  expect_input("/help", INPUT_HELP, "");
  expect_input("/exit  ", INPUT_EXIT, "");
  expect_input("/quit", INPUT_EXIT, "");
  expect_input("/clear", INPUT_CLEAR, "");
  expect_input("/new", INPUT_CLEAR, "");
  expect_input("/regen", INPUT_REGEN, "");
  expect_input("/continue", INPUT_CONTINUE, "");
  expect_input("/stats", INPUT_STATS, "");
  expect_input("/read  a file.txt ", INPUT_READ, "a file.txt");
  expect_input("/read", INPUT_BAD, "which? /read FILE");
  expect_input("/clear all", INPUT_BAD, "/clear stands alone on its line");
  expect_input("/usr is a folder", INPUT_BAD, NULL);
  expect_input("/", INPUT_BAD, NULL);
  expect_input(
      "/helpme", INPUT_BAD,
      "there is no command /helpme: /help tells them; a message that begins with / needs a blank before");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_turns),
      cmocka_unit_test(test_too_many),
      cmocka_unit_test(test_commands),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
