/* libs: draft wire speculative base */
/* The programs that a draft is connected to greet, refuse it, fall silent and return. */
#include "tests/support/draft_world.h"

static void test_hello_says_what_this_draft_is(void **state) {
  world *w = *state;
  draft_connect(w->d, "tcp://127.0.0.1:3001", &w->r.out);
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, 9);
  const msg_hello *h = &rig_only(&w->r, 9, MSG_HELLO)->u.hello;
  assert_int_equal(h->role, WIRE_ROLE_DRAFT);
  assert_true(wire_id_equal(h->incarnation, SELF));
  assert_true(text_is(h->method, "fake"));
  assert_true(hash_is_zero(h->vocabulary_hash));
  assert_int_equal(h->session_max, DRAFT_SESSIONS_MAX);
  assert_int_equal(h->context_max, CONTEXT);
}

static void test_sessions_of_a_silent_orchestrator_are_given_up_late(void **state) {
  world *w = *state;
  attach(w, false);
  pass(w, 50000000, false, true);
  assert_int_equal(w->f.closed, 0); /* it may come back, and the answer goes on meanwhile */
  pass(w, 15000000, false, true);
  assert_int_equal(w->f.closed, 1);
}

static void test_sessions_of_a_restarted_orchestrator_are_closed(void **state) {
  world *w = *state;
  attach(w, false);
  msg welcome = hello_message(MSG_WELCOME, WIRE_ROLE_ORCHESTRATOR, id_of(98));
  welcome.to = SELF;
  rig_say(&w->r, ORCH, welcome);
  assert_int_equal(w->f.closed, 1); /* all that was held for the old one */
}

static void test_a_refusal_by_one_target_concerns_its_sessions_alone(void **state) {
  world *w = *state;
  attach(w, false);
  msg m = open_message(S + 1, 1, PROMPT, PROMPT_LENGTH);
  m.u.open.target_endpoint = wire_text("tcp://127.0.0.1:4001");
  m.u.open.target_incarnation = ID(TARGET2);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, TARGET2);
  rig_say(&w->r, TARGET2, error_message((wire_id){{0}}, 0, 0, ERR_MISMATCH));
  for (int32_t i = 0; i < w->r.out.count; i++) assert_true(w->r.out.list[i].kind != ACTION_EXIT);
  rig_expect_error(&w->r, ORCH, ERR_MISMATCH);
  assert_int_equal(rig_last(&w->r, ORCH, MSG_ERROR)->session, S + 1);
  rig_clear(&w->r);
  tell_tokens(w, 3, 1); /* the others notice nothing */
  settle(w);
  assert_int_equal(w->base, 4);
}

static void test_a_refusal_by_the_orchestrator_ends_the_program(void **state) {
  world *w = *state;
  draft_connect(w->d, "tcp://127.0.0.1:3001", &w->r.out);
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, 9);
  rig_say(&w->r, 9, error_message((wire_id){{0}}, 0, 0, ERR_VERSION));
  int32_t exits = 0;
  for (int32_t i = 0; i < w->r.out.count; i++)
    exits += w->r.out.list[i].kind == ACTION_EXIT && w->r.out.list[i].code;
  assert_int_equal(exits, 1);
}

/* The orchestrator hears of a target that refuses this draft. */
static void test_refusals_are_reported_to_the_orchestrator(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_LIMIT));
  rig_expect_error(&w->r, ORCH, ERR_LIMIT);
  assert_true(text_has(rig_only(&w->r, ORCH, MSG_ERROR)->u.error.text, "made by a test"));
  msg m = open_message(S + 1, 1, PROMPT, PROMPT_LENGTH);
  m.u.open.target_endpoint = wire_text("tcp://127.0.0.1:4001");
  m.u.open.target_incarnation = ID(TARGET2);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, TARGET2);
  for (int i = 0; i < 2; i++) rig_say(&w->r, TARGET2, error_message((wire_id){{0}}, 0, 0, ERR_MISMATCH));
  assert_int_equal(rig_logged(&w->r, "refused by the target"), 1);
  assert_int_equal(rig_peek(&w->r, ORCH, MSG_ERROR, 0)->session, S + 1);
  assert_int_equal(rig_peek(&w->r, ORCH, MSG_ERROR, 0)->u.error.code, ERR_MISMATCH);
}

static void test_an_orchestrator_that_goes_and_comes_is_reported(void **state) {
  world *w = *state;
  pass(w, 2800000, true, true);
  assert_int_equal(rig_logged(&w->r, "orchestrator"), 0);
  pass(w, 4000000, false, true);
  assert_int_equal(rig_logged(&w->r, "the orchestrator at tcp://127.0.0.1:3000 is not there any more"), 1);
  rig_clear(&w->r);
  pass(w, 30000000, false, true);
  assert_int_equal(rig_logged(&w->r, "orchestrator"), 0);
  pass(w, 1000000, true, true);
  assert_int_equal(rig_logged(&w->r, "the orchestrator at tcp://127.0.0.1:3000 is there now"), 1);
  pass(w, 10000000, true, true);
  assert_int_equal(rig_logged(&w->r, "orchestrator"), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_hello_says_what_this_draft_is),
      CASE(test_sessions_of_a_silent_orchestrator_are_given_up_late),
      CASE(test_sessions_of_a_restarted_orchestrator_are_closed),
      CASE(test_a_refusal_by_one_target_concerns_its_sessions_alone),
      CASE(test_a_refusal_by_the_orchestrator_ends_the_program),
      CASE(test_refusals_are_reported_to_the_orchestrator),
      CASE(test_an_orchestrator_that_goes_and_comes_is_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
