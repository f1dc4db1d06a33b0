/* libs: target wire speculative base */
/* Features at the target: what a draft is granted, which rows it is sent, and with what credit. */
#include "tests/support/target_world.h"

#include "common/speculative/policy_constants.h"

static const int32_t TAPS[] = {1, 3, 5, 7, 9, 0, 2, 4};
enum { WIDE = 8 }; /* of them: with f32 a row has 256 KiB, and the credit 16 rows */

static msg asking(int32_t taps, wire_type type, int32_t from) {
  msg m = attach_message(1, TICKET);
  m.u.state.request =
      (msg_feature_request){.taps = TAPS, .tap_count = taps, .type = type, .from = from, .horizon = 7};
  return m;
}

static msg_feature_grant ask(world *w, peer_id peer, int32_t taps, wire_type type, int32_t from) {
  rig_clear(&w->r);
  rig_say(&w->r, peer, asking(taps, type, from));
  msg_feature_grant g = rig_only(&w->r, peer, MSG_ATTACHED)->u.state.grant;
  rig_clear(&w->r);
  return g;
}

static msg long_prompt(int32_t count) {
  return open_message(S, 1, truth(), count);
}

/* Checks all FEATURES to a peer since rig_clear, which must be in order, and returns where they end. */
static int32_t gather(world *w, peer_id peer, int32_t next, int32_t *rows) {
  const session *s = held(w, S);
  *rows = 0;
  for (int32_t i = 0; i < rig_count(&w->r, peer, MSG_FEATURES); i++) {
    const msg_features *f = &rig_peek(&w->r, peer, MSG_FEATURES, i)->u.features;
    assert_true(f->base >= next && f->base + f->count < s->committed.length);
    assert_true(f->size <= WIRE_FEATURES_MAX);
    assert_int_equal(f->size, (uint32_t)(f->count * f->width) * wire_type_size(f->type));
    for (int32_t k = 0; k < f->count; k++) {
      uint8_t wanted[4];
      float value = feature_of(s->committed.tokens[f->base + k], 1);
      size_t size = wire_type_size(f->type), at = ((size_t)k * (size_t)f->width + 1) * size;
      taps_pack(f->type, &value, 1, wanted);
      assert_memory_equal(f->rows + at, wanted, size);
    }
    next = f->base + f->count;
    *rows += f->count;
  }
  return next;
}

static void name_features(world *w, peer_id peer, uint32_t generation, int32_t features) {
  batch b;
  msg m = nodes_message(&b, 1, generation, PROMPT_LENGTH, 1, NULL, 0, false);
  m.u.nodes.features = features;
  rig_say(&w->r, peer, m);
}

static void test_no_request_means_no_taps_no_memory_and_no_frames(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  believe(w);
  send_chain(w, DRAFT, g, PROMPT_LENGTH, 1, 2, false);
  play(w, 4);
  assert_int_equal(w->tapped, 0);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_FEATURES), 0);
  assert_null(held(w, S)->drafts.features.ring.rows);
}

static void test_a_draft_gets_the_prompts_rows_and_then_each_steps(void **state) {
  world *w = *state;
  int32_t rows;
  say_and_open(w, prompt_message());
  msg_feature_grant g = ask(w, DRAFT, 3, WIRE_BF16, 0);
  assert_int_equal(g.width, 3 * TAP_EMBED);
  assert_int_equal(g.type, WIRE_BF16);
  assert_false(g.fused);
  assert_int_equal(g.from, 0);
  prefill(w);
  assert_int_equal(gather(w, DRAFT, 0, &rows), PROMPT_LENGTH - 1);
  assert_int_equal(rows, PROMPT_LENGTH - 1);
  believe(w);
  send_chain(w, DRAFT, held(w, S)->drafts.of[0].ids.generation, PROMPT_LENGTH, 1, 2, false);
  rig_clear(&w->r);
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(held(w, S)->committed.length, PROMPT_LENGTH + 3);
  assert_int_equal(gather(w, DRAFT, PROMPT_LENGTH - 1, &rows), PROMPT_LENGTH + 2);
  assert_int_equal(rows, 3); /* the root and the two accepted nodes, not the bonus token */
  assert_int_equal(rig_count(&w->r, ORCH, MSG_FEATURES), 0);
}

