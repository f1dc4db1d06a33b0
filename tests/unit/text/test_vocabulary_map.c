/* libs: text file base */
#include "common/text/vocabulary_map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

typedef struct word {
  const char *text;
  vocabulary_kind kind;
} word;

static vocabulary vocabulary_of(const word *words, int32_t count) {
  vocabulary v = {count, malloc(64 * (size_t)count), malloc((size_t)count * sizeof *v.ends),
                  malloc((size_t)count)};
  size_t at = 0;
  for (int32_t i = 0; i < count; i++) {
    memcpy(v.spellings + at, words[i].text, strlen(words[i].text));
    v.ends[i] = at += strlen(words[i].text);
    v.kinds[i] = (uint8_t)words[i].kind;
  }
  return v;
}

static int join(vocabulary_map *b, const word *target, int32_t t, const word *draft, int32_t d, err *e) {
  vocabulary x = vocabulary_of(target, t), y = vocabulary_of(draft, d);
  *b = (vocabulary_map){0};
  int rc = vocabulary_map_init(b, &x, &y, e);
  vocabulary_fini(&x);
  vocabulary_fini(&y);
  return rc;
}

static const word FAMILY[] = {{"<s>", TOKEN_CONTROL}, {"a", TOKEN_NORMAL},    {"b", TOKEN_NORMAL},
                              {"ab", TOKEN_NORMAL},   {"<0x0A>", TOKEN_BYTE}, {"[PAD5]", TOKEN_UNUSED}};

static void the_same(void **state) {
  (void)state;
  vocabulary_map b;
  err e = {0};
  assert_int_equal(join(&b, FAMILY, 6, FAMILY, 6, &e), ERR_OK);
  assert_true(b.same);
  vocabulary_map_fini(&b);
}

/* Padding, another order, an added mark of one side alone. */
static void padding_and_added_tokens(void **state) {
  (void)state;
  const word other[] = {{"a", TOKEN_NORMAL},      {"b", TOKEN_NORMAL},     {"ab", TOKEN_NORMAL},
                        {"<0x0A>", TOKEN_BYTE},   {"<s>", TOKEN_USER},     {"<tool>", TOKEN_CONTROL},
                        {"[PAD6]", TOKEN_UNUSED}, {"[PAD7]", TOKEN_UNUSED}};
  const int32_t to_draft[] = {4, 0, 1, 2, 3, -1}, to_target[] = {1, 2, 3, 4, 0, -1, -1, -1};
  vocabulary_map b;
  err e = {0};
  assert_int_equal(join(&b, FAMILY, 6, other, 8, &e), ERR_OK);
  assert_false(b.same);
  assert_int_equal(b.target_count, 6);
  assert_int_equal(b.draft_count, 8);
  assert_memory_equal(b.to_draft, to_draft, sizeof to_draft);
  assert_memory_equal(b.to_target, to_target, sizeof to_target);
  vocabulary_map_fini(&b);
}

/* A byte is no text that is spelt like it, and two that are spelt alike keep apart. */
static void look_alikes(void **state) {
  (void)state;
  const word target[] = {
      {"<0x0A>", TOKEN_BYTE}, {"<0x0A>", TOKEN_NORMAL}, {"x", TOKEN_USER}, {"x", TOKEN_USER}};
  const word draft[] = {
      {"<0x0A>", TOKEN_NORMAL}, {"<0x0A>", TOKEN_BYTE}, {"x", TOKEN_USER}, {"x", TOKEN_USER}};
  const int32_t to_draft[] = {1, 0, 2, 3};
  vocabulary_map b;
  err e = {0};
  assert_int_equal(join(&b, target, 4, draft, 4, &e), ERR_OK);
  assert_memory_equal(b.to_draft, to_draft, sizeof to_draft);
  vocabulary_map_fini(&b);
}

static void a_foreign_one_is_refused(void **state) {
  (void)state;
  const word other[] = {
      {"<s>", TOKEN_CONTROL}, {"a", TOKEN_NORMAL}, {"b", TOKEN_NORMAL}, {"ba", TOKEN_NORMAL}};
  vocabulary_map b;
  err e = {0};
  assert_int_equal(join(&b, FAMILY, 6, other, 4, &e), ERR_MISMATCH);
  assert_non_null(strstr(e.text, "2 of 4 tokens of the target"));
  assert_non_null(strstr(e.text, "'ab'"));
  assert_null(b.to_draft);
  /* The target's are all there, but the draft has words of its own. */
  assert_int_equal(join(&b, other, 3, other, 4, &e), ERR_MISMATCH);
  assert_non_null(strstr(e.text, "1 of 3 tokens of the draft"));
}

/* A few words that were added as plain text make no stranger. */
static void few_are_let_pass(void **state) {
  (void)state;
  enum { N = 200 };
  static char texts[N][16];
  word all[N];
  for (int32_t i = 0; i < N; i++) {
    snprintf(texts[i], sizeof texts[i], "w%d", i);
    all[i] = (word){texts[i], TOKEN_NORMAL};
  }
  vocabulary_map b;
  err e = {0};
  assert_int_equal(join(&b, all, N, all, N - 2, &e), ERR_OK); /* 1 % */
  assert_int_equal(b.to_draft[N - 1], -1);
  assert_int_equal(b.to_draft[N - 3], N - 3);
  vocabulary_map_fini(&b);
  assert_int_equal(join(&b, all, N, all, N - 3, &e), ERR_MISMATCH);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_same),         cmocka_unit_test(padding_and_added_tokens),
      cmocka_unit_test(look_alikes),      cmocka_unit_test(a_foreign_one_is_refused),
      cmocka_unit_test(few_are_let_pass),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
