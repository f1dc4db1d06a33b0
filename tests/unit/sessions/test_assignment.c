/* libs: sessions wire speculative base */
#include "tests/support/sessions_world.h"
#include "tests/support/random.h"

/* Whoever it is that is wanted, the last OPEN that TARGET got is told that it is full, or taken. */
static void answer_open(world *w, uint64_t id, bool full) {
  w->id = id;
  if (!rig_count(&w->r, TARGET, MSG_OPEN)) return;
  opened(w, TARGET);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET,
          full ? error_message(SELF, id, w->epoch, ERR_FULL) : worker_state(w, MSG_OPENED, PROMPT_LENGTH));
}

static void test_a_session_opens_at_a_target(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, DRAFT);
  static const int32_t stops[] = {7, 8};
  r.options.stops = stops;
  r.options.stop_count = 2;
  r.options.seed = 77;
  start_request(w, &r);
  const msg_open *o = opened(w, TARGET);
  assert_int_equal(w->epoch, 1);
  assert_int_equal(o->base_length, 0);
  assert_int_equal(o->token_count, PROMPT_LENGTH);
  assert_int_equal(o->prompt_length, PROMPT_LENGTH);
  assert_false(wire_id_equal(o->ticket, (wire_id){{0}}));
  assert_int_equal(o->options.max_tokens, OUTPUT);
  assert_int_equal(o->options.context, CONTEXT); /* the target's own */
  assert_int_equal(o->options.seed, 77);
  assert_int_equal(o->options.stop_count, 2);
  assert_memory_equal(o->options.stops, stops, sizeof stops);
  assert_false(o->draft_expected);
  assert_int_equal(o->target_endpoint.size, 0);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 0); /* none was wanted */
  expect_state(w, SESSIONS_OPENING);
}

static void test_a_session_opens_at_a_target_and_a_draft(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  register_workers(w, TARGET, DRAFT);
  start_request(w, &r);
  const msg_open *t = opened(w, TARGET);
  assert_true(t->draft_expected);
  wire_id ticket = t->ticket;
  const msg_open *d = opened(w, DRAFT);
  assert_true(wire_id_equal(d->ticket, ticket));
  assert_true(text_is(d->target_endpoint, "tcp://127.0.0.1:4000"));
  assert_true(wire_id_equal(d->target_incarnation, ID(TARGET)));
  assert_int_equal(d->options.context, CONTEXT);
  assert_string_equal(view(w).draft_method, "ngram");
}

/* What a request says of partial KV is a wish: whoever would not understand it is not told. */
static void test_partial_kv_is_told_to_targets_that_know_it(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  r.options.partial = (msg_partial){WIRE_PARTIAL_LOSSY, 16, 2, 64, 8, 128, 4096, 32};
  register_workers(w, TARGET, DRAFT);
  start_request(w, &r);
  assert_memory_equal(&opened(w, TARGET)->options.partial, &r.options.partial, sizeof r.options.partial);
  assert_int_equal(opened(w, DRAFT)->options.partial.mode, WIRE_PARTIAL_OWN);
}

static void test_partial_kv_is_not_told_to_targets_of_version_4(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  r.options.partial = (msg_partial){.mode = WIRE_PARTIAL_OFF};
  msg old = target_hello(TARGET);
  old.u.hello.version_max = WIRE_VERSION_PARTIAL - 1;
  rig_say(&w->r, TARGET, old);
  start_request(w, &r);
  assert_int_equal(opened(w, TARGET)->options.partial.mode, WIRE_PARTIAL_OWN);
}

/* One that was killed counts as lost only after three seconds; the one that replaced it is chosen before. */
static void test_a_draft_that_answers_no_ping_comes_last(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  register_workers(w, TARGET, DRAFT);
  pass(w, 900000, TARGET, 0);
  register_workers(w, 0, DRAFT2);
  start_request(w, &r);
  opened(w, DRAFT2);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 0);
}

static void test_a_session_waits_for_a_target(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  start_request(w, &r);
  expect_state(w, SESSIONS_WAITING);
  rig_advance(&w->r, 20000000);
  expect_state(w, SESSIONS_WAITING);
  register_workers(w, TARGET, 0);
  opened(w, TARGET);
  expect_state(w, SESSIONS_OPENING);
}

