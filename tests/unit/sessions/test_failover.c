/* libs: sessions wire speculative base */
#include "tests/support/sessions_world.h"

static int32_t warnings(world *w, const char *part) {
  int32_t n = 0;
  for (int32_t i = 0; i < w->r.out.count; i++) {
    const action *a = &w->r.out.list[i];
    n += a->kind == ACTION_LOG && strstr(a->text, part) != NULL;
  }
  return n;
}

/* Says OPENED to what was sent last: the worker holds all of it. The tokens of the session are `many`. */
static const msg_open *open_rest(world *w, peer_id peer, uint32_t epoch, const int32_t *many) {
  while (rig_count(&w->r, peer, MSG_PART)) {
    const msg *m = rig_last(&w->r, peer, MSG_PART);
    int32_t length = m->u.open.base_length + m->u.open.token_count;
    assert_true(m->u.open.token_count <= WIRE_TOKENS_MAX && length < m->u.open.total);
    assert_memory_equal(m->u.open.tokens, many + m->u.open.base_length,
                        (size_t)m->u.open.token_count * sizeof *many);
    msg opened = state_message(MSG_OPENED, SELF, w->id, epoch, length, m->u.open.hash);
    rig_clear(&w->r);
    rig_say(&w->r, peer, opened);
  }
  return &rig_only(&w->r, peer, MSG_OPEN)->u.open;
}

/* The longest session that is taken can move to another target at its very end, its draft with it. */
static void test_the_longest_session_moves_at_its_end(void **state) {
  world *w = *state;
  static int32_t many[WIRE_CONTEXT_MAX];
  sessions_request r = request(true);
  for (int32_t i = 0; i < WIRE_CONTEXT_MAX; i++) many[i] = i % (VOCAB - 1);
  r.prompt = many;
  r.prompt_length = WIRE_CONTEXT_MAX - 10;
  r.options.max_tokens = 1000;
  r.options.context = WIRE_CONTEXT_MAX;
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  uint64_t seed = rig_last(&w->r, TARGET, MSG_PART)->u.open.hash_seed;
  const msg_open *last = open_rest(w, TARGET, 1, many);
  assert_int_equal(last->base_length + last->token_count, r.prompt_length);
  assert_int_equal(last->total, 0);
  rig_say(&w->r, TARGET,
          state_message(MSG_OPENED, SELF, w->id, 1, r.prompt_length, hash_of(seed, many, r.prompt_length)));
  expect_state(w, SESSIONS_RUNNING);
  rig_say(&w->r, TARGET,
          tokens_message(SELF, w->id, 1, r.prompt_length, many + r.prompt_length, 10,
                         hash_of(seed, many, WIRE_CONTEXT_MAX)));
  assert_int_equal(view(w).length, WIRE_CONTEXT_MAX);
  register_workers(w, TARGET2, DRAFT);
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(TARGET), w->r.now, &w->r.out);
  uint32_t epoch = rig_last(&w->r, TARGET2, MSG_PART)->epoch;
  last = open_rest(w, TARGET2, epoch, many);
  assert_int_equal(last->base_length + last->token_count, WIRE_CONTEXT_MAX);
}

/* --- in several frames --- */

#define PARTS_CASE(f) cmocka_unit_test_setup_teardown(f, set_up_parts, tear_down)

enum { PART = PROMPT_LENGTH - 1 }; /* so the prompt takes two frames */

static int set_up_parts(void **state) {
  if (set_up(state)) return -1;
  world *w = *state;
  rig_fini(&w->r);
  sessions_free(w->o);
  w->part_tokens = PART;
  w->o = open_machine(w, false);
  rig_init(&w->r, sessions_as_machine(w->o));
  w->ledger.out = &w->r.out;
  return 0;
}

/* A PART that reads [base, base + PART) is what went out last; the worker says that it holds that. */
static void take_part(world *w, peer_id peer, int32_t base, int32_t total) {
  const msg *m = rig_only(&w->r, peer, MSG_PART);
  const msg_open *o = &m->u.open;
  assert_int_equal(o->base_length, base);
  assert_int_equal(o->token_count, PART);
  assert_int_equal(o->total, total);
  assert_int_equal(rig_count(&w->r, peer, MSG_OPEN), 0);
  w->seed = o->hash_seed;
  w->epoch = m->epoch;
  rig_clear(&w->r);
  rig_say(&w->r, peer, worker_state(w, MSG_OPENED, base + PART));
}

static void start_in_parts(world *w, bool draft) {
  sessions_request r = request(draft);
  register_workers(w, TARGET, draft ? DRAFT : 0);
  rig_clear(&w->r);
  start_request(w, &r);
}

static void test_a_lost_part_is_sent_again_from_where_the_target_is(void **state) {
  world *w = *state;
  start_in_parts(w, false);
  rig_clear(&w->r); /* lost */
  pass(w, 400000, TARGET, 0);
  take_part(w, TARGET, 0, PROMPT_LENGTH);
  expect_state(w, SESSIONS_OPENING);
  assert_int_equal(opened(w, TARGET)->base_length, PART);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET,
          worker_state(w, MSG_OPENED, PART)); /* the first one's answer again: nothing is sent */
  assert_int_equal(rig_count_all(&w->r, TARGET), 0);
  expect_state(w, SESSIONS_OPENING);
  pass(w, 400000, TARGET, 0);
  assert_int_equal(opened(w, TARGET)->base_length, PART);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  expect_state(w, SESSIONS_RUNNING);
}

static void test_each_part_has_its_own_time(void **state) {
  world *w = *state;
  start_in_parts(w, false);
  pass(w, 25000000, TARGET, 0);
  rig_clear(&w->r);
  pass(w, 400000, TARGET, 0);
  take_part(w, TARGET, 0, PROMPT_LENGTH);
  pass(w, 25000000, TARGET, 0);
  expect_state(w, SESSIONS_OPENING);
  pass(w, 6000000, TARGET, 0);
  assert_int_equal(view(w).code, ERR_TIMEOUT);
}

static void test_a_draft_is_opened_in_parts_too(void **state) {
  world *w = *state;
  start_in_parts(w, true);
  take_part(w, DRAFT, 0, PROMPT_LENGTH);
  assert_int_equal(opened(w, DRAFT)->base_length, PART);
  rig_say(&w->r, DRAFT, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  rig_clear(&w->r);
  pass(w, 1000000, TARGET, DRAFT);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN) + rig_count(&w->r, DRAFT, MSG_PART), 0);
}

static void test_a_session_moves_in_parts_and_in_the_middle_of_them(void **state) {
  world *w = *state;
  start_in_parts(w, false);
  take_part(w, TARGET, 0, PROMPT_LENGTH);
  register_workers(w, TARGET2, 0);
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(TARGET), w->r.now, &w->r.out);
  take_part(w, TARGET2, 0, PROMPT_LENGTH); /* from the beginning, in another epoch */
  assert_int_equal(w->epoch, 2);
  assert_int_equal(opened(w, TARGET2)->base_length, PART);
  rig_say(&w->r, TARGET2, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  expect_state(w, SESSIONS_RUNNING);
  send_tokens(w, TARGET2, PROMPT_LENGTH, 4);
  register_workers(w, TARGET, 0);
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(TARGET2), w->r.now, &w->r.out);
  pass(w, 400000, TARGET, 0); /* two were lost within a moment */
  for (int32_t base = 0; base + PART < PROMPT_LENGTH + 4; base += PART)
    take_part(w, TARGET, base, PROMPT_LENGTH + 4);
  assert_int_equal(opened(w, TARGET)->total, 0);
}

