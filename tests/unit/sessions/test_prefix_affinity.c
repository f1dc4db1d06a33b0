/* libs: sessions */
#include "orchestrator/sessions/prefix_affinity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT 1000
#define WHOLE (COUNT / PREFIX_AFFINITY_STRIDE * PREFIX_AFFINITY_STRIDE)

static int32_t tokens[COUNT], others[COUNT];

static int set_up(void **state) {
  for (int32_t i = 0; i < COUNT; i++) tokens[i] = others[i] = 7 * i % 501;
  return (*state = calloc(1, sizeof(prefix_affinity))) ? 0 : -1;
}

static int tear_down(void **state) {
  free(*state);
  return 0;
}

static void test_a_worker_is_known_by_what_it_computed(void **state) {
  prefix_affinity *a = *state;
  assert_int_equal(prefix_affinity_length(a, 1, tokens, COUNT), 0);
  prefix_affinity_add(a, 1, tokens, COUNT);
  assert_int_equal(prefix_affinity_length(a, 1, tokens, COUNT), WHOLE);
  assert_int_equal(prefix_affinity_length(a, 1, tokens, PREFIX_AFFINITY_STRIDE - 1), 0);
  assert_int_equal(prefix_affinity_length(a, 1, tokens, PREFIX_AFFINITY_STRIDE), PREFIX_AFFINITY_STRIDE);
  assert_int_equal(prefix_affinity_length(a, 2, tokens, COUNT), 0); /* it was another worker */
}

static void test_the_length_is_that_of_the_common_beginning(void **state) {
  prefix_affinity *a = *state;
  prefix_affinity_add(a, 1, tokens, COUNT);
  for (int32_t at = 0; at < COUNT; at += 37) {
    others[at]++;
    int32_t same = at / PREFIX_AFFINITY_STRIDE * PREFIX_AFFINITY_STRIDE;
    assert_int_equal(prefix_affinity_length(a, 1, others, COUNT), same < WHOLE ? same : WHOLE);
    others[at]--;
  }
}

static void test_a_later_part_is_no_beginning(void **state) {
  prefix_affinity *a = *state;
  prefix_affinity_add(a, 1, tokens, COUNT);
  assert_int_equal(
      prefix_affinity_length(a, 1, tokens + PREFIX_AFFINITY_STRIDE, COUNT - PREFIX_AFFINITY_STRIDE), 0);
}

static void test_what_is_written_over_is_forgotten(void **state) {
  prefix_affinity *a = *state;
  prefix_affinity_add(a, 1, tokens, COUNT);
  for (int32_t n = 0; n < 40 * PREFIX_AFFINITY_SLOTS / (COUNT / PREFIX_AFFINITY_STRIDE); n++) {
    others[0] = 1000 + n;
    prefix_affinity_add(a, 1, others, COUNT);
  }
  assert_int_equal(prefix_affinity_length(a, 1, others, COUNT), WHOLE);
  assert_int_equal(prefix_affinity_length(a, 1, tokens, COUNT), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_a_worker_is_known_by_what_it_computed, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_the_length_is_that_of_the_common_beginning, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_a_later_part_is_no_beginning, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_what_is_written_over_is_forgotten, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
