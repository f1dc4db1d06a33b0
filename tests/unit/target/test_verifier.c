/* libs: target wire speculative base */
#include "tests/support/target_world.h"

/* most: rows that the device does best with, 0: any. */
static void check_chunks(world *w, int32_t most, int32_t expected) {
  enum { LENGTH = 2 * ENGINE_CHUNK + 45 };
  int32_t prompt[LENGTH];
  for (int32_t i = 0; i < LENGTH; i++) prompt[i] = i % VOCAB;
  target_speculation(w->t)->prompt_rows = most;
  say_and_open(w, open_message(S, 1, prompt, LENGTH));
  int32_t rows = 0, chunks = 0;
  while (take_job(w) && w->job.kind == ENGINE_PREFILL) {
    assert_int_equal(w->job.kv_length, rows);
    rows += w->job.count;
    chunks++;
    give_result(w);
  }
  assert_int_equal(rows, LENGTH - 1);
  assert_int_equal(chunks, expected);
  const average *us = &target_speculation(w->t)->costs.widths[0].us; /* of whole pieces */
  assert_int_equal(us->count, expected - 1);
  assert_int_equal((int)us->mean, most ? JOB_US * ENGINE_CHUNK / most : JOB_US);
  assert_int_equal(w->job.kind, ENGINE_VERIFY);
  assert_int_equal(w->job.kv_length, LENGTH - 1);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_TOKENS), 0);
  give_result(w);
  assert_int_equal(rig_last(&w->r, ORCH, MSG_TOKENS)->u.tokens.base_length, LENGTH);
}

static void test_a_prompt_is_prefilled_in_chunks(void **state) {
  check_chunks(*state, 0, 3);
}

static void test_chunks_are_as_large_as_the_device_wants(void **state) {
  check_chunks(*state, 200, 2);
}

static void test_a_prompt_of_one_token_has_no_rows(void **state) {
  world *w = *state;
  say_and_open(w, open_message(S, 1, PROMPT, 1));
  assert_true(take_job(w));
  assert_int_equal(w->job.kind, ENGINE_VERIFY);
  assert_int_equal(w->job.kv_length, 0);
  assert_int_equal(w->job.count, 1);
}

static void test_a_job_carries_the_request(void **state) {
  world *w = *state;
  static const int32_t stops[] = {90, 7};
  static const float values[] = {-3, 100};
  msg m = prompt_message();
  m.u.open.options.temperature = 0.5f;
  m.u.open.options.top_k = 11;
  m.u.open.options.seed = 12345;
  m.u.open.options.choice = 3;
  m.u.open.options.stops = stops;
  m.u.open.options.stop_count = 2;
  m.u.open.options.repeat_penalty = 1.5f;
  m.u.open.options.frequency_penalty = 0.5f;
  m.u.open.options.bias_tokens = stops;
  m.u.open.options.bias_values = values;
  m.u.open.options.bias_count = 2;
  say_and_open(w, m);
  prefill(w);
  assert_true(take_job(w));
  assert_true(w->job.sampling.frequency_penalty == 0.5f);
  assert_int_equal(w->job.prompt_length, PROMPT_LENGTH);
  assert_int_equal(w->job.bias_count, 2);
  assert_memory_equal(w->job.bias_tokens, stops, sizeof stops);
  assert_memory_equal(w->job.bias_values, values, sizeof values);
  assert_true(w->job.sampling.temperature == 0.5f);
  assert_int_equal(w->job.sampling.top_k, 11);
  assert_int_equal(w->job.sampling.seed, 12345);
  assert_int_equal(w->job.sampling.choice, 3);
  assert_int_equal(w->job.stop_count, 2);
  assert_memory_equal(w->job.stops, stops, sizeof stops);
  assert_non_null(w->job.history); /* a penalty looks at it */
  assert_memory_equal(w->job.history, PROMPT, sizeof PROMPT);
  give_result(w);
  play(w, 4);
  assert_true(take_job(w));
  const prefix *c = &held(w, S)->committed; /* of all of C, whatever has been given out meanwhile */
  assert_int_equal(c->length, PROMPT_LENGTH + 5);
  assert_memory_equal(w->job.history, c->tokens, (size_t)c->length * sizeof *c->tokens);
}

