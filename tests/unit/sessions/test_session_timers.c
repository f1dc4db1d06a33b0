/* libs: sessions wire speculative base */
#include "tests/support/sessions_world.h"

#include "orchestrator/sessions/session_timers.h"
#include "tests/support/random.h"

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
                        .random = random_source,
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

/* Nobody could come meanwhile: after a machine has slept, a session waits for a target as if it had not. */
static void test_the_orchestrators_own_stall_ends_no_wait_for_a_target(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, 0, DRAFT);
  start_request(w, &r);
  pass(w, 3000000, DRAFT, 0);
  w->r.now += 60000000;
  start_request(w, &r); /* it begins before the machine is stepped */
  pass(w, SESSIONS_TARGET_WAIT_US - 5000000, DRAFT, 0);
  assert_int_equal(view(w).finish, 0);
  pass(w, 6000000, DRAFT, 0);
  assert_int_equal(view(w).code, 0); /* its stall counts for it as well */
  pass(w, 60000000, DRAFT, 0);
  assert_int_equal(view(w).code, ERR_TIMEOUT);
}

/* No worker is there that would be sent PING, so the machine is not stepped before the wait is over. */
static void test_a_wait_without_any_step_is_no_stall(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  start_request(w, &r);
  rig_advance(&w->r, 1000);
  rig_advance(&w->r, SESSIONS_TARGET_WAIT_US);
  assert_int_equal(view(w).code, ERR_TIMEOUT);
}

static void test_a_stall_before_the_first_step_ends_no_wait(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  start_request(w, &r);
  w->r.now += 60000000;
  rig_advance(&w->r, 1000);
  assert_int_equal(view(w).finish, 0);
}

