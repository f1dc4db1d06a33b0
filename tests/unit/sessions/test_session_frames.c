/* libs: sessions wire speculative base */
#include "tests/support/sessions_world.h"

typedef struct censor {
  int32_t calls, seen, keep_until; /* keeps tokens while fewer than so many were seen; */
  int32_t after;                   /* but all of the first runs, until so many were */
  bool stop;
} censor;

static int32_t admit(void *context, const int32_t *tokens, int32_t count, bool *stop) {
  censor *c = context;
  c->calls++;
  assert_memory_equal(tokens, truth() + PROMPT_LENGTH + c->seen, (size_t)count * sizeof(int32_t));
  int32_t keep = c->keep_until - c->seen < count ? c->keep_until - c->seen : count;
  c->seen += count;
  *stop = c->stop && c->seen >= c->keep_until;
  return c->seen < c->after ? count : keep;
}

static void admit_case(world *w, censor *c, int32_t want) {
  sessions_request r = request(true);
  r.admit = admit;
  r.admit_context = c;
  register_workers(w, TARGET, DRAFT);
  start_request(w, &r);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  send_tokens(w, TARGET, 3, 4);
  send_tokens(w, TARGET, 3, 4); /* repeated: admitted once */
  assert_int_equal(view(w).finish, 0);
  assert_int_equal(c->seen, 4);
  rig_clear(&w->r);
  send_tokens(w, TARGET, 7, 4);
  sessions_view v = view(w);
  assert_int_equal(v.finish, WIRE_FINISH_STOP);
  assert_int_equal(v.length, PROMPT_LENGTH + want);
  ledger_entry entry;
  assert_true(w->ledger.inner.read(w->ledger.inner.self, w->id, &entry));
  assert_int_equal(entry.length, PROMPT_LENGTH + want); /* nothing past it is logged */
  assert_true(entry.ended);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_END)->epoch, w->epoch + 1);
  rig_only(&w->r, DRAFT, MSG_END);
}

static void test_tokens_are_logged_shown_and_acknowledged(void **state) {
  world *w = *state;
  start_running(w, false);
  send_tokens(w, TARGET, 3, 4);
  sessions_view v = view(w);
  assert_int_equal(v.length, 7);
  assert_int_equal(v.prompt_length, PROMPT_LENGTH);
  assert_memory_equal(v.tokens, truth(), 7 * sizeof(int32_t));
  ledger_entry entry;
  assert_true(w->ledger.inner.read(w->ledger.inner.self, w->id, &entry));
  assert_int_equal(entry.length, 7);
  const msg *a = rig_only(&w->r, TARGET, MSG_ACK);
  hash16 h = true_hash(w, 7);
  assert_int_equal(a->u.state.length, 7);
  assert_memory_equal(&a->u.state.hash, &h, sizeof h);
}

static void test_repeated_and_overlapping_tokens_are_harmless(void **state) {
  world *w = *state;
  start_running(w, false);
  send_tokens(w, TARGET, 3, 4);
  send_tokens(w, TARGET, 3, 4);
  send_tokens(w, TARGET, 1, 4);
  send_tokens(w, TARGET, 5, 4);
  send_tokens(w, TARGET, 9, 0);
  assert_int_equal(view(w).length, 9);
  assert_int_equal(w->ledger.appended, 6);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ACK), 5); /* one for every TOKENS */
  assert_int_equal(view(w).repairs, 0);
}

static void test_tokens_beyond_the_end_are_asked_for_again(void **state) {
  world *w = *state;
  start_running(w, false);
  w->r.now += 30000;
  send_tokens(w, TARGET, 5, 2);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_RESEND)->u.resend.from, 3);
  assert_int_equal(view(w).length, 3);
  for (int i = 0; i < 100; i++) {
    w->r.now += 100; /* 10 ms in all */
    send_tokens(w, TARGET, 7 + i, 1);
  }
  assert_true(rig_count(&w->r, TARGET, MSG_RESEND) <= 2);
}