/* The engine reads it in its own thread, while an OPEN may already change the session. */
static void test_a_job_under_way_keeps_its_history_and_bias(void **state) {
  world *w = *state;
  static const int32_t other[PROMPT_LENGTH] = {90, 91, 92};
  static const float values[] = {1, 2};
  msg m = prompt_message();
  m.u.open.options.presence_penalty = 1.5f; /* one of the penalties is enough */
  m.u.open.options.bias_tokens = PROMPT;
  m.u.open.options.bias_values = values;
  m.u.open.options.bias_count = 1;
  say_and_open(w, m);
  prefill(w);
  assert_true(take_job(w));
  m = open_message(S, 2, other, PROMPT_LENGTH);
  m.u.open.options.bias_tokens = other;
  m.u.open.options.bias_values = values + 1;
  m.u.open.options.bias_count = 1;
  rig_say(&w->r, ORCH, m);
  assert_true(w->job.bias_tokens[0] == PROMPT[0] && w->job.bias_values[0] == 1);
  assert_memory_equal(held(w, S)->committed.tokens, other, sizeof other);
  assert_memory_equal(w->job.history, PROMPT, sizeof PROMPT);
}

static void test_credit_bounds_how_far_a_session_runs_ahead(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 1000;
  say_and_open(w, m);
  assert_int_equal(play(w, 1000), SCHEDULE_CREDIT);
  rig_say(&w->r, ORCH, ack(1, PROMPT_LENGTH + 10));
  assert_int_equal(play(w, 1000), 10);
}

/* With nodes too: a verify does not jump over the line. */
static void test_a_verify_step_does_not_exceed_the_credit(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 1000;
  m.u.open.options.budget = 64;
  say_and_open(w, m);
  assert_int_equal(play(w, SCHEDULE_CREDIT - 3), SCHEDULE_CREDIT - 3);
  uint32_t g = attach(w, DRAFT);
  int32_t length = held(w, S)->committed.length;
  believe(w);
  send_chain(w, DRAFT, g, length, 1, 7, false);
  run_job(w);
  assert_true(held(w, S)->committed.length - PROMPT_LENGTH <= SCHEDULE_CREDIT);
  rig_say(&w->r, ORCH, ack(1, length));
  run_job(w);
  assert_true(held(w, S)->committed.length >= length + 8); /* and is not made smaller by it for good */
}

/* Each gets its own tokens, the prompt of a new one is read beside those who step, and one that ends
 * meanwhile takes nobody with it. */
static void test_sessions_share_a_forward(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  say_and_open(w, other_prompt(S + 1));
  assert_true(take_job(w));
  assert_int_equal(w->batch.count, 2);
  assert_int_equal(w->batch.jobs[0].kind, ENGINE_VERIFY);
  assert_int_equal(w->batch.jobs[1].kind, ENGINE_PREFILL);
  give_result(w);
  send_chain(w, DRAFT, g, held(w, S)->committed.length, 1, 3, true);
  say_and_open(w, other_prompt(S + 2));
  assert_true(take_job(w));
  assert_int_equal(w->batch.count, 3);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S + 1, 1));
  rig_clear(&w->r);
  give_result(w);
  assert_null(held(w, S + 1));
  assert_int_equal(held(w, S)->committed.length, PROMPT_LENGTH + 1 + 4);
  for (int i = 0; i < 5; i++) run_job(w);
  for (int i = 0; i < 3; i += 2) {
    const prefix *c = &held(w, S + (uint64_t)i)->committed;
    assert_true(c->length >= PROMPT_LENGTH + 5);
    assert_memory_equal(c->tokens, truth(), (size_t)c->length * sizeof *c->tokens);
  }
}