/* That stall is excused for it too, although it began at its end: what it awaits then lies in the future. */
static void test_a_session_that_began_at_the_end_of_a_stall_is_not_late(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  w->ledger.held = 1; /* not even the prompt is durable */
  w->r.now += 60000000;
  start_request(w, &r);
  rig_advance(&w->r, 1000);
  assert_int_equal(view(w).finish, 0);
  w->ledger.held = 0;
  pass(w, 1000000, TARGET, 0);
  opened(w, TARGET);
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

/* Each token that is shown or acknowledged is in the file, so a crash costs at most the target's credit. */
static void test_only_what_is_durable_is_acknowledged(void **state) {
  world *w = *state;
  start_running(w, false);
  w->ledger.held = 4;
  send_tokens(w, TARGET, 3, 6);
  assert_int_equal(rig_last(&w->r, TARGET, MSG_ACK)->u.state.length, 5);
  rig_clear(&w->r);
  send_tokens(w, TARGET, 9, 3);
  assert_int_equal(rig_last(&w->r, TARGET, MSG_ACK)->u.state.length, 8);
  rig_clear(&w->r);
  w->ledger.held = 1; /* the writer has come further, and wakes the machine */
  rig_advance(&w->r, 1000);
  const msg *ack = rig_last(&w->r, TARGET, MSG_ACK);
  hash16 h = true_hash(w, 11);
  assert_int_equal(ack->u.state.length, 11);
  assert_memory_equal(&ack->u.state.hash, &h, sizeof h);
  assert_int_equal(view(w).logged, 11);
}

static void test_a_ledger_that_takes_nothing_holds_the_answer_up_but_not_for_ever(void **state) {
  world *w = *state;
  start_running(w, false);
  send_tokens(w, TARGET, 3, 2);
  w->ledger.held = 4;
  send_tokens(w, TARGET, 5, 4);
  for (int i = 0; i < 9; i++) { /* 27 s */
    pass(w, 3000000, TARGET, 0);
    send_tokens(w, TARGET, 9, 0);
  }
  expect_state(w, SESSIONS_RUNNING);
  assert_int_equal(rig_last(&w->r, TARGET, MSG_ACK)->u.state.length, 5);
  pass(w, 4000000, TARGET, 0);
  sessions_view v = view(w);
  assert_int_equal(v.finish, WIRE_FINISH_ERROR);
  assert_int_equal(v.code, ERR_IO);
  assert_non_null(strstr(v.text, "make room"));
  assert_null(strstr(v.text, "resume")); /* nothing can be resumed before there is room */
  assert_int_equal(v.length, 5);         /* what was shown is the whole answer */
  assert_int_equal(v.logged, 5);
  assert_true(rig_count(&w->r, TARGET, MSG_END) > 0);
}

/* The target ends the answer, and the file does not take the end: a client that waits is told at last. */
static void test_an_end_that_is_never_durable_becomes_an_error(void **state) {
  world *w = *state;
  start_running(w, false);
  w->ledger.held = 2;
  send_tokens(w, TARGET, 3, 5);
  finish_by_done(w, 8);
  rig_say(&w->r, TARGET, worker_state(w, MSG_ENDED, 0));
  assert_int_equal(view(w).finish, WIRE_FINISH_LENGTH);
  pass(w, SESSIONS_LEDGER_WAIT_US + 1000000, TARGET, 0);
  assert_int_equal(view(w).finish, WIRE_FINISH_ERROR);
  assert_int_equal(view(w).length, 6);
  assert_int_equal(view(w).logged, 6);
}

static void test_who_cancels_does_not_wait_for_the_ledger(void **state) {
  world *w = *state;
  start_running(w, false);
  w->ledger.held = 2;
  send_tokens(w, TARGET, 3, 5);
  sessions_cancel(w->o, w->id, w->r.now, &w->r.out);
  assert_int_equal(view(w).logged, 6);
  assert_int_equal(view(w).length, 8);
  pass(w, SESSIONS_LEDGER_CANCEL_US + 100000, TARGET, 0);
  assert_int_equal(view(w).finish, WIRE_FINISH_CANCELLED);
  assert_int_equal(view(w).length, 6);
}

static void test_a_session_of_another_process_ends(void **state) {
  world *w = *state;
  start_running(w, false);
  w->ledger.held = 2;
  w->ledger.taken_over = true;
  send_tokens(w, TARGET, 3, 5);
  rig_advance(&w->r, 1000);
  assert_int_equal(view(w).finish, WIRE_FINISH_ERROR);
  assert_int_equal(view(w).code, ERR_GONE);
  assert_int_equal(view(w).length, 6);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_open_is_repeated_until_it_is_answered),
      CASE(test_an_idle_session_acknowledges_again),
      CASE(test_end_is_repeated_five_times),
      CASE(test_the_time_to_open_begins_when_the_target_is_asked),
      CASE(test_a_slow_target_that_gives_signs_of_life_is_kept),
      CASE(test_the_orchestrators_own_stall_moves_no_session),
      CASE(test_the_orchestrators_own_stall_ends_no_wait_for_a_target),
      CASE(test_a_wait_without_any_step_is_no_stall),
      CASE(test_a_stall_before_the_first_step_ends_no_wait),
      CASE(test_a_session_that_began_at_the_end_of_a_stall_is_not_late),
      CASE(test_a_target_that_never_opens_fails_the_session),
      CASE(test_each_repair_has_its_own_time_to_open),
      CASE(test_a_session_without_a_target_wakes_to_ask_and_to_give_up),
      CASE(test_an_open_without_an_answer_wakes_its_session),
      CASE(test_a_running_session_wakes_to_acknowledge_and_to_look_for_silence),
      CASE(test_an_end_without_an_answer_wakes_its_session),
      CASE(test_only_what_is_durable_is_acknowledged),
      CASE(test_a_ledger_that_takes_nothing_holds_the_answer_up_but_not_for_ever),
      CASE(test_an_end_that_is_never_durable_becomes_an_error),
      CASE(test_who_cancels_does_not_wait_for_the_ledger),
      CASE(test_a_session_of_another_process_ends),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