static void test_a_worker_of_version_2_is_given_no_session_in_parts(void **state) {
  world *w = *state;
  msg old = target_hello(TARGET);
  old.u.hello.version_max = 2;
  rig_say(&w->r, TARGET, old);
  sessions_request r = request(false);
  start_request(w, &r);
  expect_state(w, SESSIONS_WAITING);
  register_workers(w, TARGET2, 0);
  take_part(w, TARGET2, 0, PROMPT_LENGTH);
}

static void test_a_worker_of_version_2_is_given_no_penalties_by_count_and_no_bias(void **state) {
  world *w = *state;
  msg old = target_hello(TARGET);
  old.u.hello.version_max = 2;
  rig_say(&w->r, TARGET, old);
  for (int i = 0; i < 3; i++) {
    sessions_request r = request(false);
    r.options.presence_penalty = i == 0;
    r.options.frequency_penalty = i == 1;
    r.options.bias_count = i == 2;
    r.options.bias_tokens = PROMPT;
    r.options.bias_values = &r.options.top_p;
    start_request(w, &r);
    expect_state(w, SESSIONS_WAITING);
  }
  register_workers(w, TARGET2, 0);
  const msg_options *o = &rig_last(&w->r, TARGET2, MSG_OPEN)->u.open.options;
  assert_true(o->bias_count == 1 && o->bias_tokens[0] == PROMPT[0] && o->bias_values[0] == 1);
  sessions_request r = request(false);
  r.options.repeat_penalty = 1.5f;
  start_request(w, &r);
  expect_state(w, SESSIONS_OPENING);
}

/* TOKENS may begin before what is held. */
static void test_logprobs_that_come_again_change_nothing(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  static const int32_t tokens[] = {4, 9, 5, 9, 6, 9, 7, 9};
  static const float values[] = {-1, -0.5f, -2, -0.25f, -3, -0.125f, -4, -0.0625f};
  r.options.logprobs = 2;
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  assert_int_equal(opened(w, TARGET)->options.logprobs, 2);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  for (int i = 0; i < 2; i++) { /* the second time from before what is held */
    int32_t count = 1 + 2 * i, output[] = {4, 5, 6};
    int32_t all[PROMPT_LENGTH + 3];
    memcpy(all, PROMPT, sizeof PROMPT);
    memcpy(all + PROMPT_LENGTH, output, sizeof output);
    msg m = tokens_message(SELF, w->id, w->epoch, PROMPT_LENGTH, output, count,
                           hash_of(w->seed, all, PROMPT_LENGTH + count));
    m.u.tokens.logprob_tokens = tokens;
    m.u.tokens.logprobs = values;
    m.u.tokens.logprob_count = 2 * count;
    rig_say(&w->r, TARGET, m);
    assert_int_equal(view(w).length, PROMPT_LENGTH + count);
  }
  for (int i = 0; i < 6; i++)
    assert_true(view(w).logprobs[i].token == tokens[i] && view(w).logprobs[i].value == values[i]);
  assert_int_equal(view(w).logprobs[6].token, -1);
}

/* The session ends, and the workers are told so in the last epoch that was recorded. */
static void test_an_epoch_that_is_not_recorded_is_never_sent(void **state) {
  world *w = *state;
  start_running(w, false);
  w->ledger.fail_epoch = ERR_GONE;
  rig_clear(&w->r);
  sessions_cancel(w->o, w->id, w->r.now, &w->r.out);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_END)->epoch, 1);
  w->ledger.fail_epoch = 0;
  start_running(w, false);
  w->ledger.fail_epoch = ERR_GONE;
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(TARGET), w->r.now, &w->r.out);
  assert_int_equal(view(w).finish, WIRE_FINISH_ERROR);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_OPEN), 0);
  w->ledger.fail_epoch = 0;
  sessions_request r = request(false);
  sessions_resume resume = {.session = 1234,
                            .hash_seed = 4321,
                            .epoch = 16,
                            .output = truth() + PROMPT_LENGTH,
                            .output_length = 5,
                            .numerics = "cpu-b"};
  r.resume = &resume;
  register_workers(w, TARGET, 0);
  rig_clear(&w->r);
  w->ledger.held = 100;
  start_request(w, &r); /* it counts with the beginning, */
  w->ledger.held = 0;
  w->ledger.fail_epoch = ERR_GONE; /* which is another process's by then */
  rig_advance(&w->r, 0);
  rig_say(&w->r, TARGET, ping_message(MSG_PING, SELF, 1, 1, 0));
  assert_int_equal(view(w).finish, WIRE_FINISH_ERROR);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_OPEN), 0);
}

/* OPEN acknowledges the prompt alone, so what is durable of the rest is acknowledged at once. */
static void test_what_is_durable_is_acknowledged_to_another_target(void **state) {
  world *w = *state;
  start_running(w, false);
  send_tokens(w, TARGET, 3, 7);
  register_workers(w, TARGET2, 0);
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(TARGET), w->r.now, &w->r.out);
  pass(w, 1000000, TARGET2, 0);
  assert_int_equal(opened(w, TARGET2)->token_count, 10);
  assert_int_equal(rig_count(&w->r, TARGET2, MSG_ACK), 0);
  rig_say(&w->r, TARGET2, worker_state(w, MSG_OPENED, 10));
  assert_int_equal(rig_only(&w->r, TARGET2, MSG_ACK)->u.state.length, 10);
}

static void test_a_desync_with_an_own_prefix_goes_on_from_there(void **state) {
  world *w = *state;
  start_running(w, true);
  send_tokens(w, TARGET, 3, 7);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, worker_state(w, MSG_DESYNC, 5)); /* its cache was cut */
  const msg_open *o = opened(w, TARGET);
  assert_int_equal(w->epoch, 2);
  assert_int_equal(o->base_length, 5);
  assert_int_equal(opened(w, DRAFT)->base_length, 10); /* nothing is told twice to the other one */
  assert_int_equal(o->token_count, 5);
  opened(w, DRAFT);
  assert_int_equal(w->epoch, 2); /* all are opened in the new epoch */
  assert_int_equal(view(w).repairs, 1);
  assert_int_equal(view(w).epoch, 2);
  expect_state(w, SESSIONS_OPENING);
}

static void test_a_desync_with_another_prefix_sends_everything(void **state) {
  world *w = *state;
  static const int32_t lengths[] = {5, 0, 300, WIRE_CONTEXT_MAX};
  start_running(w, false);
  send_tokens(w, TARGET, 3, 7);
  for (int i = 0; i < 4; i++) {
    msg m = worker_state(w, MSG_DESYNC, lengths[i] < 1000 ? lengths[i] : 9);
    m.u.state.length = lengths[i];
    if (i != 1) m.u.state.hash.bytes[0] ^= 1;
    rig_clear(&w->r);
    rig_say(&w->r, TARGET, m);
    const msg_open *o = opened(w, TARGET);
    assert_int_equal(o->base_length, 0);
    assert_int_equal(o->token_count, 10);
    assert_int_equal(w->epoch, i + 2);
    assert_int_equal(o->prompt_length, PROMPT_LENGTH);
  }
}

/* The network may repeat it within one epoch. */
static void test_a_repeated_desync_is_one_repair(void **state) {
  world *w = *state;
  start_running(w, false);
  msg m = worker_state(w, MSG_DESYNC, 2);
  rig_say(&w->r, TARGET, m);
  rig_say(&w->r, TARGET, m);
  assert_int_equal(view(w).epoch, 2);
  assert_int_equal(view(w).repairs, 1);
}