static void test_rows_go_out_behind_all_tokens_of_a_step(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  ask(w, DRAFT, 1, WIRE_F32, 0);
  prefill(w);
  rig_clear(&w->r);
  w->r.now += LONG_US;
  rig_advance(&w->r, LONG_US);
  assert_int_equal(play(w, 1), 1);
  int32_t features = rig_place(&w->r, DRAFT, MSG_FEATURES);
  assert_true(features > rig_place(&w->r, DRAFT, MSG_TOKENS));
  assert_true(features > rig_place(&w->r, ORCH, MSG_TOKENS));
}

/* While speculation is off, a draft is sent no tokens: then it is sent no features of them either. */
static void test_rows_wait_until_their_tokens_were_sent(void **state) {
  world *w = *state;
  int32_t rows;
  say_and_open(w, prompt_message());
  ask(w, DRAFT, 1, WIRE_F32, 0);
  prefill(w);
  rig_clear(&w->r);
  held(w, S)->speculation.policy = (policy){.state = POLICY_OFF, .balance = -1e6};
  assert_int_equal(play(w, 4), 4);
  session_draft *d = session_draft_of(held(w, S), DRAFT);
  assert_int_equal(d->sent, PROMPT_LENGTH);
  assert_int_equal(gather(w, DRAFT, PROMPT_LENGTH - 1, &rows), PROMPT_LENGTH);
  rig_clear(&w->r);
  msg m = message(MSG_RESEND, SELF, S, 1);
  m.u.resend.from = PROMPT_LENGTH;
  rig_say(&w->r, DRAFT, m);
  assert_int_equal(gather(w, DRAFT, PROMPT_LENGTH, &rows), PROMPT_LENGTH + 3);
  assert_int_equal(rows, 3);
}

static void let_replies_take(world *w, double steps) {
  speculation *s = &held(w, S)->speculation;
  s->plain_us = JOB_US;
  s->policy.reply_us = (average){.mean = steps * JOB_US, .count = 20};
}

/* A head guesses a few tokens far. Where replies come later than that, its features are neither computed nor
 * sent, and it is told so now and then. */
static void test_a_draft_far_away_gets_no_features(void **state) {
  world *w = *state;
  int32_t rows;
  msg open = prompt_message();
  open.u.open.options.max_tokens = 400;
  say_and_open(w, open);
  ask(w, DRAFT, 1, WIRE_F32, 0);
  prefill(w);
  believe(w);
  rig_clear(&w->r);
  let_replies_take(w, 1.01 * POLICY_LATE);
  play_slowly(w, 1);
  const msg_features *f = &rig_only(&w->r, DRAFT, MSG_FEATURES)->u.features;
  int32_t end = f->base, tapped = w->tapped;
  assert_int_equal(f->count, 0);
  assert_true(end > held(w, S)->committed.length);
  for (int32_t i = 0; i < 40; i++) {
    let_replies_take(w, 1.01 * POLICY_LATE);
    play_slowly(w, 1);
    assert_true(w->tapped <= tapped + 1);
  }
  int32_t told = rig_count(&w->r, DRAFT, MSG_FEATURES);
  assert_in_range(told, 2, 3);
  end = rig_peek(&w->r, DRAFT, MSG_FEATURES, told - 1)->u.features.base;
  assert_true(end > held(w, S)->committed.length);
  rig_clear(&w->r);
  while (held(w, S)->committed.length <= end + 4) { /* it has come nearer */
    let_replies_take(w, 0.5);
    play_slowly(w, 1);
  }
  assert_int_equal(gather(w, DRAFT, end, &rows), held(w, S)->committed.length - 1);
  assert_true(rows >= 4);
}

/* In mid-answer, rows are computed again only for what drafts have earned (test_speculation.c). */
static void let_drafts_have_earned(world *w) {
  target_speculation(w->t)->record.net = 8;
}

/* What was computed before the draft came is computed again, and the answer goes on as if nothing were. */
static void test_a_draft_that_attaches_late_gets_the_rows_that_are_there_already(void **state) {
  world *w = *state;
  int32_t rows;
  say_and_open(w, prompt_message());
  play(w, 4);
  let_drafts_have_earned(w);
  int32_t computed = held(w, S)->cache.rows;
  assert_int_equal(ask(w, DRAFT, 1, WIRE_F32, 0).from, 0);
  assert_int_equal(held(w, S)->cache.rows, 0);
  play_slowly(w, 1);
  assert_int_equal(gather(w, DRAFT, 0, &rows), computed + 1);
  assert_int_equal(rows, computed + 1);
  assert_memory_equal(held(w, S)->committed.tokens, truth(), (size_t)(computed + 2) * sizeof(int32_t));
}

