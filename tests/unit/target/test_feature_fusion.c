/* libs: target wire speculative base */
/* fc at the target: which rows it is applied to, when, and what a draft with another head gets. */
#include "tests/support/target_world.h"

#include "target_worker/feature_fusion.h"

enum { WIDTH = 24, TAP_COUNT = 3 };
static const int32_t TAPS[TAP_COUNT] = {1, 3, 5};
static const hash16 FC = {{7}}, OTHER = {{8}};

/* The target has been given a head. */
static int set_up_head(void **state) {
  int rc = set_up(state);
  taps_offer *o = &target_sessions(((world *)*state)->t)->taps;
  o->fc = FC;
  memcpy(o->fc_taps, TAPS, sizeof TAPS);
  o->fc_tap_count = TAP_COUNT;
  o->fc_width = WIDTH;
  return rc;
}

static msg_feature_grant ask(world *w, peer_id peer, uint64_t id, hash16 fc) {
  msg m = attach_message(1, TICKET);
  m.session = id;
  m.u.state.request =
      (msg_feature_request){.taps = TAPS, .tap_count = TAP_COUNT, .type = WIRE_BF16, .fc = fc};
  rig_clear(&w->r);
  rig_say(&w->r, peer, m);
  msg_feature_grant g = rig_only(&w->r, peer, MSG_ATTACHED)->u.state.grant;
  rig_clear(&w->r);
  return g;
}

/* Checks all FEATURES to a peer since rig_clear, which begin at `base`, and returns how many rows came. */
static int32_t gather(world *w, peer_id peer, int32_t base) {
  int32_t next = base;
  for (int32_t i = 0; i < rig_count(&w->r, peer, MSG_FEATURES); i++) {
    const msg_features *f = &rig_peek(&w->r, peer, MSG_FEATURES, i)->u.features;
    assert_int_equal(f->base, next);
    for (int32_t k = 0; k < f->count; k++)
      for (int32_t v = 0; v < f->width; v++) {
        float value = feature_of(truth()[f->base + k], v);
        uint8_t wanted[2];
        taps_pack(WIRE_BF16, &value, 1, wanted);
        assert_memory_equal(f->rows + 2 * ((size_t)k * (size_t)f->width + (size_t)v), wanted, 2);
      }
    next = f->base + f->count;
  }
  return next - base;
}

static void test_fc_is_applied_behind_the_tokens_and_before_the_next_forward(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  msg_feature_grant g = ask(w, DRAFT, S, FC);
  assert_true(g.fused);
  assert_int_equal(g.width, WIDTH);
  prefill(w);
  assert_true(take_job(w));
  assert_int_equal(w->job.kind, ENGINE_FUSE);
  assert_int_equal(w->job.count, PROMPT_LENGTH - 1);
  give_result(w);
  assert_int_equal(gather(w, DRAFT, 0), PROMPT_LENGTH - 1);
  believe(w);
  send_chain(w, DRAFT, held(w, S)->drafts.of[0].ids.generation, PROMPT_LENGTH, 1, 2, false);
  rig_clear(&w->r);
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_TOKENS), 1); /* they are gone */
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_FEATURES), 0);
  assert_true(take_job(w));
  assert_int_equal(w->job.kind, ENGINE_FUSE);
  assert_int_equal(w->job.kv_length, PROMPT_LENGTH - 1);
  assert_int_equal(w->job.count, 3); /* the root and two accepted nodes */
  give_result(w);
  assert_int_equal(gather(w, DRAFT, PROMPT_LENGTH - 1), 3);
  assert_int_equal(w->fused, w->tapped);
  assert_false(feature_fusion_pending(held(w, S)));
}

static void test_a_draft_with_another_head_gets_the_states(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  msg_feature_grant g = ask(w, DRAFT, S, OTHER);
  assert_false(g.fused);
  assert_int_equal(g.width, TAP_COUNT * TAP_EMBED);
  prefill(w);
  assert_int_equal(gather(w, DRAFT, 0), PROMPT_LENGTH - 1);
  play_slowly(w, 2);
  assert_int_equal(w->fused, 0);
}

