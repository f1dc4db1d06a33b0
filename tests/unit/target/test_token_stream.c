/* libs: target wire speculative base */
#include "tests/support/target_world.h"

static void test_tokens_go_to_the_orchestrator_and_the_drafts(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  attach(w, DRAFT2);
  prefill(w);
  rig_advance(&w->r, 50000); /* it need not wait for them any more */
  rig_clear(&w->r);
  assert_int_equal(play(w, 1), 1);
  expect_tokens(rig_only(&w->r, ORCH, MSG_TOKENS), 3, 4);
  expect_tokens(rig_only(&w->r, DRAFT, MSG_TOKENS), 3, 4);
  expect_tokens(rig_only(&w->r, DRAFT2, MSG_TOKENS), 3, 4);
  assert_true(wire_id_equal(rig_only(&w->r, DRAFT2, MSG_TOKENS)->to, ID(DRAFT2)));
  assert_int_equal(rig_only(&w->r, DRAFT, MSG_TOKENS)->epoch, 1);
}

static void test_an_ack_that_does_not_fit_is_a_desync(void **state) {
  world *w = *state;
  static const struct {
    int32_t length;
    uint8_t flip;
  } table[] = {{4, 1}, {5, 0x80}, {9, 0}};
  for (int i = 0; i < 3; i++) {
    uint32_t epoch = (uint32_t)i + 1;
    say_and_open(w, open_message(S, epoch, PROMPT, PROMPT_LENGTH));
    play(w, 3);
    rig_clear(&w->r);
    msg m = ack(epoch, table[i].length);
    m.u.state.hash.bytes[0] ^= table[i].flip;
    rig_say(&w->r, ORCH, m);
    const msg *d = rig_only(&w->r, ORCH, MSG_DESYNC);
    hash16 h = true_hash(6);
    assert_int_equal(d->u.state.length, 6);
    assert_memory_equal(&d->u.state.hash, &h, sizeof h);
    assert_int_equal(play(w, 1), 0); /* out of step: it waits */
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, ack(epoch, 4));
    rig_only(&w->r, ORCH, MSG_DESYNC); /* said again */
  }
}

/* An old one that comes late takes nothing back. */
static void test_an_ack_that_comes_late_takes_nothing_back(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 4);
  rig_say(&w->r, ORCH, ack(1, 6));
  rig_say(&w->r, ORCH, ack(1, 4));
  assert_int_equal(held(w, S)->stream.acked, 6);
}

/* The first tokens at once, later ones together; a draft hears of each round. */
static void test_tokens_are_sent_together_after_the_first(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  attach(w, DRAFT);
  play_slowly(w, 1);
  expect_tokens(rig_only(&w->r, ORCH, MSG_TOKENS), 3, 4);
  rig_clear(&w->r);
  int32_t length = 4;
  uint64_t start = w->r.now;
  while (rig_count(&w->r, ORCH, MSG_TOKENS) == 0) {
    held(w, S)->speculation.wait_until_us = 0; /* as if it did not pay to wait for the draft */
    assert_int_equal(play(w, 1), 1);
    length++;
    expect_tokens(rig_last(&w->r, DRAFT, MSG_TOKENS), length - 1, length);
  }
  assert_true(length > 5);
  assert_in_range(w->r.now - start, TOKEN_STREAM_EVERY_US, TOKEN_STREAM_EVERY_US + JOB_US);
  expect_tokens(rig_only(&w->r, ORCH, MSG_TOKENS), 4, length);

  rig_clear(&w->r); /* a round that takes long does not hold them back */
  held(w, S)->speculation.wait_until_us = 0;
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  w->holds = true;
  rig_advance(&w->r, 2 * TOKEN_STREAM_EVERY_US);
  expect_tokens(rig_only(&w->r, ORCH, MSG_TOKENS), length, length + 1);
}