/* An owner whose workers are started by hand may wait longer, or for ever. */
static void test_the_wait_for_a_target_is_as_long_as_the_owner_says(void **state) {
  world *w = *state;
  static const uint64_t waits[] = {MACHINE_NEVER, 3 * SESSIONS_TARGET_WAIT_US};
  for (int i = 0; i < 2; i++) {
    rig_fini(&w->r);
    sessions_free(w->o);
    err e = {0};
    sessions_options o = {.incarnation = SELF,
                          .random = random_source,
                          .random_context = &w->random,
                          .target_wait_us = waits[i]};
    o.ledger = w->ledger.inner;
    assert_int_equal(sessions_alloc(&w->o, &o, &e), ERR_OK);
    rig_init(&w->r, sessions_as_machine(w->o));
    sessions_request r = request(false);
    register_workers(w, 0, DRAFT);
    start_request(w, &r);
    pass(w, 2 * SESSIONS_TARGET_WAIT_US, DRAFT, 0);
    assert_int_equal(view(w).finish, 0);
    pass(w, 2 * SESSIONS_TARGET_WAIT_US, DRAFT, 0);
    assert_int_equal(view(w).code, i ? ERR_TIMEOUT : 0);
  }
}

static void test_a_session_without_a_target_for_half_a_minute_fails(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  register_workers(w, 0, DRAFT); /* a draft alone answers nothing */
  start_request(w, &r);
  pass(w, SESSIONS_TARGET_WAIT_US - 1000000, DRAFT, 0);
  assert_int_equal(view(w).finish, 0);
  pass(w, 1500000, DRAFT, 0);
  sessions_view v = view(w);
  assert_int_equal(v.finish, WIRE_FINISH_ERROR);
  assert_int_equal(v.code, ERR_TIMEOUT);
  assert_true(strlen(v.text) > 0);
  pass(w, 5000000, DRAFT, 0);
  expect_state(w, SESSIONS_FINISHED);
}

static void test_a_session_is_in_the_ledger_before_it_opens(void **state) {
  world *w = *state;
  start_running(w, false); /* spy_epoch and spy_append watch */
  ledger_entry entry;
  assert_true(w->ledger.inner.read(w->ledger.inner.self, w->id, &entry));
  assert_int_equal(entry.epoch, 1);
  assert_int_equal(entry.prompt_length, PROMPT_LENGTH);
  assert_int_equal(entry.hash_seed, w->seed);
  assert_memory_equal(entry.tokens, PROMPT, sizeof PROMPT);
  assert_int_equal(w->ledger.epochs, 1);
}

/* OPEN waits for the ledger. Tokens are acknowledged, and may be shown, once they are there. */
static void test_open_waits_for_the_ledger(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  register_workers(w, TARGET, DRAFT);
  w->ledger.held = PROMPT_LENGTH;
  start_request(w, &r);
  pass(w, SESSIONS_LEDGER_WAIT_US - 1000000, TARGET, DRAFT);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_OPEN), 0);
  assert_int_equal(view(w).logged, 0);
  w->ledger.held = 0;
  rig_advance(&w->r, 0);
  rig_say(&w->r, TARGET, ping_message(MSG_PING, SELF, 1, 1, 0));
  opened(w, DRAFT);
  opened(w, TARGET);
  pass(w, 2000000, TARGET, DRAFT);
  expect_state(w, SESSIONS_OPENING); /* that time was not the target's, or it would have been too long */
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  w->ledger.held = 2;
  send_tokens(w, TARGET, 3, 4);
  assert_int_equal(rig_last(&w->r, TARGET, MSG_ACK)->u.state.length, 5);
  assert_int_equal(view(w).length, 7);
  assert_int_equal(view(w).logged, 5);
  w->ledger.held = 0;
  assert_int_equal(view(w).logged, 7);
}

/* It is the only one, and it is not asked too often. */
static void test_a_full_target_is_asked_again_until_it_has_room(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  rig_clear(&w->r);
  start_request(w, &r);
  uint32_t refused = 0;
  for (int i = 0; i < 200; i++) { /* 10 s */
    if (rig_count(&w->r, TARGET, MSG_OPEN)) {
      opened(w, TARGET);
      rig_clear(&w->r);
      rig_say(&w->r, TARGET, error_message(SELF, w->id, w->epoch, ERR_FULL));
      refused++;
    }
    pass(w, 50000, TARGET, 0);
  }
  assert_true(refused >= 3 && refused <= 110);
  assert_int_equal(view(w).finish, 0);
  pass(w, 1000000, TARGET, 0);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 3));
  expect_state(w, SESSIONS_RUNNING);
}

