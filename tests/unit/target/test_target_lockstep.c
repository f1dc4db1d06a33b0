/* libs: target wire speculative base */
#include "tests/support/target_world.h"

static void test_lockstep_waits_for_the_done_mark(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.draft_expected = true;
  m.u.open.options.lockstep = true;
  say_and_open(w, m);
  prefill(w);
  assert_false(run_job(w)); /* nobody is attached yet */
  uint32_t g = attach(w, DRAFT);
  send_chain(w, DRAFT, g, 3, 1, 2, false);
  assert_false(run_job(w));
  rig_advance(&w->r, 1000000);
  assert_false(run_job(w));
  rig_say(&w->r, DRAFT, ping_message(MSG_PING, SELF, 1, 1, 0));
  send_nodes(w, DRAFT, g, 3, 3, NULL, 0, true);
  assert_true(run_job(w));
  assert_int_equal(held(w, S)->committed.length, 6);
  assert_false(run_job(w)); /* the mark was for another base */
  send_nodes(w, DRAFT, g, 3, 3, NULL, 0, true);
  assert_false(run_job(w)); /* and so is this one, which comes late */
  send_nodes(w, DRAFT, g, 6, 3, NULL, 0, true);
  assert_true(run_job(w)); /* a mark without nodes allows a plain step */
  assert_int_equal(w->job.count, 1);
}

static void test_lockstep_prefills_while_it_waits(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.draft_expected = true;
  m.u.open.options.lockstep = true;
  say_and_open(w, m);
  assert_true(take_job(w));
  assert_int_equal(w->job.kind, ENGINE_PREFILL);
  give_result(w);
}

static void test_lockstep_without_a_draft_does_not_wait(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.lockstep = true;
  say_and_open(w, m);
  assert_int_equal(play(w, 3), 3);
}

/* However the draft leaves, the wait ends; when the next one attaches, it begins again. */
static void test_a_draft_that_leaves_ends_the_wait(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, true);
  prefill(w);
  for (int i = 0; i < 3; i++) {
    int32_t length = held(w, S)->committed.length;
    assert_false(run_job(w));
    if (i == 0) rig_say(&w->r, DRAFT, message(MSG_DETACH, SELF, S, 1));
    if (i == 1) rig_say(&w->r, DRAFT, message(MSG_BYE, SELF, 0, 0));
    if (i == 2)
      send_nodes(w, DRAFT, g, length, 1, &(guess){0, VOCAB + 1, -1}, 1, true); /* this detaches it */
    assert_int_equal(play(w, 2), 2);
    assert_int_equal(held(w, S)->committed.length, length + 2);
    g = attach(w, DRAFT);
  }
  assert_false(run_job(w));
  send_chain(w, DRAFT, g, held(w, S)->committed.length, 1, 2, true);
  assert_true(run_job(w));
  assert_int_equal(w->job.count, 3);
  uint32_t other = attach(w, DRAFT2); /* when one of two leaves, the other one is waited for */
  rig_say(&w->r, DRAFT, message(MSG_DETACH, SELF, S, 1));
  assert_false(run_job(w));
  send_nodes(w, DRAFT2, other, held(w, S)->committed.length, 1, NULL, 0, true);
  assert_true(run_job(w));
  pass(w, 4000000, false); /* silent for 3 s */
  assert_int_equal(play(w, 1), 1);
}

/* The orchestrator repeats its OPEN and expects no draft any more. */
static void test_an_orchestrator_that_gives_up_the_draft_ends_the_wait(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.draft_expected = true;
  m.u.open.options.lockstep = true;
  say_and_open(w, m);
  prefill(w);
  assert_false(run_job(w));
  rig_say(&w->r, ORCH, m);
  assert_false(run_job(w));
  m.u.open.draft_expected = false;
  rig_say(&w->r, ORCH, m);
  rig_last(&w->r, ORCH, MSG_OPENED);
  assert_int_equal(play(w, 2), 2);
  m.u.open.draft_expected = true; /* an older OPEN that comes late changes nothing */
  rig_say(&w->r, ORCH, m);
  assert_int_equal(play(w, 1), 1);
  msg next = prompt_message();
  next.epoch = 2;
  next.u.open.draft_expected = true;
  next.u.open.options.lockstep = true;
  say_and_open(w, next); /* in another epoch another draft is expected */
  prefill(w);
  assert_false(run_job(w));
  next.u.open.draft_expected = false;
  rig_say(&w->r, ORCH, next);
  assert_int_equal(play(w, 1), 1);
  attach(w, DRAFT); /* a draft that is attached is waited for */
  assert_false(run_job(w));
}

static void test_a_missing_done_mark_is_an_error_after_a_minute(void **state) {
  world *w = *state;
  open_with_draft(w, true);
  prefill(w);
  for (int i = 0; i < 59; i++) {
    pass(w, 1000000, true);
    rig_say(&w->r, ORCH, ack(1, 3));
    assert_false(run_job(w));
  }
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
  rig_clear(&w->r);
  pass(w, 1200000, true);
  const msg_done *d = &rig_only(&w->r, ORCH, MSG_DONE)->u.done;
  assert_int_equal(d->finish, WIRE_FINISH_ERROR);
  assert_int_equal(d->code, ERR_TIMEOUT);
  assert_true(d->text.size > 0);
}