static void test_a_client_that_asks_sees_which_tokens_were_accepted(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  r.accepted = true;
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  assert_true(opened(w, TARGET)->accepted_wanted);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  msg m = tokens_message(SELF, w->id, w->epoch, 3, truth() + 3, 2, true_hash(w, 5));
  m.u.tokens.accepted = (const uint8_t[]){1};
  m.u.tokens.accepted_size = 1;
  m.u.tokens.plain_us = 5000;
  rig_say(&w->r, TARGET, m);
  assert_int_equal(view(w).plain_us, 5000);
  m = tokens_message(SELF, w->id, w->epoch, 4, truth() + 4, 3, true_hash(w, 7)); /* overlaps by one */
  m.u.tokens.accepted = (const uint8_t[]){3};
  m.u.tokens.accepted_size = 1;
  m.u.tokens.plain_us = 6000;
  rig_say(&w->r, TARGET, m);
  send_tokens(w, TARGET, 3, 3); /* again: nothing new is said of them */
  assert_int_equal(view(w).plain_us, 6000);
  send_tokens(w, TARGET, 7, 1); /* of a target that does not say */
  assert_int_equal(view(w).plain_us, 0);
  const uint8_t want[5] = {1, 0, 1, 0, 0};
  assert_int_equal(view(w).length, 8);
  assert_memory_equal(view(w).accepted + PROMPT_LENGTH, want, sizeof want);
}

static void test_nobody_is_asked_for_accepted_tokens_unless_the_client_asks(void **state) {
  world *w = *state;
  register_workers(w, TARGET, 0);
  sessions_request r = request(false);
  start_request(w, &r);
  assert_false(opened(w, TARGET)->accepted_wanted);
  assert_null(view(w).accepted);
}

static void test_tokens_that_conflict_are_repaired(void **state) {
  world *w = *state;
  for (int i = 0; i < 2; i++) {
    if (i == 0) {
      start_running(w, true);
      send_tokens(w, TARGET, 3, 4);
    }
    rig_clear(&w->r);
    int32_t tokens[3];
    memcpy(tokens, truth() + 5, sizeof tokens);
    msg m = tokens_message(SELF, w->id, w->epoch, 5, tokens, 3, true_hash(w, 8));
    if (i == 0) tokens[0]++;
    if (i == 1) m.u.tokens.hash.bytes[5] ^= 1;
    uint32_t before = w->epoch;
    rig_say(&w->r, TARGET, m);
    assert_int_equal(view(w).length, 7); /* nothing of it was taken */
    const msg_open *o = opened(w, TARGET);
    assert_int_equal(w->epoch, before + 1);
    assert_int_equal(o->base_length + o->token_count, 7);
    opened(w, DRAFT);
    assert_int_equal(w->epoch, before + 1);
    rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 7));
    rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, 7));
    expect_state(w, SESSIONS_RUNNING);
    assert_int_equal(view(w).repairs, i + 1);
  }
}

static void test_tokens_of_other_epochs_are_dropped(void **state) {
  world *w = *state;
  start_running(w, false);
  rig_say(&w->r, TARGET, worker_state(w, MSG_DESYNC, 3)); /* to epoch 2 */
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 3));
  w->epoch = 1;
  send_tokens(w, TARGET, 3, 2);
  assert_int_equal(view(w).length, 3);
  w->epoch = 3;
  send_tokens(w, TARGET, 3, 2);
  assert_int_equal(view(w).length, 3);
  w->epoch = 2;
  send_tokens(w, TARGET, 3, 2);
  assert_int_equal(view(w).length, 5);
}

static void test_tokens_may_overtake_opened(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  opened(w, TARGET);
  rig_clear(&w->r);
  send_tokens(w, TARGET, 3, 2);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  pass(w, 1000000, TARGET, 0);
  send_tokens(w, TARGET, 3, 3);
  assert_int_equal(view(w).length, 6);
  expect_state(w, SESSIONS_RUNNING);
}

static void test_a_ledger_that_fails_ends_the_session(void **state) {
  world *w = *state;
  start_running(w, false);
  w->ledger.fail = ERR_IO;
  send_tokens(w, TARGET, 3, 2);
  sessions_view v = view(w);
  assert_int_equal(v.length, 3); /* not logged, so not shown */
  assert_int_equal(v.finish, WIRE_FINISH_ERROR);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ACK), 0);
}

