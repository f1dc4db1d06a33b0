/* libs: sessions wire speculative base */
#include "tests/support/sessions_world.h"

#include <math.h>

static void test_workers_register_and_are_lost(void **state) {
  world *w = *state;
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 0);
  register_workers(w, TARGET, DRAFT);
  register_workers(w, TARGET2, 0);
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 2);
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_DRAFT), 1);
  assert_true(text_is(sessions_worker(w->o, WIRE_ROLE_DRAFT, 0)->method, "ngram"));
  assert_null(sessions_worker(w->o, WIRE_ROLE_DRAFT, 1));
  pass(w, 4000000, TARGET, DRAFT);
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 1); /* the other is lost */
}

static void test_a_worker_with_another_model_is_refused(void **state) {
  world *w = *state;
  msg m = target_hello(TARGET);
  m.u.hello.model_fingerprint.bytes[0] = 11;
  rig_say(&w->r, TARGET, m);
  rig_expect_error(&w->r, TARGET, ERR_MISMATCH);
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 0);
}

/* It has been welcomed, and has found that its file differs. */
static void test_a_target_with_another_model_is_left(void **state) {
  world *w = *state;
  register_workers(w, TARGET, 0);
  sessions_request r = request(false);
  start_request(w, &r);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, error_message(SELF, 0, 0, ERR_MISMATCH));
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 0);
  expect_state(w, SESSIONS_WAITING);
  rig_clear(&w->r);
  register_workers(w, TARGET2, 0);
  opened(w, TARGET2);
}

/* It has the next epoch, the whole prefix and the same hash seed. */
static void test_a_session_of_another_process_goes_on(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  sessions_resume resume = {.session = 1234,
                            .hash_seed = 4321,
                            .epoch = 16,
                            .output = truth() + PROMPT_LENGTH,
                            .output_length = 5,
                            .numerics = "cpu-b"};
  r.resume = &resume;
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  assert_int_equal(w->id, 1234);
  const msg_open *o = opened(w, TARGET);
  assert_int_equal(w->epoch, 17);
  assert_int_equal(w->seed, 4321);
  assert_int_equal(o->prompt_length, PROMPT_LENGTH);
  assert_int_equal(o->token_count, PROMPT_LENGTH + 5);
  ledger_entry entry;
  assert_true(w->ledger.inner.read(w->ledger.inner.self, w->id, &entry));
  assert_int_equal(entry.epoch, 17);
  assert_int_equal(entry.prompt_length, PROMPT_LENGTH);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH + 5));
  assert_false(view(w).numerics_changed);
  send_tokens(w, TARGET, PROMPT_LENGTH + 5, 2);
  assert_int_equal(view(w).length, PROMPT_LENGTH + 7);
  assert_int_equal(w->ledger.appended, 2);
  assert_true(view(w).numerics_changed); /* cpu-a goes on with what cpu-b began */
  assert_int_equal(view(w).uncounted, 7);
  rig_say(&w->r, TARGET, done_message(w, PROMPT_LENGTH + 7, WIRE_FINISH_LENGTH));
  assert_int_equal(view(w).uncounted, 5); /* what an earlier run has decoded */
}

/* The ledger keeps nothing of a session that could not start, so it may be tried again. */
static void test_a_session_whose_epoch_is_not_recorded_may_be_tried_again(void **state) {
  world *w = *state;
  err e = {0};
  sessions_request r = request(false);
  sessions_resume resume = {
      .session = 1234, .epoch = 1, .output = truth() + PROMPT_LENGTH, .output_length = 5, .numerics = ""};
  r.resume = &resume;
  w->ledger.fail_epoch = ERR_IO;
  assert_int_equal(sessions_start(w->o, &r, w->r.now, &w->r.out, &e), 0);
  assert_int_equal(e.code, ERR_IO);
  w->ledger.fail_epoch = 0;
  assert_int_equal(sessions_start(w->o, &r, w->r.now, &w->r.out, &e), 1234);
}

static void test_a_session_with_all_its_tokens_does_not_go_on(void **state) {
  world *w = *state;
  err e = {0};
  sessions_request r = request(false);
  sessions_resume resume = {.session = 1234,
                            .epoch = 1,
                            .output = truth() + PROMPT_LENGTH,
                            .output_length = OUTPUT,
                            .numerics = ""};
  r.resume = &resume;
  assert_int_equal(sessions_start(w->o, &r, w->r.now, &w->r.out, &e), 0);
  assert_int_equal(e.code, ERR_ARG);
}

static void test_two_sessions_differ_in_id_seed_and_ticket(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  const msg_open *a = opened(w, TARGET);
  uint64_t id = w->id, seed = a->hash_seed;
  wire_id ticket = a->ticket;
  start_request(w, &r);
  const msg_open *b = opened(w, TARGET);
  assert_true(w->id != id && b->hash_seed != seed && !wire_id_equal(b->ticket, ticket));
}

