/* libs: target wire speculative base */
#include "tests/support/target_world.h"

#include <math.h>

static void test_max_tokens_ends_it(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 5;
  say_and_open(w, m);
  assert_int_equal(play(w, 99), 5);
  const msg_done *d = &rig_only(&w->r, ORCH, MSG_DONE)->u.done;
  hash16 h = true_hash(8);
  assert_int_equal(d->length, 8);
  assert_memory_equal(&d->hash, &h, sizeof h);
  assert_int_equal(d->finish, WIRE_FINISH_LENGTH);
  assert_int_equal(d->code, 0);
  assert_int_equal(d->stats.forwards, 5);
  assert_int_equal(d->stats.plain_steps, 5);
  assert_int_equal(d->stats.accepted, 0);
  assert_int_equal(d->stats.rounds, 0);
  assert_int_equal(d->stats.rows, 0);
  assert_true(d->stats.forward_us >= 5 * JOB_US);
  assert_true(rig_place(&w->r, ORCH, MSG_DONE) > rig_place(&w->r, ORCH, MSG_TOKENS));
}

static void test_the_context_ends_it(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.context = 9;
  say_and_open(w, m);
  assert_int_equal(play(w, 99), 6);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DONE)->u.done.finish, WIRE_FINISH_LENGTH);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DONE)->u.done.length, 9);
}

static void test_a_stop_token_ends_it(void **state) {
  world *w = *state;
  int32_t stop = truth()[6];
  msg m = prompt_message();
  m.u.open.options.stops = &stop;
  m.u.open.options.stop_count = 1;
  say_and_open(w, m);
  assert_int_equal(play(w, 99), 4);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DONE)->u.done.finish, WIRE_FINISH_STOP);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DONE)->u.done.length, 7); /* it belongs to the answer */
}

/* A stop token in the prompt stops nothing. */
static void test_a_stop_token_in_the_prompt_stops_nothing(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.stops = PROMPT;
  m.u.open.options.stop_count = 3;
  say_and_open(w, m);
  assert_int_equal(play(w, 2), 2);
}

/* DONE overtakes no token. */
static void test_done_overtakes_no_token(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 4;
  say_and_open(w, m);
  play(w, 4);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 2);
  expect_tokens(rig_peek(&w->r, ORCH, MSG_TOKENS, 0), 3, 4);
  expect_tokens(rig_peek(&w->r, ORCH, MSG_TOKENS, 1), 4, 7);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DONE)->u.done.length, 7);
  assert_ptr_equal(w->r.out.list[w->r.out.count - 1].message, rig_only(&w->r, ORCH, MSG_DONE));
}

static void test_a_session_that_nobody_renews_is_freed(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 1);
  for (int i = 0; i < 4; i++) {
    pass(w, SESSION_STORE_LEASE_US - 100000, true);
    assert_non_null(held(w, S));
    rig_say(&w->r, ORCH, ack(1, 4)); /* renews */
  }
  pass(w, SESSION_STORE_LEASE_US + 1000, true); /* PING renews nothing */
  assert_null(held(w, S));
}

static void test_a_finished_session_that_nobody_renews_is_freed(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 1;
  say_and_open(w, m);
  play(w, 1);
  pass(w, SESSION_STORE_LEASE_US + 1000, false);
  assert_null(held(w, S));
}

static void test_done_is_repeated_until_end(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 1;
  say_and_open(w, m);
  play(w, 1);
  rig_say(&w->r, ORCH, ack(1, 4));
  rig_clear(&w->r);
  pass(w, 5 * TOKEN_STREAM_REPEAT_US + 1000, false);
  assert_true(rig_count(&w->r, ORCH, MSG_DONE) >= 4 && rig_count(&w->r, ORCH, MSG_DONE) <= 6);
  assert_true(w->r.m.deadline(w->r.m.self) <=
              w->r.now + TOKEN_STREAM_REPEAT_US); /* it asks to be woken for the next one */
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  rig_clear(&w->r);
  pass(w, 5 * TOKEN_STREAM_REPEAT_US, false);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DONE), 0);
}

static void test_end_frees_the_session_and_tells_whether_it_existed(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 1;
  say_and_open(w, m);
  play(w, 1);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  assert_true(rig_only(&w->r, ORCH, MSG_ENDED)->u.existed);
  assert_null(held(w, S));
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  assert_false(rig_only(&w->r, ORCH, MSG_ENDED)->u.existed);
}

static void test_end_of_a_lower_epoch_is_stale(void **state) {
  world *w = *state;
  say_and_open(w, open_message(S, 3, PROMPT, PROMPT_LENGTH));
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 2));
  rig_expect_error(&w->r, ORCH, ERR_STALE);
  assert_non_null(held(w, S));
}