static void test_done_ends_the_session(void **state) {
  world *w = *state;
  start_running(w, true);
  send_tokens(w, TARGET, 3, OUTPUT);
  rig_clear(&w->r);
  finish_by_done(w, 3 + OUTPUT);
  sessions_view v = view(w);
  assert_int_equal(v.state, SESSIONS_ENDING);
  assert_int_equal(v.finish, WIRE_FINISH_LENGTH);
  assert_int_equal(v.stats.forwards, 30);
  assert_int_equal(v.stats.accepted, 10);
  assert_true(rig_only(&w->r, TARGET, MSG_END)->epoch >= w->epoch);
  rig_only(&w->r, DRAFT, MSG_END);
  uint32_t epoch = rig_only(&w->r, TARGET, MSG_END)->epoch;
  ledger_entry entry;
  assert_true(w->ledger.inner.read(w->ledger.inner.self, w->id, &entry));
  assert_true(entry.ended);
  msg ended = message(MSG_ENDED, SELF, w->id, epoch);
  ended.u.existed = true;
  rig_say(&w->r, TARGET, ended);
  expect_state(w, SESSIONS_ENDING);
  rig_say(&w->r, DRAFT, ended);
  expect_state(w, SESSIONS_FINISHED);
  rig_clear(&w->r);
  pass(w, 3000000, TARGET, DRAFT);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_END), 0);
  sessions_release(w->o, w->id, w->r.now, &w->r.out);
  assert_false(sessions_get(w->o, w->id, &v));
}

static void test_done_may_overtake_the_last_tokens(void **state) {
  world *w = *state;
  start_running(w, false);
  send_tokens(w, TARGET, 3, 10);
  w->r.now += 30000;
  finish_by_done(w, 3 + OUTPUT);
  assert_int_equal(view(w).finish, 0);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_RESEND)->u.resend.from, 13);
  send_tokens(w, TARGET, 13, OUTPUT - 10);
  finish_by_done(w, 3 + OUTPUT);
  assert_int_equal(view(w).finish, WIRE_FINISH_LENGTH);
  assert_int_equal(view(w).length, 3 + OUTPUT);
}

static void test_done_with_an_error_fails_the_session(void **state) {
  world *w = *state;
  start_running(w, true);
  msg m = done_message(w, 3, WIRE_FINISH_ERROR);
  m.u.done.code = ERR_INTERNAL;
  m.u.done.text = wire_text("the engine failed");
  m.u.done.off_reason = wire_text("no draft");
  rig_say(&w->r, TARGET, m);
  sessions_view v = view(w);
  assert_int_equal(v.finish, WIRE_FINISH_ERROR);
  assert_int_equal(v.code, ERR_INTERNAL);
  assert_string_equal(v.text, "the engine failed");
  assert_string_equal(v.off_reason, "no draft");
}

static void test_done_tells_numbers(void **state) {
  world *w = *state;
  for (uint32_t off = WIRE_OFF_OTHER; off <= WIRE_OFF_UNPAID + 1; off++) { /* the last one is not known yet */
    start_running(w, true);
    send_tokens(w, TARGET, 3, 2);
    msg m = done_message(w, 5, WIRE_FINISH_LENGTH);
    m.u.done.text = wire_text("plain decoding: about 130 tok/s"); /* as an older target says it */
    m.u.done.off_reason = wire_text("some reason");
    m.u.done.off = off;
    m.u.done.plain_us = 5405;
    rig_say(&w->r, TARGET, m);
    sessions_view v = view(w);
    assert_int_equal(v.finish, WIRE_FINISH_LENGTH);
    assert_int_equal(v.unpaid, off == WIRE_OFF_UNPAID);
    assert_int_equal(v.plain_us, 5405);
    assert_string_equal(v.text, "");
  }
}

static void test_done_of_another_prefix_is_repaired(void **state) {
  world *w = *state;
  start_running(w, false);
  send_tokens(w, TARGET, 3, 10);
  msg m = done_message(w, 13, WIRE_FINISH_STOP);
  m.u.done.hash.bytes[0] ^= 1;
  rig_say(&w->r, TARGET, m);
  assert_int_equal(view(w).finish, 0);
  m = done_message(w, 8, WIRE_FINISH_STOP); /* shorter than what it told before */
  rig_say(&w->r, TARGET, m);
  assert_true(view(w).finish != WIRE_FINISH_STOP || view(w).length == 8);
}

