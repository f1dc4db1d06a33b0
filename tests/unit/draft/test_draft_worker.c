/* libs: draft wire speculative base */
/* Who may say what to a draft, how it drains, and the batches of a model. */
#include "draft_worker/draft_state.h"
#include "tests/support/draft_world.h"

#include "common/base/program.h"

static void test_open_leads_to_attach(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, prompt_message());
  const msg *m = rig_only(&w->r, ORCH, MSG_OPENED);
  hash16 h = true_hash(PROMPT_LENGTH);
  assert_int_equal(m->u.state.length, PROMPT_LENGTH);
  assert_memory_equal(&m->u.state.hash, &h, sizeof h);
  const action *a = rig_connect_asked(&w->r);
  assert_string_equal(a->text, ENDPOINT);
  rig_connected(&w->r, a->tag, TARGET);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_HELLO)->u.hello.role, WIRE_ROLE_DRAFT);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0); /* not before WELCOME */
  rig_say(&w->r, TARGET, welcome_message(TARGET));
  m = rig_only(&w->r, TARGET, MSG_ATTACH);
  assert_int_equal(m->session, S);
  assert_int_equal(m->epoch, 1);
  assert_true(wire_id_equal(m->to, ID(TARGET)));
  assert_true(wire_id_equal(m->u.state.ticket, TICKET));
  assert_int_equal(m->u.state.length, PROMPT_LENGTH);
  assert_memory_equal(&m->u.state.hash, &h, sizeof h);
}

/* A draft is advice: it leaves at once, and says so to everybody. */
static void test_a_draining_draft_leaves_at_once(void **state) {
  world *w = *state;
  attach(w, false);
  rig_event(&w->r, EVENT_DRAIN, 0, 0, NULL, NULL);
  rig_only(&w->r, ORCH, MSG_BYE);
  rig_only(&w->r, TARGET, MSG_BYE);
  rig_only(&w->r, TARGET, MSG_DETACH);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DESYNC), 0); /* nothing is to be repaired */
  assert_true(draft_drained(w->d));
  rig_say(&w->r, ORCH, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  rig_expect_error(&w->r, ORCH, ERR_DRAINING);
}

/* A mad target that calls itself an orchestrator in its WELCOME. */
static void test_a_target_opens_nothing(void **state) {
  world *w = *state;
  for (int i = 0; i < 2; i++) {
    w->generation = 0;
    attach(w, false);
    if (i == 1) {
      msg m = welcome_message(TARGET);
      m.u.hello.role = WIRE_ROLE_ORCHESTRATOR;
      rig_say(&w->r, TARGET, m);
    }
    int32_t opened = w->f.opened, closed = w->f.closed;
    rig_clear(&w->r);
    rig_say(&w->r, TARGET, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
    rig_say(&w->r, TARGET, open_message(S, 9, PROMPT, PROMPT_LENGTH));
    rig_say(&w->r, TARGET, message(MSG_END, SELF, S, 9));
    assert_int_equal(rig_count(&w->r, TARGET, MSG_OPENED), 0);
    assert_int_equal(w->f.opened, opened);
    assert_int_equal(w->f.closed, closed);
    rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  }
}

/* One that says so in its first WELCOME. */
static void test_a_target_that_calls_itself_an_orchestrator_opens_nothing(void **state) {
  world *w = *state;
  rig_say(&w->r, ORCH, prompt_message());
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, TARGET);
  msg m = welcome_message(TARGET);
  m.u.hello.role = WIRE_ROLE_ORCHESTRATOR;
  rig_say(&w->r, TARGET, m);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  rig_say(&w->r, TARGET, message(MSG_END, SELF, S, 1));
  assert_int_equal(rig_count(&w->r, TARGET, MSG_OPENED), 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ENDED), 0);
  assert_int_equal(w->f.opened, 1);
  assert_int_equal(w->f.closed, 0);
}