/* A plain step costs as much as a row, as on a slow device: forty tokens cannot win what all rows cost. */
static void test_rows_that_cost_more_than_they_win_are_not_computed_again(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 8);
  cost_model *costs = &target_speculation(w->t)->costs;
  *costs = (cost_model){0};
  cost_model_measured(costs, 1, 0, JOB_US);
  cost_model_measured(costs, 2, 0, 2 * JOB_US);
  cost_model_measured(costs, 40, 0, 40 * JOB_US);
  let_drafts_have_earned(w);
  int32_t computed = held(w, S)->cache.rows;
  assert_in_range(ask(w, DRAFT, 1, WIRE_F32, 0).from, computed - 3, computed - 1);
  assert_in_range(held(w, S)->cache.rows, computed - 3, computed - 1);
}

/* OPEN of a new epoch in mid-answer, and steps before its draft, which has all of C but what they give, is
 * there again. */
static void open_again(world *w, int32_t steps) {
  say_and_open(w, prompt_message());
  play(w, 8);
  int32_t length = held(w, S)->committed.length;
  msg m = open_message(S, 2, truth(), length);
  m.u.open.prompt_length = PROMPT_LENGTH;
  say_and_open(w, m);
  assert_int_equal(play(w, steps), steps);
  assert_int_equal(held(w, S)->cache.rows, length - 1 + steps);
}

static int32_t ask_again(world *w, int32_t from) {
  msg m = asking(1, WIRE_F32, from);
  m.epoch = 2;
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, m);
  return rig_only(&w->r, DRAFT, MSG_ATTACHED)->u.state.grant.from;
}

/* Nothing has been earned, but without this row the draft would drop all that it has. */
static void test_the_one_row_that_a_draft_lacks_is_computed_again(void **state) {
  world *w = *state;
  int32_t rows;
  open_again(w, 1);
  int32_t computed = held(w, S)->cache.rows;
  assert_int_equal(ask_again(w, computed - 1), computed - 1);
  assert_int_equal(held(w, S)->cache.rows, computed - 1);
  rig_clear(&w->r);
  play_slowly(w, 1);
  assert_int_equal(gather(w, DRAFT, computed - 1, &rows), computed + 1);
  assert_int_equal(rows, 2);
  assert_int_equal(ask_again(w, computed), computed + 1); /* but not over and over */
}

static void test_the_one_row_of_a_step_under_way_is_computed_again(void **state) {
  world *w = *state;
  int32_t rows;
  open_again(w, 0);
  int32_t computed = held(w, S)->cache.rows;
  assert_true(take_job(w));
  assert_int_equal(ask_again(w, computed), computed);
  rig_clear(&w->r);
  give_result(w);
  play_slowly(w, 1);
  assert_int_equal(gather(w, DRAFT, computed, &rows), computed + 2);
  assert_int_equal(rows, 2);
}

static void test_more_rows_than_one_have_to_be_earned(void **state) {
  world *w = *state;
  open_again(w, 2);
  int32_t computed = held(w, S)->cache.rows;
  assert_int_equal(ask_again(w, computed - 2), computed);
  assert_int_equal(held(w, S)->cache.rows, computed);
}

static void test_without_features_no_row_is_computed_again(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 4);
  int32_t computed = held(w, S)->cache.rows;
  attach(w, DRAFT);
  assert_int_equal(held(w, S)->cache.rows, computed);
  assert_int_equal(w->tapped, 0);
}

/* Opens a session whose prompt another one has had, so that all of its rows are in the cache. */
static void open_cached(world *w, int32_t count, int32_t max_tokens) {
  say_and_open(w, open_message(S + 1, 1, truth(), count));
  while (held(w, S + 1)->cache.rows < count - 1) assert_true(run_job(w));
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S + 1, 1));
  msg m = long_prompt(count);
  m.u.open.options.max_tokens = max_tokens;
  say_and_open(w, m);
  assert_true(held(w, S)->cache.rows > count - 1 - KV_BLOCK);
}

static void test_of_a_cached_prompt_a_head_gets_the_positions_that_it_needs(void **state) {
  world *w = *state;
  int32_t rows;
  open_cached(w, 1000, 300);
  int32_t from = ask(w, DRAFT, 1, WIRE_F32, 0).from;
  assert_in_range(from, 999 - 512, 999 - 32);
  assert_in_range(held(w, S)->cache.rows, from - KV_BLOCK, from);
  prefill(w);
  assert_int_equal(gather(w, DRAFT, from, &rows), 999);
  assert_int_equal(rows, 999 - from);
  assert_int_equal(w->tapped, 999 - from);
  play_slowly(w, 2);
}

