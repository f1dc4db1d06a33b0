/* libs: target wire speculative base */
#include "tests/support/target_world.h"

/* A result that comes after the session's end is dropped, and does no harm to the next session in the slot.
 */
static void test_a_result_after_the_end_belongs_to_nobody(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  prefill(w);
  assert_true(take_job(w));
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  static const int32_t other[] = {60, 61, 62, 63};
  say_and_open(w, open_message(S + 1, 1, other, 4));
  give_result(w);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(held(w, S + 1)->committed.tokens[4], next_of(63));
}

static void test_a_result_after_a_rollback_is_dropped(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 4);
  assert_true(take_job(w));
  rig_say(&w->r, ORCH, delta(2, 4, truth() + 4, 0));
  rig_clear(&w->r);
  give_result(w); /* computed for a longer C of epoch 1 */
  assert_int_equal(held(w, S)->committed.length, 4);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  assert_int_equal(play(w, 2), 2);
  expect_tokens(rig_peek(&w->r, ORCH, MSG_TOKENS, 0), 4, 5);
}

/* Neither its tokens nor its rows count: beyond the common part they belong to another C. */
static void test_a_result_after_other_tokens_is_dropped(void **state) {
  world *w = *state;
  static const int32_t other[] = {50, 51, 52};
  say_and_open(w, prompt_message());
  play(w, 4);
  assert_true(take_job(w));
  rig_say(&w->r, ORCH, delta(2, 4, other, 3));
  rig_clear(&w->r);
  give_result(w);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  assert_int_equal(play(w, 1), 1); /* check_job compares the cache with C */
  assert_int_equal(held(w, S)->committed.tokens[7], next_of(52));
}

/* C is the same in the new epoch, so the tokens of a job of the old one continue it. */
static void test_a_result_after_a_resume_counts(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 2);
  assert_true(take_job(w));
  rig_say(&w->r, ORCH, delta(2, 5, truth() + 5, 0));
  rig_clear(&w->r);
  give_result(w);
  play(w, 3);
  w->holds = true; /* the engine gets no further job */
  rig_advance(&w->r, 2 * TOKEN_STREAM_EVERY_US);
  int32_t base = 5;
  for (int32_t i = 0; i < rig_count(&w->r, ORCH, MSG_TOKENS); i++) {
    const msg *m = rig_peek(&w->r, ORCH, MSG_TOKENS, i);
    assert_int_equal(m->epoch, 2);
    expect_tokens(m, base, base + m->u.tokens.token_count);
    base += m->u.tokens.token_count;
  }
  assert_true(base >= 8);
}

static void test_a_result_of_no_job_changes_nothing(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  prefill(w);
  assert_true(take_job(w));
  w->batch.jobs[0].serial += 1000; /* no session has this job */
  rig_clear(&w->r);
  give_result(w);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  w->batch.jobs[0].serial -= 1000;
  give_result(w);
  rig_only(&w->r, ORCH, MSG_TOKENS);
}

static void test_a_selfcheck_that_differs_ends_speculation(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.selfcheck = 1;
  say_and_open(w, m);
  uint32_t g = attach(w, DRAFT);
  uint64_t id = 1;
  w->differs = true;
  rounds_with_nodes(w, g, &id, 1);
  int32_t rows = w->node_rows;
  while (held(w, S)->state == SESSION_RUNNING) {
    int32_t length = held(w, S)->committed.length;
    if (length < 40 && session_draft_of(held(w, S), DRAFT)) {
      send_chain(w, DRAFT, g, length, id, 2, false);
      id += 2;
    }
    assert_true(run_job(w));
  }
  assert_int_equal(w->node_rows, rows);
  assert_true(rig_only(&w->r, ORCH, MSG_DONE)->u.done.off_reason.size > 0);
  int logged = 0;
  for (int32_t i = 0; i < w->r.out.count; i++) logged += w->r.out.list[i].kind == ACTION_LOG;
  assert_true(logged >= 1);
}

