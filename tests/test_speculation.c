/* libs: target wire speculative base */
#include "tests/target_support.h"

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

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_wait_in_vain_counts_against_the_draft),
      CASE(test_improbable_nodes_are_not_verified),
      CASE(test_other_sessions_in_a_forward_do_not_change_what_pays),
      CASE(test_free_pace_waits_a_little),
      CASE(test_a_node_at_hand_ends_the_wait),
      CASE(test_no_session_waits_while_another_can_run),
      CASE(test_a_draft_far_away_is_not_waited_for),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