static void test_too_many_repairs_end_the_session(void **state) {
  world *w = *state;
  start_running(w, false);
  int32_t i = 0;
  for (; i < 3 * SESSIONS_DESYNC_MAX && view(w).finish == 0; i++) {
    w->epoch = view(w).epoch;
    rig_say(&w->r, TARGET, worker_state(w, MSG_DESYNC, 2));
    w->r.now += 10000;
  }
  assert_true(i >= SESSIONS_DESYNC_MAX && i <= SESSIONS_DESYNC_MAX + 2);
  assert_int_equal(view(w).finish, WIRE_FINISH_ERROR);
  assert_int_equal(view(w).code, ERR_DESYNC);
}

/* A session that goes on after each repair may have any number of them. */
static void test_repairs_that_help_are_not_too_many(void **state) {
  world *w = *state;
  start_running(w, false);
  for (int32_t i = 0; i < 3 * SESSIONS_DESYNC_MAX; i++) {
    w->epoch = view(w).epoch;
    rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 3 + i));
    send_tokens(w, TARGET, 3 + i, 1);
    rig_say(&w->r, TARGET, worker_state(w, MSG_DESYNC, 2));
    w->r.now += 10000;
  }
  assert_int_equal(view(w).finish, 0);
  assert_int_equal(view(w).repairs, 3 * SESSIONS_DESYNC_MAX);
}

static void test_a_desync_of_the_draft_is_repaired(void **state) {
  world *w = *state;
  start_running(w, true);
  send_tokens(w, TARGET, 3, 7);
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, worker_state(w, MSG_DESYNC, 6));
  const msg_open *o = opened(w, DRAFT);
  assert_int_equal(w->epoch, 1);
  assert_int_equal(o->base_length, 6);
  assert_int_equal(o->token_count, 4);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0); /* the answer is not disturbed */
  expect_state(w, SESSIONS_RUNNING);
}

/* It is opened from what it holds if that is right, otherwise from the beginning. */
static void test_a_draft_with_another_prefix_gets_everything(void **state) {
  for (int32_t length = 0; length <= 12; length++)
    for (int wrong = 0; wrong < 2; wrong++) {
      tear_down(state);
      set_up(state);
      world *w = *state;
      start_running(w, true);
      send_tokens(w, TARGET, 3, 7);
      rig_clear(&w->r);
      msg m = worker_state(w, MSG_DESYNC, length);
      m.u.state.hash.bytes[3] ^= (uint8_t)wrong;
      rig_say(&w->r, DRAFT, m);
      const msg_open *o = opened(w, DRAFT);
      assert_int_equal(o->base_length, length <= 10 && !wrong ? length : 0);
      assert_int_equal(o->base_length + o->token_count, 10);
    }
}

static void test_a_draft_out_of_step_too_often_is_given_up(void **state) {
  world *w = *state;
  start_running(w, true);
  for (int i = 1; i <= SESSIONS_DESYNC_MAX + 1; i++) {
    assert_int_equal(rig_count(&w->r, DRAFT, MSG_END), 0);
    rig_say(&w->r, DRAFT, worker_state(w, MSG_DESYNC, 0));
  }
  rig_only(&w->r, DRAFT, MSG_END);
}

static void test_a_draft_that_is_always_out_of_step_costs_little(void **state) {
  world *w = *state;
  start_running(w, true);
  for (int i = 0; i < 2000; i++) {
    w->r.now += 50; /* 100 ms in all */
    rig_say(&w->r, DRAFT, worker_state(w, MSG_DESYNC, 0));
  }
  assert_true(rig_count(&w->r, DRAFT, MSG_OPEN) <= 2 * SESSIONS_DESYNC_MAX);
  assert_int_equal(view(w).finish, 0);
  send_tokens(w, TARGET, 3, 7);
  assert_int_equal(view(w).length, 10);
}

static void test_a_restarted_draft_is_asked_again(void **state) {
  world *w = *state;
  start_running(w, true);
  rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
  rig_clear(&w->r);
  pass(w, 2 * SESSIONS_REPEAT_US, TARGET, DRAFT);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_OPEN), 0);
  msg m = draft_hello(DRAFT);
  m.u.hello.incarnation = id_of(77);
  rig_say(&w->r, DRAFT, m);
  pass(w, 2 * SESSIONS_REPEAT_US, TARGET, DRAFT);
  assert_true(rig_count(&w->r, DRAFT, MSG_OPEN) > 0);
}

static void test_a_lost_target_is_replaced(void **state) {
  world *w = *state;
  start_running(w, true);
  send_tokens(w, TARGET, 3, 7);
  const wire_id first = w->ticket;
  pass(w, 1000000, TARGET, DRAFT);
  register_workers(w, TARGET2, 0);
  rig_clear(&w->r);
  pass(w, 3400000, TARGET2, DRAFT);
  const msg_open *o = opened(w, TARGET2);
  assert_int_equal(w->epoch, 2);
  assert_int_equal(o->base_length, 0); /* the whole prefix */
  assert_int_equal(o->token_count, 10);
  assert_int_equal(o->prompt_length, PROMPT_LENGTH);
  const msg_open *d = opened(w, DRAFT);
  assert_int_equal(w->epoch, 2);
  assert_true(text_is(d->target_endpoint, "tcp://127.0.0.1:4001"));
  assert_true(wire_id_equal(d->target_incarnation, ID(TARGET2)));
  assert_true(wire_id_equal(d->ticket, o->ticket) && !wire_id_equal(d->ticket, first));
  rig_say(&w->r, TARGET2, worker_state(w, MSG_OPENED, 10));
  send_tokens(w, TARGET2, 10, 5);
  assert_int_equal(view(w).length, 15);
  send_tokens(w, TARGET, 10, 6); /* the old one comes back: it has no say any more */
  assert_int_equal(view(w).length, 15);
  assert_true(view(w).numerics_changed); /* cpu-a, then cpu-b */
  assert_string_equal(view(w).numerics_id, "cpu-b");
}

static void test_failover_prefers_the_same_numerics(void **state) {
  world *w = *state;
  start_running(w, false);
  send_tokens(w, TARGET, 3, 2);
  register_workers(w, TARGET2, 0); /* cpu-b */
  register_workers(w, TARGET3, 0); /* cpu-a */
  set_load(w, TARGET2, 0);
  set_load(w, TARGET3, 2);
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(TARGET), w->r.now, &w->r.out);
  opened(w, TARGET3);
  assert_int_equal(rig_count(&w->r, TARGET2, MSG_OPEN), 0);
  rig_say(&w->r, TARGET3, worker_state(w, MSG_OPENED, 5));
  send_tokens(w, TARGET3, 5, 2);
  assert_false(view(w).numerics_changed);
}

static void test_a_target_that_gave_no_token_does_not_change_the_numerics(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET2, 0); /* cpu-b */
  start_request(w, &r);
  opened(w, TARGET2);
  register_workers(w, TARGET, 0); /* cpu-a */
  rig_say(&w->r, TARGET2, error_message(SELF, w->id, w->epoch, ERR_FULL));
  pass(w, 1000000, TARGET, TARGET2);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 3));
  send_tokens(w, TARGET, 3, 2);
  assert_false(view(w).numerics_changed);
  assert_string_equal(view(w).numerics_id, "cpu-a");
}

/* A refusal is forgotten as soon as the session is open: who was full then may have room now. */
static void test_a_target_that_was_full_is_asked_again_after_another_died(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  opened(w, TARGET);
  register_workers(w, TARGET3, 0);
  rig_say(&w->r, TARGET, error_message(SELF, w->id, w->epoch, ERR_FULL));
  pass(w, 1000000, TARGET, TARGET3);
  opened(w, TARGET3);
  rig_say(&w->r, TARGET3, worker_state(w, MSG_OPENED, 3));
  register_workers(w, TARGET2, 0);
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(TARGET3), w->r.now, &w->r.out);
  opened(w, TARGET); /* as near as TARGET2, and known for longer */
  assert_int_equal(rig_count(&w->r, TARGET2, MSG_OPEN), 0);
}