/* Lets time pass while the orchestrator, which has `length` tokens, renews the lease. */
static void pass_leased(world *w, uint64_t us, int32_t length) {
  for (uint64_t left = us; left > 0;) {
    uint64_t part = left < SESSION_STORE_LEASE_US / 2 ? left : SESSION_STORE_LEASE_US / 2;
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, ack(1, length));
    pass(w, part, true);
    left -= part;
  }
}

/* The minute is counted from the last step, from the end of the prefill or from new credit, not from OPEN. */
static void test_the_minute_is_counted_from_the_last_step(void **state) {
  for (int acknowledged = 0; acknowledged < 2; acknowledged++) {
    tear_down(state);
    set_up(state);
    world *w = *state;
    uint32_t g = open_with_draft(w, true);
    prefill(w);
    for (int32_t length = PROMPT_LENGTH; length < PROMPT_LENGTH + 10; length++) {
      pass_leased(w, 30000000, acknowledged ? length : PROMPT_LENGTH);
      assert_false(run_job(w));
      send_nodes(w, DRAFT, g, length, 1, NULL, 0, true);
      assert_true(run_job(w));
      assert_int_equal(held(w, S)->state, SESSION_RUNNING);
    }
    pass_leased(w, 59000000, acknowledged ? PROMPT_LENGTH + 10 : PROMPT_LENGTH);
    assert_int_equal(held(w, S)->state, SESSION_RUNNING);
    pass_leased(w, 1500000, acknowledged ? PROMPT_LENGTH + 10 : PROMPT_LENGTH);
    assert_int_equal(rig_last(&w->r, ORCH, MSG_DONE)->u.done.code, ERR_TIMEOUT);
  }
}

static void test_the_minute_is_counted_from_the_end_of_the_prompt(void **state) {
  world *w = *state;
  open_with_draft(w, true);
  assert_true(take_job(w));
  pass_leased(w, 70000000, PROMPT_LENGTH);
  give_result(w);
  pass_leased(w, 59000000, PROMPT_LENGTH);
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
  pass_leased(w, 1500000, PROMPT_LENGTH);
  assert_int_equal(rig_last(&w->r, ORCH, MSG_DONE)->u.done.code, ERR_TIMEOUT);
}

static void test_the_minute_is_counted_from_new_credit(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.lockstep = true;
  m.u.open.options.max_tokens = 1000;
  say_and_open(w, m);
  assert_int_equal(play(w, 1000), SCHEDULE_CREDIT);
  attach(w, DRAFT);
  pass_leased(w, 70000000, PROMPT_LENGTH);
  pass_leased(w, 59000000, PROMPT_LENGTH + 1);
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
  pass_leased(w, 1500000, PROMPT_LENGTH + 1);
  assert_int_equal(rig_last(&w->r, ORCH, MSG_DONE)->u.done.code, ERR_TIMEOUT);
}

/* While a session has no credit it does not wait for the mark. Nor may the machine spin on a deadline that
 * has passed. */
static void test_a_minute_without_credit_is_no_error(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.lockstep = true;
  m.u.open.options.max_tokens = 1000;
  say_and_open(w, m);
  assert_int_equal(play(w, 1000), SCHEDULE_CREDIT);
  for (int i = 0; i < 13; i++) {
    pass(w, SESSION_STORE_LEASE_US / 2, true);
    rig_say(&w->r, ORCH, ack(1, PROMPT_LENGTH)); /* this renews the lease and gives no credit */
    rig_clear(&w->r);
  }
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
}

/* The draft attaches although no draft is expected, and never sends a done mark. */
static void test_lockstep_waits_for_a_draft_that_nobody_announced(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.lockstep = true;
  say_and_open(w, m);
  attach(w, DRAFT);
  prefill(w);
  for (int i = 0; i < 13; i++) {
    pass(w, SESSION_STORE_LEASE_US / 2, true);
    rig_say(&w->r, ORCH, ack(1, PROMPT_LENGTH));
  }
  assert_int_equal(rig_last(&w->r, ORCH, MSG_DONE)->u.done.code, ERR_TIMEOUT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_lockstep_waits_for_the_done_mark),
      CASE(test_lockstep_prefills_while_it_waits),
      CASE(test_lockstep_without_a_draft_does_not_wait),
      CASE(test_a_draft_that_leaves_ends_the_wait),
      CASE(test_an_orchestrator_that_gives_up_the_draft_ends_the_wait),
      CASE(test_a_missing_done_mark_is_an_error_after_a_minute),
      CASE(test_the_minute_is_counted_from_the_last_step),
      CASE(test_the_minute_is_counted_from_the_end_of_the_prompt),
      CASE(test_the_minute_is_counted_from_new_credit),
      CASE(test_a_minute_without_credit_is_no_error),
      CASE(test_lockstep_waits_for_a_draft_that_nobody_announced),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
