/* libs: draft wire speculative base */
/* The connections to targets: made once, tried again, given up; who is not there is reported. */
#include "tests/support/draft_world.h"

static void test_a_known_target_is_not_called_twice(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  assert_null(rig_connect_asked(&w->r));
  assert_int_equal(rig_only(&w->r, TARGET, MSG_ATTACH)->session, S + 1);
}

/* Who answers there is another program than the one that the orchestrator meant. */
static void test_another_incarnation_at_the_address_is_not_attached_to(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, prompt_message());
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, TARGET);
  msg m = welcome_message(TARGET);
  m.u.hello.incarnation = id_of(99);
  rig_say(&w->r, TARGET, m);
  pass(w, 1000000, true, true);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0);
  rig_say(&w->r, TARGET, welcome_message(TARGET)); /* there it is */
  assert_true(rig_count(&w->r, TARGET, MSG_ATTACH) >= 1);
}

static peer_id disconnected(const world *w) {
  for (int32_t i = 0; i < w->r.out.count; i++)
    if (w->r.out.list[i].kind == ACTION_DISCONNECT) return w->r.out.list[i].peer;
  return 0;
}

/* A wish to connect that found no memory is asked for again; two answers to one are one connection. */
static void test_a_connection_that_was_not_made_is_asked_for_again(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, prompt_message());
  uint64_t tag = rig_connect_asked(&w->r)->tag;
  for (int i = 0; i < 3; i++) { /* nobody answers */
    rig_clear(&w->r);
    pass(w, 400000, true, false);
    assert_int_equal(rig_connect_asked(&w->r)->tag, tag);
    assert_string_equal(rig_connect_asked(&w->r)->text, ENDPOINT);
  }
  rig_connected(&w->r, tag, TARGET);
  rig_only(&w->r, TARGET, MSG_HELLO);
  rig_connected(&w->r, tag, 9);
  assert_int_equal(disconnected(w), 9);
  assert_int_equal(rig_count(&w->r, 9, MSG_HELLO), 0);
  rig_clear(&w->r);
  pass(w, 2000000, true, true);
  assert_null(rig_connect_asked(&w->r));
  rig_say(&w->r, TARGET, welcome_message(TARGET));
  rig_last(&w->r, TARGET, MSG_ATTACH);
}

static void test_an_address_that_cannot_be_called_is_an_error_of_its_session(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, prompt_message());
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, 0);
  rig_only(&w->r, ORCH, MSG_ERROR); /* or the orchestrator would count on it */
  rig_clear(&w->r);
  pass(w, 1000000, true, false);
  assert_true(w->r.out.count < 10);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  assert_true(rig_only(&w->r, ORCH, MSG_ENDED)->u.existed);
}

/* Addresses that nobody can call, as a mad target may advertise, do not use up the places for targets. */
static void test_bad_addresses_use_up_no_links(void **state) {
  world *w = *state;
  for (int i = 0; i < 3 * TARGET_LINKS_MAX; i++) {
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "nonsense:%d", i);
    msg m = open_message(1000 + (uint64_t)i, 1, PROMPT, PROMPT_LENGTH);
    m.u.open.target_endpoint = wire_text(endpoint);
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, m);
    rig_connected(&w->r, rig_connect_asked(&w->r)->tag, 0);
    rig_say(&w->r, ORCH, message(MSG_END, SELF, 1000 + (uint64_t)i, 1));
  }
  attach(w, false);
  assert_true(w->next_id > 1);
}

/* Targets come and go, each at a new address: the places of those that went are free again. */
static void test_links_of_targets_that_went_are_free_again(void **state) {
  world *w = *state;
  for (int i = 0; i < 2 * TARGET_LINKS_MAX; i++) {
    char endpoint[64];
    uint64_t id = 1000 + (uint64_t)i;
    peer_id peer = 100 + (peer_id)i;
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", 6000 + i);
    msg m = open_message(id, 1, PROMPT, PROMPT_LENGTH), welcome = welcome_message(TARGET);
    m.u.open.target_endpoint = wire_text(endpoint);
    m.u.open.target_incarnation = welcome.u.hello.incarnation = id_of((uint8_t)(i + 1));
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, m);
    rig_only(&w->r, ORCH, MSG_OPENED);
    rig_connected(&w->r, rig_connect_asked(&w->r)->tag, peer);
    if (i % 2) rig_say(&w->r, peer, welcome); /* the others are never reached */
    pass(w, 4000000, true, false);            /* lost while the session is there */
    rig_say(&w->r, ORCH, message(MSG_END, SELF, id, 1));
    pass(w, 1000000, true, false);
  }
}

