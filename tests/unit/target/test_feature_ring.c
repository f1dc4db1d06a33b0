/* libs: target wire base */
#include "target_worker/feature_ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { ROW = FEATURE_RING_BYTES / 1024 }; /* 1024 rows */

static void add(feature_ring *r, int32_t base, int32_t count) {
  static uint8_t rows[64 * ROW];
  for (int32_t i = 0; i < count; i++) memset(rows + (size_t)i * ROW, (base + i) % 251, ROW);
  feature_ring_add(r, base, count, rows);
}

/* Takes rows [from, end) out in the pieces that lie side by side, and returns how many pieces. */
static int32_t pieces(const feature_ring *r, int32_t from, int32_t end) {
  int32_t n = 0, count;
  for (; from < end; from += count, n++) {
    const uint8_t *rows = feature_ring_get(r, from, end, &count);
    assert_true(count > 0 && from + count <= end);
    for (int32_t i = 0; i < count; i++) {
      assert_int_equal(rows[(size_t)i * ROW], (from + i) % 251);
      assert_int_equal(rows[(size_t)(i + 1) * ROW - 1], (from + i) % 251);
    }
  }
  return n;
}

static void test_rows_come_out_as_they_went_in(void **state) {
  (void)state;
  feature_ring r;
  assert_int_equal(feature_ring_init(&r, ROW, WIRE_FEATURE_ROWS_MAX), ERR_OK);
  assert_int_equal(r.capacity, 1024);
  add(&r, 10, 60);
  add(&r, 70, 3);
  assert_int_equal(r.first, 10);
  assert_int_equal(r.end, 73);
  assert_int_equal(pieces(&r, 10, 73), 1);
  feature_ring_trim(&r, 40);
  assert_int_equal(r.first, 40);
  feature_ring_trim(&r, 20);
  assert_int_equal(r.first, 40);
  feature_ring_trim(&r, 500); /* no more than there are */
  assert_int_equal(r.first, 73);
  feature_ring_fini(&r);
}

static void test_the_oldest_rows_make_room(void **state) {
  (void)state;
  feature_ring r;
  assert_int_equal(feature_ring_init(&r, ROW, WIRE_FEATURE_ROWS_MAX), ERR_OK);
  for (int32_t base = 0; base < 1600; base += 64) add(&r, base, 64);
  assert_int_equal(r.end, 1600);
  assert_int_equal(r.first, 1600 - 1024);
  assert_int_equal(pieces(&r, r.first, r.end), 2);
  feature_ring_fini(&r);
}

static void test_a_gap_drops_what_was_before_it(void **state) {
  (void)state;
  feature_ring r;
  assert_int_equal(feature_ring_init(&r, ROW, WIRE_FEATURE_ROWS_MAX), ERR_OK);
  add(&r, 0, 20);
  add(&r, 30, 5);
  assert_int_equal(r.first, 30);
  assert_int_equal(pieces(&r, 30, 35), 1);
  add(&r, 4, 2); /* C was shortened */
  assert_int_equal(r.first, 4);
  assert_int_equal(r.end, 6);
  feature_ring_fini(&r);
}

static void test_memory_is_bounded_however_wide_rows_are(void **state) {
  (void)state;
  static const size_t sizes[] = {2, 1152, 40960, (size_t)WIRE_FEATURE_WIDTH_MAX * 4};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    feature_ring r;
    assert_int_equal(feature_ring_init(&r, sizes[i], WIRE_FEATURE_ROWS_MAX), ERR_OK);
    size_t bytes = (size_t)r.capacity * sizes[i];
    assert_true(r.capacity >= FEATURE_RING_ROWS && r.capacity <= WIRE_FEATURE_ROWS_MAX);
    assert_true(bytes <= FEATURE_RING_BYTES || r.capacity == FEATURE_RING_ROWS);
    feature_ring_fini(&r);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rows_come_out_as_they_went_in),
      cmocka_unit_test(test_the_oldest_rows_make_room),
      cmocka_unit_test(test_a_gap_drops_what_was_before_it),
      cmocka_unit_test(test_memory_is_bounded_however_wide_rows_are),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
