/* libs: base */
#include "common/base/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdbool.h>
#include <string.h>

#define LIMIT (1u << 20)

/* Takes pieces of growing size, fills each with its number and looks at all of them at the end. */
static void fill_and_check(arena *a) {
  enum { PIECES = 300 };
  unsigned char *piece[PIECES];
  for (size_t i = 0; i < PIECES; i++) {
    size_t size = i * i % 997;
    piece[i] = arena_take(a, size);
    assert_non_null(piece[i]);
    assert_int_equal((uintptr_t)piece[i] % 16, 0);
    memset(piece[i], (int)(i & 255), size);
  }
  for (size_t i = 0; i < PIECES; i++)
    for (size_t k = 0; k < i * i % 997; k++) assert_int_equal(piece[i][k], i & 255);
}

static void pieces_are_apart(void **state) {
  (void)state;
  arena a;
  arena_init(&a, LIMIT);
  fill_and_check(&a);
  arena_fini(&a);
}

static size_t chunk_count(const arena *a, const void **first) {
  size_t n = 0;
  *first = a->first;
  /* The chunk begins with the link to the next one. */
  for (const void *c = a->first; c; c = *(const void *const *)c) n++;
  return n;
}

static void reset_keeps_memory(void **state) {
  (void)state;
  arena a;
  arena_init(&a, LIMIT);
  fill_and_check(&a);
  const void *first, *again;
  size_t chunks = chunk_count(&a, &first);
  assert_true(chunks > 1);
  for (int round = 0; round < 5; round++) {
    arena_reset(&a);
    assert_int_equal(a.used, 0);
    fill_and_check(&a);
    assert_int_equal(chunk_count(&a, &again), chunks);
    assert_ptr_equal(again, first);
  }
  arena_fini(&a);
}

static void what_a_burst_took_is_given_back(void **state) {
  (void)state;
  arena a;
  const void *first, *again;
  arena_init(&a, LIMIT);
  fill_and_check(&a);
  size_t chunks = chunk_count(&a, &first);
  while (arena_take(&a, 4096)) continue;
  assert_true(chunk_count(&a, &again) > chunks);
  for (int i = 0; i < 2 * ARENA_TRIM_RESETS; i++) {
    arena_reset(&a);
    fill_and_check(&a);
  }
  assert_int_equal(chunk_count(&a, &again), chunks);
  assert_ptr_equal(again, first);
  arena_fini(&a);
}

static void limit_holds(void **state) {
  (void)state;
  arena a;
  arena_init(&a, 1000);
  assert_null(arena_take(&a, 1001));
  assert_null(arena_take(&a, SIZE_MAX));
  assert_null(arena_take(&a, SIZE_MAX - 15));
  assert_non_null(arena_take(&a, 600));
  assert_null(arena_take(&a, 600));
  assert_non_null(arena_take(&a, 300)); /* a refusal took nothing */
  arena_reset(&a);
  assert_non_null(arena_take(&a, 1000));
  arena_fini(&a);
}

static void a_large_piece_fits(void **state) {
  (void)state;
  arena a;
  arena_init(&a, LIMIT);
  char *small = arena_take(&a, 10);
  char *large = arena_take(&a, 500000);
  assert_non_null(small);
  assert_non_null(large);
  memset(large, 1, 500000);
  char *after = arena_take(&a, 100);
  assert_non_null(after);
  assert_true(after >= large + 500000 || after + 100 <= large);
  arena_fini(&a);
}

static void copies(void **state) {
  (void)state;
  arena a;
  arena_init(&a, 4096);
  const char text[] = "a node is its token path";
  char *copy = arena_copy(&a, text, sizeof text);
  assert_non_null(copy);
  assert_true(copy != text);
  assert_string_equal(copy, text);
  assert_non_null(arena_copy(&a, NULL, 0));
  assert_non_null(arena_take(&a, 0));
  assert_null(arena_copy(&a, text, 5000));
  arena_fini(&a);
  assert_null(a.first);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pieces_are_apart),
      cmocka_unit_test(reset_keeps_memory),
      cmocka_unit_test(what_a_burst_took_is_given_back),
      cmocka_unit_test(limit_holds),
      cmocka_unit_test(a_large_piece_fits),
      cmocka_unit_test(copies),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
