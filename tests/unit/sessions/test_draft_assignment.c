/* libs: sessions wire speculative base */
#include "tests/support/sessions_world.h"

static void register_at(world *w, peer_id peer, wire_role role, const char *endpoint, wire_location seen) {
  msg m = role == WIRE_ROLE_TARGET ? target_hello(peer) : draft_hello(peer);
  if (endpoint) m.u.hello.endpoint = wire_text(endpoint);
  m.u.hello.seen = seen;
  rig_say(&w->r, peer, m);
  rig_last(&w->r, peer, MSG_WELCOME);
}

#define AWAY(a) ((wire_location){a, true})

static void run_session(world *w) {
  sessions_request r = request(true);
  rig_clear(&w->r);
  start_request(w, &r);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
}

/* DONE as a target says it that has seen no draft. */
static void end_unattached(world *w) {
  send_tokens(w, TARGET, PROMPT_LENGTH, 1);
  msg m = done_message(w, PROMPT_LENGTH + 1, WIRE_FINISH_LENGTH);
  m.u.done.off_reason = wire_text("none is attached");
  m.u.done.off = WIRE_OFF_UNATTACHED;
  rig_say(&w->r, TARGET, m);
  assert_int_equal(view(w).finish, WIRE_FINISH_LENGTH);
}

static void expect_reason(world *w, const char *part) {
  if (!strstr(view(w).off_reason, part))
    fail_msg("the reason is \"%s\", want \"%s\"", view(w).off_reason, part);
}

static void test_a_wildcard_address_is_resolved_for_the_draft(void **state) {
  world *w = *state;
  register_at(w, TARGET, WIRE_ROLE_TARGET, "tcp://0.0.0.0:4000", AWAY("10.0.0.2"));
  register_at(w, DRAFT, WIRE_ROLE_DRAFT, NULL, AWAY("10.0.0.3"));
  run_session(w);
  assert_true(text_is(opened(w, DRAFT)->target_endpoint, "tcp://10.0.0.2:4000"));
}

static void test_a_draft_that_cannot_reach_the_target_is_not_chosen(void **state) {
  world *w = *state;
  register_at(w, TARGET, WIRE_ROLE_TARGET, "tcp://127.0.0.1:4000", AWAY("10.0.0.2"));
  register_at(w, DRAFT, WIRE_ROLE_DRAFT, NULL, AWAY("10.0.0.3"));
  for (int i = 0; i < 2; i++) {
    run_session(w);
    pass(w, 2000000, TARGET, DRAFT);
    assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 0);
    assert_int_equal(rig_logged(&w->r, "on another host (10.0.0.3)"),
                     i == 0); /* once for all sessions_machine */
    end_unattached(w);
    expect_reason(w, "on another host (10.0.0.3) than the target (10.0.0.2)");
    expect_reason(w, "--bind tcp://ADDRESS:PORT");
  }
  /* One that can get there is taken, also by a session that is under way. */
  run_session(w);
  register_at(w, DRAFT2, WIRE_ROLE_DRAFT, NULL, AWAY("10.0.0.2"));
  assert_true(text_is(opened(w, DRAFT2)->target_endpoint, "tcp://127.0.0.1:4000"));
  assert_string_equal(view(w).off_reason, "");
}

static void test_a_draft_is_dropped_when_the_session_moves_out_of_its_reach(void **state) {
  world *w = *state;
  register_at(w, TARGET, WIRE_ROLE_TARGET, "tcp://10.0.0.2:4000", AWAY("10.0.0.2"));
  register_at(w, DRAFT, WIRE_ROLE_DRAFT, NULL, AWAY("10.0.0.3"));
  run_session(w);
  opened(w, DRAFT);
  register_at(w, TARGET2, WIRE_ROLE_TARGET, "ipc:///tmp/x", (wire_location){{0}, false});
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(TARGET), w->r.now, &w->r.out);
  opened(w, TARGET2);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 0);
  rig_only(&w->r, DRAFT, MSG_END);
  expect_reason(w, "on another host (10.0.0.3) than the target (the orchestrator's)");
}

/* Both listen on the same port of all addresses. */
static void test_equal_wildcards_of_two_hosts_are_two_targets(void **state) {
  world *w = *state;
  register_at(w, TARGET, WIRE_ROLE_TARGET, "tcp://0.0.0.0:4000", AWAY("10.0.0.2"));
  register_at(w, TARGET2, WIRE_ROLE_TARGET, "tcp://0.0.0.0:4000", AWAY("10.0.0.3"));
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 2);
}

static void test_a_missing_draft_is_explained(void **state) {
  world *w = *state;
  register_workers(w, TARGET, 0);
  run_session(w);
  end_unattached(w);
  expect_reason(w, "there is no draft worker: start tandem-draft");
  sessions_explain_no_draft(w->o, "it was no model"); /* by who had started it */
  run_session(w);
  end_unattached(w);
  assert_string_equal(view(w).off_reason, "it was no model");
}

/* Whoever starts the drafts knows it: those that wait for one go on, and later ones do not wait. */
static void test_in_lockstep_the_target_learns_that_no_draft_will_come(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  r.options.lockstep = true;
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  assert_true(opened(w, TARGET)->draft_expected);
  rig_clear(&w->r);
  sessions_explain_no_draft(w->o, "it was no model");
  sessions_no_draft_comes(w->o, w->r.now, &w->r.out);
  assert_false(opened(w, TARGET)->draft_expected);
  assert_int_equal(w->epoch, 1);
  assert_string_equal(view(w).off_reason, "it was no model");
  rig_clear(&w->r);
  start_request(w, &r);
  assert_false(opened(w, TARGET)->draft_expected);
}

