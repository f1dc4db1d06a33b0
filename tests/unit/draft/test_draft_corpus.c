/* libs: draft file text base */
#include "draft_worker/draft_corpus.h"

#include "common/base/token_file.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/gguf_builder.h"
#include "tests/support/scratch.h"

#define BYTE(c) (GB_SPECIAL_COUNT + (c)) /* the token of a byte */

static const logger quiet = {"test", LOG_ERROR};
static char model[SCRATCH_MAX], file[SCRATCH_MAX];

static void put(const char *path, const void *data, size_t size) {
  FILE *f = fopen(path, "wb");
  assert_true(f && fwrite(data, 1, size, f) == size && fclose(f) == 0);
}

static int set_up(void **state) {
  (void)state;
  gguf_builder b = gb_begin(3);
  gb_vocabulary(&b, 0);
  gb_end(&b);
  strcpy(model, scratch_path("m.gguf").text);
  strcpy(file, scratch_path("corpus").text);
  put(model, b.bytes, b.size);
  gb_free(&b);
  return 0;
}

typedef struct opened {
  draft_corpus c;
  draft_options o;
  drafter d;
  err e;
  int rc;
} opened;

static opened *open_with(const char *path, const char *of_model) {
  static opened x;
  flag_values v = flag_defaults;
  v.corpus = path;
  v.model = of_model;
  x = (opened){.rc = 0};
  x.rc = draft_corpus_open(&x.c, &v, &quiet, &x.o, &x.d, &x.e);
  return &x;
}

static void close_all(opened *x) {
  drafter_free(&x->d);
  draft_corpus_close(&x->c);
}

static int32_t after(const opened *x, int32_t last, int32_t but_one) {
  const int32_t ending[] = {last, but_one};
  corpus_found f[CORPUS_FOUND_MAX];
  return corpus_find(x->c.corpus, ending, 2, f) ? f[0].token : -1;
}

static void test_a_text_is_read_with_the_models_vocabulary(void **state) {
  (void)state;
  put(file, "xyz", 3);
  opened *x = open_with(file, model);
  if (x->rc) fail_msg("%s", x->e.text);
  assert_int_equal(corpus_size(x->c.corpus), 3);
  assert_int_equal(after(x, BYTE('y'), BYTE('x')), BYTE('z'));
  assert_true(x->o.vocabulary_size > 256 && !hash_is_zero(x->o.vocabulary_hash));
  assert_string_equal(x->d.method, "suffix");
  close_all(x);
}

static void test_tokens_are_taken_as_they_are(void **state) {
  (void)state;
  FILE *f = fopen(file, "wb");
  assert_true(f && token_file_begin(f) && token_file_add(f, (const int32_t[]){5, 6, 7}, 3) &&
              token_file_end_text(f));
  /* an id that the vocabulary has not */
  assert_true(token_file_add(f, (const int32_t[]){8, 9, 1 << 20, 10, 11, 12}, 6) && fclose(f) == 0);
  opened *x = open_with(file, model);
  if (x->rc) fail_msg("%s", x->e.text);
  assert_int_equal(corpus_size(x->c.corpus), 3 + 1 + 2 + 1 + 3);
  assert_int_equal(after(x, 6, 5), 7);
  assert_int_equal(after(x, 9, 8), -1);
  assert_int_equal(after(x, 11, 10), 12);
  close_all(x);
}

static void test_of_more_than_there_is_room_for_the_end_is_kept(void **state) {
  (void)state;
  int32_t *ids = malloc(((size_t)CORPUS_TOKENS_MAX + 10) * sizeof *ids);
  FILE *f = fopen(file, "wb");
  for (int32_t i = 0; i < CORPUS_TOKENS_MAX + 10; i++) ids[i] = i % 200;
  ids[0] = 201, ids[1] = 202;
  ids[CORPUS_TOKENS_MAX + 7] = 203, ids[CORPUS_TOKENS_MAX + 8] = 204;
  assert_true(f && token_file_begin(f) && token_file_add(f, ids, (size_t)CORPUS_TOKENS_MAX + 10) &&
              fclose(f) == 0);
  opened *x = open_with(file, model);
  if (x->rc) fail_msg("%s", x->e.text);
  assert_int_equal(corpus_size(x->c.corpus), CORPUS_TOKENS_MAX - 1);
  assert_int_equal(after(x, 202, 201), -1);
  assert_int_equal(after(x, 204, 203), ids[CORPUS_TOKENS_MAX + 9]);
  close_all(x);
  free(ids);
}

static void test_without_a_file_it_learns_or_says_nothing(void **state) {
  (void)state;
  opened *x = open_with(NULL, NULL);
  assert_int_equal(x->rc, ERR_OK);
  assert_int_equal(corpus_size(x->c.corpus), 0);
  assert_true(!x->c.source.learns && x->o.vocabulary_size == 0);
  close_all(x);
}

/* A draft without it is better than none. */
static void test_what_is_no_corpus_is_left_out(void **state) {
  (void)state;
  static const struct {
    const char *bytes;
    size_t size;
  } table[] = {{"ab\xff", 3}, {"tandem tokens 1\nabc", 19}, {"", 0}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    put(file, table[i].bytes, table[i].size);
    opened *x = open_with(file, model);
    assert_true(x->rc == ERR_OK && corpus_size(x->c.corpus) == 0);
    close_all(x);
  }
  const scratch_path_text others[] = {scratch_path("nowhere"), scratch_make_folder()};
  for (int i = 0; i < 2; i++) {
    opened *x = open_with(others[i].text, model);
    assert_true(x->rc == ERR_OK && corpus_size(x->c.corpus) == 0);
    close_all(x);
  }
  opened *x = open_with(file, NULL);
  assert_true(x->rc == ERR_ARG && strstr(x->e.text, "-m"));
  close_all(x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_text_is_read_with_the_models_vocabulary),
      cmocka_unit_test(test_tokens_are_taken_as_they_are),
      cmocka_unit_test(test_of_more_than_there_is_room_for_the_end_is_kept),
      cmocka_unit_test(test_without_a_file_it_learns_or_says_nothing),
      cmocka_unit_test(test_what_is_no_corpus_is_left_out),
  };
  return cmocka_run_group_tests(tests, set_up, NULL);
}
