/* libs: sessions wire speculative base */
/* Workers that an operator has drained. */
#include "tests/support/sessions_world.h"

#include "orchestrator/sessions/drained_workers.h"

static bool drain(world *w, peer_id worker, bool drained) {
  return sessions_drain(w->o, ID(worker), drained, w->r.now, &w->r.out);
}

static void test_the_list_knows_whom_it_was_given(void **state) {
  (void)state;
  drained_workers d = {0};
  assert_false(drained_workers_has(&d, (wire_id){{0}})); /* what a free entry holds is nobody */
  drained_workers_add(&d, ID(1));
  drained_workers_add(&d, ID(1));
  drained_workers_add(&d, ID(2));
  assert_true(drained_workers_has(&d, ID(1)));
  drained_workers_remove(&d, ID(1));
  assert_false(drained_workers_has(&d, ID(1)));
  assert_true(drained_workers_has(&d, ID(2)));
}

static void test_a_drained_target_gets_no_new_session_until_it_is_resumed(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  assert_int_equal(sessions_capacity(w->o), 4);
  assert_int_equal(sessions_worker_is(w->o, WIRE_ROLE_TARGET, 0), SESSIONS_WORKER_READY);
  assert_true(drain(w, TARGET, true));
  assert_int_equal(sessions_capacity(w->o), 0);
  assert_int_equal(sessions_worker_is(w->o, WIRE_ROLE_TARGET, 0), SESSIONS_WORKER_DRAINED);
  start_request(w, &r);
  pass(w, 1000000, TARGET, 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
  assert_true(drain(w, TARGET, false));
  opened(w, TARGET); /* at once */
  assert_int_equal(sessions_capacity(w->o), 4);
}

static void test_sessions_go_on_at_a_drained_target(void **state) {
  world *w = *state;
  start_running(w, true);
  register_workers(w, TARGET2, 0);
  assert_true(drain(w, TARGET, true));
  assert_true(drain(w, DRAFT, true));
  pass(w, 1000000, TARGET, DRAFT);
  assert_int_equal(rig_count(&w->r, TARGET2, MSG_OPEN), 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_END) + rig_count(&w->r, DRAFT, MSG_END), 0);
  send_tokens(w, TARGET, PROMPT_LENGTH, 4);
  assert_int_equal(view(w).length, PROMPT_LENGTH + 4);
  sessions_request r = request(true);
  start_request(w, &r);
  opened(w, TARGET2);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 0); /* a drained draft gets no new one either */
}

static void test_a_session_knows_that_its_draft_would_be_a_drained_one(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  register_workers(w, TARGET, DRAFT);
  assert_true(drain(w, DRAFT, true));
  start_request(w, &r);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  send_tokens(w, TARGET, PROMPT_LENGTH, 2);
  msg done = done_message(w, PROMPT_LENGTH + 2, WIRE_FINISH_LENGTH);
  done.u.done.off_reason = wire_text("none is attached");
  done.u.done.off = WIRE_OFF_UNATTACHED;
  rig_say(&w->r, TARGET, done);
  assert_non_null(strstr(view(w).off_reason, "is drained"));
}

static void test_a_connection_that_is_lost_resumes_nobody_but_a_new_start_does(void **state) {
  world *w = *state;
  register_workers(w, TARGET, 0);
  assert_true(drain(w, TARGET, true));
  pass(w, 4000000, 0, 0); /* silent until it is lost, and drained when it is heard again */
  assert_false(drain(w, TARGET, false));
  rig_say(&w->r, TARGET, target_hello(TARGET));
  assert_int_equal(sessions_worker_is(w->o, WIRE_ROLE_TARGET, 0), SESSIONS_WORKER_DRAINED);
  msg again = target_hello(TARGET);
  again.u.hello.incarnation = ID(77);
  rig_say(&w->r, TARGET, again);
  assert_int_equal(sessions_worker_is(w->o, WIRE_ROLE_TARGET, 0), SESSIONS_WORKER_READY);
}

static void test_nobody_is_drained_twice_and_no_stranger_at_all(void **state) {
  world *w = *state;
  register_workers(w, TARGET, 0);
  assert_false(drain(w, STRANGER, true));
  assert_true(drain(w, TARGET, true));
  assert_true(drain(w, TARGET, true));
  assert_int_equal(rig_logged(&w->r, "is drained"), 1);
  rig_say(&w->r, TARGET, message(MSG_BYE, SELF, 0, 0));
  assert_int_equal(sessions_worker_is(w->o, WIRE_ROLE_TARGET, 0), SESSIONS_WORKER_LEAVING);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_list_knows_whom_it_was_given),
      CASE(test_a_drained_target_gets_no_new_session_until_it_is_resumed),
      CASE(test_sessions_go_on_at_a_drained_target),
      CASE(test_a_session_knows_that_its_draft_would_be_a_drained_one),
      CASE(test_a_connection_that_is_lost_resumes_nobody_but_a_new_start_does),
      CASE(test_nobody_is_drained_twice_and_no_stranger_at_all),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