/* A draft whose nodes nobody wants is not woken; when they are wanted again it hears all at once. */
static void test_drafts_are_sent_nothing_while_speculation_is_off(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  attach(w, DRAFT);
  play_slowly(w, 1);
  policy *p = &held(w, S)->speculation.policy;
  int32_t from = held(w, S)->committed.length;
  p->state = POLICY_OFF;
  p->balance = -1;
  rig_clear(&w->r);
  while (rig_count(&w->r, ORCH, MSG_TOKENS) == 0) assert_int_equal(play(w, 1), 1);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_TOKENS), 0);
  assert_true(held(w, S)->committed.length > from + 1);
  p->balance = 1;
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(p->state, POLICY_ON);
  expect_tokens(rig_only(&w->r, DRAFT, MSG_TOKENS), from, held(w, S)->committed.length);
}

/* What is repaired from a DESYNC is known over there before it. */
static void test_tokens_are_sent_before_a_desync(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 3);
  rig_clear(&w->r);
  msg wrong = ack(1, 4);
  wrong.u.state.hash.bytes[0] ^= 1;
  rig_say(&w->r, ORCH, wrong);
  expect_tokens(rig_only(&w->r, ORCH, MSG_TOKENS), 4, 6);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DESYNC)->u.state.length, 6);
  assert_true(rig_place(&w->r, ORCH, MSG_TOKENS) < rig_place(&w->r, ORCH, MSG_DESYNC));
}

static void test_tokens_are_sent_again_until_they_are_acknowledged(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 3;
  m.u.open.options.lockstep = true; /* then it stops when the draft is there no more */
  say_and_open(w, m);
  play(w, 2);
  rig_say(&w->r, ORCH, ack(1, 4));
  rig_advance(&w->r, 2 * TOKEN_STREAM_EVERY_US);
  expect_tokens(rig_last(&w->r, ORCH, MSG_TOKENS), 4, 5);
  rig_clear(&w->r);
  rig_advance(&w->r, TOKEN_STREAM_REPEAT_US - 2 * TOKEN_STREAM_EVERY_US);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  rig_advance(&w->r, 2 * TOKEN_STREAM_EVERY_US);
  expect_tokens(rig_only(&w->r, ORCH, MSG_TOKENS), 4, 5);
  rig_clear(&w->r);
  rig_advance(&w->r, 3 * TOKEN_STREAM_REPEAT_US);
  assert_true(rig_count(&w->r, ORCH, MSG_TOKENS) >= 2 && rig_count(&w->r, ORCH, MSG_TOKENS) <= 4);
  rig_say(&w->r, ORCH, ack(1, 5));
  rig_clear(&w->r);
  rig_advance(&w->r, 2 * TOKEN_STREAM_REPEAT_US);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
}

static void test_a_resend_is_answered_with_tokens(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  prefill(w);
  rig_advance(&w->r, 50000);
  play(w, 1);
  static const struct {
    int32_t from, base, length;
  } table[] = {{1, 1, 4}, {3, 3, 4}, {4, 4, 4}, {9, 4, 4}, {CONTEXT, 4, 4}, {INT32_MAX, 4, 4}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    peer_id from = i % 2 ? ORCH : DRAFT;
    rig_clear(&w->r);
    w->r.now += 20000;
    rig_say(&w->r, from, resend_message(SELF, S, 1, table[i].from));
    expect_tokens(rig_only(&w->r, from, MSG_TOKENS), table[i].base, table[i].length);
    assert_int_equal(rig_count(&w->r, from == ORCH ? DRAFT : ORCH, MSG_TOKENS), 0);
  }
}

/* A frame of 40 bytes asks for 20 KB. A draft that asks for the same again and again is answered every 100
 * ms, also if it leaves and comes again. */