static void test_a_session_waits_when_its_only_target_died(void **state) {
  world *w = *state;
  start_running(w, false);
  send_tokens(w, TARGET, 3, 2);
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(TARGET), w->r.now, &w->r.out);
  expect_state(w, SESSIONS_WAITING);
  rig_advance(&w->r, 1000000);
  register_workers(w, TARGET2, 0);
  const msg_open *o = opened(w, TARGET2);
  assert_int_equal(w->epoch, 2);
  assert_int_equal(o->token_count, 5);
}

static void test_a_restarted_target_gets_its_session_back(void **state) {
  world *w = *state;
  start_running(w, false);
  send_tokens(w, TARGET, 3, 2);
  rig_clear(&w->r);
  msg m = target_hello(TARGET);
  m.u.hello.incarnation = id_of(99);
  rig_say(&w->r, TARGET, m); /* the same connection, another program */
  const msg *open = rig_last(&w->r, TARGET, MSG_OPEN);
  assert_true(wire_id_equal(open->to, id_of(99)));
  assert_int_equal(open->epoch, 2);
  assert_int_equal(open->u.open.base_length, 0);
  assert_int_equal(open->u.open.token_count, 5);
}

/* Its sessions go on elsewhere, or end; they do not hang. */
static void test_a_target_that_is_refused_loses_its_sessions(void **state) {
  world *w = *state;
  start_running(w, false);
  send_tokens(w, TARGET, 3, 2);
  msg m = target_hello(TARGET);
  m.u.hello.vocabulary_size = VOCAB + 1;
  rig_say(&w->r, TARGET, m);
  rig_last(&w->r, TARGET, MSG_ERROR);
  rig_clear(&w->r);
  register_workers(w, TARGET2, 0);
  pass(w, 5000000, TARGET2, 0);
  opened(w, TARGET2);
  assert_int_equal(view(w).length, 5);
}

/* OPEN is about to be repeated, and nothing is known of its context any more. */
static void test_a_target_that_is_refused_loses_sessions_that_open_too(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  opened(w, TARGET);
  msg m = target_hello(TARGET);
  m.u.hello.vocabulary_size = VOCAB + 1;
  rig_say(&w->r, TARGET, m);
  pass(w, 1000000, 0, 0);
  expect_state(w, SESSIONS_WAITING);
}

/* It owes tokens and says nothing. The session goes on at the other target, its draft with it, and the old
 * target is told to stop. */
static void test_a_hung_target_is_left(void **state) {
  world *w = *state;
  start_running(w, true);
  register_workers(w, TARGET2, 0);
  send_tokens(w, TARGET, 3, 7);
  rig_clear(&w->r);
  pass(w, SESSIONS_SILENCE_US - 1000000, TARGET, TARGET2);
  rig_say(&w->r, DRAFT, ping_message(MSG_PING, SELF, 1, 1, 0));
  assert_int_equal(rig_count(&w->r, TARGET2, MSG_OPEN), 0);
  register_workers(w, 0, DRAFT);
  pass(w, 1200000, TARGET, TARGET2);
  const msg_open *o = opened(w, TARGET2);
  assert_int_equal(w->epoch, 2);
  assert_int_equal(o->token_count, 10);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_END)->epoch, 2);
  assert_int_equal(rig_last(&w->r, DRAFT, MSG_OPEN)->epoch, 2);
  rig_say(&w->r, TARGET2, worker_state(w, MSG_OPENED, 10));
  rig_say(&w->r, TARGET,
          tokens_message(SELF, w->id, 1, 10, truth() + 10, 3, true_hash(w, 13))); /* it thaws, too late */
  assert_int_equal(view(w).length, 10);
  send_tokens(w, TARGET2, 10, 5);
  assert_int_equal(view(w).length, 15);
}

/* A session that has come back to a target gets that target's late answer to the END of its first visit. */
static void test_what_nobody_cancelled_goes_on(void **state) {
  world *w = *state;
  start_running(w, false);
  send_tokens(w, TARGET, 3, 7);
  rig_say(&w->r, TARGET, done_message(w, 10, WIRE_FINISH_CANCELLED));
  assert_int_equal(view(w).finish, 0);
  rig_clear(&w->r);
  send_tokens(w, TARGET, 10, 5);
  assert_int_equal(view(w).length, 15);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_END), 0);
  finish_by_done(w, 15);
  assert_int_equal(view(w).finish, WIRE_FINISH_LENGTH);
}

/* The target that was left reports its own counts. The one that died does not, and then the session says how
 * many tokens are not counted. */
static void test_the_stats_of_several_targets_are_added(void **state) {
  world *w = *state;
  start_running(w, false);
  register_workers(w, TARGET2, 0);
  send_tokens(w, TARGET, 3, 7);
  pass(w, SESSIONS_SILENCE_US + 200000, TARGET, TARGET2);
  opened(w, TARGET2);
  rig_say(&w->r, TARGET, done_message(w, 10, WIRE_FINISH_CANCELLED));
  rig_say(&w->r, TARGET, message(MSG_ENDED, SELF, w->id, w->epoch));
  rig_say(&w->r, TARGET2, worker_state(w, MSG_OPENED, 10));
  send_tokens(w, TARGET2, 10, 4);
  assert_int_equal(view(w).stats.forwards, 0); /* the sum is made at the end */
  assert_int_equal(view(w).uncounted, 4);      /* so far */
  sessions_worker_died(w->o, ID(TARGET2), w->r.now, &w->r.out);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 14));
  send_tokens(w, TARGET, 14, 1);
  finish_by_done(w, 15);
  sessions_view v = view(w);
  assert_int_equal(v.finish, WIRE_FINISH_LENGTH);
  assert_int_equal(v.stats.forwards, 60);
  assert_int_equal(v.stats.accepted, 20);
  assert_int_equal(v.uncounted, 4);
}

/* These targets send nothing while they prefill for 65 s. Each is left once at most, and one of them
 * finishes. */