static void test_what_a_draft_has_of_a_cached_prompt_is_not_computed_again(void **state) {
  world *w = *state;
  int32_t rows;
  open_cached(w, 1000, 300);
  assert_int_equal(ask(w, DRAFT, 1, WIRE_F32, 990).from, 990);
  prefill(w);
  assert_int_equal(gather(w, DRAFT, 990, &rows), 999);
  assert_int_equal(rows, 9);
}

static void test_a_short_answer_is_not_worth_many_rows(void **state) {
  world *w = *state;
  open_cached(w, 1000, 4);
  assert_in_range(ask(w, DRAFT, 1, WIRE_F32, 0).from, 999 - KV_BLOCK - 16, 999);
}

static void test_rows_of_a_job_that_was_under_way_come_again(void **state) {
  world *w = *state;
  int32_t rows;
  say_and_open(w, long_prompt(40));
  assert_true(take_job(w));
  assert_int_equal(ask(w, DRAFT, 1, WIRE_F32, 0).from, 0);
  give_result(w);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_FEATURES), 0);
  prefill(w);
  assert_int_equal(gather(w, DRAFT, 0, &rows), 39);
  assert_int_equal(rows, 39);
}

/* Whoever attaches over and over does not hold up the answer. */
static void test_rows_are_computed_again_only_now_and_then(void **state) {
  world *w = *state;
  int32_t rows;
  open_cached(w, 100, 300);
  assert_int_equal(ask(w, DRAFT, 1, WIRE_F32, 0).from, 0);
  prefill(w);
  assert_int_equal(ask(w, DRAFT, 1, WIRE_F32, 0).from, 99);
  assert_int_equal(held(w, S)->cache.rows, 99);
  play_slowly(w, 1);
  gather(w, DRAFT, 99, &rows);
  assert_int_equal(rows, 1);
  w->r.now += 1100000;
  assert_int_equal(ask(w, DRAFT, 1, WIRE_F32, 0).from, held(w, S)->cache.rows); /* an answer must go on */
  play_slowly(w, 110);
  w->r.now += 1100000;
  let_drafts_have_earned(w);
  rows = held(w, S)->cache.rows;
  assert_true(ask(w, DRAFT, 1, WIRE_F32, 0).from < rows);
}

/* What the first one was sent is gone from the ring: it comes again for the second one. */
static void test_a_draft_that_takes_over_gets_the_last_rows(void **state) {
  world *w = *state;
  int32_t rows;
  open_cached(w, 300, 300);
  ask(w, DRAFT, 1, WIRE_F32, 0);
  prefill(w);
  play_slowly(w, 140);
  let_drafts_have_earned(w);
  rig_clear(&w->r);
  int32_t from = ask(w, DRAFT2, 1, WIRE_F32, 0).from, end = held(w, S)->committed.length - 1;
  assert_true(from < end);
  prefill(w);
  gather(w, DRAFT2, from, &rows);
  assert_int_equal(rows, end - from);
}

static void test_only_positions_that_are_wanted_are_tapped(void **state) {
  world *w = *state;
  int32_t rows;
  say_and_open(w, long_prompt(60));
  assert_int_equal(ask(w, DRAFT, 1, WIRE_F32, 50).from, 50);
  prefill(w);
  assert_int_equal(gather(w, DRAFT, 50, &rows), 59);
  assert_int_equal(w->tapped, 9);
}

static void test_of_a_long_prompt_the_last_rows_come(void **state) {
  world *w = *state;
  int32_t rows;
  say_and_open(w, long_prompt(3000));
  assert_int_equal(ask(w, DRAFT, 1, WIRE_BF16, 0).from, 3000 - WIRE_FEATURE_ROWS_MAX);
  assert_int_equal(ask(w, DRAFT, 1, WIRE_BF16, 2990).from, 2990);
  prefill(w);
  assert_int_equal(gather(w, DRAFT, 2990, &rows), 2999);
  assert_int_equal(rows, 9);
}