static void test_the_rows_of_all_sessions_go_through_fc_together(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  say_and_open(w, other_prompt(S + 1));
  ask(w, DRAFT, S, FC);
  ask(w, DRAFT2, S + 1, FC);
  prefill(w);
  assert_int_equal(held(w, S + 1)->cache.rows, PROMPT_LENGTH - 1); /* of the same forward */
  assert_true(take_job(w));
  assert_int_equal(w->batch.count, 2);
  assert_int_equal(w->batch.jobs[1].kind, ENGINE_FUSE);
  give_result(w);
  assert_int_equal(gather(w, DRAFT, 0), PROMPT_LENGTH - 1);
  assert_int_equal(gather(w, DRAFT2, 0), PROMPT_LENGTH - 1);
}

static void test_rows_of_a_draft_that_has_left_go_nowhere(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  ask(w, DRAFT, S, FC);
  prefill(w);
  assert_true(take_job(w));
  rig_say(&w->r, DRAFT, message(MSG_DETACH, SELF, S, 1));
  rig_clear(&w->r);
  give_result(w);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_FEATURES), 0);
  assert_int_equal(play(w, 2), 2);
  assert_int_equal(w->fused, PROMPT_LENGTH - 1);
}

static void test_a_draft_that_leaves_takes_the_states_that_wait_along(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  ask(w, DRAFT, S, FC);
  prefill(w);
  assert_true(feature_fusion_pending(held(w, S)));
  rig_say(&w->r, DRAFT, message(MSG_DETACH, SELF, S, 1));
  assert_false(feature_fusion_pending(held(w, S)));
  assert_int_equal(play(w, 2), 2);
  assert_int_equal(w->fused, 0);
}

static void test_rows_of_a_session_that_has_ended_go_nowhere(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  ask(w, DRAFT, S, FC);
  prefill(w);
  assert_true(take_job(w));
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  say_and_open(w, other_prompt(S + 1)); /* in the same slot */
  give_result(w);
  assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_FEATURES), 0);
  assert_int_equal(play(w, 2), 2);
}

static void test_where_fc_fails_the_rows_are_lost_and_the_session_goes_on(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  ask(w, DRAFT, S, FC);
  prefill(w);
  w->fail = ERR_INTERNAL;
  assert_true(run_job(w));
  const msg *lost = rig_only(&w->r, DRAFT, MSG_FEATURES);
  assert_int_equal(lost->u.features.count, 0);
  assert_int_equal(lost->u.features.base, PROMPT_LENGTH - 1);
  rig_clear(&w->r);
  play_slowly(w, 1);
  assert_true(run_job(w));
  assert_int_equal(gather(w, DRAFT, PROMPT_LENGTH - 1), 1);
}

static void set_off(world *w, bool off) {
  held(w, S)->speculation.policy =
      (policy){.state = off ? POLICY_OFF : POLICY_ON, .balance = off ? -1e6 : 1e6};
}

/* What nobody reads is not worth a forward of fc; the latest rows are there when drafts are listened to
 * again. */
static void test_while_speculation_is_off_states_wait(void **state) {
  world *w = *state;
  msg open = prompt_message();
  open.u.open.options.max_tokens = 4 * FEATURE_FUSION_ROWS;
  say_and_open(w, open);
  ask(w, DRAFT, S, FC);
  prefill(w);
  set_off(w, true);
  assert_int_equal(play(w, 3), 3); /* fc, the first token, and fc: it is read while the prompt is */
  assert_int_equal(w->fused, PROMPT_LENGTH);
  for (int32_t i = 0; i < FEATURE_FUSION_ROWS + 9; i++) {
    play_slowly(w, 1);
    assert_int_equal(w->job.kind, ENGINE_VERIFY);
  }
  assert_int_equal(w->fused, PROMPT_LENGTH);
  assert_true(feature_fusion_waits(held(w, S)) && !feature_fusion_pending(held(w, S)));
  set_off(w, false);
  rig_clear(&w->r);
  assert_true(take_job(w));
  assert_int_equal(w->job.kind, ENGINE_FUSE);
  assert_int_equal(w->job.count, FEATURE_FUSION_ROWS);
  assert_int_equal(w->job.kv_length, held(w, S)->cache.rows - FEATURE_FUSION_ROWS);
  int32_t base = w->job.kv_length;
  give_result(w);
  play_slowly(w, 1); /* the draft is sent its tokens, and then their rows */
  assert_true(gather(w, DRAFT, base) >= FEATURE_FUSION_ROWS);
}