static void test_open_is_refused_when_all_links_are_used(void **state) {
  world *w = *state;
  int32_t refused = 0;
  for (int i = 0; i < TARGET_LINKS_MAX + 2; i++) {
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", 5000 + i);
    msg m = open_message((uint64_t)i + 1, 1, PROMPT, PROMPT_LENGTH);
    m.u.open.target_endpoint = wire_text(endpoint);
    m.u.open.target_incarnation = id_of((uint8_t)(i + 1));
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, m);
    refused += rig_count(&w->r, ORCH, MSG_ERROR);
    const action *a = rig_connect_asked(&w->r);
    if (a) rig_connected(&w->r, a->tag, (peer_id)(100 + i));
    if (i >= TARGET_LINKS_MAX) rig_expect_error(&w->r, ORCH, ERR_FULL);
  }
  assert_int_equal(refused, 2);
}

static void open_unreached(world *w, uint64_t id) {
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, open_message(id, 1, PROMPT, PROMPT_LENGTH));
  rig_only(&w->r, ORCH, MSG_OPENED);
  const action *a = rig_connect_asked(&w->r);
  if (a) rig_connected(&w->r, a->tag, TARGET);
}

static void test_a_target_out_of_reach_is_reported(void **state) {
  world *w = *state;
  open_unreached(w, S);
  pass(w, 2900000, true, false);
  assert_int_equal(rig_logged(&w->r, ENDPOINT), 0);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_ERROR), 0);
  pass(w, 200000, true, false);
  assert_int_equal(rig_logged(&w->r, "the target at " ENDPOINT " does not answer"), 1);
  rig_expect_error(&w->r, ORCH, ERR_TIMEOUT);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_ERROR)->session, S);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));

  open_unreached(w, S + 1); /* one that comes later hears of it at once */
  rig_expect_error(&w->r, ORCH, ERR_TIMEOUT);
  assert_int_equal(rig_logged(&w->r, ENDPOINT), 0);
  rig_clear(&w->r);
  pass(w, 62000000, true, false);
  assert_int_equal(rig_logged(&w->r, "does not answer") + rig_logged(&w->r, "is not there"), 1); /* rarely */
}

static void test_a_target_that_is_reached_late_serves_the_next_session(void **state) {
  world *w = *state;
  open_unreached(w, S);
  pass(w, 4000000, true, false);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, welcome_message(TARGET));
  assert_int_equal(rig_logged(&w->r, "the target at " ENDPOINT " answers now"), 1);
  open_unreached(w, S + 1);
  rig_last(&w->r, TARGET, MSG_ATTACH);
  msg m = open_message(S + 2, 1, PROMPT, PROMPT_LENGTH);
  m.u.open.target_incarnation = id_of(99); /* it has restarted, and this draft does not know yet */
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, m);
  pass(w, 1000000, true, true);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_ERROR), 0);
}

static void test_a_target_that_returns_is_attached_to_again(void **state) {
  world *w = *state;
  attach(w, false);
  pass(w, 4000000, true, false);
  rig_clear(&w->r);
  pass(w, 1000000, true, false);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_ERROR), 0);
  rig_clear(&w->r);
  pass(w, 1000000, true, true); /* it is back, and has dropped us meanwhile */
  rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_GONE));
  pass(w, 1000000, true, true);
  assert_true(rig_count(&w->r, TARGET, MSG_ATTACH) >= 1);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 8));
  settle(w);
  assert_int_equal(w->generation, 8);
}

/* Another program answers at the target's address: frames of the old session are not for it. */
static void test_a_restarted_target_gets_no_frames_of_old_sessions(void **state) {
  world *w = *state;
  attach(w, false);
  msg m = welcome_message(TARGET);
  m.u.hello.incarnation = id_of(99);
  rig_say(&w->r, TARGET, m);
  rig_clear(&w->r);
  pass(w, 1000000, true, true);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0);
  msg again = delta(2, 0, 3);
  again.u.open.target_incarnation = id_of(99);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, again);
  rig_only(&w->r, TARGET, MSG_ATTACH);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_known_target_is_not_called_twice),
      CASE(test_another_incarnation_at_the_address_is_not_attached_to),
      CASE(test_a_connection_that_was_not_made_is_asked_for_again),
      CASE(test_an_address_that_cannot_be_called_is_an_error_of_its_session),
      CASE(test_bad_addresses_use_up_no_links),
      CASE(test_links_of_targets_that_went_are_free_again),
      CASE(test_open_is_refused_when_all_links_are_used),
      CASE(test_a_target_out_of_reach_is_reported),
      CASE(test_a_target_that_is_reached_late_serves_the_next_session),
      CASE(test_a_target_that_returns_is_attached_to_again),
      CASE(test_a_restarted_target_gets_no_frames_of_old_sessions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