static void test_silent_targets_are_not_left_in_circles(void **state) {
  world *w = *state;
  start_running(w, false);
  register_workers(w, TARGET2, 0);
  rig_clear(&w->r);
  for (int i = 0; i < 65; i++) {
    pass(w, 1000000, TARGET, TARGET2);
    if (rig_count(&w->r, TARGET2, MSG_OPEN) == 0) continue;
    opened(w, TARGET2);
    rig_say(&w->r, TARGET2, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  }
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
  assert_int_equal(view(w).epoch, 2);
  for (int i = 0; i < 3600; i++) { /* minutes later the first one may be tried again, but ever more rarely */
    pass(w, 1000000, TARGET, TARGET2);
    peer_id at = view(w).epoch % 2 ? TARGET : TARGET2;
    if (view(w).state == SESSIONS_RUNNING) continue;
    opened(w, at);
    rig_say(&w->r, at, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  }
  assert_true(view(w).epoch <= 6);
}

/* That is logged once. The session goes on when the target thaws, or at whichever target comes. */
static void test_a_session_stays_at_a_hung_target_without_another(void **state) {
  world *w = *state;
  start_running(w, false);
  send_tokens(w, TARGET, 3, 4);
  rig_clear(&w->r);
  pass(w, 90000000, TARGET, 0);
  assert_int_equal(view(w).finish, 0);
  assert_int_equal(view(w).epoch, 1);
  assert_int_equal(warnings(w, "no sign of life"), 1);
  send_tokens(w, TARGET, 7, 2);
  assert_int_equal(view(w).length, 9);
  rig_clear(&w->r);
  pass(w, 2 * SESSIONS_SILENCE_US, TARGET, 0);
  assert_int_equal(warnings(w, "no sign of life"), 1);
  register_workers(w, TARGET2, 0);
  pass(w, SESSIONS_TARGET_CHECK_US, TARGET, TARGET2);
  opened(w, TARGET2);
  assert_int_equal(w->epoch, 2);
}

/* What it has stays in the ledger. */
static void test_a_session_does_not_wait_for_a_hung_target_for_ever(void **state) {
  world *w = *state;
  start_running(w, false);
  send_tokens(w, TARGET, 3, 4);
  pass(w, SESSIONS_HUNG_US, TARGET, 0);
  assert_int_equal(view(w).finish, 0);
  pass(w, SESSIONS_SILENCE_US + 2 * SESSIONS_TARGET_CHECK_US, TARGET, 0);
  assert_int_equal(view(w).finish, WIRE_FINISH_ERROR);
  assert_int_equal(view(w).code, ERR_TIMEOUT);
  assert_non_null(strstr(view(w).text, "no sign of life for ten minutes"));
  assert_int_equal(view(w).length, 7);
}

static void test_a_hung_target_is_not_left_for_a_hung_or_full_one(void **state) {
  world *w = *state;
  start_running(w, false);
  uint64_t first = w->id;
  register_workers(w, TARGET2, 0);
  set_load(w, TARGET2, 4);
  rig_clear(&w->r);
  pass(w, 2 * SESSIONS_SILENCE_US, TARGET, TARGET2);
  assert_int_equal(rig_count(&w->r, TARGET2, MSG_OPEN), 0);
  assert_int_equal(view(w).epoch, 1);
  set_load(w, TARGET2, 0);
  pass(w, SESSIONS_TARGET_CHECK_US, TARGET, TARGET2);
  opened(w, TARGET2);
  rig_say(&w->r, TARGET2, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  send_tokens(w, TARGET2, 3, 1);
  sessions_request r = request(false); /* a new one does not go to a target that hung */
  set_load(w, TARGET2, 3);
  rig_clear(&w->r);
  start_request(w, &r);
  opened(w, TARGET2);
  rig_say(&w->r, TARGET2, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  rig_clear(&w->r);
  pass(w, 3 * SESSIONS_SILENCE_US, TARGET, TARGET2); /* now that one does too */
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
  sessions_worker_died(w->o, ID(TARGET), w->r.now, &w->r.out); /* the first one is started again */
  msg fresh = target_hello(TARGET);
  fresh.u.hello.incarnation.bytes[5] = 1;
  rig_say(&w->r, TARGET, fresh);
  pass(w, SESSIONS_TARGET_CHECK_US, TARGET, TARGET2);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 2);
  w->id = first;
  assert_int_equal(view(w).finish, 0);
}

/* It answers PING but not OPEN. */
static void test_a_target_that_never_opens_is_left_for_another(void **state) {
  world *w = *state;
  sessions_request r = request(false);
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  register_workers(w, TARGET2, 0);
  pass(w, SESSIONS_TARGET_WAIT_US + 1000000, TARGET, TARGET2);
  opened(w, TARGET2);
  assert_int_equal(w->epoch, 2);
  assert_int_equal(view(w).finish, 0);
  pass(w, SESSIONS_TARGET_WAIT_US + 1000000, TARGET, TARGET2); /* nor does that */
  assert_int_equal(view(w).code, ERR_TIMEOUT);
}

static void test_without_its_draft_a_session_decodes_plainly(void **state) {
  world *w = *state;
  start_running(w, true);
  send_tokens(w, TARGET, 3, 2);
  pass(w, 4000000, TARGET, 0);
  assert_int_equal(view(w).finish, 0); /* plainly */
  expect_state(w, SESSIONS_RUNNING);
  assert_int_equal(view(w).epoch, 1); /* the target is not disturbed */
  send_tokens(w, TARGET, 5, 2);
  assert_int_equal(view(w).length, 7);
  assert_true(strlen(view(w).off_reason) > 0 || strlen(view(w).draft_method) == 0);
  finish_by_done(w, 7);
  pass(w, 3000000, TARGET, 0);
  rig_say(&w->r, TARGET, message(MSG_ENDED, SELF, w->id, w->epoch));
  expect_state(w, SESSIONS_FINISHED);
}

static void test_another_draft_takes_over(void **state) {
  world *w = *state;
  start_running(w, true);
  send_tokens(w, TARGET, 3, 2);
  const wire_id first = w->ticket;
  register_workers(w, 0, DRAFT2);
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(DRAFT), w->r.now, &w->r.out);
  pass(w, 1000000, TARGET, DRAFT2);
  const msg_open *o = opened(w, DRAFT2);
  assert_int_equal(w->epoch, 1);
  assert_int_equal(o->base_length, 0);
  assert_int_equal(o->token_count, 5);
  const msg_open *t = opened(w, TARGET); /* learns the new ticket, in the same epoch */
  assert_int_equal(w->epoch, 1);
  assert_int_equal(t->base_length, 5);
  assert_true(t->draft_expected && wire_id_equal(t->ticket, o->ticket));
  assert_true(wire_ticket_older(&first, &t->ticket));
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 5));
  rig_clear(&w->r);
  pass(w, 2 * SESSIONS_REPEAT_US, TARGET, DRAFT2);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
}

/* OPEN was repeated, so OPENED comes twice; the OPEN with the new ticket is lost. */
static void test_a_new_ticket_is_told_until_the_target_has_it(void **state) {
  world *w = *state;
  start_running(w, true);
  register_workers(w, 0, DRAFT2);
  w->r.now += SESSIONS_REPEAT_US;
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, worker_state(w, MSG_DESYNC, 3)); /* another epoch */
  opened(w, TARGET);
  pass(w, SESSIONS_REPEAT_US + 10000, TARGET, DRAFT);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 2);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 3));
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(DRAFT), w->r.now, &w->r.out);
  const wire_id ticket = opened(w, TARGET)->ticket;
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 3)); /* of the repeated one */
  rig_clear(&w->r);
  pass(w, 2 * SESSIONS_REPEAT_US, TARGET, DRAFT2);
  assert_true(wire_id_equal(opened(w, TARGET)->ticket, ticket));
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 3));
  rig_clear(&w->r);
  pass(w, 2 * SESSIONS_REPEAT_US, TARGET, DRAFT2);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
}