static void test_a_target_full_for_half_a_minute_fails_the_session(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  for (int i = 0; i < 640 && view(w).finish == 0; i++) { /* 32 s */
    rig_say(&w->r, TARGET, error_message(SELF, w->id, view(w).epoch, ERR_FULL));
    rig_clear(&w->r);
    pass(w, 50000, TARGET, 0);
  }
  assert_int_equal(view(w).finish, WIRE_FINISH_ERROR);
  assert_int_equal(view(w).code, ERR_TIMEOUT);
}

/* A session that needs much room is not overtaken by later ones, and its half minute does not begin while
 * room will come. */
static void test_a_session_that_needs_room_is_not_overtaken(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  start_running(w, false);
  uint64_t running = w->id;
  start_request(w, &r);
  uint64_t first = w->id;
  answer_open(w, first, true);
  start_request(w, &r);
  uint64_t second = w->id;
  for (int i = 0; i < 60; i++) {
    answer_open(w, first, true); /* none of the second */
    pass(w, 1000000, TARGET, 0);
  }
  assert_int_equal(view(w).finish, 0);
  w->id = second;
  expect_state(w, SESSIONS_WAITING);
  answer_open(w, first, true);
  sessions_cancel(w->o, running, w->r.now, &w->r.out);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, message(MSG_ENDED, SELF, running, 2));
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 1); /* at once */
  answer_open(w, first, false);
  expect_state(w, SESSIONS_RUNNING);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 1);
  answer_open(w, second, false);
  expect_state(w, SESSIONS_RUNNING);
}

/* Where there is no other, its refusal ends the session. */
static void test_a_target_with_too_short_a_context_comes_last(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  r.options.context = CONTEXT + 1;
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  opened(w, TARGET);
  msg longer = target_hello(TARGET2);
  longer.u.hello.context_max = CONTEXT + 1;
  rig_say(&w->r, TARGET2, longer);
  for (int i = 0; i < 3; i++) { /* more load, and more */
    rig_clear(&w->r);
    start_request(w, &r);
    opened(w, TARGET2);
    assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
  }
}

/* The session does not end while another target may be larger. */
static void test_a_target_that_is_too_small_is_not_asked_twice(void **state) {
  world *w = *state;
  static const int codes[] = {ERR_LIMIT, ERR_NOMEM};
  for (int i = 0; i < 2; i++) {
    sessions_request r = request(true);
    register_workers(w, TARGET, DRAFT);
    register_workers(w, TARGET2, 0);
    register_workers(w, TARGET3, 0);
    rig_clear(&w->r);
    start_request(w, &r);
    peer_id asked[3] = {0};
    for (uint32_t k = 0; k < 3; k++) {
      assert_int_equal(view(w).finish, 0);
      for (peer_id p = TARGET; p <= TARGET3; p++)
        if (rig_count(&w->r, p, MSG_OPEN) && rig_last(&w->r, p, MSG_OPEN)->epoch == k + 1) asked[k] = p;
      assert_true(asked[k] != 0);
      for (uint32_t j = 0; j < k; j++) assert_true(asked[j] != asked[k]);
      opened(w, asked[k]);
      assert_int_equal(w->epoch, k + 1);
      assert_int_equal(rig_last(&w->r, DRAFT, MSG_OPEN)->epoch, k + 1);
      msg m = error_message(SELF, w->id, w->epoch, codes[i]);
      m.u.error.text = wire_text("too long for me");
      rig_say(&w->r, asked[k], m);
    }
    assert_int_equal(view(w).finish, WIRE_FINISH_ERROR);
    assert_int_equal(view(w).code, codes[i]);
    assert_string_equal(view(w).text, "too long for me");
    sessions_release(w->o, w->id, w->r.now, &w->r.out);
  }
}

static void test_a_leaving_target_gets_no_new_session(void **state) {
  world *w = *state;
  start_running(w, false);
  rig_say(&w->r, TARGET, message(MSG_BYE, SELF, 0, 0));
  send_tokens(w, TARGET, 3, 2); /* it finishes what it has */
  assert_int_equal(view(w).length, 5);
  uint64_t first = w->id;
  sessions_request r = request(false);
  rig_clear(&w->r);
  start_request(w, &r);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
  expect_state(w, SESSIONS_WAITING);
  register_workers(w, TARGET2, 0);
  opened(w, TARGET2);
  w->id = first;
  expect_state(w, SESSIONS_RUNNING);
}