/* A DONE of a shorter prefix, even of a right one, or of a wrong one is repaired; the tokens that a longer
 * one has are asked for. */
static void test_done_counts_only_with_all_that_was_logged(void **state) {
  enum { LOGGED = 9 };
  for (int32_t length = 0; length <= LOGGED + 2; length++)
    for (int wrong = 0; wrong < 2; wrong++) {
      tear_down(state);
      set_up(state);
      world *w = *state;
      start_running(w, false);
      send_tokens(w, TARGET, 3, LOGGED - 3);
      rig_clear(&w->r);
      w->r.now += 30000;
      msg m = done_message(w, length, WIRE_FINISH_STOP);
      m.u.done.hash.bytes[0] ^= (uint8_t)wrong;
      rig_say(&w->r, TARGET, m);
      bool ends = length == LOGGED && !wrong;
      assert_int_equal(view(w).finish, ends ? WIRE_FINISH_STOP : 0);
      assert_int_equal(view(w).length, LOGGED);
      assert_int_equal(rig_count(&w->r, TARGET, MSG_RESEND), length > LOGGED);
      assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), length <= LOGGED && !ends);
      assert_int_equal(rig_count(&w->r, TARGET, MSG_END), ends);
      if (length > LOGGED || ends) continue;
      const msg_open *o = opened(w, TARGET); /* in a new epoch, from what both have */
      assert_int_equal(w->epoch, 2);
      assert_int_equal(o->base_length, wrong ? 0 : length);
      assert_int_equal(o->base_length + o->token_count, LOGGED);
      rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, LOGGED));
      send_tokens(w, TARGET, LOGGED, 2);
      finish_by_done(w, LOGGED + 2);
      assert_int_equal(view(w).finish, WIRE_FINISH_LENGTH);
      assert_int_equal(view(w).length, LOGGED + 2);
    }
}

static void test_admit_may_keep_fewer_tokens(void **state) {
  censor c = {.keep_until = 6};
  admit_case(*state, &c, 6);
}

static void test_admit_may_keep_all_and_stop(void **state) {
  censor c = {.keep_until = 8, .stop = true};
  admit_case(*state, &c, 8);
}

static void test_admit_may_keep_none(void **state) {
  censor c = {.keep_until = 4};
  admit_case(*state, &c, 4);
}

/* The stop string began in tokens that are logged and acknowledged already. */
static void test_admit_may_take_logged_tokens_back(void **state) {
  world *w = *state;
  censor c = {.keep_until = 2, .after = 5};
  admit_case(w, &c, 2);
  assert_int_equal(w->ledger.appended, 4);
}

/* A target that holds more than was logged sends it later, in TOKENS. */
static void test_opened_may_name_more_than_is_logged(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH + 4));
  expect_state(w, SESSIONS_RUNNING);
  assert_int_equal(view(w).repairs, 0);
}

static void test_some_errors_of_a_target_end_the_session(void **state) {
  world *w = *state;
  static const int codes[] = {ERR_ARG, ERR_LIMIT, ERR_UNSUPPORTED};
  register_workers(w, TARGET, 0);
  for (int i = 0; i < 3; i++) {
    sessions_request r = request(false);
    start_request(w, &r);
    opened(w, TARGET);
    msg m = error_message(SELF, w->id, w->epoch, codes[i]);
    m.u.error.text = wire_text("temperature must be positive");
    rig_say(&w->r, TARGET, m);
    sessions_view v = view(w);
    assert_int_equal(v.finish, WIRE_FINISH_ERROR);
    assert_int_equal(v.code, codes[i]);
    assert_string_equal(v.text, "temperature must be positive");
  }
}