static void test_end_of_a_running_session_cancels_it(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  play(w, 2);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 2)); /* an epoch bump */
  const msg *d = rig_only(&w->r, ORCH, MSG_DONE);
  assert_int_equal(d->u.done.finish, WIRE_FINISH_CANCELLED);
  assert_int_equal(d->u.done.stats.forwards, w->jobs); /* with its figures */
  assert_true(rig_place(&w->r, ORCH, MSG_DONE) < rig_place(&w->r, ORCH, MSG_ENDED));
  assert_true(rig_only(&w->r, ORCH, MSG_ENDED)->u.existed);
  assert_int_equal(play(w, 1), 0);
}

/* END in every state of a session, with its own epoch or a higher one, of its orchestrator or, with a higher
 * one, of another: what is told of the end goes to who ended it, in the epoch of the END. */
static void test_end_is_answered_in_every_state(void **state) {
  enum { PREFILLING, DECODING, COMPUTING, DESYNCED, FINISHED, STATES };
  for (int at = 0; at < STATES; at++)
    for (uint32_t later = 0; later < 3; later++)
      for (int moved = 0; moved < 2; moved++) {
        tear_down(state);
        set_up(state);
        world *w = *state;
        msg m = prompt_message();
        if (at == FINISHED) m.u.open.options.max_tokens = 1;
        say_and_open(w, m);
        if (at == COMPUTING) assert_true(take_job(w));
        if (at == DECODING || at == FINISHED) play(w, 1);
        if (at == DESYNCED) rig_say(&w->r, ORCH, state_message(MSG_ACK, SELF, S, 1, 2, true_hash(3)));
        assert_int_equal(held(w, S)->state == SESSION_DESYNCED, at == DESYNCED);
        if (moved) greet_another_orchestrator(w);
        peer_id from = moved && later ? ORCH2 : ORCH;
        rig_clear(&w->r);
        if (moved && !later) { /* this epoch is not its own */
          rig_say(&w->r, ORCH2, message(MSG_END, SELF, S, 1));
          rig_expect_error(&w->r, ORCH2, ERR_STALE);
          assert_non_null(held(w, S));
          rig_clear(&w->r);
        }
        rig_say(&w->r, from, message(MSG_END, SELF, S, 1 + later));
        const msg *ended = rig_only(&w->r, from, MSG_ENDED);
        assert_int_equal(ended->epoch, 1 + later);
        assert_true(ended->u.existed);
        assert_null(held(w, S));
        bool cancels = at != FINISHED || later; /* the DONE of an epoch before brought nobody its figures */
        assert_int_equal(rig_count(&w->r, from, MSG_DONE), cancels);
        assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_DONE), cancels);
        if (cancels) {
          const msg *done = rig_only(&w->r, from, MSG_DONE);
          assert_int_equal(done->epoch, 1 + later);
          assert_int_equal(done->u.done.finish, WIRE_FINISH_CANCELLED);
          assert_true(rig_place(&w->r, from, MSG_DONE) < rig_place(&w->r, from, MSG_ENDED));
        }
        rig_clear(&w->r);
        if (w->holds) give_result(w);
        assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_TOKENS), 0);
        rig_say(&w->r, from, message(MSG_END, SELF, S, 1)); /* again, of any epoch */
        assert_false(rig_only(&w->r, from, MSG_ENDED)->u.existed);
      }
}

static void test_a_stop_token_inside_the_accepted_chain_ends_it(void **state) {
  world *w = *state;
  int32_t stop = truth()[4];
  msg m = prompt_message();
  m.u.open.options.stops = &stop;
  m.u.open.options.stop_count = 1;
  say_and_open(w, m);
  uint32_t g = attach(w, DRAFT);
  prefill(w);
  send_chain(w, DRAFT, g, 3, 1, 5, false);
  rig_clear(&w->r);
  assert_int_equal(play(w, 9), 1);
  expect_tokens(rig_only(&w->r, ORCH, MSG_TOKENS), 3, 5);
  const msg_done *d = &rig_only(&w->r, ORCH, MSG_DONE)->u.done;
  assert_int_equal(d->finish, WIRE_FINISH_STOP);
  assert_int_equal(d->length, 5);
  assert_int_equal(d->stats.forwards + d->stats.accepted, 2);
}

/* Only the target knows what its plain steps took: DONE says it where there were others to compare with. */
static void test_done_reports_the_speed_of_plain_steps(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  uint64_t id = 1;
  rounds_with_nodes(w, g, &id, 1);
  while (held(w, S)->state == SESSION_RUNNING)
    if (!run_job(w)) rig_advance(&w->r, 1000);
  const msg_done *d = &rig_only(&w->r, ORCH, MSG_DONE)->u.done;
  assert_true(d->stats.rounds > 0 && d->stats.plain_steps > 1);
  assert_int_equal(d->code, 0);
  double plain_us = speculation_plain_us(&held(w, S)->speculation);
  assert_true(plain_us > 0);
  assert_int_equal(d->plain_us, (uint32_t)lround(plain_us));
  assert_int_equal(d->text.size, 0);
}

