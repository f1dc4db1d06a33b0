/* libs: drafters */
#include "draft_worker/drafters/corpus.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/support/random.h"

#define ROOM 64

static int set_up(void **state) {
  err e = {0};
  corpus *c;
  assert_int_equal(corpus_open(&c, ROOM, &e), ERR_OK);
  *state = c;
  return 0;
}

static int tear_down(void **state) {
  corpus_close(*state);
  return 0;
}

#define ADD(c, ...)                                                                                          \
  corpus_add(c, (const int32_t[]){__VA_ARGS__}, (int32_t)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)))

/* What follows `text`, its last token last. */
#define FIND(c, out, ...)                                                                                    \
  find(c, (const int32_t[]){__VA_ARGS__}, (int32_t)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)), out)

static int32_t find(const corpus *c, const int32_t *text, int32_t count, corpus_found *out) {
  int32_t ending[CORPUS_ENDING_MAX];
  for (int32_t i = 0; i < count; i++) ending[i] = text[count - 1 - i];
  return corpus_find(c, ending, count, out);
}

static void test_the_longest_comes_first_and_then_the_most_recent(void **state) {
  corpus_found f[CORPUS_FOUND_MAX];
  ADD(*state, 1, 2, 3, 4, 5, 70);
  ADD(*state, 9, 4, 5, 71);
  ADD(*state, 8, 4, 5, 72);
  assert_int_equal(FIND(*state, f, 1, 2, 3, 4, 5), 3);
  assert_true(f[0].token == 70 && f[0].length == 5);
  assert_true(f[1].token == 72 && f[1].length == 2);
  assert_true(f[2].token == 71 && f[2].length == 2);
  assert_int_equal(FIND(*state, f, 3, 4, 5), 3);
  assert_true(f[0].token == 70 && f[0].length == 3);
  assert_int_equal(FIND(*state, f, 5), 0); /* too short an ending */
  assert_int_equal(FIND(*state, f, 6, 7), 0);
}

static void test_an_ending_is_of_one_text(void **state) {
  corpus_found f[CORPUS_FOUND_MAX];
  ADD(*state, 1, 2, 3);
  ADD(*state, 4, 5, 6);
  assert_int_equal(FIND(*state, f, 2, 3), 0); /* nothing follows the end of a text */
  assert_int_equal(FIND(*state, f, 3, 4), 0);
  assert_int_equal(FIND(*state, f, 3, 4, 5), 1);
  assert_true(f[0].token == 6 && f[0].length == 2);
}

static void test_a_text_that_goes_on_is_added_once(void **state) {
  corpus_found f[CORPUS_FOUND_MAX];
  ADD(*state, 1, 2, 3);
  ADD(*state, 1, 2, 3, 4, 5);
  assert_int_equal(corpus_size(*state), 5);
  assert_int_equal(FIND(*state, f, 2, 3), 1);
  assert_int_equal(f[0].token, 4);
  ADD(*state, 1, 2, 3, 4, 5); /* the same again */
  assert_int_equal(corpus_size(*state), 5);
  ADD(*state, 1, 2, 3, 4, 6); /* another one, though most of it is the same */
  assert_int_equal(corpus_size(*state), 5 + 1 + 5);
  assert_int_equal(FIND(*state, f, 3, 4), 2);
  assert_true(f[0].token == 6 && f[1].token == 5);
}

static void test_the_oldest_makes_room(void **state) {
  corpus_found f[CORPUS_FOUND_MAX];
  int32_t many[3 * ROOM];
  for (int32_t i = 0; i < 3 * ROOM; i++) many[i] = 1000 + i;
  ADD(*state, 1, 2, 3);
  assert_int_equal(FIND(*state, f, 1, 2), 1);
  corpus_add(*state, many, 40);
  assert_int_equal(FIND(*state, f, 1, 2), 1);
  corpus_add(*state, many + 40, 40);
  assert_int_equal(corpus_size(*state), ROOM);
  assert_int_equal(FIND(*state, f, 1, 2), 0);
  assert_int_equal(FIND(*state, f, 1050, 1051), 1);
  corpus_add(*state, many, 3 * ROOM); /* of a longer one than there is room for the end is kept */
  assert_int_equal(corpus_size(*state), ROOM);
  assert_int_equal(FIND(*state, f, 1000 + 3 * ROOM - 3, 1000 + 3 * ROOM - 2), 1);
  assert_int_equal(f[0].token, 1000 + 3 * ROOM - 1);
  assert_int_equal(FIND(*state, f, 1050, 1051), 0);
}

