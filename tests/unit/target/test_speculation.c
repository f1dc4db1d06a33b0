/* libs: target wire speculative base */
#include "tests/support/target_world.h"

#include "common/speculative/policy_constants.h"
#include <math.h>

/* An empty done mark lets it step at once; the round counts against waiting, and the time against drafting.
 */
static void test_a_wait_in_vain_counts_against_the_draft(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  session *s = held(w, S);
  assert_int_equal(play(w, 1), 1);
  policy *p = &s->speculation.policy;
  *p = (policy){.state = POLICY_ON,
                .balance = 1,
                .tokens = {.mean = 2, .count = 20},
                .cost = {.mean = 1, .count = 20},
                .arrival_us = {.mean = 200, .deviation = 50, .count = 5}};
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(play(w, 1), 0);
  rig_advance(&w->r, 100);
  double balance = p->balance;
  send_nodes(w, DRAFT, g, s->committed.length, 1, NULL, 0, true);
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(w->job.count, 1);
  assert_int_equal(p->tokens.count, 21);
  assert_true(p->tokens.mean < 2);
  assert_int_equal(p->misses, 0);
  assert_true(p->balance < balance - 0.1); /* a tenth of a step was waited */
}

/* A machine that is busy with something else comes late to the end of a wait. If all of that were the draft's
 * fault, one such step would cost it the gains of hundreds. */
static void test_a_late_end_of_a_wait_is_not_the_drafts_fault(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  session *s = held(w, S);
  assert_int_equal(play(w, 1), 1);
  policy *p = &s->speculation.policy;
  *p = (policy){.state = POLICY_ON,
                .balance = 1,
                .tokens = {.mean = 2, .count = 20},
                .cost = {.mean = 1, .count = 20},
                .arrival_us = {.mean = 200, .deviation = 50, .count = 5}};
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(play(w, 1), 0);
  double balance = p->balance;
  rig_advance(&w->r, 50 * JOB_US);
  send_nodes(w, DRAFT, g, s->committed.length, 1, NULL, 0, true);
  assert_int_equal(play(w, 1), 1);
  assert_true(p->balance < balance && p->balance > balance - 1);
}

/* A device that captures a graph takes several times as long as with it. */
static void test_a_forward_that_prepares_is_not_what_such_forwards_cost(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  prefill(w);
  const cost_model *costs = &target_speculation(w->t)->costs;
  w->prepares = true;
  assert_int_equal(play(w, 1), 1);
  assert_false(cost_model_known(costs, 1));
  w->prepares = false;
  assert_int_equal(play(w, 1), 1);
  assert_true(cost_model_known(costs, 1));
}

/* A node that promises less than its row costs is left where it is, and is not worth waiting for. */
static void test_improbable_nodes_are_not_verified(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  session *s = held(w, S);
  assert_int_equal(play(w, 1), 1);
  guess poor = {0, truth()[s->committed.length], -8};
  send_nodes(w, DRAFT, g, s->committed.length, 1, &poor, 1, true);
  uint32_t counted = s->speculation.policy.tokens.count;
  assert_int_equal(play(w, 1), 1);
  assert_int_equal(w->job.count, 1);
  assert_int_equal(s->speculation.policy.tokens.count, counted + 1);
}

/* A session pays for its part of a forward: its nodes, not what others have in it. */
static void test_other_sessions_in_a_forward_do_not_change_what_pays(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  session *s = held(w, S);
  say_and_open(w, other_prompt(S + 1));
  session *other = held(w, S + 1);
  while (other->cache.rows < other->committed.length - 1) run_job(w);
  for (int i = 0; i < 20; i++) { /* two rows take more than one */
    w->forward_us = 3 * JOB_US / 2;
    run_job(w);
  }
  policy *p = &s->speculation.policy;
  double net = p->net, others_net = other->speculation.policy.net;
  *p = (policy){.state = POLICY_ON, .own = {.accepted = 1000}, .balance = 10, .net = net};
  send_chain(w, DRAFT, g, s->committed.length, 1, 3, true);
  assert_true(take_job(w));
  assert_int_equal(w->batch.count, 2);
  w->forward_us = 3 * JOB_US;
  give_result(w);
  /* A plain token takes half of 1.5, so four of them 3; the nodes made the forward 1.5 dearer than that. */
  double tell = 60.0 / (0.75 * JOB_US);
  assert_true(fabs(p->net - net - (4 - 3 - tell)) < 0.05);
  assert_true(other->speculation.policy.net <= others_net &&
              other->speculation.policy.net > others_net - 0.1);
}