static void test_credit_bounds_what_is_on_the_way_and_what_waits(void **state) {
  world *w = *state;
  int32_t rows, got = 16;
  say_and_open(w, long_prompt(400));
  assert_int_equal(ask(w, DRAFT, WIDE, WIRE_F32, 0).width, WIRE_FEATURE_WIDTH_MAX);
  uint32_t generation = held(w, S)->drafts.of[0].ids.generation;
  prefill(w);
  int32_t next = gather(w, DRAFT, 0, &rows);
  assert_int_equal(rows, 16);
  const feature_ring *ring = &held(w, S)->drafts.features.ring;
  assert_int_equal(ring->capacity, FEATURE_RING_ROWS);
  assert_int_equal(ring->end - ring->first, FEATURE_RING_ROWS);
  assert_int_equal(next, 399 - FEATURE_RING_ROWS); /* it was told what is lost */
  for (int32_t acked = next; next < 399; acked = next, got += rows) {
    rig_clear(&w->r);
    name_features(w, DRAFT, generation, acked);
    next = gather(w, DRAFT, next, &rows);
    assert_int_equal(rows, 16);
  }
  assert_int_equal(got, 16 + FEATURE_RING_ROWS);
}

static void test_credit_of_frames_that_were_lost_comes_back(void **state) {
  world *w = *state;
  int32_t rows;
  say_and_open(w, long_prompt(100));
  ask(w, DRAFT, WIDE, WIRE_F32, 0);
  uint32_t generation = held(w, S)->drafts.of[0].ids.generation;
  prefill(w);
  rig_clear(&w->r);
  name_features(w, DRAFT, generation, 0); /* it may still be under way */
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_FEATURES), 0);
  w->r.now += 1100000;
  name_features(w, DRAFT, generation, 0);
  gather(w, DRAFT, 16, &rows);
  assert_int_equal(rows, 16);
}

/* In lockstep nothing else would come before the draft has guessed. */
static void test_a_draft_does_not_wait_for_frames_that_were_lost(void **state) {
  world *w = *state;
  int32_t rows;
  say_and_open(w, prompt_message());
  ask(w, DRAFT, 1, WIRE_F32, 0);
  uint32_t generation = held(w, S)->drafts.of[0].ids.generation;
  prefill(w);
  rig_clear(&w->r);
  w->r.now += 1100000;
  name_features(w, DRAFT, generation, 0);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_FEATURES), 1);
  assert_int_equal(gather(w, DRAFT, 0, &rows), PROMPT_LENGTH - 1);
  assert_int_equal(rows, 0);
  name_features(w, DRAFT, generation, 0); /* it is told now and then */
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_FEATURES), 1);
  w->r.now += 1100000;
  name_features(w, DRAFT, generation, PROMPT_LENGTH - 1);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_FEATURES), 1);
}

static void test_a_draft_that_wants_later_rows_is_told_of_none(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  ask(w, DRAFT, 1, WIRE_F32, CONTEXT);
  prefill(w);
  w->r.now += 1100000;
  name_features(w, DRAFT, held(w, S)->drafts.of[0].ids.generation, 0);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_FEATURES), 0);
}

static void test_rows_that_the_engine_could_not_give_are_lost(void **state) {
  world *w = *state;
  int32_t rows;
  say_and_open(w, prompt_message());
  ask(w, DRAFT, 1, WIRE_F32, 0);
  w->untapped = true;
  prefill(w);
  assert_int_equal(gather(w, DRAFT, 0, &rows), PROMPT_LENGTH - 1); /* it is told so, and waits for none */
  assert_int_equal(rows, 0);
  play_slowly(w, 2);
  assert_int_equal(gather(w, DRAFT, 0, &rows), PROMPT_LENGTH + 1);
  assert_int_equal(rows, 2);
}

static void test_a_head_for_another_model_is_refused_and_the_session_goes_on(void **state) {
  world *w = *state;
  static const int32_t beyond[] = {TAP_LAYERS + 1};
  say_and_open(w, prompt_message());
  msg m = asking(1, WIRE_F32, 0);
  m.u.state.request.taps = beyond;
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, m);
  rig_expect_error(&w->r, DRAFT, ERR_ARG);
  assert_int_equal(session_draft_count(held(w, S)), 0);
  assert_int_equal(play(w, 2), 2);
  assert_int_equal(w->tapped, 0);
}

