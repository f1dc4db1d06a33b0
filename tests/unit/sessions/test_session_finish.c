/* libs: sessions wire speculative base */
#include "tests/support/sessions_world.h"

static void test_a_session_is_finished_when_both_workers_know(void **state) {
  world *w = *state;
  static const peer_id order[2][2] = {{TARGET, DRAFT}, {DRAFT, TARGET}};
  sessions_request r = request(true);
  register_workers(w, TARGET, DRAFT);
  for (int i = 0; i < 2; i++) {
    start_request(w, &r);
    opened(w, TARGET);
    sessions_cancel(w->o, w->id, w->r.now, &w->r.out);
    for (int k = 0; k < 2; k++) {
      expect_state(w, SESSIONS_ENDING);
      rig_say(&w->r, order[i][k], message(MSG_ENDED, SELF, w->id, w->epoch + 1));
    }
    expect_state(w, SESSIONS_FINISHED);
  }
}

static void test_lost_workers_need_not_know_of_the_end(void **state) {
  world *w = *state;
  start_running(w, true);
  send_tokens(w, TARGET, 3, 5);
  rig_advance(&w->r, 2900000);
  finish_by_done(w, 8);
  rig_advance(&w->r, 5000000); /* all are silent */
  expect_state(w, SESSIONS_FINISHED);
}

static void test_cancel_ends_a_session_in_a_new_epoch(void **state) {
  world *w = *state;
  start_running(w, true);
  send_tokens(w, TARGET, 3, 5);
  rig_clear(&w->r);
  sessions_cancel(w->o, w->id, w->r.now, &w->r.out);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_END)->epoch, w->epoch + 1); /* an epoch bump */
  assert_int_equal(rig_only(&w->r, DRAFT, MSG_END)->epoch, w->epoch + 1);
  assert_int_equal(view(w).finish, WIRE_FINISH_CANCELLED);
  assert_int_equal(view(w).length, 8); /* what there is */
  ledger_entry entry;
  assert_true(w->ledger.inner.read(w->ledger.inner.self, w->id, &entry));
  assert_int_equal(entry.epoch, w->epoch + 1); /* recorded: nobody uses it for anything else */
  send_tokens(w, TARGET, 8, 5);                /* late */
  assert_int_equal(view(w).length, 8);
  w->epoch++;
  rig_say(&w->r, TARGET, done_message(w, 13, WIRE_FINISH_CANCELLED));
  assert_int_equal(view(w).stats.forwards, 30); /* its figures */
  assert_int_equal(view(w).length, 8);
  sessions_cancel(w->o, w->id, w->r.now, &w->r.out); /* again: nothing */
  assert_int_equal(view(w).finish, WIRE_FINISH_CANCELLED);
}

static void test_a_waiting_session_can_be_cancelled(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  start_request(w, &r);
  sessions_cancel(w->o, w->id, w->r.now, &w->r.out);
  assert_int_equal(view(w).finish, WIRE_FINISH_CANCELLED);
  rig_advance(&w->r, 5000000);
  expect_state(w, SESSIONS_FINISHED);
  register_workers(w, TARGET, 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
}

static void test_cancelling_an_unknown_session_does_nothing(void **state) {
  world *w = *state;
  sessions_cancel(w->o, 12345, w->r.now, &w->r.out);
  sessions_release(w->o, 12345, w->r.now, &w->r.out);
  assert_int_equal(w->r.out.count, 0);
}

static void test_releasing_a_running_session_cancels_it(void **state) {
  world *w = *state;
  start_running(w, true);
  sessions_release(w->o, w->id, w->r.now, &w->r.out);
  assert_true(rig_only(&w->r, TARGET, MSG_END)->epoch > 1);
  rig_only(&w->r, DRAFT, MSG_END);
}

/* Whoever sent END, the target is told of the real end all the same. */
static void test_ended_during_a_session_does_not_count(void **state) {
  world *w = *state;
  start_running(w, true);
  rig_say(&w->r, TARGET, message(MSG_ENDED, SELF, w->id, w->epoch));
  rig_say(&w->r, DRAFT, message(MSG_ENDED, SELF, w->id, w->epoch));
  expect_state(w, SESSIONS_RUNNING);
  rig_clear(&w->r);
  sessions_cancel(w->o, w->id, w->r.now, &w->r.out);
  rig_only(&w->r, TARGET, MSG_END);
  rig_only(&w->r, DRAFT, MSG_END);
  expect_state(w, SESSIONS_ENDING);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_session_is_finished_when_both_workers_know),
      CASE(test_lost_workers_need_not_know_of_the_end),
      CASE(test_cancel_ends_a_session_in_a_new_epoch),
      CASE(test_a_waiting_session_can_be_cancelled),
      CASE(test_cancelling_an_unknown_session_does_nothing),
      CASE(test_releasing_a_running_session_cancels_it),
      CASE(test_ended_during_a_session_does_not_count),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
