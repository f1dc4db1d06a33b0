/* libs: target wire speculative base */
#include "tests/support/count_malloc.h"
#include "tests/support/target_world.h"

static void test_the_orchestrator_is_greeted(void **state) {
  world *w = *state;
  target_connect(w->t, "tcp://127.0.0.1:3001", &w->r.out);
  const action *a = rig_connect_asked(&w->r);
  rig_connected(&w->r, a->tag, ORCH2);
  const msg_hello *h = &rig_only(&w->r, ORCH2, MSG_HELLO)->u.hello;
  assert_int_equal(h->role, WIRE_ROLE_TARGET);
  assert_true(wire_id_equal(h->incarnation, SELF));
  assert_true(text_is(h->endpoint, "tcp://127.0.0.1:4000"));
  assert_true(text_is(h->numerics_id, "test"));
  assert_int_equal(h->vocabulary_size, VOCAB);
  assert_int_equal(h->vocabulary_hash.bytes[0], 20);
  assert_int_equal(h->model_fingerprint.bytes[0], 10);
  assert_int_equal(h->session_max, SLOTS);
  assert_int_equal(h->context_max, CONTEXT);
}

static void test_a_draft_of_another_vocabulary_is_refused(void **state) {
  world *w = *state;
  msg m = hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, ID(STRANGER));
  m.u.hello.vocabulary_hash.bytes[0] = 21;
  rig_say(&w->r, STRANGER, m);
  rig_expect_error(&w->r, STRANGER, ERR_MISMATCH);
  rig_clear(&w->r);
  m.u.hello.vocabulary_hash.bytes[0] = 20;
  rig_say(&w->r, STRANGER, m);
  rig_only(&w->r, STRANGER, MSG_WELCOME);
}

static void test_strangers_are_asked_to_greet_first(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  rig_say(&w->r, STRANGER, attach_message(1, TICKET));
  rig_expect_error(&w->r, STRANGER, ERR_PROTOCOL);
}

static void test_a_pong_reports_the_load(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, ping_message(MSG_PING, SELF, 5, 6, 0));
  assert_int_equal(rig_last(&w->r, ORCH, MSG_PONG)->u.ping.load, 0);
  say_and_open(w, prompt_message());
  rig_say(&w->r, ORCH, ping_message(MSG_PING, SELF, 5, 6, 0));
  assert_int_equal(rig_last(&w->r, ORCH, MSG_PONG)->u.ping.load, 1);
}

static void test_a_draining_target_takes_no_new_session(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 4;
  say_and_open(w, m);
  play(w, 1);
  rig_event(&w->r, EVENT_DRAIN, 0, 0, NULL, NULL);
  rig_only(&w->r, ORCH, MSG_BYE);
  rig_only(&w->r, DRAFT, MSG_BYE);
  assert_false(target_drained(w->t));
  rig_say(&w->r, ORCH, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  rig_expect_error(&w->r, ORCH, ERR_DRAINING);
  assert_int_equal(play(w, 9), 3); /* it finishes what it has */
  rig_only(&w->r, ORCH, MSG_DONE);
  assert_false(target_drained(w->t)); /* DONE is repeated until END, because it may be lost */
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  assert_true(target_drained(w->t));
}

/* A draining target finishes its sessions, even one that has to be repaired first. */
static void test_a_draining_target_repairs_what_it_has(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 3);
  rig_event(&w->r, EVENT_DRAIN, 0, 0, NULL, NULL);
  say_and_open(w, delta(2, 4, truth() + 4, 1));
  assert_int_equal(play(w, 2), 2);
  assert_int_equal(held(w, S)->committed.length, 7);
  assert_int_equal(target_sessions(w->t)->reused_rows, 0); /* the session kept its rows */
}

/* Nobody sends END for the last session: its lease ends. */
static void test_a_lease_that_ends_completes_the_drain(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  rig_event(&w->r, EVENT_DRAIN, 0, 0, NULL, NULL);
  rig_advance(&w->r, SESSION_STORE_LEASE_US + 1);
  assert_true(target_drained(w->t));
}

static void test_only_an_orchestrator_opens_and_ends_sessions(void **state) {
  world *w = *state;
  rig_say(&w->r, DRAFT, prompt_message());
  assert_null(held(w, S));
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPENED), 0);
  say_and_open(w, prompt_message());
  play(w, 2);
  rig_say(&w->r, DRAFT, message(MSG_END, SELF, S, 99));
  assert_non_null(held(w, S));
  rig_say(&w->r, DRAFT, open_message(S, 99, PROMPT, PROMPT_LENGTH));
  assert_int_equal(held(w, S)->epoch, 1);
  assert_int_equal(play(w, 1), 1);
}

static void test_only_an_orchestrator_acknowledges(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 4);
  rig_say(&w->r, DRAFT, ack(1, PROMPT_LENGTH + 2));
  assert_int_equal(held(w, S)->stream.acked, PROMPT_LENGTH);
  msg bad = ack(1, PROMPT_LENGTH + 2);
  bad.u.state.hash.bytes[0] ^= 1;
  rig_say(&w->r, DRAFT, bad);
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
}