static void test_a_draft_that_asks_too_often_is_not_answered_each_time(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  prefill(w);
  play(w, 1);
  for (int leaves = 0; leaves < 2; leaves++) {
    rig_clear(&w->r);
    for (int i = 0; i < 4000; i++) { /* 400 ms */
      w->r.now += 100;
      if (leaves) rig_say(&w->r, DRAFT, message(MSG_DETACH, SELF, S, 1));
      if (leaves) rig_say(&w->r, DRAFT, attach_message(1, TICKET));
      rig_say(&w->r, DRAFT, resend_message(SELF, S, 1, 1));
    }
    int32_t answers = rig_count(&w->r, DRAFT, MSG_TOKENS);
    if (answers < 3 || answers > 5) fail_msg("%d answers in 400 ms", (int)answers);
  }
}

/* Tokens are the request's secret: who did not show its ticket gets none. */
static void test_a_resend_without_the_ticket_gets_no_tokens(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 2);
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, resend_message(SELF, S, 1, 1));
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_TOKENS), 0);
}

enum { MESSAGES = 3, LONG = (MESSAGES - 1) * WIRE_BURST_MAX + 5 };

/* A peer was sent all of C, in messages that follow each other. */
static void expect_all_of(const rig *r, peer_id to, const prefix *c) {
  int32_t length = 0;
  assert_int_equal(rig_count(r, to, MSG_TOKENS), MESSAGES);
  for (int32_t i = 0; i < MESSAGES; i++) {
    const msg_tokens *t = &rig_peek(r, to, MSG_TOKENS, i)->u.tokens;
    assert_int_equal(t->base_length, length);
    assert_true(t->token_count > 0 && t->token_count <= WIRE_BURST_MAX);
    assert_memory_equal(t->tokens, c->tokens + length, (size_t)t->token_count * sizeof *t->tokens);
    length += t->token_count;
    assert_memory_equal(&t->hash, &c->hashes[length], sizeof t->hash);
  }
  assert_int_equal(length, c->length);
}

static roster no_peers;

/* A session of LONG tokens with a draft, without a machine around it. */
static step_context begin_long(rig *r, session *s) {
  rig_init(r, (machine){0});
  *s = (session){.state = SESSION_RUNNING, .id = S, .epoch = 1};
  s->request.orchestrator = ORCH;
  s->drafts.of[1].peer = DRAFT;
  assert_int_equal(prefix_init(&s->committed, LONG, SEED), ERR_OK);
  for (int32_t i = 0; i < LONG; i++)
    assert_int_equal(prefix_append(&s->committed, &(int32_t){i % VOCAB}, 1), ERR_OK);
  return (step_context){.peers = &no_peers, .now = r->now, .out = &r->out};
}

/* A draft asks at a time: is it answered, by one message from there on? */
static bool is_resent(rig *r, step_context *c, session *s, uint64_t after_us, int32_t from) {
  msg m = resend_message(SELF, S, 1, from);
  rig_clear(r);
  c->now += after_us;
  token_stream_on_resend(c, DRAFT, s, &m);
  int32_t count = rig_count(r, DRAFT, MSG_TOKENS);
  assert_int_equal(rig_count_all(r, RIG_ANY), count);
  if (count > 0) assert_int_equal(rig_only(r, DRAFT, MSG_TOKENS)->u.tokens.base_length, from);
  return count > 0;
}

/* A draft cannot make the target begin from the start again: it is sent what it asks for and no more, and
 * at once only if it has got all that was sent. */