static void test_an_error_inside_a_verify_makes_the_session_decode_plainly(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  send_chain(w, DRAFT, g, 3, 1, 3, false);
  w->fail = ERR_INTERNAL;
  assert_true(run_job(w));
  assert_int_equal(held(w, S)->state, SESSION_RUNNING);
  assert_int_equal(held(w, S)->committed.length, 3); /* nothing was committed */
  while (held(w, S)->state == SESSION_RUNNING) {
    assert_true(run_job(w)); /* at once, because it does not wait for its draft any more */
    assert_int_equal(w->job.count, 1);
  }
  const msg_done *d = &rig_only(&w->r, ORCH, MSG_DONE)->u.done;
  assert_int_equal(d->finish, WIRE_FINISH_LENGTH);
  assert_int_equal(d->length, 43);
  assert_true(d->off_reason.size > 0);
  assert_int_equal(d->stats.forwards + d->stats.accepted, 40);
}

static void test_an_error_of_a_plain_step_ends_the_session(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  say_and_open(w, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  play(w, 2);
  w->fail = ERR_INTERNAL;
  assert_true(run_job(w));
  const msg *m = rig_only(&w->r, ORCH, MSG_DONE);
  assert_int_equal(m->u.done.finish, WIRE_FINISH_ERROR);
  assert_int_equal(m->u.done.code, ERR_INTERNAL);
  assert_true(m->u.done.text.size > 0);
  uint64_t other = m->session == S ? S + 1 : S;
  assert_int_equal(held(w, other)->state, SESSION_RUNNING); /* the other session goes on */
  assert_true(play(w, 5) == 5);
}

/* The sentence names the position, and outlives the step. */
static void test_outputs_that_are_no_numbers_end_the_session(void **state) {
  world *w = *state;
  char position[32];
  say_and_open(w, prompt_message());
  play(w, 2);
  snprintf(position, sizeof position, "at position %d are no numbers", held(w, S)->committed.length);
  w->fail = ERR_FORMAT;
  assert_true(run_job(w));
  const msg_done *d = &rig_only(&w->r, ORCH, MSG_DONE)->u.done;
  assert_int_equal(d->finish, WIRE_FINISH_ERROR);
  assert_int_equal(d->code, ERR_FORMAT);
  assert_true(d->text.size > strlen(position));
  assert_non_null(memmem(d->text.data, d->text.size, position, strlen(position)));
}

static void test_an_error_of_a_prefill_ends_the_session(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  w->fail = ERR_INTERNAL;
  assert_true(run_job(w));
  assert_int_equal(w->job.kind, ENGINE_PREFILL);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_DONE)->u.done.finish, WIRE_FINISH_ERROR);
}

/* The cache is shorter than the session thought: DESYNC names the tokens whose rows are there, and OPEN
 * repairs. */
static void test_a_cache_that_lost_rows_is_a_desync(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 6);
  assert_true(take_job(w));
  rig_clear(&w->r);
  w->r.now += JOB_US;
  engine_results r = {.count = 1};
  r.of[0] = (engine_result){.kind = w->job.kind, .serial = w->job.serial, .code = ERR_DESYNC, .kv_length = 4};
  w->length[w->job.slot] = 4;
  w->holds = false;
  rig_event(&w->r, EVENT_RESULT, 0, 0, NULL, &r);
  const msg *m = rig_only(&w->r, ORCH, MSG_DESYNC);
  int32_t length = m->u.state.length;
  hash16 h = true_hash(length);
  assert_int_equal(length, 5); /* four rows are five tokens */
  assert_memory_equal(&m->u.state.hash, &h, sizeof h);
  assert_int_equal(play(w, 1), 0);
  rig_clear(&w->r);
  rig_advance(&w->r, 3 * TOKEN_STREAM_REPEAT_US); /* until the repair, tokens that were not acknowledged are
                                                     not sent again */
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  rig_say(&w->r, ORCH, delta(2, length, truth() + length, 9 - length));
  rig_only(&w->r, ORCH, MSG_OPENED);
  assert_int_equal(play(w, 1), 1);
  expect_tokens(rig_last(&w->r, ORCH, MSG_TOKENS), 9, 10);
}