static void test_only_its_target_feeds_a_session(void **state) {
  world *w = *state;
  attach(w, false);
  msg m = open_message(S + 1, 1, PROMPT, PROMPT_LENGTH); /* another session, at another target */
  m.u.open.target_endpoint = wire_text("tcp://127.0.0.1:4001");
  m.u.open.target_incarnation = ID(TARGET2);
  rig_say(&w->r, ORCH, m);
  rig_connected(&w->r, rig_connect_asked(&w->r)->tag, TARGET2);
  rig_say(&w->r, TARGET2, welcome_message(TARGET2));
  rig_clear(&w->r);
  msg reset = message(MSG_TREE_RESET, SELF, S, 1);
  reset.u.reset.generation = 50;
  static const peer_id others[] = {TARGET2, ORCH};
  for (int i = 0; i < 2; i++) {
    rig_say(&w->r, others[i], tokens_message(SELF, S, 1, 3, truth() + 3, 1, true_hash(4)));
    rig_say(&w->r, others[i], tokens_message(SELF, S, 1, 2, truth(), 1, true_hash(1)));
    rig_say(&w->r, others[i], reset);
    rig_say(&w->r, others[i], message(MSG_DETACH, SELF, S, 1));
    rig_say(&w->r, others[i], error_message(SELF, S, 1, ERR_LIMIT));
    rig_say(&w->r, others[i], attached_message(1, 9, 60));
  }
  assert_int_equal(w->f.advanced, 0);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DESYNC), 0);
  rig_clear(&w->r);
  rig_advance(&w->r, DRAFT_IDLE_US);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_NODES)->u.nodes.generation, 1);
}

/* An ATTACH that came after its DETACH: the target believes that this draft guesses for the session. */
static void test_a_target_that_believes_in_an_attachment_is_told(void **state) {
  world *w = *state;
  attach(w, false);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  msg reset = message(MSG_TREE_RESET, SELF, S, 1);
  const msg strays[] = {attached_message(1, PROMPT_LENGTH, 2), reset,
                        tokens_message(SELF, S, 1, 3, truth() + 3, 1, true_hash(4))};
  for (size_t i = 0; i < sizeof strays / sizeof *strays; i++) {
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, strays[i]);
    assert_int_equal(rig_count(&w->r, ORCH, MSG_DETACH), 0);
    rig_say(&w->r, TARGET, strays[i]);
    assert_int_equal(rig_only(&w->r, TARGET, MSG_DETACH)->epoch, 1);
  }
}

/* --- a drafter that computes batches --- */

/* Attached, nothing is known: no nodes, and not done before the answers are. */
static void test_nodes_come_with_the_replies(void **state) {
  world *w = *state;
  static draft_batch b;
  attach_model(w, false);
  gather(w);
  assert_int_equal(w->next_id, 1);
  assert_false(w->done);
  assert_true(draft_next_batch(w->d, &b));
  assert_int_equal(b.job_count, 1);
  assert_int_equal(b.token_count, PROMPT_LENGTH);
  assert_memory_equal(b.tokens, PROMPT, sizeof PROMPT);
  assert_true(b.jobs[0].whole && b.jobs[0].base == 0);
  assert_int_equal(b.query_count, 1);
  assert_int_equal(b.queries[0].depth, 0);
  static draft_batch none;
  assert_false(draft_next_batch(w->d, &none)); /* all has been told and asked */
  rig_clear(&w->r);
  draft_results r = results_of(&b, PROMPT[2]);
  give(w, &r);
  gather(w);
  assert_true(w->next_id > 1);
  assert_false(w->done);
  assert_int_equal(w->nodes[1].token, next_of(PROMPT[2]));
  rig_clear(&w->r);
  assert_true(compute_all(w, PROMPT[2]) > 1);
  gather(w);
  assert_true(w->done);
  assert_int_equal(w->next_id - 1, BUDGET + 1);
}

/* In lockstep the tree is the one that a drafter with all answers at once would grow. */
static void test_lockstep_is_best_first_whenever_replies_come(void **state) {
  world *w = *state;
  attach_model(w, true);
  compute_all(w, PROMPT[2]);
  gather(w);
  assert_true(w->done);
  assert_int_equal(w->next_id - 1, BUDGET);
  for (uint64_t id = 2; id <= BUDGET; id++) assert_true(w->nodes[id].total <= w->nodes[id - 1].total + 1e-6f);
}