static void test_a_draft_that_refuses_makes_way_for_another(void **state) {
  world *w = *state;
  start_running(w, true);
  register_workers(w, 0, DRAFT2);
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
  opened(w, DRAFT2);
  rig_say(&w->r, DRAFT2, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
  for (int i = 0; i < 100; i++) { /* both refuse, again and again */
    rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
    rig_say(&w->r, DRAFT2, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
    w->r.now += 1000;
  }
  assert_true(rig_count(&w->r, DRAFT, MSG_OPEN) + rig_count(&w->r, DRAFT2, MSG_OPEN) <= 10);
  assert_true(rig_count(&w->r, TARGET, MSG_OPEN) <= 10);
  assert_true(strlen(view(w).off_reason) > 0);
  send_tokens(w, TARGET, 3, 2);
  assert_int_equal(view(w).length, 5);
}

/* It learns it in the same epoch, and goes on alone. */
static void test_in_lockstep_the_target_learns_that_all_drafts_gave_up(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  r.options.lockstep = true;
  register_workers(w, TARGET, 0);
  start_request(w, &r);
  assert_true(opened(w, TARGET)->draft_expected); /* none is here yet: one may come */
  register_workers(w, 0, DRAFT);
  register_workers(w, 0, DRAFT2);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
  opened(w, DRAFT2);
  assert_true(opened(w, TARGET)->draft_expected);             /* of the one with the new ticket */
  sessions_worker_died(w->o, ID(DRAFT), w->r.now, &w->r.out); /* so that it is not asked again */
  rig_say(&w->r, DRAFT2, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
  assert_false(opened(w, TARGET)->draft_expected);
  assert_int_equal(w->epoch, 1);
  rig_clear(&w->r);
  pass(w, 2 * SESSIONS_REPEAT_US, TARGET, DRAFT2); /* until it is answered */
  assert_false(opened(w, TARGET)->draft_expected);
  send_tokens(w, TARGET, 3, 2); /* it never stood still */
  for (int i = 0; i < 6; i++) rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 5)); /* each OPEN's */
  rig_clear(&w->r);
  pass(w, SESSIONS_TARGET_WAIT_US + 1000000, TARGET, DRAFT2);
  send_tokens(w, TARGET, 5, 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
  assert_int_equal(view(w).length, 5);
  assert_string_equal(view(w).off_reason, "made by a test");
  rig_say(&w->r, TARGET, worker_state(w, MSG_DETACH, 5)); /* that OPENED was the reply to another OPEN */
  assert_false(opened(w, TARGET)->draft_expected);
  assert_int_equal(w->epoch, 1);
}

/* Otherwise it would keep the session for ever. */
static void test_a_draft_that_is_given_up_is_sent_end(void **state) {
  world *w = *state;
  start_running(w, true);
  pass(w, 4000000, TARGET, 0); /* stopped, as by SIGSTOP */
  rig_only(&w->r, DRAFT, MSG_END);
  start_running(w, true);
  rig_clear(&w->r);
  for (int i = 0; i <= SESSIONS_DESYNC_MAX; i++) {
    rig_say(&w->r, DRAFT, worker_state(w, MSG_DESYNC, 0));
    pass(w, SESSIONS_REPEAT_US, TARGET, DRAFT);
  }
  rig_last(&w->r, DRAFT, MSG_END);
}

static void test_a_draft_that_refuses_is_not_asked_again(void **state) {
  world *w = *state;
  static const int codes[] = {ERR_FULL, ERR_LIMIT, ERR_NOMEM, ERR_DRAINING};
  for (int i = 0; i < 4; i++) {
    sessions_request r = request(true);
    register_workers(w, TARGET, DRAFT);
    start_request(w, &r);
    opened(w, TARGET);
    rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, 3));
    rig_say(&w->r, DRAFT, error_message(SELF, w->id, w->epoch, codes[i]));
    rig_clear(&w->r);
    pass(w, 1000000, TARGET, DRAFT);
    assert_int_equal(view(w).finish, 0);
    assert_true(rig_count(&w->r, DRAFT, MSG_OPEN) <= 4);
    send_tokens(w, TARGET, 3, 2);
    assert_int_equal(view(w).length, 5);
    sessions_cancel(w->o, w->id, w->r.now, &w->r.out);
    pass(w, 3000000, TARGET, DRAFT);
    sessions_release(w->o, w->id, w->r.now, &w->r.out);
  }
}

/* Each of its greetings costs a session an OPEN, but not at once. */
static void test_a_worker_that_restarts_again_and_again_is_not_asked_each_time(void **state) {
  world *w = *state;
  start_running(w, true);
  for (int i = 0; i < 2000; i++) { /* 200 ms */
    msg t = target_hello(TARGET), d = draft_hello(DRAFT);
    memcpy(t.u.hello.incarnation.bytes + 4, &i, sizeof i);
    memcpy(d.u.hello.incarnation.bytes + 4, &i, sizeof i);
    w->r.now += 100;
    rig_say(&w->r, TARGET, t);
    rig_say(&w->r, DRAFT, d);
    rig_event(&w->r, EVENT_TICK, 0, 0, NULL, NULL);
  }
  if (rig_count(&w->r, RIG_ANY, MSG_OPEN) > 8) fail_msg("%d OPEN", (int)rig_count(&w->r, RIG_ANY, MSG_OPEN));
  assert_true(view(w).epoch < 10);
  rig_clear(&w->r);
  pass(w, 1000000, TARGET, DRAFT); /* and when it is over, the answer goes on */
  assert_true(rig_count(&w->r, TARGET, MSG_OPEN) >= 1);
  assert_true(rig_count(&w->r, DRAFT, MSG_OPEN) >= 1);
}

/* --- a target whose device is lost --- */

static void lose_device(world *w, peer_id target) {
  msg m = error_message(SELF, w->id, w->epoch, ERR_DEVICE);
  m.u.error.text = wire_text("the target's device cuda:0 is lost");
  rig_clear(&w->r);
  rig_say(&w->r, target, m);
}

static void test_a_session_leaves_a_target_whose_device_is_lost(void **state) {
  world *w = *state;
  start_running(w, true);
  register_workers(w, TARGET2, 0);
  send_tokens(w, TARGET, 3, 7);
  lose_device(w, TARGET);
  const msg_open *o = opened(w, TARGET2);
  assert_int_equal(w->epoch, 2);
  assert_int_equal(o->base_length, 0);
  assert_int_equal(o->token_count, 10); /* in mid-answer */
  assert_true(text_is(opened(w, DRAFT)->target_endpoint, "tcp://127.0.0.1:4001"));
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
  expect_state(w, SESSIONS_OPENING);
}

/* An ERROR may be lost, and OPEN may just be on its way there. */
static void test_one_error_is_enough_for_all_sessions_of_that_target(void **state) {
  world *w = *state;
  start_running(w, false);
  uint64_t first = w->id;
  sessions_request r = request(false);
  start_request(w, &r);
  opened(w, TARGET);
  register_workers(w, TARGET2, 0);
  lose_device(w, TARGET); /* about the second one */
  assert_int_equal(rig_count(&w->r, TARGET2, MSG_OPEN), 2);
  w->id = first;
  assert_int_equal(view(w).epoch, 2);
  rig_clear(&w->r);
  w->epoch = 1;
  lose_device(w, TARGET); /* its own ERROR, late */
  assert_int_equal(view(w).epoch, 2);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_OPEN), 0);
}

/* It lives for some moments yet, whether BYE has come or not: nobody is sent there. */
static void test_a_target_whose_device_is_lost_gets_nothing_new(void **state) {
  world *w = *state;
  start_running(w, false);
  register_workers(w, TARGET2, 0);
  lose_device(w, TARGET);
  rig_say(&w->r, TARGET, ping_message(MSG_PING, SELF, 1, 1, 0));
  set_load(w, TARGET2, 4);
  sessions_request r = request(false);
  rig_clear(&w->r);
  start_request(w, &r);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
  rig_last(&w->r, TARGET2, MSG_OPEN);
}

static void test_without_another_target_a_lost_device_ends_the_session(void **state) {
  world *w = *state;
  start_running(w, false);
  send_tokens(w, TARGET, 3, 7);
  lose_device(w, TARGET);
  assert_int_equal(view(w).finish, WIRE_FINISH_ERROR);
  assert_int_equal(view(w).code, ERR_DEVICE);
  assert_non_null(strstr(view(w).text, "device cuda:0 is lost, and there is no other target"));
  assert_int_equal(view(w).length, 10);   /* what it has stays */
  expect_state(w, SESSIONS_FINISHED);     /* and nobody waits for the target's ENDED */
  assert_int_equal(view(w).uncounted, 7); /* the figures are lost */
}