static void test_the_target_with_the_least_load_is_chosen(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  register_workers(w, TARGET3, 0);
  set_load(w, TARGET, 3);
  set_load(w, TARGET3, 0);
  rig_clear(&w->r);
  start_request(w, &r);
  opened(w, TARGET3);
  rig_clear(&w->r);
  set_load(w, TARGET, 0);
  set_load(w, TARGET3, 4);
  start_request(w, &r);
  opened(w, TARGET);
}

/* No load has been reported yet. */
static void test_simultaneous_sessions_are_spread_over_targets(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  register_workers(w, TARGET3, 0);
  rig_clear(&w->r);
  for (int i = 0; i < 8; i++) start_request(w, &r);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 4);
  assert_int_equal(rig_count(&w->r, TARGET3, MSG_OPEN), 4);
}

/* Without that, another target would be the first of equals. */
static void test_a_conversation_goes_on_where_its_beginning_is_cached(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  r.prompt = truth();
  r.prompt_length = 100;
  register_workers(w, TARGET, 0);
  register_workers(w, TARGET3, 0);
  set_load(w, TARGET, 1);
  start_request(w, &r);
  opened(w, TARGET3);
  rig_say(&w->r, TARGET3, worker_state(w, MSG_OPENED, r.prompt_length));
  send_tokens(w, TARGET3, r.prompt_length, OUTPUT);
  rig_say(&w->r, TARGET3, done_message(w, r.prompt_length + OUTPUT, WIRE_FINISH_LENGTH));
  sessions_release(w->o, w->id, w->r.now, &w->r.out);
  set_load(w, TARGET, 0);
  rig_clear(&w->r);
  r.prompt_length += OUTPUT;
  start_request(w, &r);
  opened(w, TARGET3);
  rig_clear(&w->r);
  r.prompt = truth() + 1; /* another one */
  set_load(w, TARGET, 1);
  set_load(w, TARGET3, 1);
  start_request(w, &r);
  rig_last(&w->r, TARGET, MSG_OPEN);
}

/* A target that has given no token has perhaps read nothing: the next one goes where there is room. */
static void test_a_target_that_gave_no_token_has_no_cached_prefix(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  r.prompt = truth();
  r.prompt_length = 100;
  register_workers(w, TARGET, 0);
  register_workers(w, TARGET3, 0);
  set_load(w, TARGET, 1);
  start_request(w, &r);
  opened(w, TARGET3);
  rig_say(&w->r, TARGET3, worker_state(w, MSG_OPENED, r.prompt_length));
  sessions_release(w->o, w->id, w->r.now, &w->r.out);
  set_load(w, TARGET, 0);
  rig_clear(&w->r);
  start_request(w, &r);
  rig_last(&w->r, TARGET, MSG_OPEN);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_session_opens_at_a_target),
      CASE(test_a_session_opens_at_a_target_and_a_draft),
      CASE(test_partial_kv_is_told_to_targets_that_know_it),
      CASE(test_partial_kv_is_not_told_to_targets_of_version_4),
      CASE(test_a_draft_that_answers_no_ping_comes_last),
      CASE(test_a_session_waits_for_a_target),
      CASE(test_the_wait_for_a_target_is_as_long_as_the_owner_says),
      CASE(test_a_session_without_a_target_for_half_a_minute_fails),
      CASE(test_a_session_is_in_the_ledger_before_it_opens),
      CASE(test_open_waits_for_the_ledger),
      CASE(test_a_full_target_is_asked_again_until_it_has_room),
      CASE(test_a_target_full_for_half_a_minute_fails_the_session),
      CASE(test_a_session_that_needs_room_is_not_overtaken),
      CASE(test_a_target_with_too_short_a_context_comes_last),
      CASE(test_a_target_that_is_too_small_is_not_asked_twice),
      CASE(test_a_leaving_target_gets_no_new_session),
      CASE(test_the_target_with_the_least_load_is_chosen),
      CASE(test_simultaneous_sessions_are_spread_over_targets),
      CASE(test_a_conversation_goes_on_where_its_beginning_is_cached),
      CASE(test_a_target_that_gave_no_token_has_no_cached_prefix),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