/* TOKENS along the tree: what was answered is not asked again, and an answer on its way still counts. */
static void test_replies_survive_tokens(void **state) {
  world *w = *state;
  static draft_batch b, next;
  attach_model(w, false);
  assert_true(draft_next_batch(w->d, &b));
  draft_results r = results_of(&b, PROMPT[2]);
  give(w, &r);
  assert_true(
      draft_next_batch(w->d, &b)); /* what follows the first node: C goes there before the answer comes */
  assert_int_equal(b.queries[0].path[0], truth()[3]);
  uint64_t handle = b.queries[0].handle;
  tell_tokens(w, 3, 1);
  assert_true(draft_next_batch(w->d, &next)); /* only C has grown: the new root is asked about already */
  assert_int_equal(next.jobs[0].base, 3);
  assert_int_equal(next.jobs[0].count, 1);
  for (int32_t i = 0; i < next.query_count; i++) assert_true(next.queries[i].depth > 0);
  r = results_of(&b, PROMPT[2]);
  assert_int_equal(r.results[0].handle, handle);
  rig_clear(&w->r);
  give(w, &r);
  assert_true(rig_count(&w->r, TARGET, MSG_NODES) > 0);
  const msg_nodes *n = &rig_peek(&w->r, TARGET, MSG_NODES, 0)->u.nodes;
  assert_int_equal(n->base_length, 4);
  assert_int_equal(n->tokens[0], truth()[4]);
  assert_int_equal(n->parents[0], 0);
}

/* A forward that took seconds because the program stood still is no slow forward. */
static void test_our_own_stall_does_not_make_a_forward_slow(void **state) {
  for (int stalls = 0; stalls < 2; stalls++) {
    tear_down(state);
    set_up_model(state);
    world *w = *state;
    static draft_batch b;
    attach_model(w, false);
    assert_true(draft_next_batch(w->d, &b));
    draft_results r = results_of(&b, truth()[PROMPT_LENGTH - 1]);
    r.us = stalls ? 4000000 : 400000;
    w->r.now += r.us;
    give(w, &r);
    assert_int_equal(w->d->setup.costs.forward_us.count, !stalls);
  }
}

/* TOKENS away from the tree: answers to what is gone change nothing. */
static void test_replies_to_nodes_that_are_gone_are_dropped(void **state) {
  world *w = *state;
  static draft_batch b;
  attach_model(w, false);
  assert_true(draft_next_batch(w->d, &b));
  tell_tokens(w, 3, 2);
  rig_clear(&w->r);
  draft_results r = results_of(&b, PROMPT[2]);
  give(w, &r);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 0);
  assert_true(draft_next_batch(w->d, &b));
  assert_int_equal(b.jobs[0].base, 3);
  assert_int_equal(b.jobs[0].count, 2);
  assert_int_equal(b.queries[0].depth, 0);
}

/* A long prompt is told in pieces; what follows is asked with the last one. */
static void test_a_long_prompt_is_sent_in_chunks(void **state) {
  world *w = *state;
  static draft_batch b;
  open_and_greet(w, delta(1, 0, 300));
  for (int32_t told = 0; told < 300;) {
    assert_true(draft_next_batch(w->d, &b));
    assert_int_equal(b.jobs[0].base, told);
    assert_memory_equal(b.tokens, truth() + told, (size_t)b.token_count * sizeof *b.tokens);
    told += b.token_count;
    assert_int_equal(b.jobs[0].whole, told == 300);
    assert_int_equal(b.query_count, told == 300);
  }
}

static void test_a_model_takes_as_many_sessions_as_it_has_caches(void **state) {
  world *w = *state;
  for (uint64_t i = 0; i <= CACHES; i++) {
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, open_message(S + i, 1, PROMPT, PROMPT_LENGTH));
    if (i < CACHES)
      rig_only(&w->r, ORCH, MSG_OPENED);
    else
      rig_expect_error(&w->r, ORCH, ERR_FULL);
  }
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, open_message(S + 9, 1, PROMPT, PROMPT_LENGTH));
  rig_only(&w->r, ORCH, MSG_OPENED);
  static draft_batch b;
  assert_true(draft_next_batch(w->d, &b));
  assert_int_equal(b.job_count, 2); /* one forward for both */
  assert_int_not_equal(b.jobs[0].slot, b.jobs[1].slot);
}

/* The model failed, or a token is none of its own: the target is told, nothing is asked any more. */
static void test_a_session_that_the_model_fails_is_detached(void **state) {
  world *w = *state;
  static draft_batch b;
  attach_model(w, false);
  assert_true(draft_next_batch(w->d, &b));
  draft_results r = {.failure_count = 1, .failures = {{b.jobs[0].slot, ERR_MISMATCH}}};
  rig_clear(&w->r);
  give(w, &r);
  assert_true(text_has(rig_only(&w->r, TARGET, MSG_DETACH)->u.state.reason, "none of the draft model's"));
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DESYNC), 0); /* to open it again would not help */
  rig_expect_error(&w->r, ORCH, ERR_MISMATCH);
  assert_false(draft_next_batch(w->d, &b));
  expect_lost(w);
}