static void test_a_draft_rewinds_nothing(void **state) {
  (void)state;
  static session s;
  rig r;
  step_context c = begin_long(&r, &s);
  token_stream_grown(&c, &s);
  c.now += 1000000;
  assert_true(is_resent(&r, &c, &s, 0, 1));
  assert_false(is_resent(&r, &c, &s, TOKEN_STREAM_RESEND_US - 1, 2 + WIRE_BURST_MAX));
  assert_true(is_resent(&r, &c, &s, 0, 1 + WIRE_BURST_MAX));
  assert_true(is_resent(&r, &c, &s, 0, 1 + 2 * WIRE_BURST_MAX));
  assert_false(
      is_resent(&r, &c, &s, TOKEN_STREAM_RESEND_US - 1, LONG)); /* no part: new tokens are on their way */
  assert_false(is_resent(&r, &c, &s, 1, WIRE_BURST_MAX));
  assert_true(is_resent(&r, &c, &s, TOKEN_STREAM_AGAIN_US, 1 + WIRE_BURST_MAX));
  assert_false(is_resent(&r, &c, &s, TOKEN_STREAM_RESEND_US, WIRE_BURST_MAX));
  assert_false(is_resent(&r, &c, &s, TOKEN_STREAM_RESEND_US, 1));
  assert_true(is_resent(&r, &c, &s, TOKEN_STREAM_AGAIN_US, 1));
  rig_clear(&r);
  token_stream_grown(&c, &s);
  assert_int_equal(rig_count(&r, DRAFT, MSG_TOKENS), 0);
  prefix_fini(&s.committed);
  rig_fini(&r);
}

/* A session that a draft joins late, or whose orchestrator lost much of it. */
static void test_tokens_that_no_message_holds_are_sent_in_several(void **state) {
  (void)state;
  static session s;
  rig r;
  step_context c = begin_long(&r, &s);
  token_stream_grown(&c, &s);
  expect_all_of(&r, ORCH, &s.committed);
  expect_all_of(&r, DRAFT, &s.committed);
  assert_int_equal(s.stream.sent, LONG);
  rig_clear(&r);
  token_stream_grown(&c, &s);
  assert_int_equal(rig_count_all(&r, RIG_ANY), 0);
  prefix_fini(&s.committed);
  rig_fini(&r);
}

/* Opens the session for an orchestrator that wants to know, or not; one verify accepts two nodes. */
static const msg_tokens *after_a_verify_of_two(world *w, bool wanted) {
  msg m = prompt_message();
  m.u.open.draft_expected = m.u.open.options.lockstep = true;
  m.u.open.accepted_wanted = wanted;
  say_and_open(w, m);
  uint32_t generation = attach(w, DRAFT);
  prefill(w);
  send_chain(w, DRAFT, generation, PROMPT_LENGTH, 1, 2, true);
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(held(w, S)->stats.accepted, 2);
  assert_int_equal(rig_only(&w->r, DRAFT, MSG_TOKENS)->u.tokens.accepted_size, 0); /* drafts know it */
  return &rig_only(&w->r, ORCH, MSG_TOKENS)->u.tokens;
}

static void test_an_orchestrator_that_asks_learns_which_tokens_were_accepted(void **state) {
  world *w = *state;
  const msg_tokens *t = after_a_verify_of_two(w, true);
  assert_int_equal(t->token_count, 3);
  for (int32_t i = 0; i < 3; i++) assert_int_equal(msg_token_accepted(t, i), i < 2);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, resend_message(SELF, S, 1, 1)); /* from within the prompt, which nobody has guessed */
  t = &rig_only(&w->r, ORCH, MSG_TOKENS)->u.tokens;
  for (int32_t i = 0; i < t->token_count; i++)
    assert_int_equal(msg_token_accepted(t, i), i + 1 >= PROMPT_LENGTH && i + 1 < PROMPT_LENGTH + 2);
}

/* What a repair brings in place of other tokens was accepted by nobody here. */
static void test_tokens_of_an_open_are_not_accepted_ones(void **state) {
  world *w = *state;
  after_a_verify_of_two(w, true);
  const int32_t other[2] = {wrong_of(truth()[PROMPT_LENGTH]), 7};
  msg m = delta(2, PROMPT_LENGTH + 1, other, 2);
  m.u.open.accepted_wanted = true;
  say_and_open(w, m);
  rig_say(&w->r, ORCH, resend_message(SELF, S, 2, PROMPT_LENGTH));
  const msg_tokens *t = &rig_only(&w->r, ORCH, MSG_TOKENS)->u.tokens;
  assert_int_equal(t->token_count, 3);
  for (int32_t i = 0; i < 3; i++) assert_int_equal(msg_token_accepted(t, i), i == 0);
}