static void test_impossible_requests_are_refused(void **state) {
  world *w = *state;
  static int32_t many[WIRE_CONTEXT_MAX + 1];
  static const int32_t negative[] = {1, -2};
  err e = {0};
  static const int32_t outside[] = {1, VOCAB};
  sessions_request bad[10];
  for (int i = 0; i < 10; i++) bad[i] = request(false);
  bad[8].prompt = bad[9].prompt = many; /* no position is so large */
  bad[8].prompt_length = WIRE_CONTEXT_MAX;
  bad[8].options.max_tokens = 1;
  bad[9].prompt_length = 1;
  bad[9].options.max_tokens = WIRE_CONTEXT_MAX;
  bad[5].prompt = outside;
  bad[5].prompt_length = 2;
  bad[6].options.temperature = NAN;
  bad[7].options.context = -1;
  bad[0].prompt_length = 0;
  bad[1].options.max_tokens = 0;
  bad[2].prompt = many;
  bad[2].prompt_length = WIRE_CONTEXT_MAX + 1;
  bad[3].options.budget = WIRE_BUDGET_MAX + 1;
  bad[4].prompt = negative;
  bad[4].prompt_length = 2;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    e = (err){0};
    if (sessions_start(w->o, &bad[i], w->r.now, &w->r.out, &e) != 0) fail_msg("row %d was taken", (int)i);
    assert_true(e.code == ERR_ARG || e.code == ERR_LIMIT);
    assert_true(strlen(e.text) > 0);
  }
}

static void test_a_full_machine_refuses_another_session(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  err e = {0};
  for (int i = 0; i < SESSIONS_MAX; i++) start_request(w, &r);
  assert_int_equal(sessions_start(w->o, &r, w->r.now, &w->r.out, &e), 0);
  assert_int_equal(e.code, ERR_FULL);
  uint64_t last = w->id;
  sessions_cancel(w->o, last, w->r.now, &w->r.out);
  sessions_release(w->o, last, w->r.now, &w->r.out);
  rig_advance(&w->r, 5000000);
  start_request(w, &r);
}

static void test_a_worker_may_free_an_unknown_session(void **state) {
  world *w = *state;
  static const msg_type types[] = {MSG_TOKENS, MSG_DONE, MSG_DESYNC, MSG_OPENED};
  register_workers(w, TARGET, DRAFT);
  for (int i = 0; i < 4; i++) {
    rig_clear(&w->r);
    rig_say(&w->r, TARGET, message(types[i], SELF, 4711, 6));
    const msg *m = rig_only(&w->r, TARGET, MSG_END);
    assert_int_equal(m->session, 4711);
    assert_true(m->epoch >= 6);
  }
  rig_clear(&w->r);
  msg ended = message(MSG_ENDED, SELF, 4711, 6);
  rig_say(&w->r, TARGET, ended); /* or the two would talk for ever */
  rig_say(&w->r, TARGET, error_message(SELF, 4711, 6, ERR_STALE));
  assert_int_equal(rig_count_all(&w->r, TARGET), 0);
}

/* The predecessor does not answer the PING that asks whether it lives, so the rest of its silence is not
 * waited for. */
static void test_a_target_started_again_replaces_its_predecessor(void **state) {
  world *w = *state;
  start_running(w, true);
  send_tokens(w, TARGET, 3, 4);
  rig_clear(&w->r);
  msg hello = target_hello(TARGET3);
  hello.u.hello.endpoint = target_hello(TARGET).u.hello.endpoint;
  rig_say(&w->r, TARGET3, hello);
  rig_only(&w->r, TARGET, MSG_PING);
  assert_int_equal(rig_count(&w->r, TARGET3, MSG_OPEN), 0);
  pass(w, ROSTER_HELLO_US, DRAFT, 0);
  rig_say(&w->r, TARGET3, hello);
  assert_int_equal(rig_last(&w->r, TARGET3, MSG_OPEN)->epoch, 2);
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 1);
  assert_int_equal(view(w).finish, 0);
}

static void test_two_live_targets_with_one_address_keep_their_sessions(void **state) {
  world *w = *state;
  start_running(w, true);
  send_tokens(w, TARGET, 3, 4);
  rig_clear(&w->r);
  msg hello = target_hello(TARGET3);
  hello.u.hello.endpoint = target_hello(TARGET).u.hello.endpoint;
  for (int i = 0; i < 20; i++) {
    rig_say(&w->r, TARGET3, hello);
    pass(w, ROSTER_HELLO_US, TARGET, DRAFT);
  }
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_OPEN), 0);
  assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 1);
  assert_true(rig_count(&w->r, TARGET3, MSG_ERROR) > 5);
  assert_int_equal(rig_last(&w->r, TARGET3, MSG_ERROR)->u.error.code, ERR_STATE);
  expect_state(w, SESSIONS_RUNNING);
  send_tokens(w, TARGET, 7, 2);
  assert_int_equal(view(w).length, 9);
}