static void test_two_drafts_share_the_same_states(void **state) {
  world *w = *state;
  int32_t rows;
  say_and_open(w, prompt_message());
  assert_true(ask(w, DRAFT, 2, WIRE_F32, 0).width > 0);
  assert_int_equal(ask(w, DRAFT2, 1, WIRE_F32, 0).width, 0); /* other states: none */
  assert_true(ask(w, DRAFT2, 2, WIRE_F32, 0).width > 0);
  prefill(w);
  assert_int_equal(gather(w, DRAFT, 0, &rows), PROMPT_LENGTH - 1);
  assert_int_equal(gather(w, DRAFT2, 0, &rows), PROMPT_LENGTH - 1);
  rig_say(&w->r, DRAFT, message(MSG_DETACH, SELF, S, 1));
  assert_non_null(held(w, S)->drafts.features.ring.rows);
  rig_say(&w->r, DRAFT2, message(MSG_DETACH, SELF, S, 1));
  assert_null(held(w, S)->drafts.features.ring.rows); /* nobody reads them any more */
  int32_t tapped = w->tapped;
  play(w, 3);
  assert_int_equal(w->tapped, tapped);
}

static void test_a_new_epoch_begins_without_features(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  ask(w, DRAFT, 1, WIRE_F32, 0);
  prefill(w);
  say_and_open(w, open_message(S, 2, PROMPT, PROMPT_LENGTH));
  assert_null(held(w, S)->drafts.features.ring.rows);
  int32_t tapped = w->tapped;
  play(w, 2);
  assert_int_equal(w->tapped, tapped);
}

/* Does a new prompt, for which a draft is expected, begin at once? */
static bool begins_at_once(world *w, uint64_t id) {
  const int32_t tokens[] = {(int32_t)id, (int32_t)id, (int32_t)id};
  msg m = open_message(id, 1, tokens, 3);
  m.u.open.draft_expected = true;
  rig_say(&w->r, ORCH, m);
  bool begins = take_job(w);
  if (begins) give_result(w);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, id, 1));
  return begins;
}

static void test_a_prompt_waits_for_a_draft_where_drafts_read_features(void **state) {
  world *w = *state;
  assert_false(begins_at_once(w, 5)); /* nobody knows yet */
  say_and_open(w, prompt_message());
  attach(w, DRAFT);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  assert_true(begins_at_once(w, 6));
  msg again = prompt_message();
  again.epoch = 2;
  say_and_open(w, again);
  msg m = asking(1, WIRE_F32, 0);
  m.epoch = 2;
  rig_say(&w->r, DRAFT, m);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 2));
  assert_false(begins_at_once(w, 8));
  target_speculation(w->t)->last.reply_us = (average){.mean = SCHEDULE_ATTACH_US, .count = 9};
  assert_true(begins_at_once(w, 9)); /* drafts are so far away that none could attach in time */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_no_request_means_no_taps_no_memory_and_no_frames),
      TEST(test_a_draft_gets_the_prompts_rows_and_then_each_steps),
      TEST(test_rows_go_out_behind_all_tokens_of_a_step),
      TEST(test_rows_wait_until_their_tokens_were_sent),
      TEST(test_a_draft_far_away_gets_no_features),
      TEST(test_a_draft_that_attaches_late_gets_the_rows_that_are_there_already),
      TEST(test_rows_that_cost_more_than_they_win_are_not_computed_again),
      TEST(test_the_one_row_that_a_draft_lacks_is_computed_again),
      TEST(test_the_one_row_of_a_step_under_way_is_computed_again),
      TEST(test_more_rows_than_one_have_to_be_earned),
      TEST(test_without_features_no_row_is_computed_again),
      TEST(test_of_a_cached_prompt_a_head_gets_the_positions_that_it_needs),
      TEST(test_what_a_draft_has_of_a_cached_prompt_is_not_computed_again),
      TEST(test_a_short_answer_is_not_worth_many_rows),
      TEST(test_rows_of_a_job_that_was_under_way_come_again),
      TEST(test_rows_are_computed_again_only_now_and_then),
      TEST(test_a_draft_that_takes_over_gets_the_last_rows),
      TEST(test_only_positions_that_are_wanted_are_tapped),
      TEST(test_of_a_long_prompt_the_last_rows_come),
      TEST(test_credit_bounds_what_is_on_the_way_and_what_waits),
      TEST(test_credit_of_frames_that_were_lost_comes_back),
      TEST(test_a_draft_does_not_wait_for_frames_that_were_lost),
      TEST(test_a_draft_that_wants_later_rows_is_told_of_none),
      TEST(test_rows_that_the_engine_could_not_give_are_lost),
      TEST(test_a_head_for_another_model_is_refused_and_the_session_goes_on),
      TEST(test_a_prompt_waits_for_a_draft_where_drafts_read_features),
      TEST(test_two_drafts_share_the_same_states),
      TEST(test_a_new_epoch_begins_without_features),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
