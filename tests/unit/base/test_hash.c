/* libs: base */
/* Goldens: tests/golden/hash_chain.json, made by make_hash_chain.py with Python's xxhash. */
#include "common/base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static int load(void **state) {
  json_error_t e;
  json_t *root = json_load_file("tests/golden/hash_chain.json", 0, &e);
  if (!root) print_error("tests/golden/hash_chain.json: %s\n", e.text);
  *state = root;
  return root ? 0 : -1;
}

static int unload(void **state) {
  json_decref(*state);
  return 0;
}

static const char *string_of(const json_t *object, const char *key) {
  const char *s = json_string_value(json_object_get(object, key));
  assert_non_null(s);
  return s;
}

static void assert_hex(hash16 h, const char *want) {
  char text[33];
  hash_format(h, text);
  assert_string_equal(text, want);
}

static void chain(void **state) {
  const json_t *chains = json_object_get(*state, "chains"), *one;
  size_t i, links = 0;
  json_array_foreach(chains, i, one) {
    uint64_t seed = strtoull(string_of(one, "seed"), NULL, 16);
    const json_t *tokens = json_object_get(one, "tokens"), *hashes = json_object_get(one, "hashes");
    hash16 h = {{0}};
    assert_hex(h, json_string_value(json_array_get(hashes, 0)));
    for (size_t t = 0; t < json_array_size(tokens); t++, links++) {
      h = hash_next(h, seed, (int32_t)json_integer_value(json_array_get(tokens, t)));
      assert_hex(h, json_string_value(json_array_get(hashes, t + 1)));
    }
  }
  assert_true(links > 100);
}

static void digests(void **state) {
  const json_t *list = json_object_get(*state, "digests"), *one;
  size_t i;
  assert_true(json_array_size(list) >= 5);
  json_array_foreach(list, i, one) {
    const char *hex = string_of(one, "bytes");
    size_t size = strlen(hex) / 2;
    uint8_t *bytes = malloc(size + 1);
    assert_non_null(bytes);
    assert_true(hash_read_hex(hex, size, bytes));
    assert_hex(hash_bytes(bytes, size), string_of(one, "hash"));

    hash_stream *s = hash_stream_alloc();
    assert_non_null(s);
    for (size_t at = 0; at < size; at += 77) hash_stream_add(s, bytes + at, size - at < 77 ? size - at : 77);
    assert_hex(hash_stream_end(s), string_of(one, "hash"));
    free(bytes);
  }
}

static void identity(void **state) {
  (void)state;
  hash16 zero = {{0}}, a = hash_next(zero, 1, 5);
  assert_true(hash_is_zero(zero));
  assert_false(hash_is_zero(a));
  assert_true(hash_equal(a, hash_next(zero, 1, 5)));
  assert_false(hash_equal(a, hash_next(zero, 2, 5)));
  assert_false(hash_equal(a, hash_next(zero, 1, 6)));
  assert_false(hash_equal(hash_next(a, 1, 6), hash_next(hash_next(zero, 1, 6), 1, 5)));
  for (int i = 0; i < 16; i++) { /* every byte counts */
    hash16 b = a;
    b.bytes[i] ^= 1;
    assert_false(hash_equal(a, b));
    zero = (hash16){{0}};
    zero.bytes[i] = 1;
    assert_false(hash_is_zero(zero));
  }
}

static void digits(void **state) {
  (void)state;
  uint8_t bytes[4] = {1, 2, 3, 4};
  assert_true(hash_read_hex("09aff0zz", 3, bytes));
  assert_memory_equal(bytes, "\x09\xaf\xf0\x04", 4);
  static const char *const wrong[] = {
      "", "0", "001", "0g", "00AA", "000x", "+100", " 100", "\xff\xff\xff\xff"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_false(hash_read_hex(wrong[i], 2, bytes));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(chain),
      cmocka_unit_test(digests),
      cmocka_unit_test(identity),
      cmocka_unit_test(digits),
  };
  return cmocka_run_group_tests(tests, load, unload);
}