static void test_a_draft_that_has_not_answered_is_explained(void **state) {
  world *w = *state;
  register_workers(w, TARGET, DRAFT);
  run_session(w);
  end_unattached(w);
  expect_reason(w, "did not take the session in time");
}

static void test_a_draft_that_has_not_arrived_is_explained(void **state) {
  world *w = *state;
  register_workers(w, TARGET, DRAFT);
  run_session(w);
  rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  pass(w, 1500000, TARGET, DRAFT);
  end_unattached(w);
  expect_reason(w, "a draft is here, but has not reached the target at tcp://127.0.0.1:4000 for 1.5 s");
  assert_null(strstr(view(w).off_reason, "--advertise")); /* it may only be on its way */
}

static void test_a_draft_that_refused_is_explained(void **state) {
  world *w = *state;
  register_workers(w, TARGET, DRAFT);
  run_session(w);
  rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
  pass(w, 20000000, TARGET, DRAFT);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 1); /* it stays so */
  end_unattached(w);
  expect_reason(w, "made by a test");
}

/* Its target detached it, say: the session wants its guesses as soon as that is over. */
static void test_a_draft_that_refused_for_the_moment_is_asked_again_later(void **state) {
  world *w = *state;
  register_workers(w, TARGET, DRAFT);
  run_session(w);
  rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_STATE));
  rig_only(&w->r, DRAFT, MSG_END);
  pass(w, SESSIONS_DRAFT_RETRY_US - 100000, TARGET, DRAFT);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 0);
  pass(w, 200000, TARGET, DRAFT);
  opened(w, DRAFT);
}

/* The draft had not seen this OPEN when its target detached it. */
static void test_a_draft_detached_before_it_took_the_session_keeps_it(void **state) {
  world *w = *state;
  register_workers(w, TARGET, DRAFT);
  run_session(w);
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_STATE));
  assert_int_equal(rig_count_all(&w->r, RIG_ANY), 0);
  rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  assert_string_equal(view(w).off_reason, "");
}

/* END told it that it was dismissed, and came after the OPEN that called it back. */
static void test_a_draft_that_a_late_end_has_closed_is_opened_again(void **state) {
  world *w = *state;
  register_workers(w, TARGET, DRAFT);
  run_session(w);
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, worker_state(w, MSG_ENDED, 0)); /* in its time: OPENED follows */
  assert_int_equal(rig_count_all(&w->r, RIG_ANY), 0);
  rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  rig_say(&w->r, DRAFT, worker_state(w, MSG_ENDED, 0));
  opened(w, DRAFT);
}

static void test_a_draft_that_was_lost_is_explained(void **state) {
  world *w = *state;
  register_workers(w, TARGET, DRAFT);
  run_session(w);
  send_tokens(w, TARGET, PROMPT_LENGTH, 1);
  msg m = done_message(w, PROMPT_LENGTH + 1, WIRE_FINISH_LENGTH);
  m.u.done.off_reason = wire_text("the draft was there, and is not any more: by its target's word");
  rig_say(&w->r, TARGET, m);
  expect_reason(w, "by its target's word");
}

/* It says so. The log has it at once, another draft is asked, and after a while the same one again. */
static void test_a_draft_that_does_not_reach_the_target_is_asked_again_later(void **state) {
  world *w = *state;
  register_workers(w, TARGET, DRAFT);
  run_session(w);
  rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  pass(w, 3000000, TARGET, DRAFT);
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_TIMEOUT));
  rig_only(&w->r, DRAFT, MSG_END);
  assert_int_equal(
      rig_logged(&w->r, "has not reached the target at tcp://127.0.0.1:4000 for 3.0 s: let its host connect"),
      1);
  pass(w, SESSIONS_DRAFT_RETRY_US - 100000, TARGET, DRAFT);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 0);
  rig_clear(&w->r);
  pass(w, 200000, TARGET, DRAFT);
  opened(w, DRAFT);
  rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_TIMEOUT));
  assert_int_equal(rig_logged(&w->r, "has not reached"), 0); /* that is known */
  pass(w, SESSIONS_REPEAT_US, TARGET, DRAFT);
  register_workers(w, 0, DRAFT2);
  opened(w, DRAFT2);
  end_unattached(w); /* the answer of DRAFT2 has not come */
  expect_reason(w, "did not take the session in time");
}

static void test_a_draft_may_have_tried_longer_than_the_session(void **state) {
  world *w = *state;
  register_workers(w, TARGET, DRAFT);
  run_session(w);
  rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_TIMEOUT));
  pass(w, 100000, TARGET, DRAFT);
  end_unattached(w);
  expect_reason(w, "has not reached the target at tcp://127.0.0.1:4000 for 3.0 s: let its host connect");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_wildcard_address_is_resolved_for_the_draft),
      CASE(test_a_draft_that_cannot_reach_the_target_is_not_chosen),
      CASE(test_a_draft_is_dropped_when_the_session_moves_out_of_its_reach),
      CASE(test_equal_wildcards_of_two_hosts_are_two_targets),
      CASE(test_a_missing_draft_is_explained),
      CASE(test_in_lockstep_the_target_learns_that_no_draft_will_come),
      CASE(test_a_draft_that_has_not_answered_is_explained),
      CASE(test_a_draft_that_has_not_arrived_is_explained),
      CASE(test_a_draft_that_refused_is_explained),
      CASE(test_a_draft_that_refused_for_the_moment_is_asked_again_later),
      CASE(test_a_draft_detached_before_it_took_the_session_keeps_it),
      CASE(test_a_draft_that_a_late_end_has_closed_is_opened_again),
      CASE(test_a_draft_that_was_lost_is_explained),
      CASE(test_a_draft_that_does_not_reach_the_target_is_asked_again_later),
      CASE(test_a_draft_may_have_tried_longer_than_the_session),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