/* The stranger comes through the listener for drafts. */
static void test_a_stranger_that_calls_itself_an_orchestrator_is_refused(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  rig_say(&w->r, STRANGER, hello_message(MSG_HELLO, WIRE_ROLE_ORCHESTRATOR, ID(STRANGER)));
  rig_clear(&w->r);
  rig_say(&w->r, STRANGER, message(MSG_END, SELF, S, 99));
  rig_say(&w->r, STRANGER, open_message(S, 98, PROMPT, PROMPT_LENGTH));
  rig_say(&w->r, STRANGER, state_message(MSG_ACK, SELF, S, 1, 1, (hash16){{9}}));
  assert_non_null(held(w, S));
  assert_int_equal(held(w, S)->epoch, 1);
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
}

static void test_ack_of_another_epoch_changes_nothing(void **state) {
  world *w = *state;
  say_and_open(w, open_message(S, 2, PROMPT, PROMPT_LENGTH));
  play(w, 3);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, ack(1, 5)); /* a lower epoch is dropped, */
  assert_int_equal(rig_count_all(&w->r, ORCH), 0);
  assert_int_equal(held(w, S)->stream.acked, PROMPT_LENGTH);
  rig_say(&w->r, ORCH, ack(3, 5)); /* a higher one is refused */
  rig_expect_error(&w->r, ORCH, ERR_GONE);
  assert_int_equal(held(w, S)->stream.acked, PROMPT_LENGTH);
}

static void test_ack_of_an_unknown_session_is_refused(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, ack(1, 3));
  rig_expect_error(&w->r, ORCH, ERR_GONE);
}

/* NODES, the next job, its result and the messages about it take no memory. */
static void test_a_verify_step_allocates_nothing(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 400;
  say_and_open(w, m);
  uint32_t g = attach(w, DRAFT);
  uint64_t id = 1;
  unsigned long before = 0;
  int32_t rounds = 0;
  play_slowly(w, 1);
  for (int32_t i = 0; i < 60; i++) {
    if (i == 20) before = malloc_calls(); /* by then every buffer has its size */
    int32_t length = held(w, S)->committed.length;
    rig_clear(&w->r);
    send_chain(w, DRAFT, g, length, id, 2, false);
    id += 2;
    assert_true(run_job(w));
    rounds += i >= 20 && w->job.count > 1;
    assert_true(rig_count(&w->r, DRAFT, MSG_TOKENS) == 1);
    rig_say(&w->r, ORCH, ack(1, length));
  }
  assert_int_equal(malloc_calls() - before, 0);
  assert_true(rounds > 20);
  assert_true(!COUNT_MALLOC || malloc_calls() > 0); /* the counter works */
}

/* The draft says HELLO again, in another role. */
static void test_a_draft_that_changes_its_role_is_detached(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  msg m = hello_message(MSG_HELLO, WIRE_ROLE_ORCHESTRATOR, ID(DRAFT));
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, m);
  rig_expect_error(&w->r, DRAFT, ERR_PROTOCOL);
  assert_int_equal(session_draft_count(held(w, S)), 0);
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, message(MSG_END, SELF, S, 2));
  rig_expect_error(&w->r, DRAFT, ERR_PROTOCOL);
  assert_non_null(held(w, S));
}

/* An epoch belongs to the orchestrator that has opened it; with a higher one, another takes the session over.
 */
static void test_only_its_orchestrator_speaks_about_an_epoch(void **state) {
  world *w = *state;
  greet_another_orchestrator(w);
  say_and_open(w, prompt_message());
  play(w, 2);
  rig_advance(&w->r, SESSION_STORE_LEASE_US / 2);
  uint64_t lease_us = held(w, S)->lease_until_us;
  int32_t acked = held(w, S)->stream.acked;
  rig_clear(&w->r);
  rig_say(&w->r, ORCH2, ack(1, held(w, S)->committed.length));
  rig_say(&w->r, ORCH2, resend_message(SELF, S, 1, 1));
  assert_int_equal(held(w, S)->lease_until_us, lease_us);
  assert_int_equal(held(w, S)->stream.acked, acked);
  assert_int_equal(rig_count_all(&w->r, RIG_ANY), 0);
  rig_say(&w->r, ORCH2, prompt_message());
  rig_expect_error(&w->r, ORCH2, ERR_STALE);
  assert_int_equal(held(w, S)->request.orchestrator, ORCH);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH2, delta(2, 0, PROMPT, PROMPT_LENGTH));
  rig_only(&w->r, ORCH2, MSG_OPENED);
  assert_int_equal(held(w, S)->request.orchestrator, ORCH2);
}

static void test_resend_of_an_unknown_session_is_refused(void **state) {
  world *w = *state;
  rig_say(&w->r, DRAFT, resend_message(SELF, S, 1, 1));
  rig_expect_error(&w->r, DRAFT, ERR_GONE);
}