static void test_nodes_are_verified(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  believe(w);
  const int32_t *c = truth();
  guess list[] = {{0, c[3], -0.1f}, {1, c[4], -0.2f}, {0, wrong_of(c[2]), -0.3f}, {2, wrong_of(c[4]), -0.5f}};
  send_nodes(w, DRAFT, g, 3, 1, list, 4, false);
  rig_clear(&w->r);
  assert_true(take_job(w));
  assert_int_equal(w->job.count, 5);
  int32_t a = child_of(&w->job, 0, c[3]);
  assert_true(a > 0 && child_of(&w->job, 0, wrong_of(c[2])) > 0);
  int32_t b = child_of(&w->job, a, c[4]);
  assert_true(b > 0 && child_of(&w->job, b, wrong_of(c[4])) > 0);
  give_result(w);
  expect_tokens(rig_only(&w->r, DRAFT, MSG_TOKENS), 3, 6); /* two accepted and the bonus */
  assert_int_equal(held(w, S)->drafts.tree.live_count, 0);
  assert_int_equal(held(w, S)->stats.accepted, 2);
  assert_int_equal(held(w, S)->stats.rows, 4);
  assert_int_equal(held(w, S)->stats.accepted_per_pos[0], 1);
  assert_int_equal(held(w, S)->stats.accepted_per_pos[1], 1);
  assert_int_equal(held(w, S)->stats.accepted_per_pos[2], 0);
}

static void test_the_best_nodes_within_the_budget_are_verified(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.budget = 3;
  say_and_open(w, m);
  uint32_t g = attach(w, DRAFT);
  prefill(w);
  believe(w);
  guess list[] = {{0, 10, -5.0f}, {0, 11, -0.1f}, {2, 12, -0.1f},
                  {0, 13, -1.0f}, {4, 14, -3.0f}, {1, 15, 0.0f}};
  send_nodes(w, DRAFT, g, 3, 1, list, 6, false);
  assert_true(take_job(w));
  assert_int_equal(w->job.count, 4);
  assert_true(child_of(&w->job, 0, 11) > 0 && child_of(&w->job, 0, 13) > 0);
  assert_true(child_of(&w->job, child_of(&w->job, 0, 11), 12) > 0);
  give_result(w);
}

/* Nodes that could not add a token are not verified: the last token is a plain step. */
static void test_nodes_that_could_add_no_token_are_not_verified(void **state) {
  world *w = *state;
  for (int32_t room = 1; room <= 4; room++) {
    msg m = open_message(S, (uint32_t)room, PROMPT, PROMPT_LENGTH);
    m.u.open.options.max_tokens = room;
    m.u.open.options.lockstep = true; /* no plain step in between to measure what one costs */
    say_and_open(w, m);
    uint32_t g = attach(w, DRAFT);
    prefill(w);
    rig_clear(&w->r);
    send_chain(w, DRAFT, g, 3, 1, 6, true);
    assert_true(take_job(w));
    assert_true(w->job.sampled_max <= room);
    assert_int_equal(w->job.count, room); /* root and room - 1 nodes: a deeper one cannot be taken */
    give_result(w);
    const msg_done *d = &rig_only(&w->r, ORCH, MSG_DONE)->u.done;
    assert_int_equal(d->length, 3 + room);
    assert_int_equal(d->finish, WIRE_FINISH_LENGTH);
  }
}

static void test_tokens_are_forwards_and_accepted_nodes(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  uint64_t id = 1;
  while (held(w, S)->state == SESSION_RUNNING) {
    int32_t length = held(w, S)->committed.length;
    if (length + 3 < 43) {
      send_chain(w, DRAFT, g, length, id, 3, false);
      id += 3;
    }
    if (!run_job(w)) rig_advance(&w->r, 1000);
  }
  const msg_stats *st = &rig_only(&w->r, ORCH, MSG_DONE)->u.done.stats;
  assert_int_equal(st->forwards + st->accepted, 40);
  assert_int_equal(st->forwards, w->jobs);
  assert_int_equal(st->forwards, st->rounds + st->plain_steps);
  assert_int_equal(st->rows, w->node_rows);
  assert_int_equal(st->rewound, st->rows - st->accepted);
  assert_true(st->accepted > 20);
  uint64_t sum = 0;
  for (int32_t i = 0; i < st->position_count; i++) sum += st->accepted_per_pos[i];
  assert_int_equal(sum, st->accepted);
}

static void test_a_selfcheck_comes_every_so_many_verify_steps(void **state) {
  world *w = *state;
  static const int32_t every[] = {0, 1, 3};
  static const int32_t want[] = {0, 6, 2};
  for (int i = 0; i < 3; i++) {
    msg m = open_message(S, (uint32_t)i + 1, PROMPT, PROMPT_LENGTH);
    m.u.open.options.selfcheck = every[i];
    m.u.open.options.max_tokens = 400;
    say_and_open(w, m);
    uint32_t g = attach(w, DRAFT);
    uint64_t id = 1;
    assert_int_equal(rounds_with_nodes(w, g, &id, 6), want[i]);
  }
}