/* Plain sessions between the drafted ones do not make a draft that has failed look like a new one. */
static void test_a_session_without_a_draft_says_nothing_of_drafts(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 6);
  assert_int_equal(held(w, S)->speculation.policy.state, POLICY_NEW);
  attach(w, DRAFT);
  while (!run_job(w)) rig_advance(&w->r, 100);
  assert_int_equal(held(w, S)->speculation.policy.state, POLICY_ON);
}

static void test_free_pace_waits_a_little(void **state) {
  world *w = *state;
  msg m = prompt_message();
  say_and_open(w, m);
  play(w, 4); /* what a plain step costs is known */
  attach(w, DRAFT);
  uint64_t start = w->r.now;
  int32_t steps = 0;
  while (!run_job(w)) {
    uint64_t next = w->r.m.deadline(w->r.m.self);
    assert_true(next > w->r.now && next <= start + LONG_US);
    rig_advance(&w->r, next - w->r.now);
    assert_true(++steps < 100);
  }
  assert_int_equal(w->job.count, 1);
  assert_true(w->r.now - start <= LONG_US + JOB_US);
}

/* The rule never holds back a node that is at hand. */
static void test_a_node_at_hand_ends_the_wait(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 4);
  uint32_t g = attach(w, DRAFT);
  send_chain(w, DRAFT, g, 7, 1, 1, false);
  assert_true(run_job(w));
  assert_int_equal(w->job.count, 2);
}

static void test_no_session_waits_while_another_can_run(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  say_and_open(w, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  play(w, 8);
  attach(w, DRAFT);
  msg other = attach_message(1, TICKET);
  other.session = S + 1;
  rig_say(&w->r, DRAFT, other);
  assert_int_equal(session_draft_count(held(w, S + 1)), 1);
  for (int i = 0; i < 10; i++) { /* the device never idles, and nobody steps alone */
    assert_true(run_job(w));
    assert_int_equal(w->batch.count, 2);
    for (uint64_t id = S; id <= S + 1; id++) assert_true(held(w, id)->speculation.wait_until_us <= w->r.now);
  }
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DONE), 0);
}

/* Of a draft that is far away, answers to earlier TOKENS arrive just after each step: they say nothing of how
 * long the answer to this one takes, and it is not waited for. */
static void test_a_draft_far_away_is_not_waited_for(void **state) {
  world *w = *state;
  enum { BEHIND = 10 };
  msg m = prompt_message();
  m.u.open.options.max_tokens = 200;
  say_and_open(w, m);
  play(w, BEHIND);
  uint32_t g = attach(w, DRAFT);
  uint64_t id = 1;
  for (int i = 0; i < 60; i++) {
    while (!run_job(w)) rig_advance(&w->r, 100);
    rig_say(&w->r, ORCH, ack(1, held(w, S)->committed.length));
    w->r.now += 300;
    int32_t base = held(w, S)->committed.length - BEHIND + 1;
    if (i % 4 == 0 && base > PROMPT_LENGTH + BEHIND) {
      send_chain(w, DRAFT, g, base, id, BEHIND + 2, true);
      id += BEHIND + 2;
    }
  }
  assert_true(held(w, S)->stats.accepted > 0);
  assert_int_equal(held(w, S)->stats.wait_us, 0);
}

/* Rows computed again for a draft cost no more than a twelfth of a plain step for each token to come. */
static void test_rows_are_computed_again_for_what_they_win(void **state) {
  (void)state;
  const speculation new = {0};
  speculation_shared all = {0};
  assert_int_equal(speculation_repeat_rows(&new, &all, 1, 100, 128, false), 128); /* nothing is known yet */
  cost_model_measured(&all.costs, 1, 0, 1200);
  cost_model_measured(&all.costs, 101, 0, 1200 + 100 * 100); /* a row is a twelfth of a step */
  assert_int_equal(speculation_repeat_rows(&new, &all, 300, 0, 128, false), 128);
  assert_int_equal(speculation_repeat_rows(&new, &all, 120, 0, 128, false), 64);
  assert_int_equal(speculation_repeat_rows(&new, &all, 11, 0, 128, false), 0);
  all = (speculation_shared){0};
  cost_model_measured(&all.costs, 1, 0, 1000);
  cost_model_measured(&all.costs, 2, 0, 2000);
  cost_model_measured(&all.costs, 128, 0, 128 * 1000); /* it is a step */
  assert_int_equal(speculation_repeat_rows(&new, &all, 120, 0, 128, false), 8);
  all = (speculation_shared){0};
  cost_model_measured(&all.costs, 1, 0, 1000);
  cost_model_measured(&all.costs, 128, 0, 1100); /* it is nearly nothing */
  assert_int_equal(speculation_repeat_rows(&new, &all, 24, 0, 128, false), 128);
}