/* The model finds nothing that may follow: the target hears that there is nothing to wait for. */
static void test_the_done_mark_comes_without_nodes_too(void **state) {
  world *w = *state;
  static draft_batch b;
  attach_model(w, true);
  gather(w);
  assert_false(w->done);
  assert_true(draft_next_batch(w->d, &b));
  draft_results r = {.result_count = 1, .results = {{.slot = 0, .handle = b.queries[0].handle}}};
  rig_clear(&w->r);
  give(w, &r);
  gather(w);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 1);
  assert_int_equal(w->next_id, 1);
  assert_true(w->done);
}

static void test_a_session_is_detached_when_the_model_cannot_be_run(void **state) {
  world *w = *state;
  static draft_batch b;
  attach_model(w, false);
  assert_true(draft_next_batch(w->d, &b));
  draft_results r = {.failure_count = 1, .failures = {{b.jobs[0].slot, ERR_IO}}};
  rig_clear(&w->r);
  give(w, &r);
  assert_true(text_has(rig_only(&w->r, TARGET, MSG_DETACH)->u.state.reason, "could not be run"));
  rig_expect_error(&w->r, ORCH, ERR_IO);
}

/* With all of its sessions, also those that had no part in that forward. */
static void test_a_draft_whose_device_is_lost_leaves(void **state) {
  world *w = *state;
  static draft_batch b;
  attach_model(w, false);
  assert_true(draft_next_batch(w->d, &b));
  rig_say(&w->r, ORCH, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  draft_results r = {.failure_count = 1, .failures = {{b.jobs[0].slot, ERR_DEVICE}}};
  rig_clear(&w->r);
  give(w, &r);
  assert_true(text_has(rig_only(&w->r, TARGET, MSG_DETACH)->u.state.reason, "device is lost"));
  rig_expect_error(&w->r, ORCH, ERR_DEVICE); /* the client is told why its answer has no draft any more */
  rig_only(&w->r, ORCH, MSG_BYE);
  rig_only(&w->r, TARGET, MSG_BYE);
  assert_int_equal(rig_logged(&w->r, "is lost: see the system's log"), 1);
  const action *last = &w->r.out.list[w->r.out.count - 1];
  assert_true(last->kind == ACTION_EXIT && last->code == STATUS_DEVICE);
  assert_false(draft_next_batch(w->d, &b));
  assert_false(draft_drained(w->d));
}

/* The drafter beside it is asked on, and what it finds goes to the target, with the done mark. */
static void expect_nodes_of_the_other(world *w, int32_t base) {
  static draft_batch b;
  rig_clear(&w->r);
  tell_tokens(w, base, 2);
  assert_false(draft_next_batch(w->d, &b));
  gather(w);
  assert_true(rig_count(&w->r, TARGET, MSG_NODES) > 0 && w->done);
  assert_int_equal(w->base, base + 2);
}

static void test_a_model_that_fails_leaves_the_drafter_beside_it_alone(void **state) {
  const int codes[] = {ERR_IO, ERR_MISMATCH};
  world *w = *state;
  static draft_batch b;
  for (int32_t i = 0; i < 2; i++) {
    w->generation = 0;
    attach_model(w, true);
    gather(w);
    assert_false(w->done); /* it waits for the model */
    assert_true(draft_next_batch(w->d, &b));
    assert_int_equal(b.jobs[0].base, 0); /* the second time, all of C again */
    draft_results r = {.failure_count = 1, .failures = {{b.jobs[0].slot, codes[i]}}};
    rig_clear(&w->r);
    give(w, &r);
    assert_int_equal(rig_count(&w->r, TARGET, MSG_DETACH), 0);
    assert_int_equal(rig_logged(&w->r, "goes on without model"), codes[i] == ERR_MISMATCH);
    gather(w);
    assert_true(w->done);
    expect_nodes_of_the_other(w, PROMPT_LENGTH);
    rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
    rig_clear(&w->r);
  }
}

/* The program goes on, and so do sessions that are opened later. */
static void test_a_lost_device_leaves_the_drafter_beside_it_alone(void **state) {
  world *w = *state;
  static draft_batch b;
  attach_model(w, true);
  assert_true(draft_next_batch(w->d, &b));
  draft_results r = {.failure_count = 1, .failures = {{b.jobs[0].slot, ERR_DEVICE}}};
  rig_clear(&w->r);
  give(w, &r);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_DETACH), 0);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_BYE), 0);
  assert_int_equal(rig_logged(&w->r, "is lost, and model with it"), 1);
  gather(w);
  expect_nodes_of_the_other(w, PROMPT_LENGTH);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  w->generation = 0;
  attach_model(w, true);
  gather(w);
  expect_nodes_of_the_other(w, PROMPT_LENGTH);
}