static void test_other_errors_move_the_session(void **state) {
  world *w = *state;
  static const int codes[] = {ERR_GONE, ERR_STALE, ERR_FULL, ERR_DRAINING};
  register_workers(w, TARGET, 0);
  register_workers(w, TARGET2, 0);
  for (int i = 0; i < 4; i++) {
    sessions_request r = request(false);
    rig_clear(&w->r);
    start_request(w, &r);
    peer_id first = rig_count(&w->r, TARGET, MSG_OPEN) ? TARGET : TARGET2;
    opened(w, first);
    rig_clear(&w->r);
    rig_say(&w->r, first, error_message(SELF, w->id, w->epoch, codes[i]));
    pass(w, 2000000, TARGET, TARGET2);
    assert_int_equal(view(w).finish, 0);
    assert_true(rig_count(&w->r, RIG_ANY, MSG_OPEN) >= 1);
    assert_true(view(w).epoch >= 2); /* every change of target, every new try, is a higher epoch */
    if (codes[i] == ERR_FULL || codes[i] == ERR_DRAINING) {
      peer_id other = first == TARGET ? TARGET2 : TARGET;
      assert_true(rig_count(&w->r, other, MSG_OPEN) >= 1);
    }
    sessions_cancel(w->o, w->id, w->r.now, &w->r.out);
    pass(w, 3000000, TARGET, TARGET2);
    sessions_release(w->o, w->id, w->r.now, &w->r.out);
  }
}

/* Nothing that a draft or another target sends about a session counts. */
static void test_only_its_target_feeds_a_session(void **state) {
  world *w = *state;
  static const peer_id others[] = {DRAFT, TARGET2, DRAFT2};
  start_running(w, true);
  register_workers(w, TARGET2, DRAFT2);
  for (int i = 0; i < 3; i++) {
    send_tokens(w, others[i], 3, 2);
    msg wrong = tokens_message(SELF, w->id, w->epoch, 1, truth() + 7, 2, true_hash(w, 2));
    rig_say(&w->r, others[i], wrong);
    rig_say(&w->r, others[i], done_message(w, 3, WIRE_FINISH_STOP));
    assert_int_equal(view(w).length, 3);
    assert_int_equal(view(w).finish, 0);
    assert_int_equal(view(w).epoch, 1);
    if (others[i] == DRAFT) continue;
    rig_say(&w->r, others[i], worker_state(w, MSG_DESYNC, 1));
    rig_say(&w->r, others[i], error_message(SELF, w->id, w->epoch, ERR_ARG));
    assert_int_equal(view(w).finish, 0);
    assert_int_equal(view(w).epoch, 1);
    expect_state(w, SESSIONS_RUNNING);
  }
}

/* Here the draft sends them before the target has opened. */
static void test_opened_and_done_count_only_from_the_target(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  register_workers(w, TARGET, DRAFT);
  start_request(w, &r);
  opened(w, TARGET);
  rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  expect_state(w, SESSIONS_OPENING);
  pass(w, 2 * SESSIONS_REPEAT_US, TARGET, DRAFT);
  assert_true(rig_count(&w->r, TARGET, MSG_OPEN) >= 2);
}

static void test_opened_with_another_hash_is_a_desync(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  opened(w, TARGET);
  msg m = worker_state(w, MSG_OPENED, PROMPT_LENGTH);
  m.u.state.hash.bytes[2] ^= 1;
  rig_say(&w->r, TARGET, m);
  assert_true(view(w).state != SESSIONS_RUNNING || view(w).epoch > 1);
  assert_int_equal(view(w).finish, 0);
}

/* The target sends more tokens than were asked for. */
static void test_a_session_never_exceeds_max_tokens(void **state) {
  world *w = *state;
  start_running(w, false);
  for (int32_t n = 3; n < 700 && view(w).finish == 0; n += 7) {
    w->epoch = view(w).epoch;
    send_tokens(w, TARGET, n, 7);
    w->r.now += 1000;
  }
  assert_true(view(w).length <= PROMPT_LENGTH + OUTPUT);
}

static void test_a_session_never_exceeds_the_context(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  r.options.max_tokens = 1000000;
  r.options.context = 20;
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 3));
  send_tokens(w, TARGET, 3, 10);
  send_tokens(w, TARGET, 13, 100);
  assert_true(view(w).length <= 20);
}

static void test_tokens_outside_the_vocabulary_end_the_session(void **state) {
  world *w = *state;
  start_running(w, false);
  int32_t all[5];
  memcpy(all, truth(), 4 * sizeof(int32_t));
  all[4] = VOCAB;
  rig_say(&w->r, TARGET, tokens_message(SELF, w->id, 1, 3, all + 3, 2, hash_of(w->seed, all, 5)));
  for (int32_t i = 0; i < view(w).length; i++) assert_true(view(w).tokens[i] < VOCAB);
}