/* In words, as it understands them. */
static void test_an_older_orchestrator_is_told_the_speed_in_words(void **state) {
  world *w = *state;
  msg welcome = hello_message(MSG_WELCOME, WIRE_ROLE_ORCHESTRATOR, id_of(77)); /* it was started again */
  welcome.to = SELF;
  welcome.u.hello.version_min = welcome.u.hello.version_max = 3;
  rig_say(&w->r, ORCH, welcome);
  uint32_t g = open_with_draft(w, false);
  uint64_t id = 1;
  rounds_with_nodes(w, g, &id, 1);
  while (held(w, S)->state == SESSION_RUNNING)
    if (!run_job(w)) rig_advance(&w->r, 1000);
  const msg_done *d = &rig_only(&w->r, ORCH, MSG_DONE)->u.done;
  char text[64];
  snprintf(text, sizeof text, "plain decoding: about %.0f tok/s",
           1e6 / speculation_plain_us(&held(w, S)->speculation));
  assert_true(text_is(d->text, text));
  assert_true(d->plain_us == 0 && d->off == 0);
}

static wire_off end_number(world *w) {
  return (wire_off)rig_last(&w->r, ORCH, MSG_DONE)->u.done.off;
}

static wire_string end_reason(world *w) {
  rig_clear(&w->r);
  play(w, 200);
  return rig_last(&w->r, ORCH, MSG_DONE)->u.done.off_reason;
}

static void test_done_says_that_no_draft_attached(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.draft_expected = true;
  say_and_open(w, m);
  assert_true(text_is(end_reason(w), SESSION_UNATTACHED));
  assert_int_equal(end_number(w), WIRE_OFF_UNATTACHED);
}

static void test_done_says_whether_the_draft_did_not_pay(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  end_reason(w);
  for (uint32_t tries = 0; tries < 2; tries++) {
    policy *p = &held(w, S)->speculation.policy;
    p->state = POLICY_OFF;
    p->tries = tries;
    p->net = 0;
    rig_clear(&w->r);
    rig_advance(&w->r, TOKEN_STREAM_REPEAT_US); /* DONE again */
    assert_int_equal(end_number(w), tries ? WIRE_OFF_UNPAID : WIRE_OFF_OTHER);
  }
}

static void test_done_says_why_the_draft_left(void **state) {
  world *w = *state;
  static const char *const want[] = {"it gave up: no more guesses", "it has been silent for 3 s", "it left"};
  for (int i = 0; i < 3; i++) {
    msg m = open_message(S + (uint64_t)i, 1, PROMPT, PROMPT_LENGTH), attached = attach_message(1, TICKET);
    m.u.open.draft_expected = true;
    say_and_open(w, m);
    rig_say(&w->r, DRAFT, hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, ID(DRAFT)));
    attached.session = S + (uint64_t)i;
    rig_say(&w->r, DRAFT, attached);
    msg detach = message(MSG_DETACH, SELF, S, 1);
    detach.u.state.reason = wire_text("no more guesses");
    if (i == 0) rig_say(&w->r, DRAFT, detach);
    w->holds = ask_job(w); /* the engine is busy meanwhile */
    if (i == 1) pass(w, 4000000, false);
    if (i == 2) rig_say(&w->r, DRAFT, message(MSG_BYE, SELF, 0, 0));
    wire_string why = end_reason(w);
    if (!text_has(why, want[i]) || !text_has(why, "not any more")) fail_msg("%.*s", (int)why.size, why.data);
    rig_say(&w->r, ORCH, message(MSG_END, SELF, S + (uint64_t)i, 1));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_max_tokens_ends_it),
      CASE(test_the_context_ends_it),
      CASE(test_a_stop_token_ends_it),
      CASE(test_a_stop_token_in_the_prompt_stops_nothing),
      CASE(test_done_overtakes_no_token),
      CASE(test_a_session_that_nobody_renews_is_freed),
      CASE(test_a_finished_session_that_nobody_renews_is_freed),
      CASE(test_done_is_repeated_until_end),
      CASE(test_end_frees_the_session_and_tells_whether_it_existed),
      CASE(test_end_of_a_lower_epoch_is_stale),
      CASE(test_end_of_a_running_session_cancels_it),
      CASE(test_end_is_answered_in_every_state),
      CASE(test_a_stop_token_inside_the_accepted_chain_ends_it),
      CASE(test_done_reports_the_speed_of_plain_steps),
      CASE(test_an_older_orchestrator_is_told_the_speed_in_words),
      CASE(test_done_says_that_no_draft_attached),
      CASE(test_done_says_whether_the_draft_did_not_pay),
      CASE(test_done_says_why_the_draft_left),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