/* One that has no room at the moment is another target all the same. */
static void test_a_session_waits_for_room_at_the_other_target(void **state) {
  world *w = *state;
  start_running(w, false);
  register_workers(w, TARGET2, 0);
  lose_device(w, TARGET);
  opened(w, TARGET2);
  rig_say(&w->r, TARGET2, error_message(SELF, w->id, w->epoch, ERR_FULL));
  assert_int_equal(view(w).finish, 0);
}

static void test_a_session_waits_for_a_target_that_is_started_again(void **state) {
  world *w = *state;
  sessions_free(w->o);
  w->o = open_machine(w, true);
  w->r.m = sessions_as_machine(w->o);
  start_running(w, false);
  send_tokens(w, TARGET, 3, 7);
  lose_device(w, TARGET);
  sessions_worker_died(w->o, ID(TARGET), w->r.now, &w->r.out);
  expect_state(w, SESSIONS_WAITING);
  rig_clear(&w->r);
  register_workers(w, TARGET3, 0);
  assert_int_equal(opened(w, TARGET3)->token_count, 10);
}

/* --- a target whose engine fails --- */

static void fail_engine(world *w, peer_id target, int32_t length, int code) {
  msg m = done_message(w, length, WIRE_FINISH_ERROR);
  m.u.done.code = code;
  m.u.done.text = wire_text("the engine failed: see the target's log");
  rig_say(&w->r, target, m);
}

/* All tokens that it has made are kept, it is told that it may forget the session, and its figures count. */
static void test_a_session_leaves_a_target_whose_engine_failed(void **state) {
  world *w = *state;
  start_running(w, true);
  register_workers(w, TARGET2, 0);
  send_tokens(w, TARGET, 3, 7);
  rig_clear(&w->r);
  fail_engine(w, TARGET, 10, ERR_NOMEM);
  const msg_open *o = opened(w, TARGET2);
  assert_int_equal(w->epoch, 2);
  assert_int_equal(o->token_count, 10);
  assert_true(text_is(opened(w, DRAFT)->target_endpoint, "tcp://127.0.0.1:4001"));
  assert_int_equal(rig_only(&w->r, TARGET, MSG_END)->epoch, 2);
  assert_int_equal(rig_logged(&w->r, "its target failed (the engine failed"), 1);
  rig_say(&w->r, TARGET2, worker_state(w, MSG_OPENED, 10));
  send_tokens(w, TARGET2, 10, 5);
  assert_int_equal(view(w).length, 15);
  rig_say(&w->r, TARGET2, done_message(w, 15, WIRE_FINISH_LENGTH));
  assert_int_equal(view(w).finish, WIRE_FINISH_LENGTH);
  assert_int_equal(view(w).uncounted, 0);
}

/* Each target is tried once, and the last one's error ends the answer. */
static void test_a_session_that_fails_everywhere_ends(void **state) {
  world *w = *state;
  start_running(w, false);
  register_workers(w, TARGET2, 0);
  register_workers(w, TARGET3, 0);
  send_tokens(w, TARGET, 3, 2);
  fail_engine(w, TARGET, 5, ERR_NOMEM);
  opened(w, TARGET3); /* of the same numerics */
  rig_say(&w->r, TARGET3, worker_state(w, MSG_OPENED, 5));
  rig_clear(&w->r);
  fail_engine(w, TARGET3, 5, ERR_IO);
  opened(w, TARGET2);
  rig_say(&w->r, TARGET2, worker_state(w, MSG_OPENED, 5));
  rig_clear(&w->r);
  fail_engine(w, TARGET2, 5, ERR_NOMEM);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_OPEN), 0);
  assert_int_equal(view(w).finish, WIRE_FINISH_ERROR);
  assert_int_equal(view(w).code, ERR_NOMEM);
  assert_int_equal(view(w).length, 5);
}

/* One that failed is better than none, after a while: the other one may hang in between, or die. */
static void test_a_target_that_failed_is_asked_again_after_a_while(void **state) {
  world *w = *state;
  start_running(w, false);
  register_workers(w, TARGET2, 0);
  fail_engine(w, TARGET, 3, ERR_INTERNAL);
  opened(w, TARGET2);
  rig_clear(&w->r);
  pass(w, SESSIONS_TARGET_WAIT_US + 1000000, TARGET, TARGET2); /* it answers PING but not OPEN */
  opened(w, TARGET);
  assert_int_equal(w->epoch, 3);
  fail_engine(w, TARGET, 3, ERR_INTERNAL);
  opened(w, TARGET2);
  rig_clear(&w->r);
  sessions_worker_died(w->o, ID(TARGET2), w->r.now, &w->r.out);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0); /* not at once */
  pass(w, SESSIONS_UNABLE_US + 1000000, TARGET, 0);
  opened(w, TARGET);
  assert_int_equal(view(w).finish, 0);
}

static void test_targets_that_fail_again_and_again_end_the_session(void **state) {
  world *w = *state;
  start_running(w, false);
  register_workers(w, TARGET2, 0);
  for (int i = 0; i < SESSIONS_UNABLE_MAX; i++) {
    peer_id failed = i % 2 ? TARGET2 : TARGET, other = i % 2 ? TARGET : TARGET2;
    fail_engine(w, failed, 3, ERR_INTERNAL);
    opened(w, other);
    rig_say(&w->r, other, worker_state(w, MSG_OPENED, 3));
    rig_clear(&w->r);
    for (int k = 0; k < 4; k++) {
      pass(w, SESSIONS_UNABLE_US / 4, TARGET, TARGET2);
      send_tokens(w, other, 3, 0);
    }
  }
  fail_engine(w, TARGET, 3, ERR_INTERNAL);
  assert_int_equal(view(w).code, ERR_INTERNAL);
}

/* Its context does not grow. */
static void test_a_target_that_is_too_small_is_never_asked_again(void **state) {
  world *w = *state;
  start_running(w, false);
  register_workers(w, TARGET2, 0);
  rig_say(&w->r, TARGET, error_message(SELF, w->id, w->epoch, ERR_LIMIT));
  opened(w, TARGET2);
  rig_clear(&w->r);
  pass(w, SESSIONS_TARGET_WAIT_US + 1000000, TARGET, TARGET2);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPEN), 0);
  assert_int_equal(view(w).code, ERR_TIMEOUT);
}

/* A minute of waiting in lockstep would begin anew at the next target. */
static void test_a_wait_that_ended_is_not_begun_elsewhere(void **state) {
  world *w = *state;
  start_running(w, false);
  register_workers(w, TARGET2, 0);
  rig_clear(&w->r);
  fail_engine(w, TARGET, 3, ERR_TIMEOUT);
  assert_int_equal(view(w).finish, WIRE_FINISH_ERROR);
  assert_int_equal(rig_count(&w->r, TARGET2, MSG_OPEN), 0);
}

/* --- a draft that does nothing --- */

static void say_unattached(world *w) {
  rig_say(&w->r, TARGET, message(MSG_DETACH, SELF, w->id, w->epoch));
}

static void test_a_draft_that_never_attaches_makes_way_for_another(void **state) {
  world *w = *state;
  start_running(w, true);
  register_workers(w, 0, DRAFT2);
  rig_clear(&w->r);
  pass(w, SESSIONS_ATTACH_US / 2, TARGET, DRAFT);
  say_unattached(w); /* it may be on its way */
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_END), 0);
  pass(w, SESSIONS_ATTACH_US / 2, TARGET, DRAFT);
  rig_say(&w->r, DRAFT2, ping_message(MSG_PING, SELF, 1, 1, 0));
  say_unattached(w);
  rig_only(&w->r, DRAFT, MSG_END);
  opened(w, DRAFT2);
  rig_say(&w->r, DRAFT2, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  rig_clear(&w->r);
  say_unattached(w); /* this one is new here */
  assert_int_equal(rig_count(&w->r, DRAFT2, MSG_END), 0);
  pass(w, SESSIONS_REPEAT_US, TARGET, DRAFT2);
  send_tokens(w, TARGET, 3, 2);
  assert_int_equal(view(w).length, 5);
}

