/* libs: sessions wire speculative base */
#include "tests/sessions_support.h"

#include "orchestrator/sessions/session_timers.h"

static void test_open_is_repeated_until_it_is_answered(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  register_workers(w, TARGET, DRAFT);
  rig_clear(&w->r);
  start_request(w, &r);
  for (int i = 1; i < 4; i++) {
    pass(w, SESSIONS_REPEAT_US, TARGET, DRAFT);
    assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), i + 1);
    assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), i + 1);
  }
  opened(w, TARGET);
  assert_int_equal(w->epoch, 1);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  rig_clear(&w->r);
  pass(w, 3 * SESSIONS_REPEAT_US, TARGET, DRAFT);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_OPEN), 0);
}

static void test_an_idle_session_acknowledges_again(void **state) {
  world *w = *state;
  start_running(w, false);
  send_tokens(w, TARGET, 3, 2);
  rig_clear(&w->r);
  pass(w, 5 * SESSIONS_ACK_US + 1000, TARGET, 0);
  int32_t acks = rig_count(&w->r, TARGET, MSG_ACK);
  assert_true(acks >= 4 && acks <= 6);
  assert_int_equal(rig_last(&w->r, TARGET, MSG_ACK)->u.state.length, 5);
}

static void test_end_is_repeated_five_times(void **state) {
  world *w = *state;
  start_running(w, true);
  send_tokens(w, TARGET, 3, 5);
  rig_clear(&w->r);
  finish_by_done(w, 8);
  pass(w, 10000000, TARGET, DRAFT); /* nobody says ENDED */
  assert_int_equal(rig_count(&w->r, TARGET, MSG_END), SESSIONS_END_TRIES);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_END), SESSIONS_END_TRIES);
  expect_state(w, SESSIONS_FINISHED);
}

static void test_the_time_to_open_begins_when_the_target_is_asked(void **state) {
  world *w = *state;
  rig_fini(&w->r);
  sessions_free(w->o);
  err e = {0};
  sessions_options o = {.incarnation = SELF,
                        .random = some_random,
                        .random_context = &w->random,
                        .target_wait_us = MACHINE_NEVER};
  o.ledger = w->ledger.inner;
  assert_int_equal(sessions_alloc(&w->o, &o, &e), ERR_OK);
  rig_init(&w->r, sessions_as_machine(w->o));
  sessions_request r = request(false);
  start_request(w, &r);
  pass(w, 2 * SESSIONS_TARGET_WAIT_US, DRAFT, 0);
  register_workers(w, TARGET, 0);
  pass(w, 1000000, TARGET, 0);
  expect_state(w, SESSIONS_OPENING);
}

/* The next token may take minutes, for example while a long prompt is prefilled. */
static void test_a_slow_target_that_gives_signs_of_life_is_kept(void **state) {
  world *w = *state;
  start_running(w, false);
  register_workers(w, TARGET2, 0);
  for (int i = 0; i < 30; i++) {
    pass(w, 3000000, TARGET, TARGET2);
    send_tokens(w, TARGET, PROMPT_LENGTH, 0);
  }
  assert_int_equal(view(w).epoch, 1);
  assert_int_equal(rig_count(&w->r, TARGET2, MSG_OPEN), 0);
}

static void test_the_orchestrators_own_stall_moves_no_session(void **state) {
  world *w = *state;
  start_running(w, false);
  register_workers(w, TARGET2, 0);
  pass(w, 3000000, TARGET, TARGET2);
  rig_clear(&w->r);
  w->r.now += 60000000;
  rig_say(&w->r, TARGET, ping_message(MSG_PING, SELF, 1, 1, 0));
  rig_say(&w->r, TARGET2, ping_message(MSG_PING, SELF, 1, 1, 0));
  pass(w, 2000000, TARGET, TARGET2);
  assert_int_equal(rig_count(&w->r, TARGET2, MSG_OPEN), 0);
}

/* It answers every PING and no OPEN. */
static void test_a_target_that_never_opens_fails_the_session(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  pass(w, SESSIONS_TARGET_WAIT_US + 1000000, TARGET, 0);
  assert_int_equal(view(w).finish, WIRE_FINISH_ERROR);
  assert_int_equal(view(w).code, ERR_TIMEOUT);
}

