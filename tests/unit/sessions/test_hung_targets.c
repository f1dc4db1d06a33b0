/* libs: sessions wire speculative base */
#include "orchestrator/sessions/hung_targets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_a_target_is_remembered_for_some_time(void **state) {
  (void)state;
  hung_targets h = {0};
  assert_false(hung_targets_has(&h, 7, 1));
  hung_targets_add(&h, 7, 1000);
  assert_true(hung_targets_has(&h, 7, 1000));
  assert_true(hung_targets_has(&h, 7, 999 + HUNG_TARGETS_US));
  assert_false(hung_targets_has(&h, 7, 1000 + HUNG_TARGETS_US));
  assert_false(hung_targets_has(&h, 8, 1000));
}

static void test_a_target_that_hangs_again_has_one_entry(void **state) {
  (void)state;
  hung_targets h = {0};
  hung_targets_add(&h, 7, 1000);
  hung_targets_add(&h, 8, 1000);
  hung_targets_add(&h, 7, 2000);
  assert_true(hung_targets_has(&h, 7, 1999 + HUNG_TARGETS_US));
  hung_targets_remove(&h, 7);
  assert_false(hung_targets_has(&h, 7, 2000));
  assert_true(hung_targets_has(&h, 8, 2000));
}

static void test_a_target_that_hangs_again_displaces_no_other(void **state) {
  (void)state;
  hung_targets h = {0};
  for (peer_id id = 1; id <= HUNG_TARGETS_MAX; id++) hung_targets_add(&h, id, id);
  hung_targets_add(&h, HUNG_TARGETS_MAX, 50);
  for (peer_id id = 1; id <= HUNG_TARGETS_MAX; id++) assert_true(hung_targets_has(&h, id, 100));
}

static void test_the_oldest_entry_makes_room(void **state) {
  (void)state;
  hung_targets h = {0};
  for (peer_id id = 1; id <= HUNG_TARGETS_MAX + 1; id++) hung_targets_add(&h, id, id);
  assert_false(hung_targets_has(&h, 1, 100));
  for (peer_id id = 2; id <= HUNG_TARGETS_MAX + 1; id++) assert_true(hung_targets_has(&h, id, 100));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_target_is_remembered_for_some_time),
      cmocka_unit_test(test_a_target_that_hangs_again_has_one_entry),
      cmocka_unit_test(test_a_target_that_hangs_again_displaces_no_other),
      cmocka_unit_test(test_the_oldest_entry_makes_room),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