/* --- counters --- */

static void expect_times(const world *w, uint64_t attached_us, uint64_t idle_us) {
  const draft_times *t = draft_count_times(w->d);
  assert_int_equal(t->attached_us, attached_us);
  assert_int_equal(t->idle_us, idle_us);
}

static void say_later(world *w, uint64_t us, peer_id from, msg m) {
  w->r.now += us;
  rig_say(&w->r, from, m);
}

/* From ATTACHED to END, but for the batches: the first one, and what C's next token needs. */
static void test_a_draft_is_idle_while_it_has_nothing_to_compute(void **state) {
  world *w = *state;
  static draft_batch b;
  open_and_greet(w, prompt_message());
  assert_true(draft_next_batch(w->d, &b)); /* before it is attached */
  w->r.now += 300;
  draft_results r = results_of(&b, PROMPT[2]);
  give(w, &r);
  say_later(w, 500, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  expect_times(w, 0, 0);
  assert_true(draft_next_batch(w->d, &b));
  say_later(w, 20, TARGET, ping_message(MSG_PING, SELF, 1, 1, 0)); /* it still computes */
  w->r.now += 50;
  r = results_of(&b, PROMPT[2]);
  give(w, &r);
  compute_all(w, PROMPT[2]); /* in no time */
  expect_times(w, 70, 0);
  w->r.now += 4000;
  tell_tokens(w, PROMPT_LENGTH, 1);
  expect_times(w, 4070, 4000);
  assert_true(draft_next_batch(w->d, &b));
  w->r.now += 90;
  r = results_of(&b, truth()[PROMPT_LENGTH]);
  give(w, &r);
  compute_all(w, truth()[PROMPT_LENGTH]);
  say_later(w, 7, ORCH, message(MSG_END, SELF, S, 1));
  expect_times(w, 4167, 4007);
  say_later(w, 1000, ORCH, ping_message(MSG_PING, SELF, 1, 1, 0)); /* nothing is attached */
  expect_times(w, 4167, 4007);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_open_leads_to_attach),
      CASE(test_a_draining_draft_leaves_at_once),
      CASE(test_a_target_opens_nothing),
      CASE(test_a_target_that_calls_itself_an_orchestrator_opens_nothing),
      CASE(test_only_its_target_feeds_a_session),
      CASE(test_a_target_that_believes_in_an_attachment_is_told),
      MODEL_CASE(test_nodes_come_with_the_replies),
      MODEL_CASE(test_lockstep_is_best_first_whenever_replies_come),
      MODEL_CASE(test_replies_survive_tokens),
      MODEL_CASE(test_our_own_stall_does_not_make_a_forward_slow),
      MODEL_CASE(test_replies_to_nodes_that_are_gone_are_dropped),
      MODEL_CASE(test_a_long_prompt_is_sent_in_chunks),
      MODEL_CASE(test_a_model_takes_as_many_sessions_as_it_has_caches),
      MODEL_CASE(test_a_session_that_the_model_fails_is_detached),
      MODEL_CASE(test_the_done_mark_comes_without_nodes_too),
      MODEL_CASE(test_a_session_is_detached_when_the_model_cannot_be_run),
      MODEL_CASE(test_a_draft_whose_device_is_lost_leaves),
      MODEL_CASE(test_a_draft_is_idle_while_it_has_nothing_to_compute),
      TWO_CASE(test_a_model_that_fails_leaves_the_drafter_beside_it_alone),
      TWO_CASE(test_a_lost_device_leaves_the_drafter_beside_it_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