/* A draft on the target's own processors that has not paid does not even read the prompt; the latest rows are
 * there when it is tried again. */
static void test_a_draft_that_would_slow_the_target_reads_no_prompt(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  ask(w, DRAFT, S, FC);
  held(w, S)->speculation.policy = (policy){.state = POLICY_OFF, .colocated = true, .balance = -1e6};
  prefill(w);
  assert_int_equal(play(w, 2), 2);
  assert_int_equal(w->fused, 0);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_FEATURES), 0);
  set_off(w, false);
  assert_true(take_job(w));
  assert_int_equal(w->job.kind, ENGINE_FUSE);
  assert_int_equal(w->job.kv_length, 0);
  give_result(w);
  play_slowly(w, 1);
  assert_true(gather(w, DRAFT, 0) >= PROMPT_LENGTH);
}

static void let_forwards_fuse(world *w) {
  target_sessions(w->t)->taps.fc_in_forward = true;
}

static void test_a_forward_that_fuses_needs_no_batch_behind_it(void **state) {
  world *w = *state;
  let_forwards_fuse(w);
  say_and_open(w, prompt_message());
  ask(w, DRAFT, S, FC);
  prefill(w);
  assert_true(w->job.fuses);
  assert_int_equal(gather(w, DRAFT, 0), PROMPT_LENGTH - 1);
  believe(w);
  send_chain(w, DRAFT, held(w, S)->drafts.of[0].ids.generation, PROMPT_LENGTH, 1, 2, false);
  rig_clear(&w->r);
  assert_int_equal(play(w, 1), 1);
  assert_true(w->job.kind == ENGINE_VERIFY && w->job.fuses);
  assert_int_equal(gather(w, DRAFT, PROMPT_LENGTH - 1), 3); /* of the token itself and two nodes */
  assert_int_equal(w->fused, 0);
}

/* Nobody reads the rows, and those of earlier forwards come first when somebody does again. */
static void test_a_forward_does_not_fuse_while_states_wait(void **state) {
  world *w = *state;
  msg open = prompt_message();
  let_forwards_fuse(w);
  open.u.open.options.max_tokens = 100;
  say_and_open(w, open);
  ask(w, DRAFT, S, FC);
  prefill(w);
  set_off(w, true);
  assert_int_equal(play(w, 2), 2); /* of the first token, which is read with the prompt, and of the next */
  for (int32_t i = 0; i < 3; i++) {
    play_slowly(w, 1);
    assert_false(w->job.fuses);
  }
  set_off(w, false);
  rig_clear(&w->r);
  int32_t base = held(w, S)->cache.rows - 3;
  assert_true(take_job(w));
  assert_int_equal(w->job.kind, ENGINE_FUSE);
  assert_int_equal(w->job.kv_length, base);
  give_result(w);
  play_slowly(w, 1);
  assert_true(w->job.kind == ENGINE_VERIFY && w->job.fuses);
  assert_int_equal(gather(w, DRAFT, base - 1), 5); /* the one before them was not sent while it was off */
}

/* In lockstep a draft is listened to all the time. */
static void test_in_lockstep_no_states_wait(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  ask(w, DRAFT, S, FC);
  prefill(w);
  assert_true(run_job(w));
  set_off(w, true);
  held(w, S)->request.options.lockstep = true;
  held(w, S)->drafts.of[0].done_base = held(w, S)->committed.length;
  assert_int_equal(play(w, 1), 1);
  assert_true(feature_fusion_pending(held(w, S)));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_head, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_fc_is_applied_behind_the_tokens_and_before_the_next_forward),
      TEST(test_a_draft_with_another_head_gets_the_states),
      TEST(test_the_rows_of_all_sessions_go_through_fc_together),
      TEST(test_rows_of_a_draft_that_has_left_go_nowhere),
      TEST(test_a_draft_that_leaves_takes_the_states_that_wait_along),
      TEST(test_rows_of_a_session_that_has_ended_go_nowhere),
      TEST(test_while_speculation_is_off_states_wait),
      TEST(test_a_draft_that_would_slow_the_target_reads_no_prompt),
      TEST(test_a_forward_that_fuses_needs_no_batch_behind_it),
      TEST(test_a_forward_does_not_fuse_while_states_wait),
      TEST(test_in_lockstep_no_states_wait),
      TEST(test_where_fc_fails_the_rows_are_lost_and_the_session_goes_on),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
