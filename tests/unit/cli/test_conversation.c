/* libs: cli */
/* The messages of a conversation, and which of them go when the context is full. */
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
    strcat(said, c->messages[i].content);
    assert_int_equal(c->messages[i].size, strlen(c->messages[i].content));
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

static void test_the_system_message_stays(void **state) {
  (void)state;
  conversation c;
  fill(&c, true);
  assert_true(conversation_last_is(&c, "user"));
  assert_int_equal(conversation_system(&c), 1);
  assert_int_equal(conversation_exchanges(&c), 2);
  conversation_drop_last(&c);
  assert_true(conversation_last_is(&c, "assistant"));
  conversation_drop_oldest(&c, 1);
  expect_turns(&c, "sys u2 a2");
  conversation_clear(&c);
  expect_turns(&c, "sys");
  conversation_fini(&c);
  assert_false(conversation_last_is(&c, "user"));
  assert_int_equal(conversation_exchanges(&c), 0);
  fill(&c, false);
  assert_int_equal(conversation_system(&c), 0);
  assert_int_equal(conversation_exchanges(&c), 2);
  conversation_drop_oldest(&c, 2);
  expect_turns(&c, "u3");
  conversation_clear(&c);
  expect_turns(&c, "");
  conversation_fini(&c);
}

/* Ten tokens a turn. The prompts that were asked about are noted. */
static char asked[256];

static int64_t ten_each(void *context, const chat_message *messages, int32_t count) {
  if (context) return *(int *)context;
  for (int32_t i = 0; i < count; i++) strcat(asked, messages[i].content);
  strcat(asked, " ");
  return 10 * count;
}

static void test_the_fewest_old_exchanges_go(void **state) {
  (void)state;
  conversation c;
  fill(&c, true);
  asked[0] = 0;
  assert_int_equal(conversation_exchanges_to_drop(&c, 60, ten_each, NULL), 0);
  assert_int_equal(conversation_exchanges_to_drop(&c, 59, ten_each, NULL), 1);
  assert_int_equal(conversation_exchanges_to_drop(&c, 39, ten_each, NULL), 2);
  assert_string_equal(asked, "sysu1a1u2a2u3 sysu1a1u2a2u3 sysu2a2u3 sysu1a1u2a2u3 sysu2a2u3 sysu3 ");
  assert_int_equal(conversation_exchanges_to_drop(&c, 19, ten_each, NULL), -1);
  int error = ERR_FORMAT;
  assert_int_equal(conversation_exchanges_to_drop(&c, 60, ten_each, &error), ERR_FORMAT);
  assert_int_equal(c.count, 6); /* it only tells */
  conversation_fini(&c);
  fill(&c, false);
  assert_int_equal(conversation_exchanges_to_drop(&c, 49, ten_each, NULL), 1);
  assert_int_equal(conversation_exchanges_to_drop(&c, 10, ten_each, NULL), 2);
  assert_int_equal(conversation_exchanges_to_drop(&c, 9, ten_each, NULL), -1);
  conversation_fini(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_system_message_stays),
      cmocka_unit_test(test_the_fewest_old_exchanges_go),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