static void test_a_draft_that_never_opens_makes_way_for_another(void **state) {
  world *w = *state;
  sessions_request r = request(true);
  register_workers(w, TARGET, DRAFT);
  start_request(w, &r);
  opened(w, TARGET);
  rig_say(&w->r, TARGET, worker_state(w, MSG_OPENED, PROMPT_LENGTH));
  register_workers(w, 0, DRAFT2);
  pass(w, SESSIONS_ATTACH_US - SESSIONS_REPEAT_US, TARGET, DRAFT);
  assert_int_equal(rig_count(&w->r, DRAFT2, MSG_OPEN), 0);
  rig_say(&w->r, DRAFT2, ping_message(MSG_PING, SELF, 1, 1, 0));
  pass(w, 2 * SESSIONS_REPEAT_US, TARGET, DRAFT);
  rig_last(&w->r, DRAFT, MSG_END);
  opened(w, DRAFT2);
}

/* While a session waits for a target, nothing is asked of its draft. */
static void test_a_draft_is_not_late_while_there_is_no_target(void **state) {
  world *w = *state;
  start_running(w, true);
  sessions_worker_died(w->o, ID(TARGET), w->r.now, &w->r.out);
  pass(w, 3 * SESSIONS_ATTACH_US, DRAFT, 0);
  rig_clear(&w->r);
  register_workers(w, TARGET2, 0);
  opened(w, TARGET2);
  opened(w, DRAFT);
  pass(w, SESSIONS_ATTACH_US / 2, TARGET2, DRAFT);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_END), 0);
}

/* --- a connection that ended --- */

/* Nobody waits for three seconds of silence. */
static void test_a_worker_that_was_killed_is_replaced_at_once(void **state) {
  world *w = *state;
  start_running(w, true);
  send_tokens(w, TARGET, 3, 7);
  register_workers(w, TARGET2, DRAFT2);
  pass(w, 1000000, TARGET, DRAFT);
  rig_say(&w->r, TARGET2, ping_message(MSG_PING, SELF, 1, 1, 0));
  rig_say(&w->r, DRAFT2, ping_message(MSG_PING, SELF, 1, 1, 0));
  rig_clear(&w->r);
  rig_event(&w->r, EVENT_DISCONNECTED, DRAFT, 0, NULL, NULL);
  pass(w, ROSTER_DOUBT_US, TARGET, 0);
  opened(w, DRAFT2);
  assert_int_equal(w->epoch, 1);
  rig_event(&w->r, EVENT_DISCONNECTED, TARGET, 0, NULL, NULL);
  rig_advance(&w->r, ROSTER_DOUBT_US);
  assert_int_equal(opened(w, TARGET2)->token_count, 10);
  assert_int_equal(w->epoch, 2);
}

static int run_failing_workers(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_session_does_not_wait_for_a_hung_target_for_ever),
      CASE(test_a_session_leaves_a_target_whose_engine_failed),
      CASE(test_a_session_that_fails_everywhere_ends),
      CASE(test_what_is_durable_is_acknowledged_to_another_target),
      CASE(test_repairs_that_help_are_not_too_many),
      CASE(test_a_target_that_failed_is_asked_again_after_a_while),
      CASE(test_targets_that_fail_again_and_again_end_the_session),
      CASE(test_a_target_that_is_too_small_is_never_asked_again),
      CASE(test_a_wait_that_ended_is_not_begun_elsewhere),
      CASE(test_a_draft_that_never_attaches_makes_way_for_another),
      CASE(test_a_draft_that_never_opens_makes_way_for_another),
      CASE(test_a_draft_is_not_late_while_there_is_no_target),
      CASE(test_a_worker_that_was_killed_is_replaced_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

static int run_parts(void) {
  const struct CMUnitTest tests[] = {
      PARTS_CASE(test_a_lost_part_is_sent_again_from_where_the_target_is),
      PARTS_CASE(test_each_part_has_its_own_time),
      PARTS_CASE(test_a_draft_is_opened_in_parts_too),
      PARTS_CASE(test_a_session_moves_in_parts_and_in_the_middle_of_them),
      PARTS_CASE(test_a_worker_of_version_2_is_given_no_session_in_parts),
      CASE(test_a_worker_of_version_2_is_given_no_penalties_by_count_and_no_bias),
      CASE(test_logprobs_that_come_again_change_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_the_longest_session_moves_at_its_end),
      CASE(test_an_epoch_that_is_not_recorded_is_never_sent),
      CASE(test_a_desync_with_an_own_prefix_goes_on_from_there),
      CASE(test_a_desync_with_another_prefix_sends_everything),
      CASE(test_a_repeated_desync_is_one_repair),
      CASE(test_too_many_repairs_end_the_session),
      CASE(test_a_new_ticket_is_told_until_the_target_has_it),
      CASE(test_a_desync_of_the_draft_is_repaired),
      CASE(test_a_draft_with_another_prefix_gets_everything),
      CASE(test_a_draft_out_of_step_too_often_is_given_up),
      CASE(test_a_draft_that_is_always_out_of_step_costs_little),
      CASE(test_a_restarted_draft_is_asked_again),
      CASE(test_a_lost_target_is_replaced),
      CASE(test_failover_prefers_the_same_numerics),
      CASE(test_a_target_that_gave_no_token_does_not_change_the_numerics),
      CASE(test_a_target_that_was_full_is_asked_again_after_another_died),
      CASE(test_a_session_waits_when_its_only_target_died),
      CASE(test_a_restarted_target_gets_its_session_back),
      CASE(test_a_target_that_is_refused_loses_its_sessions),
      CASE(test_a_target_that_is_refused_loses_sessions_that_open_too),
      CASE(test_a_hung_target_is_left),
      CASE(test_what_nobody_cancelled_goes_on),
      CASE(test_the_stats_of_several_targets_are_added),
      CASE(test_silent_targets_are_not_left_in_circles),
      CASE(test_a_session_stays_at_a_hung_target_without_another),
      CASE(test_a_hung_target_is_not_left_for_a_hung_or_full_one),
      CASE(test_a_target_that_never_opens_is_left_for_another),
      CASE(test_without_its_draft_a_session_decodes_plainly),
      CASE(test_another_draft_takes_over),
      CASE(test_a_draft_that_refuses_makes_way_for_another),
      CASE(test_in_lockstep_the_target_learns_that_all_drafts_gave_up),
      CASE(test_a_draft_that_is_given_up_is_sent_end),
      CASE(test_a_draft_that_refuses_is_not_asked_again),
      CASE(test_a_worker_that_restarts_again_and_again_is_not_asked_each_time),
      CASE(test_a_session_leaves_a_target_whose_device_is_lost),
      CASE(test_one_error_is_enough_for_all_sessions_of_that_target),
      CASE(test_a_target_whose_device_is_lost_gets_nothing_new),
      CASE(test_without_another_target_a_lost_device_ends_the_session),
      CASE(test_a_session_waits_for_room_at_the_other_target),
      CASE(test_a_session_waits_for_a_target_that_is_started_again),
  };
  return run_failing_workers() + run_parts() + cmocka_run_group_tests(tests, NULL, NULL);
}
