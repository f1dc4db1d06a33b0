/* libs: ledger base */
#include "orchestrator/ledger/ledger.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int32_t prompt[] = {1, 2, 3};

static int begin(ledger *l, uint64_t session, uint64_t seed, const int32_t *tokens, int32_t length) {
  ledger_record r = {
      .session = session, .hash_seed = seed, .tokens = tokens, .length = length, .prompt_length = length};
  return l->begin(l->self, &r);
}

static int end(ledger *l, uint64_t session, int32_t length) {
  return l->end(l->self, session, length, WIRE_FINISH_STOP, NULL);
}

static int set_up(void **state) {
  ledger *l = calloc(1, sizeof *l);
  if (!l || ledger_memory(l) != ERR_OK) return -1;
  *state = l;
  return 0;
}

static int tear_down(void **state) {
  ledger *l = *state;
  l->close(l->self);
  free(l);
  return 0;
}

static void test_tokens_are_logged_in_order(void **state) {
  ledger *l = *state;
  assert_int_equal(begin(l, 7, 99, prompt, 3), ERR_OK);
  assert_int_equal(l->append(l->self, 7, 3, (int32_t[]){4, 5}, 2), ERR_OK);
  assert_int_equal(l->append(l->self, 7, 5, NULL, 0), ERR_OK);
  assert_int_equal(l->append(l->self, 7, 5, (int32_t[]){6}, 1), ERR_OK);
  ledger_entry e;
  assert_true(l->read(l->self, 7, &e));
  assert_int_equal(e.session, 7);
  assert_int_equal(e.hash_seed, 99);
  assert_int_equal(e.prompt_length, 3);
  assert_int_equal(e.length, 6);
  assert_false(e.ended);
  assert_int_equal(l->durable(l->self, 7), 6); /* nothing is safer than memory here */
  assert_int_equal(l->durable(l->self, 8), 0);
  assert_memory_equal(e.tokens, ((int32_t[]){1, 2, 3, 4, 5, 6}), sizeof(int32_t[6]));
}

static void test_a_gap_in_the_tokens_is_refused(void **state) {
  ledger *l = *state;
  assert_int_equal(begin(l, 7, 0, prompt, 0), ERR_ARG);
  assert_int_equal(begin(l, 7, 0, prompt, 3), ERR_OK);
  assert_int_equal(begin(l, 7, 0, prompt, 3), ERR_STATE);
  assert_int_equal(l->append(l->self, 7, 2, prompt, 3), ERR_STATE); /* an overlap */
  assert_int_equal(l->append(l->self, 7, 4, prompt, 3), ERR_STATE); /* a gap */
  assert_int_equal(l->append(l->self, 7, 3, prompt, -1), ERR_ARG);
  assert_int_equal(l->append(l->self, 8, 3, prompt, 3), ERR_GONE);
  ledger_entry e;
  assert_true(l->read(l->self, 7, &e));
  assert_int_equal(e.length, 3);
  assert_false(l->read(l->self, 8, &e));
}

static void test_epochs_never_fall(void **state) {
  ledger *l = *state;
  ledger_entry e;
  assert_int_equal(l->epoch(l->self, 7, 1), ERR_GONE);
  assert_int_equal(begin(l, 7, 0, prompt, 3), ERR_OK);
  assert_int_equal(l->epoch(l->self, 7, 2), ERR_OK);
  assert_int_equal(l->epoch(l->self, 7, 2), ERR_OK);
  assert_int_equal(l->epoch(l->self, 7, 1), ERR_STALE);
  assert_true(l->read(l->self, 7, &e));
  assert_int_equal(e.epoch, 2);
}

static void test_a_session_ends_with_a_cut(void **state) {
  ledger *l = *state;
  assert_int_equal(begin(l, 7, 0, prompt, 3), ERR_OK);
  assert_int_equal(l->append(l->self, 7, 3, (int32_t[]){4, 5}, 2), ERR_OK);
  assert_int_equal(end(l, 7, 2), ERR_ARG); /* not into the prompt */
  assert_int_equal(end(l, 7, 6), ERR_ARG);
  assert_int_equal(end(l, 8, 3), ERR_GONE);
  assert_int_equal(end(l, 7, 4), ERR_OK);
  ledger_entry e;
  assert_true(l->read(l->self, 7, &e));
  assert_true(e.ended);
  assert_int_equal(e.length, 4);
  assert_int_equal(l->append(l->self, 7, 4, prompt, 1), ERR_STATE);
}

/* Against an array of the same sessions, by random calls: the table grows, and holes are closed. */
enum { SESSIONS = 500, CALLS = 20000 };
static void test_many_sessions_stay_apart(void **state) {
  ledger *l = *state;
  int32_t lengths[SESSIONS] = {0}; /* 0: not there */
  srand(5);
  for (int call = 0; call < CALLS; call++) {
    int i = rand() % SESSIONS;
    uint64_t session = (uint64_t)i * UINT64_C(0x100000001); /* ids with equal low bits */
    if (lengths[i] == 0) {
      assert_int_equal(begin(l, session, (uint64_t)i, &(int32_t){i}, 1), ERR_OK);
      lengths[i] = 1;
    } else if (rand() % 4 == 0) {
      l->forget(l->self, session);
      lengths[i] = 0;
    } else {
      assert_int_equal(l->append(l->self, session, lengths[i], &(int32_t){i + lengths[i]}, 1), ERR_OK);
      lengths[i]++;
    }
    int k = rand() % SESSIONS;
    ledger_entry e;
    assert_int_equal(l->read(l->self, (uint64_t)k * UINT64_C(0x100000001), &e), lengths[k] > 0);
    if (lengths[k] == 0) continue;
    assert_int_equal(e.length, lengths[k]);
    for (int32_t n = 0; n < e.length; n++) assert_int_equal(e.tokens[n], k + n);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_tokens_are_logged_in_order, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_a_gap_in_the_tokens_is_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_epochs_never_fall, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_a_session_ends_with_a_cut, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_many_sessions_stay_apart, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