/* Nodes that are right are verified, and none is accepted. */
static void test_a_single_token_request_accepts_no_node(void **state) {
  world *w = *state;
  for (int i = 0; i < 2; i++) {
    msg m = open_message(S, (uint32_t)i + 1, PROMPT, PROMPT_LENGTH);
    m.u.open.options.single = i == 1;
    say_and_open(w, m);
    uint32_t g = attach(w, DRAFT);
    session_stats before = held(w, S)->stats;
    int32_t length = held(w, S)->committed.length;
    uint64_t id = 1;
    rounds_with_nodes(w, g, &id, 3);
    const session_stats *n = &held(w, S)->stats;
    assert_int_equal(n->rounds - before.rounds, 3);
    assert_int_equal(n->accepted - before.accepted == 0, i == 1);
    if (i == 1) assert_int_equal(held(w, S)->committed.length - length, 3);
  }
}

/* The job's text is C, or what C has more than when a job had a text last. */
static void check_text(world *w, int32_t from) {
  const prefix *c = &held(w, S)->committed;
  assert_non_null(w->job.text);
  assert_int_equal(w->job.text_from, from);
  assert_int_equal(w->job.kv_length + 1, c->length);
  assert_memory_equal(w->job.text, c->tokens + from, (size_t)(c->length - from) * sizeof *c->tokens);
}

static void test_partial_kv_is_told_what_is_new(void **state) {
  world *w = *state;
  static const int32_t other[PROMPT_LENGTH] = {90, 91, 92};
  say_and_open(w, prompt_message());
  prefill(w);
  assert_true(take_job(w));
  check_text(w, 0);
  for (int32_t i = 0; i < 3; i++) {
    give_result(w);
    assert_true(take_job(w));
    check_text(w, PROMPT_LENGTH + i);
  }
  rig_say(&w->r, ORCH, open_message(S, 2, other, PROMPT_LENGTH)); /* another C, while the job is under way */
  give_result(w);
  prefill(w);
  assert_true(take_job(w));
  check_text(w, 0);
  assert_memory_equal(w->job.text, other, sizeof other);
}

/* What it accepts is not what plain decoding gives. */
static void test_a_lossy_session_is_not_checked(void **state) {
  world *w = *state;
  static const wire_partial modes[] = {WIRE_PARTIAL_EXACT, WIRE_PARTIAL_LOSSY};
  for (uint32_t i = 0; i < 2; i++) {
    msg m = open_message(S, i + 1, PROMPT, PROMPT_LENGTH);
    m.u.open.options.selfcheck = 1;
    m.u.open.options.partial = (msg_partial){modes[i], 16, 2, 64, 8, 128, 4096, 4};
    say_and_open(w, m);
    uint32_t g = attach(w, DRAFT);
    uint64_t id = 1;
    assert_int_equal(rounds_with_nodes(w, g, &id, 3) > 0, i == 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_prompt_is_prefilled_in_chunks),
      CASE(test_chunks_are_as_large_as_the_device_wants),
      CASE(test_a_prompt_of_one_token_has_no_rows),
      CASE(test_a_job_carries_the_request),
      CASE(test_a_job_under_way_keeps_its_history_and_bias),
      CASE(test_credit_bounds_how_far_a_session_runs_ahead),
      CASE(test_a_verify_step_does_not_exceed_the_credit),
      CASE(test_sessions_share_a_forward),
      CASE(test_nodes_are_verified),
      CASE(test_the_best_nodes_within_the_budget_are_verified),
      CASE(test_nodes_that_could_add_no_token_are_not_verified),
      CASE(test_tokens_are_forwards_and_accepted_nodes),
      CASE(test_a_selfcheck_comes_every_so_many_verify_steps),
      CASE(test_a_single_token_request_accepts_no_node),
      PARTIAL(test_partial_kv_is_told_what_is_new),
      PARTIAL(test_a_lossy_session_is_not_checked),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