static void check_beside(speculation_shared *all, const speculation_forward *f, int32_t rows) {
  for (int32_t i = 0; i < 100; i++) speculation_measured(all, f);
  assert_int_equal(speculation_prompts_beside(all, 128), rows);
}

/* What a row of a prompt takes is learnt from forwards that carry many, alone or beside steps. */
static void test_prompts_hold_up_the_steps_beside_them_for_so_long(void **state) {
  (void)state;
  speculation_shared all = {0};
  const double us = POLICY_BESIDE_US / 64.0;                                   /* of a row */
  assert_int_equal(speculation_prompts_beside(&all, 128), POLICY_BESIDE_ROWS); /* nothing is known */
  check_beside(&all, &(speculation_forward){.prompt_rows = 128, .us = 128 * us}, 64);
  check_beside(&all, &(speculation_forward){.prompt_rows = 5, .us = 5 * us * 9}, 64);
  check_beside(&all, &(speculation_forward){.prompt_rows = 64, .us = 64 * us * 9, .unusual = true}, 64);
  check_beside(&all, &(speculation_forward){.steps = 2, .rows = 3, .prompt_rows = 32, .us = 32 * us}, 64);
  cost_model_measured(&all.costs, 3, 0, 1000);
  check_beside(&all, &(speculation_forward){.steps = 2, .rows = 3, .prompt_rows = 32, .us = 15 * us + 1000},
               128);
  check_beside(&all, &(speculation_forward){.prompt_rows = 128, .us = 128 * us * 4}, POLICY_BESIDE_ROWS);
}

/* In mid-answer a draft that has shown nothing yet gets no row, and one that has earned eight steps four. */
static void test_in_mid_answer_rows_are_paid_for_by_what_drafts_have_earned(void **state) {
  (void)state;
  speculation_shared all = {0};
  speculation s = {0};
  assert_int_equal(speculation_repeat_rows(&s, &all, 300, 0, 128, true), 0);
  cost_model_measured(&all.costs, 1, 0, 1200);
  cost_model_measured(&all.costs, 101, 0, 1200 + 100 * 100);
  assert_int_equal(speculation_repeat_rows(&s, &all, 300, 0, 128, true), 0);
  all.record.net = 8;
  assert_int_equal(speculation_repeat_rows(&s, &all, 300, 0, 128, true), 32);
  all.record.net = 0;
  s.policy.balance = POLICY_SAVED;
  assert_int_equal(speculation_repeat_rows(&s, &all, 300, 0, 128, true), 32);
  speculation_repeated(&s, &all, 32, 0);
  assert_true(fabs(s.policy.balance - (POLICY_SAVED - (1200 + 31 * 100) / 1200.0)) < 0.01);
  assert_int_equal(speculation_repeat_rows(&s, &all, 300, 0, 128, true), 8);
}

/* Forwards of four sessions, of which two have a draft that computes: these two bear all that it slows. */
static void test_what_a_draft_slows_is_borne_by_its_sessions(void **state) {
  (void)state;
  speculation_shared all = {.forward = {.steps = 4, .rows = 4, .disturbed = 2, .us = 1500}};
  speculation on = {.policy = {.state = POLICY_ON, .colocated = true, .balance = 5}}, off = {0};
  off.policy = (policy){.state = POLICY_OFF, .quiet = POLICY_QUIET, .colocated = true};
  cost_model_measured(&all.costs, 4, 0, 1000);
  speculation_stepped(&off, &all, 1, 1);
  assert_true(off.step.us == 250 && off.policy.balance == POLICY_LOSS);
  speculation_stepped(&on, &all, 1, 1);
  assert_true(on.step.us == 500);
  assert_true(on.policy.balance < 5 - (500 - 250) / 250.0);
}

/* The first steps of a program are slow: a draft beside it would look good. */
static void test_a_draft_beside_is_compared_with_several_plain_steps(void **state) {
  (void)state;
  speculation_shared all = {0};
  const speculation_forward f = {.steps = 1, .rows = 1, .us = 1000};
  speculation s = {.policy = {.state = POLICY_OFF, .quiet = POLICY_QUIET, .balance = 5}}, other = s;
  s.policy.beside = true;
  assert_true(speculation_is_quiet(&s) && !speculation_is_beside(&s));
  for (int i = 1; i <= 8; i++) {
    speculation_measured(&all, &f);
    speculation_stepped(&s, &all, 1, 1);
    assert_int_equal(s.policy.state, i < 8 ? POLICY_OFF : POLICY_ON);
    if (i == 1) speculation_stepped(&other, &all, 1, 1);
  }
  assert_int_equal(other.policy.state, POLICY_ON);
  assert_true(speculation_is_beside(&s) && !speculation_is_beside(&other));
  s.disabled = "a reason";
  assert_false(speculation_is_beside(&s));
}

