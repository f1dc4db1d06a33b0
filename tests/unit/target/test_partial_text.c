/* libs: target */
/* What partial KV is told of a session's tokens, and what it looks up there. */
#include "target_worker/partial_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

enum { ROOM = 64, SESSION = 5 };

static const int32_t TEXT[] = {11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 1, 11, 12, 13, 14, 15, 16};
#define LENGTH ((int32_t)(sizeof TEXT / sizeof *TEXT))

static void tell(partial_text *t, uint64_t session, int32_t from, const int32_t *tokens, int32_t count) {
  static const int32_t stop = 99;
  const partial_news n = {.session = session,
                          .tokens = tokens,
                          .from = from,
                          .count = count,
                          .prompt_length = 1,
                          .stops = &stop,
                          .stop_count = 1};
  partial_text_update(t, &n, ROOM);
}

static void what_followed_before_is_proposed(void **state) {
  (void)state;
  partial_text t = {0};
  int32_t path[ROOM] = {0};
  assert_int_equal(partial_text_next(&t, SESSION, path, 0, 7), 0); /* nothing was told */
  tell(&t, SESSION, 0, TEXT, LENGTH);
  const int32_t found = partial_text_next(&t, SESSION, path, 0, 7);
  assert_true(found >= 3 && found < 7); /* and no more than are likely to be right */
  for (int32_t i = 0; i < found; i++) assert_int_equal(path[i], 17 + i);
  assert_int_equal(partial_text_next(&t, SESSION, path, 0, 2), 2);
  path[0] = 17;
  assert_true(partial_text_next(&t, SESSION, path, 1, 7) >= 3);
  assert_true(path[0] == 17 && path[1] == 18 && path[2] == 19 && path[3] == 20);
  assert_int_equal(partial_text_next(&t, SESSION, path, 0, 0), 0);
  path[0] = 50; /* was never seen */
  assert_int_equal(partial_text_next(&t, SESSION, path, 1, 7), 0);
  partial_text_fini(&t);
}

static void nothing_is_looked_up_in_another_text(void **state) {
  (void)state;
  partial_text t = {0};
  int32_t path[ROOM] = {0};
  tell(&t, SESSION, 0, TEXT, LENGTH);
  assert_int_equal(partial_text_next(&t, SESSION + 1, path, 0, 7), 0);
  tell(&t, SESSION + 1, LENGTH, TEXT, 3); /* which does not begin */
  tell(&t, SESSION, LENGTH + 1, TEXT, 3); /* has a gap, */
  tell(&t, SESSION, LENGTH, TEXT, ROOM);  /* and is too long */
  assert_int_equal(t.length, LENGTH);
  assert_true(partial_text_next(&t, SESSION, path, 0, 7) >= 3);
  assert_int_equal(path[0], 17);
  tell(&t, SESSION + 1, 0, TEXT, LENGTH);
  assert_int_equal(partial_text_next(&t, SESSION, path, 0, 7), 0);
  assert_true(partial_text_next(&t, SESSION + 1, path, 0, 7) >= 3);
  partial_text_fini(&t);
}

/* A text that was told piece by piece, and was shortened meanwhile, says what the same one told at once says.
 */
static void a_text_may_change(void **state) {
  (void)state;
  partial_text t = {0}, at_once = {0};
  int32_t path[ROOM] = {0}, same[ROOM] = {0}, text[ROOM];
  tell(&t, SESSION, 0, TEXT, LENGTH);
  assert_true(partial_text_next(&t, SESSION, path, 0, 7) >= 3);
  static const int32_t news[] = {40, 41, 42, 43, 44, 45, 46, 47, 1, 12, 40, 41, 42, 43};
  const int32_t count = (int32_t)(sizeof news / sizeof *news), kept = 2;
  tell(&t, SESSION, kept, news, 9);
  tell(&t, SESSION, kept + 9, news + 9, count - 9);
  memcpy(text, TEXT, sizeof *text * (size_t)kept);
  memcpy(text + kept, news, sizeof news);
  tell(&at_once, SESSION, 0, text, kept + count);
  const int32_t found = partial_text_next(&t, SESSION, path, 0, 7);
  assert_true(found >= 2);
  assert_int_equal(path[0], 44);
  assert_int_equal(partial_text_next(&at_once, SESSION, same, 0, 7), found);
  assert_memory_equal(path, same, (size_t)found * sizeof *path);
  partial_text_fini(&at_once);
  partial_text_fini(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_followed_before_is_proposed),
      cmocka_unit_test(nothing_is_looked_up_in_another_text),
      cmocka_unit_test(a_text_may_change),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