static void test_nothing_is_kept_of_accepted_tokens_that_nobody_asks_for(void **state) {
  world *w = *state;
  assert_int_equal(after_a_verify_of_two(w, false)->accepted_size, 0);
  assert_null(held(w, S)->stream.accepted);
}

/* Once there was a verify that it can be compared with. */
static void test_who_asks_for_accepted_tokens_learns_what_a_plain_step_takes(void **state) {
  world *w = *state;
  cost_model_measured(&target_speculation(w->t)->costs, 1, 0, 1500);
  const msg_tokens *t = after_a_verify_of_two(w, true);
  double plain_us = speculation_plain_us(&held(w, S)->speculation);
  assert_true(plain_us >= 1);
  assert_int_equal(t->plain_us, (uint32_t)(plain_us + 0.5));
  assert_int_equal(rig_only(&w->r, DRAFT, MSG_TOKENS)->u.tokens.plain_us, 0);
  held(w, S)->speculation.instead_us = 1e12; /* more than the field holds */
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, resend_message(SELF, S, 1, PROMPT_LENGTH));
  assert_int_equal(rig_only(&w->r, ORCH, MSG_TOKENS)->u.tokens.plain_us, UINT32_MAX);
}

static void test_who_does_not_ask_for_accepted_tokens_is_not_told_of_plain_steps(void **state) {
  world *w = *state;
  cost_model_measured(&target_speculation(w->t)->costs, 1, 0, 1500);
  assert_int_equal(after_a_verify_of_two(w, false)->plain_us, 0);
  assert_true(speculation_plain_us(&held(w, S)->speculation) >= 1);
}

/* What it takes was guessed from wider ones: that is nothing to compare with. */
static void test_plain_steps_that_were_never_measured_are_not_told(void **state) {
  world *w = *state;
  assert_int_equal(after_a_verify_of_two(w, true)->plain_us, 0);
  assert_true(held(w, S)->speculation.plain_us > 0);
}

static void test_plain_steps_alone_are_compared_with_nothing(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.accepted_wanted = true;
  say_and_open(w, m);
  prefill(w);
  assert_int_equal(play(w, 1), 1);
  assert_true(held(w, S)->stats.plain_steps == 1 && speculation_plain_us(&held(w, S)->speculation) >= 1);
  const msg_tokens *t = &rig_only(&w->r, ORCH, MSG_TOKENS)->u.tokens;
  assert_true(t->accepted_size == 1 && t->plain_us == 0);
}

/* Of the engine's results; nothing is known of tokens that came with an OPEN. */
static void test_logprobs_go_to_the_orchestrator_that_asks(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.draft_expected = m.u.open.options.lockstep = true;
  m.u.open.options.logprobs = 3;
  say_and_open(w, m);
  uint32_t generation = attach(w, DRAFT);
  prefill(w);
  send_chain(w, DRAFT, generation, PROMPT_LENGTH, 1, 2, true);
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(rig_only(&w->r, DRAFT, MSG_TOKENS)->u.tokens.logprob_count, 0);
  const msg_tokens *t = &rig_only(&w->r, ORCH, MSG_TOKENS)->u.tokens;
  assert_true(t->token_count == 3 && t->logprob_count == 9);
  for (int32_t i = 0; i < 9; i++) {
    assert_int_equal(t->logprob_tokens[i], truth()[PROMPT_LENGTH + i / 3] + i % 3);
    assert_true(t->logprobs[i] == -(float)i);
  }
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, resend_message(SELF, S, 1, PROMPT_LENGTH - 1));
  t = &rig_only(&w->r, ORCH, MSG_TOKENS)->u.tokens;
  assert_true(t->token_count == 4 && t->logprob_count == 12);
  for (int32_t i = 0; i < 12; i++) {
    assert_int_equal(t->logprob_tokens[i], i < 3 ? -1 : truth()[PROMPT_LENGTH + i / 3 - 1] + i % 3);
    assert_true(t->logprobs[i] == (i < 3 ? 0 : -(float)(i - 3)));
  }
  m = delta(2, PROMPT_LENGTH + 1, truth() + PROMPT_LENGTH + 1, 2); /* a new epoch knows nothing */
  m.u.open.options.logprobs = 1;
  say_and_open(w, m);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, resend_message(SELF, S, 2, PROMPT_LENGTH));
  t = &rig_only(&w->r, ORCH, MSG_TOKENS)->u.tokens;
  assert_true(t->token_count == 3 && t->logprob_count == 3 && t->logprob_tokens[0] == -1);
}