/* While the orchestrator is away its sessions are kept for as long as their lease. */
static void test_sessions_go_on_when_their_orchestrator_returns(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 2);
  rig_advance(&w->r, 5000000);
  assert_non_null(held(w, S));
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, ack(1, 5));
  assert_int_equal(held(w, S)->stream.acked, 5);
  assert_true(play(w, 1) == 1);
}

static void test_epochs_at_both_ends_of_their_range_work(void **state) {
  world *w = *state;
  say_and_open(w, open_message(S, UINT32_MAX, PROMPT, PROMPT_LENGTH));
  play(w, 1);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, UINT32_MAX));
  assert_true(rig_last(&w->r, ORCH, MSG_ENDED)->u.existed);
}

static void test_a_lost_orchestrator_is_reported_in_the_log(void **state) {
  world *w = *state;
  pass(w, 2800000, true);
  assert_int_equal(rig_logged(&w->r, "orchestrator"), 0);
  rig_advance(&w->r, 4000000);
  assert_int_equal(rig_logged(&w->r, "the orchestrator at tcp://127.0.0.1:3000 is not there any more"), 1);
  rig_clear(&w->r);
  pass(w, 1000000, true);
  assert_int_equal(rig_logged(&w->r, "the orchestrator at tcp://127.0.0.1:3000 is there now"), 1);
}

/* It was never there. */
static void test_an_orchestrator_that_never_came_is_reported_in_the_log(void **state) {
  world *w = *state;
  target_options o = {.incarnation = SELF, .vocabulary_size = VOCAB, .sessions = 1, .context = CONTEXT};
  err e;
  rig_fini(&w->r);
  target_free(w->t);
  assert_int_equal(target_alloc(&w->t, &o, &e), ERR_OK);
  rig_init(&w->r, target_machine(w->t));
  target_connect(w->t, "tcp://127.0.0.1:3000", &w->r.out);
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, ORCH);
  rig_advance(&w->r, 2900000);
  assert_int_equal(rig_logged(&w->r, ""), 0);
  rig_advance(&w->r, 200000);
  assert_int_equal(rig_logged(&w->r, "'tandem serve-workers --listen tcp://127.0.0.1:3000' running there?"),
                   1);
  rig_advance(&w->r, 58000000);
  assert_int_equal(rig_logged(&w->r, ""), 1);
  rig_advance(&w->r, 4000000);
  assert_int_equal(rig_logged(&w->r, ""), 2);
  msg welcome = hello_message(MSG_WELCOME, WIRE_ROLE_ORCHESTRATOR, ID(ORCH));
  welcome.to = SELF;
  rig_say(&w->r, ORCH, welcome);
  assert_int_equal(rig_logged(&w->r, "is there now"), 1);
}

static int32_t in_eights(void *context, int32_t rows) {
  (void)context;
  return (rows + 7) / 8 * 8;
}

/* The device's steps are those of the costs, from which the number of nodes follows. */
static void test_forwards_cost_what_their_step_of_the_device_costs(void **state) {
  world *w = *state;
  target_options o = {.incarnation = SELF, .vocabulary_size = VOCAB, .sessions = 1, .context = CONTEXT};
  err e;
  assert_int_equal(cost_model_step_end(&target_speculation(w->t)->costs, 5), 5);
  target_free(w->t);
  o.width = in_eights;
  assert_int_equal(target_alloc(&w->t, &o, &e), ERR_OK);
  assert_int_equal(cost_model_step_end(&target_speculation(w->t)->costs, 5), 8);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_the_orchestrator_is_greeted),
      CASE(test_forwards_cost_what_their_step_of_the_device_costs),
      CASE(test_a_draft_of_another_vocabulary_is_refused),
      CASE(test_strangers_are_asked_to_greet_first),
      CASE(test_a_pong_reports_the_load),
      CASE(test_a_draining_target_takes_no_new_session),
      CASE(test_a_draining_target_repairs_what_it_has),
      CASE(test_a_lease_that_ends_completes_the_drain),
      CASE(test_only_an_orchestrator_opens_and_ends_sessions),
      CASE(test_only_an_orchestrator_acknowledges),
      CASE(test_a_stranger_that_calls_itself_an_orchestrator_is_refused),
      CASE(test_ack_of_another_epoch_changes_nothing),
      CASE(test_ack_of_an_unknown_session_is_refused),
      CASE(test_a_verify_step_allocates_nothing),
      CASE(test_a_draft_that_changes_its_role_is_detached),
      CASE(test_only_its_orchestrator_speaks_about_an_epoch),
      CASE(test_resend_of_an_unknown_session_is_refused),
      CASE(test_sessions_go_on_when_their_orchestrator_returns),
      CASE(test_epochs_at_both_ends_of_their_range_work),
      CASE(test_a_lost_orchestrator_is_reported_in_the_log),
      CASE(test_an_orchestrator_that_never_came_is_reported_in_the_log),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