/* A long session may need many of them. */
static void test_each_repair_has_its_own_time_to_open(void **state) {
  world *w = *state;
  static const int codes[] = {ERR_FULL, 0};
  for (int i = 0; i < 2; i++) {
    start_running(w, false);
    send_tokens(w, TARGET, 3, 4);
    pass(w, 2 * SESSIONS_TARGET_WAIT_US, TARGET, 0);
    rig_say(&w->r, TARGET, worker_state(w, MSG_DESYNC, 2));
    opened(w, TARGET);
    if (codes[i]) rig_say(&w->r, TARGET, error_message(SELF, w->id, w->epoch, codes[i]));
    pass(w, 5000000, TARGET, 0);
    assert_int_equal(view(w).finish, 0);
    opened(w, TARGET);
    rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 7));
    expect_state(w, SESSIONS_RUNNING);
  }
}

/* --- when the next thing is due --- */

enum { BEGUN = 50000000, PATIENCE = 9000000 };

static void expect_deadline(const client_session *s, uint64_t at) {
  static client_sessions all;
  all.target_wait_us = PATIENCE;
  assert_int_equal(session_timers_deadline(&all, s), at);
}

static void test_a_session_without_a_target_wakes_to_ask_and_to_give_up(void **state) {
  (void)state;
  static client_session s;
  s = (client_session){.waiting_since_us = BEGUN};
  expect_deadline(&s, MACHINE_NEVER); /* the ledger wakes it */
  s.in_ledger = true;
  expect_deadline(&s, BEGUN + PATIENCE);
  s.retry_us = BEGUN + PATIENCE + 1;
  expect_deadline(&s, BEGUN + PATIENCE);
  s.retry_us = BEGUN + 1;
  expect_deadline(&s, BEGUN + 1);
}

static void test_an_open_without_an_answer_wakes_its_session(void **state) {
  (void)state;
  static client_session s;
  s = (client_session){.target = {.peer = TARGET, .sent_us = BEGUN + 1},
                       .draft = {.peer = DRAFT, .sent_us = BEGUN}};
  expect_deadline(&s, BEGUN + SESSIONS_REPEAT_US);
  s.draft.opened = true;
  expect_deadline(&s, BEGUN + 1 + SESSIONS_REPEAT_US);
}

static void test_a_running_session_wakes_to_acknowledge_and_to_look_for_silence(void **state) {
  (void)state;
  static client_session s;
  s = (client_session){.target = {.peer = TARGET, .opened = true}, .ack_us = BEGUN};
  s.silence_ends_us = BEGUN + SESSIONS_SILENCE_US;
  expect_deadline(&s, BEGUN + SESSIONS_ACK_US);
  s.silence_ends_us = BEGUN + 1;
  expect_deadline(&s, BEGUN + 1);
}

static void test_an_end_without_an_answer_wakes_its_session(void **state) {
  (void)state;
  static client_session s;
  s = (client_session){.finish = WIRE_FINISH_STOP,
                       .target = {.peer = TARGET, .sent_us = BEGUN},
                       .draft = {.peer = DRAFT, .sent_us = BEGUN}};
  expect_deadline(&s, BEGUN + SESSIONS_REPEAT_US);
  s.target.ended = true;
  expect_deadline(&s, BEGUN + SESSIONS_REPEAT_US);
  s.draft.ended = true;
  expect_deadline(&s, MACHINE_NEVER);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_open_is_repeated_until_it_is_answered),
      CASE(test_an_idle_session_acknowledges_again),
      CASE(test_end_is_repeated_five_times),
      CASE(test_the_time_to_open_begins_when_the_target_is_asked),
      CASE(test_a_slow_target_that_gives_signs_of_life_is_kept),
      CASE(test_the_orchestrators_own_stall_moves_no_session),
      CASE(test_a_target_that_never_opens_fails_the_session),
      CASE(test_each_repair_has_its_own_time_to_open),
      CASE(test_a_session_without_a_target_wakes_to_ask_and_to_give_up),
      CASE(test_an_open_without_an_answer_wakes_its_session),
      CASE(test_a_running_session_wakes_to_acknowledge_and_to_look_for_silence),
      CASE(test_an_end_without_an_answer_wakes_its_session),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
