/* libs: wire base : labels=vectors */
#include "wire/actions.h"

#include "wire/codec.h"
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOOD TANDEM_SOURCE_DIR "/wire/vectors/good"

static msg tokens_message(const int32_t *tokens, int32_t count) {
  msg m = {.type = MSG_TOKENS, .to = {{1}}, .session = 5, .epoch = 1};
  m.u.tokens = (msg_tokens){.base_length = 1, .tokens = tokens, .token_count = count};
  return m;
}

static void test_actions_keep_their_order(void **state) {
  (void)state;
  actions a;
  msg m = {.type = MSG_BYE, .to = {{1}}};
  actions_init(&a);
  assert_int_equal(a.count, 0);
  actions_send(&a, 3, &m);
  actions_connect(&a, 42, (wire_string){"tcp://127.0.0.1:1234567", 20}); /* not NUL-terminated there */
  actions_disconnect(&a, 3);
  actions_log(&a, 1, "session %d went", 7);
  actions_exit(&a, 4);
  assert_int_equal(a.count, 5);
  assert_true(a.list[0].kind == ACTION_SEND && a.list[0].peer == 3 && a.list[0].message->type == MSG_BYE);
  assert_true(a.list[1].kind == ACTION_CONNECT && a.list[1].tag == 42);
  assert_string_equal(a.list[1].text, "tcp://127.0.0.1:1234");
  assert_true(a.list[2].kind == ACTION_DISCONNECT && a.list[2].peer == 3);
  assert_true(a.list[3].kind == ACTION_LOG && a.list[3].level == 1);
  assert_string_equal(a.list[3].text, "session 7 went");
  assert_true(a.list[4].kind == ACTION_EXIT && a.list[4].code == 4);
  actions_reset(&a);
  assert_int_equal(a.count, 0);
  actions_fini(&a);
}

/* A machine sends its own growing state and changes it afterwards. */
static void test_a_message_is_copied_when_it_is_sent(void **state) {
  (void)state;
  actions a;
  int32_t tokens[] = {1, 2, 3};
  char reason[] = "late";
  actions_init(&a);
  msg m = tokens_message(tokens, 3);
  actions_send(&a, 1, &m);
  tokens[0] = 9;
  m.u.tokens.base_length = 4;
  actions_send(&a, 2, &m);
  msg detach = {.type = MSG_DETACH, .to = {{1}}, .session = 5, .epoch = 1};
  detach.u.state.reason = (wire_string){reason, 4};
  actions_send(&a, 2, &detach);
  memcpy(reason, "gone", 4);
  const msg_tokens *first = &a.list[0].message->u.tokens, *second = &a.list[1].message->u.tokens;
  assert_int_equal(first->tokens[0], 1);
  assert_int_equal(first->base_length, 1);
  assert_int_equal(second->tokens[0], 9);
  assert_int_equal(second->tokens[2], 3);
  assert_memory_equal(a.list[2].message->u.state.reason.data, "late", 4);
  actions_fini(&a);
}

static void test_thousands_of_actions_are_kept_in_every_step(void **state) {
  (void)state;
  actions a;
  int32_t tokens[64];
  actions_init(&a);
  for (int round = 0; round < 3; round++) {
    for (int32_t i = 0; i < 5000; i++) {
      for (int32_t k = 0; k < 64; k++) tokens[k] = i;
      msg m = tokens_message(tokens, 64);
      actions_send(&a, (peer_id)i, &m);
    }
    assert_int_equal(a.count, 5000);
    for (int32_t i = 0; i < 5000; i++) {
      assert_int_equal(a.list[i].peer, i);
      assert_int_equal(a.list[i].message->u.tokens.tokens[63], i);
    }
    actions_reset(&a);
  }
  assert_int_equal(a.lost, 0);
  actions_fini(&a);
}

/* A step that asks for more than memory allows loses what is too much, and says so. */
static void test_a_full_arena_loses_the_action_and_counts(void **state) {
  (void)state;
  actions a;
  int32_t tokens[1000] = {0};
  actions_init(&a);
  a.memory.limit = 14000; /* the list and two messages */
  msg m = tokens_message(tokens, 1000);
  for (int i = 0; i < 5; i++) actions_send(&a, 1, &m);
  assert_int_equal(a.count, 2);
  assert_int_equal(a.lost, 3);
  actions_fini(&a);
}

/* Every golden message, deep-copied, encodes to the same bytes after the original is gone. */
static void copy_file(const char *name) {
  static uint8_t data[WIRE_FRAME_MAX];
  char path[600];
  snprintf(path, sizeof path, GOOD "/%s", name);
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  size_t size = fread(data, 1, sizeof data, f);
  fclose(f);
  arena from, to;
  codec_buffer first = {0}, second = {0};
  msg m;
  err e;
  arena_init(&from, CODEC_ARENA_MAX);
  arena_init(&to, 2 * CODEC_ARENA_MAX);
  void *all = arena_take(&from, CODEC_ARENA_MAX); /* one piece, so that all of it can be overwritten */
  arena_reset(&from);
  assert_int_equal(codec_decode(data, size, &from, &m, &e), ERR_OK);
  assert_int_equal(codec_encode(&m, &first, &e), ERR_OK);
  const msg *copy = actions_copy(&to, &m);
  assert_non_null(copy);
  memset(all, 0xEE, CODEC_ARENA_MAX); /* what was not copied is gone */
  memset(&m, 0xEE, sizeof m);
  assert_int_equal(codec_encode(copy, &second, &e), ERR_OK);
  assert_int_equal(first.size, second.size);
  assert_memory_equal(first.data, second.data, first.size);
  arena_fini(&from);
  codec_buffer_fini(&first);
  codec_buffer_fini(&second);
  arena_fini(&to);
}

static void test_every_golden_frame_is_copied_whole(void **state) {
  (void)state;
  DIR *folder = opendir(GOOD);
  assert_non_null(folder);
  int copied = 0;
  for (struct dirent *d; (d = readdir(folder));)
    if (strstr(d->d_name, ".bin")) {
      copy_file(d->d_name);
      copied++;
    }
  closedir(folder);
  assert_true(copied >= 40);
}

static void test_a_full_arena_copies_nothing(void **state) {
  (void)state;
  int32_t tokens[1000] = {0};
  msg m = tokens_message(tokens, 1000);
  arena a;
  arena_init(&a, 1000);
  assert_null(actions_copy(&a, &m));
  arena_fini(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_actions_keep_their_order),
      cmocka_unit_test(test_a_message_is_copied_when_it_is_sent),
      cmocka_unit_test(test_thousands_of_actions_are_kept_in_every_step),
      cmocka_unit_test(test_a_full_arena_loses_the_action_and_counts),
      cmocka_unit_test(test_every_golden_frame_is_copied_whole),
      cmocka_unit_test(test_a_full_arena_copies_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