static void test_a_long_one_is_not_hidden_by_many_that_are_recent(void **state) {
  corpus *c;
  err e = {0};
  corpus_found f[CORPUS_FOUND_MAX];
  int32_t text[40];
  (void)state;
  assert_int_equal(corpus_open(&c, 4096, &e), ERR_OK);
  for (int32_t i = 0; i < 40; i++) text[i] = 100 + i;
  corpus_add(c, text, 40);
  for (int32_t i = 0; i < 20; i++) { /* with the last 20 tokens in common */
    text[19] = 1000 + i;
    text[39] = 2000 + i;
    corpus_add(c, text + 19, 21);
  }
  text[19] = 119;
  assert_int_equal(find(c, text, 39, f), CORPUS_FOUND_MAX);
  assert_true(f[0].token == 139 && f[0].length == 39);
  assert_true(f[1].token == 2019 && f[1].length == 19);
  corpus_close(c);
}

/* --- beside a search of everything --- */

typedef struct window { /* what the corpus holds, -1 between texts */
  int32_t tokens[ROOM], count;
} window;

static void window_push(window *w, int32_t token) {
  if (w->count == ROOM) memmove(w->tokens, w->tokens + 1, sizeof w->tokens - sizeof *w->tokens), w->count--;
  w->tokens[w->count++] = token;
}

static int32_t length_at(const window *w, int32_t position, const int32_t *text, int32_t count) {
  int32_t n = 0;
  while (n < count && n < position && w->tokens[position - 1 - n] == text[count - 1 - n]) n++;
  return n;
}

static void check(const corpus *c, const window *w, const int32_t *text, int32_t count) {
  corpus_found f[CORPUS_FOUND_MAX];
  int32_t seen = find(c, text, count, f), longest = 0, expected = 0;
  for (int32_t p = 0; p < w->count; p++) {
    int32_t length = w->tokens[p] < 0 ? 0 : length_at(w, p, text, count);
    if (length > longest) longest = length;
    expected += length >= 2;
  }
  if (expected > CORPUS_FOUND_MAX) expected = CORPUS_FOUND_MAX;
  assert_int_equal(seen, expected);
  if (seen > 0) assert_int_equal(f[0].length, longest);
  for (int32_t i = 0, from = w->count - 1; i < seen; i++, from--) { /* in this order, none twice */
    if (i > 0 && f[i].length != f[i - 1].length) from = w->count - 1;
    if (i > 0) assert_true(f[i].length <= f[i - 1].length);
    while (from >= 0 && (w->tokens[from] != f[i].token || length_at(w, from, text, count) != f[i].length))
      from--;
    assert_true(from >= 0);
  }
}

static void test_it_finds_what_a_search_of_everything_finds(void **state) {
  uint64_t random = 5;
  window w = {.count = 0};
  int32_t text[40];
  for (int round = 0; round < 2000; round++) {
    int32_t count = 1 + (int32_t)random_below(&random, 39);
    for (int32_t i = 0; i < count; i++) text[i] = (int32_t)random_below(&random, 6);
    text[0] = 100 + round; /* so that none goes on where the last one ended */
    if (w.count > 0) window_push(&w, -1);
    for (int32_t i = 0; i < count; i++) window_push(&w, text[i]);
    corpus_add(*state, text, count);
    for (int32_t i = 0; i < count; i++) text[i] = (int32_t)random_below(&random, 6);
    check(*state, &w, text, count);
    int32_t from = (int32_t)random_below(&random, (uint32_t)w.count), to = from; /* something that is there */
    while (to < w.count && w.tokens[to] >= 0) to++;
    check(*state, &w, w.tokens + from, to - from);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_the_longest_comes_first_and_then_the_most_recent, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(test_an_ending_is_of_one_text, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_a_text_that_goes_on_is_added_once, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_the_oldest_makes_room, set_up, tear_down),
      cmocka_unit_test(test_a_long_one_is_not_hidden_by_many_that_are_recent),
      cmocka_unit_test_setup_teardown(test_it_finds_what_a_search_of_everything_finds, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