/* No message has more than a listener takes; those of before the ring are not known. */
static void test_logprobs_come_in_short_messages(void **state) {
  (void)state;
  static session s;
  rig r;
  step_context c = begin_long(&r, &s);
  s.request.options.logprobs = WIRE_LOGPROBS_MAX;
  assert_true(session_store_logprobs(&s, WIRE_LOGPROBS_MAX));
  for (int32_t i = 0; i < SESSION_LOGPROBS * WIRE_LOGPROBS_MAX; i++)
    s.stream.logprobs[i] = (ranking_token){1, -1};
  token_stream_grown(&c, &s);
  int32_t seen = 0;
  for (int32_t i = 0; i < r.out.count; i++) {
    const action *a = &r.out.list[i];
    if (a->kind != ACTION_SEND || a->peer != ORCH || a->message->type != MSG_TOKENS) continue;
    const msg_tokens *t = &a->message->u.tokens;
    assert_true(t->token_count <= WIRE_LOGPROBS_BURST);
    assert_int_equal(t->logprob_count, t->token_count * WIRE_LOGPROBS_MAX);
    for (int32_t k = 0; k < t->logprob_count; k++) {
      bool kept = t->base_length + k / WIRE_LOGPROBS_MAX >= s.committed.length - SESSION_LOGPROBS;
      assert_int_equal(t->logprob_tokens[k], kept ? 1 : -1);
      seen += kept;
    }
  }
  assert_int_equal(seen, SESSION_LOGPROBS * WIRE_LOGPROBS_MAX);
  free(s.stream.logprobs);
  prefix_fini(&s.committed);
  rig_fini(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_tokens_go_to_the_orchestrator_and_the_drafts),
      CASE(test_an_ack_that_does_not_fit_is_a_desync),
      CASE(test_an_ack_that_comes_late_takes_nothing_back),
      CASE(test_tokens_are_sent_together_after_the_first),
      CASE(test_drafts_are_sent_nothing_while_speculation_is_off),
      CASE(test_tokens_are_sent_before_a_desync),
      CASE(test_tokens_are_sent_again_until_they_are_acknowledged),
      CASE(test_a_resend_is_answered_with_tokens),
      CASE(test_a_draft_that_asks_too_often_is_not_answered_each_time),
      CASE(test_a_resend_without_the_ticket_gets_no_tokens),
      CASE(test_an_orchestrator_that_asks_learns_which_tokens_were_accepted),
      CASE(test_tokens_of_an_open_are_not_accepted_ones),
      CASE(test_nothing_is_kept_of_accepted_tokens_that_nobody_asks_for),
      CASE(test_who_asks_for_accepted_tokens_learns_what_a_plain_step_takes),
      CASE(test_who_does_not_ask_for_accepted_tokens_is_not_told_of_plain_steps),
      CASE(test_plain_steps_that_were_never_measured_are_not_told),
      CASE(test_plain_steps_alone_are_compared_with_nothing),
      CASE(test_a_draft_rewinds_nothing),
      CASE(test_tokens_that_no_message_holds_are_sent_in_several),
      CASE(test_logprobs_go_to_the_orchestrator_that_asks),
      cmocka_unit_test(test_logprobs_come_in_short_messages),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
