/* libs: text */
#include "common/file/vocabulary.h"

#include "common/text/tokenizer.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/support/gguf_builder.h"

#define MODEL TANDEM_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf"

/* What changes a vocabulary in the builder below. */
typedef struct sample {
  const char *spellings[4];
  int kinds[4], kind_count; /* kind_count 0: no kinds in the file */
} sample;

static int hash_of(const sample *v, hash16 *out) {
  gguf_builder b = gb_begin(3);
  int count = 0;
  while (count < 4 && v->spellings[count]) count++;
  if (count > 0) gb_array(&b, "tokenizer.ggml.tokens", GB_STRING, (uint64_t)count);
  for (int i = 0; i < count; i++) gb_string(&b, v->spellings[i], strlen(v->spellings[i]));
  if (v->kind_count) gb_array(&b, "tokenizer.ggml.token_type", GB_I32, (uint64_t)v->kind_count);
  for (int i = 0; i < v->kind_count; i++) gb_number(&b, (uint64_t)v->kinds[i], 4);
  gb_end(&b);
  gguf *g;
  err e;
  if (gguf_open_memory(&g, b.bytes, b.size, &e)) fail_msg("%s", e.text);
  int rc = vocabulary_hash_gguf(g, out, &e);
  gguf_close(g);
  gb_free(&b);
  return rc;
}

static void every_difference_shows(void **state) {
  (void)state;
  static const sample list[] = {
      {{"a", "b", "c", "d"}, {1, 1, 1, 3}, 4}, {{"a", "b", "c", "d"}, {1, 1, 3, 1}, 4},
      {{"b", "a", "c", "d"}, {1, 1, 1, 3}, 4}, {{"a", "b", "cd", ""}, {1, 1, 1, 3}, 4},
      {{"a", "b", "c", "d"}, {0}, 0},          {{"a", "b", "c"}, {1, 1, 1}, 3},
  };
  enum { COUNT = sizeof list / sizeof *list };
  hash16 hashes[COUNT];
  for (int i = 0; i < COUNT; i++) {
    assert_int_equal(hash_of(&list[i], &hashes[i]), ERR_OK);
    assert_false(hash_is_zero(hashes[i]));
    for (int j = 0; j < i; j++) assert_false(hash_equal(hashes[i], hashes[j]));
  }
  hash16 plain, said;
  assert_int_equal(hash_of(&(sample){{"x", "y"}, {0}, 0}, &plain), ERR_OK);
  assert_int_equal(hash_of(&(sample){{"x", "y"}, {1, 1}, 2}, &said), ERR_OK);
  assert_true(hash_equal(plain, said)); /* no kinds: all normal */
}

/* By Python's xxhash: xxh3_128_hexdigest of b"".join(pack("<I", len(t)) + bytes([kind]) + t for ...). */
static void the_bytes_are_those_of_the_header(void **state) {
  (void)state;
  hash16 h;
  char text[33];
  assert_int_equal(hash_of(&(sample){{"a", "b", "cd", ""}, {1, 1, 1, 3}, 4}, &h), ERR_OK);
  hash_format(h, text);
  assert_string_equal(text, "02e796380ca0aa963634fc98179a70fc");
}

static void none_is_zero_and_broken_is_refused(void **state) {
  (void)state;
  hash16 h;
  assert_int_equal(hash_of(&(sample){0}, &h), ERR_OK);
  assert_true(hash_is_zero(h));
  assert_int_equal(hash_of(&(sample){{"a", "b"}, {1}, 1}, &h), ERR_FORMAT);
  assert_true(hash_is_zero(h));
  assert_int_equal(hash_of(&(sample){{"a", "b"}, {1, -1}, 2}, &h), ERR_FORMAT);
  assert_int_equal(hash_of(&(sample){{"a", "b"}, {1, 256}, 2}, &h), ERR_FORMAT);
}

static void assert_as_tokenizer(const gguf *g) {
  tokenizer *t;
  hash16 h;
  err e;
  if (tokenizer_open(&t, g, &e)) fail_msg("%s", e.text);
  assert_int_equal(vocabulary_hash_gguf(g, &h, &e), ERR_OK);
  assert_true(hash_equal(h, tokenizer_hash(t)));
  tokenizer_close(t);
}

/* Target and orchestrator must find the same identity, each in its own way. */
static void is_the_tokenizers(void **state) {
  (void)state;
  gguf_builder b = gb_begin(3);
  gguf *g;
  err e;
  gb_vocabulary(&b, 3);
  gb_end(&b);
  if (gguf_open_memory(&g, b.bytes, b.size, &e)) fail_msg("%s", e.text);
  assert_as_tokenizer(g);
  gguf_close(g);
  gb_free(&b);
  if (gguf_open(&g, MODEL, &e)) fail_msg("%s; run scripts/get_model.sh to fetch the default model", e.text);
  assert_as_tokenizer(g);
  gguf_close(g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_difference_shows),
      cmocka_unit_test(the_bytes_are_those_of_the_header),
      cmocka_unit_test(none_is_zero_and_broken_is_refused),
      cmocka_unit_test(is_the_tokenizers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