/* The tokens never come. Another target may take over. */
static void test_a_done_far_ahead_is_asked_for_in_measure(void **state) {
  world *w = *state;
  start_running(w, false);
  for (int i = 0; i < 1000; i++) {
    w->r.now += 100; /* 100 ms in all */
    msg m = done_message(w, 100, WIRE_FINISH_STOP);
    m.u.done.length = WIRE_CONTEXT_MAX;
    rig_say(&w->r, TARGET, m);
  }
  assert_true(rig_count(&w->r, TARGET, MSG_RESEND) <= 10);
}

static void test_a_target_that_repeats_errors_is_not_asked_each_time(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  register_workers(w, TARGET, DRAFT);
  start_request(w, &r);
  opened(w, TARGET);
  rig_clear(&w->r);
  for (int i = 0; i < 2000; i++) { /* 200 ms of refusals, each of the epoch that it was just sent */
    w->r.now += 100;
    msg m = error_message(SELF, w->id, view(w).epoch, i % 2 ? ERR_FULL : ERR_GONE);
    rig_say(&w->r, TARGET, m);
    rig_event(&w->r, EVENT_TICK, 0, 0, NULL, NULL);
  }
  if (rig_count(&w->r, RIG_ANY, MSG_OPEN) > 50) {
    fail_msg("%d OPEN in 200 ms", (int)rig_count(&w->r, RIG_ANY, MSG_OPEN));
  }
}

static void test_a_prompt_as_long_as_the_context_is_taken(void **state) {
  world *w = *state;
  static int32_t many[CONTEXT + 1];
  sessions_request r = request(false);
  r.prompt = many;
  r.prompt_length = CONTEXT + 1;
  err e = {0};
  register_workers(w, TARGET, 0);
  uint64_t id = sessions_start(w->o, &r, w->r.now, &w->r.out, &e);
  if (id == 0) {
    assert_true(e.code == ERR_ARG || e.code == ERR_LIMIT);
    return;
  }
  w->id = id;
  if (rig_count(&w->r, TARGET, MSG_OPEN)) { /* the target judges */
    w->epoch = rig_last(&w->r, TARGET, MSG_OPEN)->epoch;
    rig_say(&w->r, TARGET, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
  }
  pass(w, 1000000, TARGET, 0);
  assert_int_equal(view(w).finish, WIRE_FINISH_ERROR);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_tokens_are_logged_shown_and_acknowledged),
      CASE(test_repeated_and_overlapping_tokens_are_harmless),
      CASE(test_tokens_beyond_the_end_are_asked_for_again),
      CASE(test_a_client_that_asks_sees_which_tokens_were_accepted),
      CASE(test_nobody_is_asked_for_accepted_tokens_unless_the_client_asks),
      CASE(test_tokens_that_conflict_are_repaired),
      CASE(test_tokens_of_other_epochs_are_dropped),
      CASE(test_tokens_may_overtake_opened),
      CASE(test_a_ledger_that_fails_ends_the_session),
      CASE(test_done_ends_the_session),
      CASE(test_done_may_overtake_the_last_tokens),
      CASE(test_done_with_an_error_fails_the_session),
      CASE(test_done_tells_numbers),
      CASE(test_done_of_another_prefix_is_repaired),
      CASE(test_done_counts_only_with_all_that_was_logged),
      CASE(test_admit_may_keep_fewer_tokens),
      CASE(test_admit_may_keep_all_and_stop),
      CASE(test_admit_may_keep_none),
      CASE(test_admit_may_take_logged_tokens_back),
      CASE(test_opened_may_name_more_than_is_logged),
      CASE(test_some_errors_of_a_target_end_the_session),
      CASE(test_other_errors_move_the_session),
      CASE(test_only_its_target_feeds_a_session),
      CASE(test_opened_and_done_count_only_from_the_target),
      CASE(test_opened_with_another_hash_is_a_desync),
      CASE(test_a_session_never_exceeds_max_tokens),
      CASE(test_a_session_never_exceeds_the_context),
      CASE(test_tokens_outside_the_vocabulary_end_the_session),
      CASE(test_a_done_far_ahead_is_asked_for_in_measure),
      CASE(test_a_target_that_repeats_errors_is_not_asked_each_time),
      CASE(test_a_prompt_as_long_as_the_context_is_taken),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