/* What slow quiet steps have said is corrected by quicker ones beside the draft, and by no slower ones. */
static void test_a_draft_makes_no_plain_step_quicker(void **state) {
  (void)state;
  speculation_shared all = {0};
  speculation_forward f = {.steps = 1, .rows = 1, .us = 3000};
  for (int i = 0; i < 20; i++) speculation_measured(&all, &f);
  assert_true(cost_model_us(&all.costs, 1, 0) == 3000);
  f.disturbed = 1;
  f.us = 6000;
  for (int i = 0; i < 20; i++) speculation_measured(&all, &f);
  assert_true(cost_model_us(&all.costs, 1, 0) == 3000);
  f.us = 1500;
  for (int i = 0; i < 100; i++) speculation_measured(&all, &f);
  assert_true(cost_model_us(&all.costs, 1, 0) < 1550);
  f.us = 2000;
  for (int i = 0; i < 100; i++) speculation_measured(&all, &f);
  assert_true(cost_model_us(&all.costs, 1, 0) < 1700);
}

/* The rows of prompts that it carries too cost what they do while no draft computes. */
static void test_what_a_draft_slows_is_told_from_what_prompts_take(void **state) {
  (void)state;
  speculation_shared all = {0};
  cost_model_measured(&all.costs, 1, 0, 1000);
  speculation_forward f = {.steps = 1, .rows = 1, .prompt_rows = 100, .disturbed = 1, .us = 4000};
  speculation on = {.policy = {.state = POLICY_ON, .colocated = true, .balance = 5}};
  speculation_measured(&all, &f);
  speculation_stepped(&on, &all, 1, 1);
  assert_true(on.step.us == 1000); /* what prompts take is not known */
  f.disturbed = 0;
  speculation_measured(&all, &f);
  f.disturbed = 1;
  f.us = 4600;
  speculation_measured(&all, &f);
  speculation_stepped(&on, &all, 1, 1);
  assert_true(fabs(on.step.us - 1600) < 1);
}

/* The forward of a session's first step is not measured where another session failed in it. */
static void test_a_step_before_any_forward_was_measured_says_nothing(void **state) {
  (void)state;
  speculation_shared all = {0};
  speculation s = {0};
  speculation_stepped(&s, &all, 1, 1);
  assert_int_equal(s.policy.state, POLICY_NEW);
}

/* One step that was priced while something disturbed the machine does not speak for a long answer. */
static void test_the_time_of_plain_steps_is_that_of_all_tokens(void **state) {
  (void)state;
  speculation_shared all = {.forward = {.steps = 1, .rows = 1, .us = 1000}};
  speculation s = {0};
  speculation_stepped(&s, &all, 1, 0); /* not measured */
  assert_true(speculation_plain_us(&s) == 0);
  cost_model_measured(&all.costs, 1, 0, 1000);
  for (int32_t i = 0; i < 50; i++) speculation_stepped(&s, &all, 2, 0);
  assert_true(fabs(speculation_plain_us(&s) - 1000) < 0.01);
  all.costs = (cost_model){0};
  cost_model_measured(&all.costs, 1, 0, 100000);
  speculation_stepped(&s, &all, 1, 0);
  assert_true(fabs(speculation_plain_us(&s) - (100 * 1000 + 100000) / 101.0) < 0.01);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_wait_in_vain_counts_against_the_draft),
      CASE(test_a_late_end_of_a_wait_is_not_the_drafts_fault),
      CASE(test_a_forward_that_prepares_is_not_what_such_forwards_cost),
      CASE(test_improbable_nodes_are_not_verified),
      CASE(test_other_sessions_in_a_forward_do_not_change_what_pays),
      CASE(test_a_session_without_a_draft_says_nothing_of_drafts),
      CASE(test_free_pace_waits_a_little),
      CASE(test_a_node_at_hand_ends_the_wait),
      CASE(test_no_session_waits_while_another_can_run),
      CASE(test_a_draft_far_away_is_not_waited_for),
      CASE(test_rows_are_computed_again_for_what_they_win),
      CASE(test_prompts_hold_up_the_steps_beside_them_for_so_long),
      CASE(test_what_a_draft_slows_is_borne_by_its_sessions),
      CASE(test_a_draft_beside_is_compared_with_several_plain_steps),
      CASE(test_a_draft_makes_no_plain_step_quicker),
      CASE(test_what_a_draft_slows_is_told_from_what_prompts_take),
      CASE(test_a_step_before_any_forward_was_measured_says_nothing),
      CASE(test_the_time_of_plain_steps_is_that_of_all_tokens),
      CASE(test_in_mid_answer_rows_are_paid_for_by_what_drafts_have_earned),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
