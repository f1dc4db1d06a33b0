/* libs: sessions */
#include "orchestrator/sessions/worker_choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static int32_t best(worker_choice_worker a, worker_choice_worker b) {
  return worker_choice_best((const worker_choice_worker[]){a, b}, 2);
}

/* The better one is found wherever it stands. */
static void prefers(worker_choice_worker good, worker_choice_worker bad) {
  assert_int_equal(best(good, bad), 0);
  assert_int_equal(best(bad, good), 1);
}

static void test_an_empty_list_has_no_best(void **state) {
  (void)state;
  assert_int_equal(worker_choice_best(NULL, 0), -1);
}

static void test_the_least_load_is_best(void **state) {
  (void)state;
  prefers((worker_choice_worker){.load = 1, .session_max = 4, .same_numerics = true},
          (worker_choice_worker){.load = 2, .session_max = 8, .same_numerics = true});
  assert_int_equal(best((worker_choice_worker){.load = 1}, (worker_choice_worker){.load = 1}),
                   0); /* the first of equals */
}

static void test_a_worker_with_room_comes_before_a_full_one(void **state) {
  (void)state;
  worker_choice_worker full = {.load = 2, .session_max = 2, .same_numerics = true};
  prefers((worker_choice_worker){.load = 7, .session_max = 8, .same_numerics = true}, full);
  prefers((worker_choice_worker){.load = 100, .session_max = 0, .same_numerics = true},
          full); /* 0: no limit */
  prefers((worker_choice_worker){.load = 7, .session_max = 8, .same_numerics = false},
          full);                                     /* going on is better than waiting */
  assert_int_equal(worker_choice_best(&full, 1), 0); /* it answers itself that it is full */
}

static void test_same_numerics_come_before_less_load(void **state) {
  (void)state;
  prefers((worker_choice_worker){.load = 3, .session_max = 4, .same_numerics = true},
          (worker_choice_worker){.load = 0, .session_max = 4});
}

static void test_a_worker_that_refused_comes_last(void **state) {
  (void)state;
  worker_choice_worker refused = {.session_max = 4, .same_numerics = true, .refused = true};
  prefers((worker_choice_worker){.load = 3, .session_max = 4}, refused);
  prefers((worker_choice_worker){.load = 4, .session_max = 4}, refused);
  assert_int_equal(worker_choice_best(&refused, 1), 0); /* there is no other: it is asked again */
}

/* A prompt goes where its beginning was computed, unless the sessions there cost more than that saves. */
static void test_cached_tokens_count_against_load(void **state) {
  (void)state;
  worker_choice_worker idle = {.load = 0, .session_max = 8, .same_numerics = true};
  prefers((worker_choice_worker){.load = 0, .cached = 64, .session_max = 8, .same_numerics = true}, idle);
  prefers(
      (worker_choice_worker){
          .load = 2, .cached = 3 * WORKER_CHOICE_TOKENS, .session_max = 8, .same_numerics = true},
      idle);
  prefers(idle, (worker_choice_worker){
                    .load = 2, .cached = WORKER_CHOICE_TOKENS, .session_max = 8, .same_numerics = true});
  prefers(idle, (worker_choice_worker){.load = 8,
                                       .cached = 9 * WORKER_CHOICE_TOKENS,
                                       .session_max = 8,
                                       .same_numerics = true}); /* full */
  prefers(idle, (worker_choice_worker){
                    .load = 0, .cached = 9 * WORKER_CHOICE_TOKENS, .session_max = 8, .same_numerics = false});
  prefers((worker_choice_worker){.load = INT32_MAX, .same_numerics = true, .cached = INT32_MAX},
          (worker_choice_worker){.load = INT32_MAX, .same_numerics = true});
}

static void test_unequal_workers_are_filled_as_far_as_each_goes(void **state) {
  (void)state;
  worker_choice_worker list[] = {{.session_max = 2, .same_numerics = true},
                                 {.session_max = 6, .same_numerics = true},
                                 {.session_max = 1, .same_numerics = true}};
  for (int i = 0; i < 9; i++) list[worker_choice_best(list, 3)].load++;
  for (int i = 0; i < 3; i++) assert_int_equal(list[i].load, list[i].session_max);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_an_empty_list_has_no_best),
                                     cmocka_unit_test(test_the_least_load_is_best),
                                     cmocka_unit_test(test_a_worker_with_room_comes_before_a_full_one),
                                     cmocka_unit_test(test_same_numerics_come_before_less_load),
                                     cmocka_unit_test(test_a_worker_that_refused_comes_last),
                                     cmocka_unit_test(test_unequal_workers_are_filled_as_far_as_each_goes),
                                     cmocka_unit_test(test_cached_tokens_count_against_load)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
