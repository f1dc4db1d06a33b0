/* libs: drafters speculative base */
#include "draft_worker/drafters/feature_queue.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { WIDTH = 2, ROWS = FEATURE_QUEUE_MAX + 10 };

/* Rows of positions [base, base + count), each with its position as value. */
static void add(feature_queue *q, int32_t base, int32_t count, int32_t width) {
  static float rows[ROWS * 4];
  for (int32_t i = 0; i < count * width; i++) rows[i] = (float)(base + i / width);
  feature_queue_add(q, &(drafter_features){.base = base, .count = count, .width = width, .rows = rows});
}

static void check(const feature_queue *q, int32_t base, int32_t count) {
  assert_true(q->begun);
  assert_int_equal(q->base, base);
  assert_int_equal(q->count, count);
  for (int32_t i = 0; i < count * q->width; i++) assert_true(q->rows[i] == (float)(base + i / q->width));
}

static void test_rows_follow_each_other(void **state) {
  (void)state;
  feature_queue q = {0};
  float out[3 * WIDTH];
  add(&q, 4, 3, WIDTH);
  check(&q, 4, 3);
  add(&q, 7, 30, WIDTH);
  check(&q, 4, 33);
  feature_queue_take(&q, 3, out);
  assert_true(out[0] == 4 && out[3 * WIDTH - 1] == 6);
  check(&q, 7, 30);
  feature_queue_reset(&q);
  assert_false(q.begun);
}

static void test_what_has_come_is_not_taken_twice(void **state) {
  (void)state;
  feature_queue q = {0};
  float out[2 * WIDTH];
  add(&q, 0, 4, WIDTH);
  feature_queue_take(&q, 2, out);
  add(&q, 0, 2, WIDTH); /* late */
  add(&q, 1, 5, WIDTH); /* overlaps */
  check(&q, 2, 4);
  feature_queue_reset(&q);
}

static void test_behind_a_gap_it_begins_anew(void **state) {
  (void)state;
  feature_queue q = {0};
  add(&q, 0, 4, WIDTH);
  add(&q, 4, 0, WIDTH); /* nothing is lost */
  check(&q, 0, 4);
  add(&q, 5, 2, WIDTH);
  check(&q, 5, 2);
  add(&q, 9, 0, WIDTH); /* says only what is lost */
  check(&q, 9, 0);
  add(&q, 9, 1, WIDTH + 1); /* rows of another kind */
  check(&q, 9, 1);
  feature_queue_reset(&q);
}

static void test_the_oldest_are_lost_when_too_many_wait(void **state) {
  (void)state;
  feature_queue q = {0};
  add(&q, 0, FEATURE_QUEUE_MAX, 1);
  check(&q, 0, FEATURE_QUEUE_MAX);
  add(&q, FEATURE_QUEUE_MAX, 2, 1);
  check(&q, FEATURE_QUEUE_MAX, 2);
  feature_queue_reset(&q);
  add(&q, 3, ROWS, 1);
  check(&q, 3 + ROWS - FEATURE_QUEUE_MAX, FEATURE_QUEUE_MAX);
  feature_queue_reset(&q);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rows_follow_each_other),
      cmocka_unit_test(test_what_has_come_is_not_taken_twice),
      cmocka_unit_test(test_behind_a_gap_it_begins_anew),
      cmocka_unit_test(test_the_oldest_are_lost_when_too_many_wait),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