/* The session's counts as DONE tells them, and the store's are the same. */
static void expect_ahead(world *w, uint64_t verdicts, uint64_t hits, uint64_t survivors) {
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  const msg_stats *n = &rig_only(&w->r, ORCH, MSG_DONE)->u.done.stats;
  const session_ahead *all = &target_sessions(w->t)->ahead;
  assert_int_equal(n->verdicts, verdicts);
  assert_int_equal(n->ahead_hits, hits);
  assert_int_equal(n->survivors, survivors);
  assert_true(all->verdicts == verdicts && all->hits == hits && all->survivors == survivors);
}

/* A tree of two nodes is verified of a chain of five: the token behind it is the third node, and the last two
 * survive. With these two the next step verifies the end of the chain, and the tree is empty. */
static void test_what_survives_a_verdict_is_counted(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.draft_expected = true;
  m.u.open.options.budget = 2;
  say_and_open(w, m);
  uint32_t g = attach(w, DRAFT);
  prefill(w);
  believe(w);
  send_chain(w, DRAFT, g, PROMPT_LENGTH, 1, 5, false);
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(w->job.count, 3);
  assert_int_equal(held(w, S)->drafts.tree.live_count, 2);
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(held(w, S)->committed.length, PROMPT_LENGTH + 6);
  play_slowly(w, 1); /* a plain step, whose draft has sent nothing */
  assert_int_equal(w->job.count, 1);
  rig_say(&w->r, DRAFT, state_message(MSG_DETACH, SELF, S, 1, 0, (hash16){{0}}));
  assert_int_equal(play(w, 2), 2); /* of a session without a draft: no verdicts */
  expect_ahead(w, 3, 1, 2);
}

/* A tree that guessed wrong: nothing of it survives, whatever has come. */
static void test_a_wrong_tree_has_no_survivors(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  believe(w);
  const guess wrong[] = {
      {0, wrong_of(truth()[PROMPT_LENGTH - 1]), -0.001f}, {1, 5, -0.001f}, {2, 6, -0.001f}};
  send_nodes(w, DRAFT, g, PROMPT_LENGTH, 1, wrong, 3, false);
  assert_int_equal(play(w, 1), 1);
  expect_ahead(w, 1, 0, 0);
}

/* Its frame of DONE has no place for these counts. */
static void test_an_orchestrator_of_version_2_is_told_no_verdicts(void **state) {
  world *w = *state;
  greet_another_orchestrator_of(w, 2);
  rig_say(&w->r, ORCH2, prompt_message());
  uint32_t g = attach(w, DRAFT);
  prefill(w);
  believe(w);
  send_chain(w, DRAFT, g, PROMPT_LENGTH, 1, 2, false);
  assert_int_equal(play(w, 1), 1);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH2, message(MSG_END, SELF, S, 1));
  const msg_stats *n = &rig_only(&w->r, ORCH2, MSG_DONE)->u.done.stats;
  assert_int_equal(n->rounds, 1);
  assert_true(n->verdicts == 0 && n->ahead_hits == 0 && n->survivors == 0);
  assert_int_equal(target_sessions(w->t)->ahead.verdicts, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_result_after_the_end_belongs_to_nobody),
      CASE(test_a_result_after_a_rollback_is_dropped),
      CASE(test_a_result_after_other_tokens_is_dropped),
      CASE(test_a_result_after_a_resume_counts),
      CASE(test_a_result_of_no_job_changes_nothing),
      CASE(test_a_selfcheck_that_differs_ends_speculation),
      CASE(test_an_error_inside_a_verify_makes_the_session_decode_plainly),
      CASE(test_an_error_of_a_plain_step_ends_the_session),
      CASE(test_outputs_that_are_no_numbers_end_the_session),
      CASE(test_an_error_of_a_prefill_ends_the_session),
      CASE(test_a_cache_that_lost_rows_is_a_desync),
      CASE(test_what_survives_a_verdict_is_counted),
      CASE(test_a_wrong_tree_has_no_survivors),
      CASE(test_an_orchestrator_of_version_2_is_told_no_verdicts),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