/* It names the other role and sends what a target would send of its own session. */
static void test_a_draft_cannot_become_a_target(void **state) {
  world *w = *state;
  static const bool restarted[] = {false, true};
  for (int i = 0; i < 2; i++) {
    start_running(w, true);
    send_tokens(w, TARGET, 3, 4);
    msg hello = target_hello(TARGET); /* the true one's words, on the draft's connection */
    if (!restarted[i]) hello.u.hello.incarnation = ID(DRAFT);
    rig_clear(&w->r);
    rig_say(&w->r, DRAFT, hello);
    rig_expect_error(&w->r, DRAFT, ERR_PROTOCOL);
    assert_int_equal(sessions_worker_count(w->o, WIRE_ROLE_TARGET), 1);
    int32_t wrong[2] = {truth()[7] == 1 ? 2 : 1, 3};
    hash16 hash = hash_next(hash_next(true_hash(w, 7), w->seed, wrong[0]), w->seed, wrong[1]);
    msg done = done_message(w, 9, WIRE_FINISH_STOP);
    done.u.done.hash = hash;
    for (peer_id from = DRAFT; from <= DRAFT + 40; from += 40) { /* as a stranger, too */
      rig_say(&w->r, from, worker_state(w, MSG_OPENED, 7));
      rig_say(&w->r, from, worker_state(w, MSG_DESYNC, 0));
      rig_say(&w->r, from, tokens_message(SELF, w->id, w->epoch, 7, wrong, 2, hash));
      rig_say(&w->r, from, done);
      rig_say(&w->r, from, error_message(SELF, w->id, w->epoch, ERR_GONE));
    }
    assert_int_equal(view(w).length, 7);
    assert_int_equal(view(w).epoch, w->epoch);
    expect_state(w, SESSIONS_RUNNING);
    assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 0); /* nothing new goes there */
    send_tokens(w, TARGET, 7, 2);
    assert_int_equal(view(w).length, 9);
    sessions_release(w->o, w->id, w->r.now, &w->r.out);
    rig_say(&w->r, DRAFT,
            hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, id_of((uint8_t)(90 + i)))); /* another program */
    sessions_worker_died(w->o, id_of((uint8_t)(90 + i)), w->r.now, &w->r.out);
  }
}

static void test_a_flood_of_greetings_does_not_fill_the_log(void **state) {
  world *w = *state;
  char method[WIRE_STRING_MAX];
  memset(method, 'm', sizeof method);
  for (int i = 0; i < 30000; i++) { /* 3 s */
    msg m = draft_hello(DRAFT);
    memcpy(m.u.hello.incarnation.bytes + 4, &i, sizeof i);
    m.u.hello.method = (wire_string){method, sizeof method};
    w->r.now += 100;
    rig_say(&w->r, i % 2 ? DRAFT : (peer_id)(1000 + i), m);
  }
  size_t bytes = 0;
  for (int32_t i = 0; i < w->r.out.count; i++)
    if (w->r.out.list[i].kind == ACTION_LOG) bytes += strlen(w->r.out.list[i].text);
  assert_true(bytes > 0);
  if (bytes > 60000) fail_msg("%zu bytes of log in 3 s", bytes);
}

static void test_capacity_is_the_sum_of_the_targets(void **state) {
  world *w = *state;
  assert_int_equal(sessions_capacity(w->o), 0);
  register_workers(w, TARGET, DRAFT);
  assert_int_equal(sessions_capacity(w->o), 4);
  msg hello = target_hello(TARGET2);
  hello.u.hello.session_max = 0; /* no limit of its own */
  rig_say(&w->r, TARGET2, hello);
  assert_int_equal(sessions_capacity(w->o), SESSIONS_MAX);
  rig_say(&w->r, TARGET2, message(MSG_BYE, SELF, 0, 0));
  assert_int_equal(sessions_capacity(w->o), 4);
  pass(w, 4000000, DRAFT, 0);
  assert_int_equal(sessions_capacity(w->o), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_workers_register_and_are_lost),
      CASE(test_a_worker_with_another_model_is_refused),
      CASE(test_a_target_with_another_model_is_left),
      CASE(test_a_session_of_another_process_goes_on),
      CASE(test_a_session_whose_epoch_is_not_recorded_may_be_tried_again),
      CASE(test_a_session_with_all_its_tokens_does_not_go_on),
      CASE(test_two_sessions_differ_in_id_seed_and_ticket),
      CASE(test_impossible_requests_are_refused),
      CASE(test_a_full_machine_refuses_another_session),
      CASE(test_a_worker_may_free_an_unknown_session),
      CASE(test_a_target_started_again_replaces_its_predecessor),
      CASE(test_two_live_targets_with_one_address_keep_their_sessions),
      CASE(test_a_draft_cannot_become_a_target),
      CASE(test_a_flood_of_greetings_does_not_fill_the_log),
      CASE(test_capacity_is_the_sum_of_the_targets),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
