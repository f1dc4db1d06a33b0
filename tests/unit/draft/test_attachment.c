/* libs: draft wire speculative base */
/* One session and its target: ATTACH, NODES, TOKENS, TREE_RESET, and how it ends. */
#include "draft_worker/draft_state.h"
#include "tests/support/draft_world.h"

#include <math.h>

static void test_attach_is_repeated_until_attached(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  rig_clear(&w->r);
  for (int i = 1; i <= 4; i++) {
    rig_advance(&w->r, DRAFT_REPEAT_US - 1);
    assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), i - 1);
    rig_advance(&w->r, 1);
    assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), i);
  }
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  rig_clear(&w->r);
  rig_advance(&w->r, 3 * DRAFT_REPEAT_US);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0);
}

static void test_attach_is_tried_again_when_the_target_has_no_session_yet(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  for (int i = 0; i < 10; i++) {
    rig_clear(&w->r);
    rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_GONE)); /* OPEN is still under way to it */
    assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 0);   /* not at once: the timer does */
    rig_advance(&w->r, DRAFT_REPEAT_US);
    assert_int_equal(rig_count(&w->r, TARGET, MSG_ATTACH), 1);
  }
}

/* An ATTACH may overtake the OPEN of its target by a moment; a target that has no such session at all is not
 * asked all the time. */
static void test_attach_that_was_too_early_is_repeated_soon_and_then_less_often(void **state) {
  world *w = *state;
  int32_t sent = 0;
  open_and_greet(w, prompt_message());
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_GONE));
  rig_advance(&w->r, 3000);
  rig_last(&w->r, TARGET, MSG_ATTACH);
  for (int32_t ms = 0; ms < 1000; ms++) {
    int32_t count = rig_count(&w->r, TARGET, MSG_ATTACH);
    if (count > 0) rig_clear(&w->r);
    sent += count;
    if (count > 0) rig_say(&w->r, TARGET, error_message(SELF, S, 1, ms % 2 ? ERR_TICKET : ERR_GONE));
    rig_advance(&w->r, 1000);
  }
  assert_in_range(sent, 4, 12);
}

static void test_a_refused_attach_is_told_once(void **state) {
  world *w = *state;
  static const int codes[] = {ERR_PROTOCOL, ERR_FULL, ERR_LIMIT, ERR_ARG};
  open_and_greet(w, prompt_message());
  for (int i = 0; i < 4; i++) {
    rig_say(&w->r, TARGET, error_message(SELF, S, 1, codes[i]));
    rig_expect_error(&w->r, ORCH, codes[i]); /* who may ask another one */
    rig_say(&w->r, TARGET, error_message(SELF, S, 1, codes[i]));
    assert_int_equal(rig_count(&w->r, ORCH, MSG_ERROR), 1); /* once */
    expect_lost(w);
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, prompt_message()); /* lost: the same epoch is not a repetition */
    rig_only(&w->r, ORCH, MSG_OPENED);
    rig_only(&w->r, TARGET, MSG_ATTACH);
  }
}

static void test_a_longer_prefix_at_the_target_is_asked_for(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH + 5, 1));
  assert_int_equal(rig_only(&w->r, TARGET, MSG_RESEND)->u.resend.from, PROMPT_LENGTH);
}

static void test_another_prefix_at_the_target_is_desync(void **state) {
  world *w = *state;
  for (int i = 0; i < 2; i++) {
    open_and_greet(w, i == 0 ? prompt_message() : delta(2, 0, PROMPT_LENGTH));
    rig_clear(&w->r);
    msg m = attached_message((uint32_t)i + 1, PROMPT_LENGTH - i, 1);
    if (i == 0) m.u.state.hash.bytes[0] ^= 1;
    rig_say(&w->r, TARGET, m);
    expect_out_of_step(w, PROMPT_LENGTH);
  }
}

static void test_a_repeated_attached_does_no_harm(void **state) {
  world *w = *state;
  attach(w, false);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1)); /* repeated by the network */
  rig_advance(&w->r, SETTLE);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_DETACH), 0);
  gather(w); /* ids go on, or a higher generation begins */
}

/* --- the tree --- */

static void test_free_pace_grows_a_budget_ahead(void **state) {
  world *w = *state;
  attach(w, false);
  assert_int_equal(w->generation, 1);
  assert_int_equal(w->next_id - 1, GOAL);
  assert_int_equal(w->base, PROMPT_LENGTH);
  assert_int_equal(w->nodes[1].token, truth()[3]);
  assert_int_equal(w->nodes[1].parent, 0);
  rig_advance(&w->r, 100000);
  assert_int_equal(w->f.advanced, 0);
}

static void test_lockstep_grows_the_budget_and_says_so(void **state) {
  world *w = *state;
  attach(w, true);
  assert_int_equal(w->next_id - 1, BUDGET);
  assert_true(w->done);
}

static void test_the_done_mark_comes_last(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.lockstep = true;
  m.u.open.options.budget = 64;
  open_and_greet(w, m);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  rig_advance(&w->r, 100000);
  int32_t nodes = 0, marks = 0;
  for (int32_t i = 0; i < rig_count(&w->r, TARGET, MSG_NODES); i++) {
    const msg_nodes *n = &rig_peek(&w->r, TARGET, MSG_NODES, i)->u.nodes;
    nodes += n->count;
    if (n->done) {
      assert_int_equal(nodes, 64);
      marks++;
    }
  }
  assert_true(marks >= 1);
  gather(w);
}

static void test_a_drafter_without_candidates_is_done(void **state) {
  world *w = *state;
  w->f.candidates = 0;
  attach(w, true);
  assert_int_equal(w->next_id, 1);
  assert_int_equal(w->base, PROMPT_LENGTH);
  assert_true(w->done);
}

static void test_a_budget_of_nothing_sends_no_nodes(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.budget = 0;
  open_and_greet(w, m);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  settle(w);
  assert_int_equal(w->next_id, 1);
}

/* The most probable node comes first: a better grandchild before a poor sibling. */
static void test_the_most_probable_node_comes_first(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.budget = 16;
  open_and_greet(w, m);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  settle(w);
  assert_int_equal(w->next_id - 1, DRAFTER_AHEAD_MAX * 16 + 1);
  int32_t wrong = 0;
  for (uint64_t id = 2; id < w->next_id; id++) {
    if (w->nodes[id].total > w->nodes[id - 1].total + 1e-5f) fail_msg("node %d is a better one", (int)id);
    wrong += w->nodes[id].total < w->nodes[w->nodes[id].parent].total - 1;
  }
  assert_true(wrong > 0); /* siblings are there too */
}

static void test_no_token_outside_the_vocabulary_is_sent(void **state) {
  world *w = *state;
  w->f.candidates = 3;
  attach(w, false); /* gather looks at every token */
  assert_true(w->next_id > 1);
}

static void test_scores_are_sent_within_their_range(void **state) {
  world *w = *state;
  static const float scores[] = {-1000.0f, -INFINITY, NAN, 5.0f};
  for (int i = 0; i < 4; i++) {
    w->f.score = scores[i];
    rig_clear(&w->r);
    rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 9));
    w->generation = 0;
    attach(w, false); /* gather looks at every score */
  }
}

/* --- C grows --- */

/* C grows as guessed: what is left below it stays, and is not sent again. */
static void test_tokens_along_the_tree_keep_what_is_below(void **state) {
  world *w = *state;
  attach(w, false);
  uint64_t before = w->next_id;
  int32_t under = 0; /* nodes under the first right one */
  for (uint64_t id = 1; id < before; id++) {
    uint64_t top = id;
    while (w->nodes[top].parent) top = w->nodes[top].parent;
    under += w->nodes[top].token == truth()[3] && top != id;
  }
  assert_true(under > 0 && under < GOAL);
  tell_tokens(w, 3, 1);
  settle(w);
  assert_int_equal(w->f.advanced, 1);
  assert_int_equal(w->base, 4);
  assert_int_equal(w->next_id - before, GOAL - under);
}

static void test_tokens_away_from_the_tree_begin_a_new_one(void **state) {
  world *w = *state;
  attach(w, false);
  uint64_t before = w->next_id;
  static int32_t c[4];
  memcpy(c, PROMPT, sizeof PROMPT);
  c[3] = 90; /* neither right nor wrong: nobody's guess */
  rig_say(&w->r, TARGET, tokens_message(SELF, S, 1, 3, c + 3, 1, hash_of(SEED, c, 4)));
  rig_advance(&w->r, SETTLE);
  const msg_nodes *first = &rig_peek(&w->r, TARGET, MSG_NODES, 0)->u.nodes;
  assert_int_equal(first->base_length, 4);
  gather(w);
  assert_int_equal(w->next_id - before, GOAL);
  assert_int_equal(w->nodes[before].parent, 0);
  assert_int_equal(w->nodes[before].token, next_of(90));
  uint64_t digest;
  int32_t length;
  assert_true(draft_digest(w->d, S, 1, &digest, &length));
  assert_int_equal(length, 4);
}

/* Every TOKENS applied is answered, even when there is nothing to add: the target learns the base. */
static void test_every_tokens_gets_nodes_with_the_new_base(void **state) {
  world *w = *state;
  w->f.candidates = 0;
  attach(w, true);
  for (int32_t n = 3; n < 8; n++) {
    rig_clear(&w->r);
    tell_tokens(w, n, 1);
    settle(w);
    const msg_nodes *m = &rig_last(&w->r, TARGET, MSG_NODES)->u.nodes;
    hash16 h = true_hash(n + 1);
    assert_int_equal(m->base_length, n + 1);
    assert_memory_equal(&m->base_hash, &h, sizeof h);
    assert_true(m->done);
  }
}

static void test_repeated_and_overlapping_tokens_do_no_harm(void **state) {
  world *w = *state;
  attach(w, false);
  tell_tokens(w, 3, 3);
  tell_tokens(w, 3, 3);
  tell_tokens(w, 1, 3);
  tell_tokens(w, 4, 4); /* half of it is new */
  tell_tokens(w, 8, 0); /* a heartbeat */
  settle(w);
  assert_int_equal(w->base, 8);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DESYNC), 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_RESEND), 0);
}

static void test_tokens_beyond_c_are_asked_for_again_now_and_then(void **state) {
  world *w = *state;
  attach(w, false);
  w->r.now += 30000;
  tell_tokens(w, 5, 2);
  assert_int_equal(rig_only(&w->r, TARGET, MSG_RESEND)->u.resend.from, 3);
  for (int i = 0; i < 100; i++) { /* 10 ms of a stream of which the beginning was lost */
    w->r.now += 100;
    tell_tokens(w, 7 + i, 1);
  }
  assert_int_equal(rig_count(&w->r, TARGET, MSG_RESEND), 1);
  w->r.now += 20000;
  tell_tokens(w, 9, 0);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_RESEND), 2);
}

static void test_conflicting_tokens_are_desync(void **state) {
  world *w = *state;
  for (int i = 0; i < 3; i++) {
    uint32_t epoch = (uint32_t)i + 1;
    w->generation = 0;
    open_and_greet(w, delta(epoch, 0, 5));
    rig_say(&w->r, TARGET, attached_message(epoch, 5, 1));
    rig_clear(&w->r);
    int32_t tokens[3];
    memcpy(tokens, truth() + 4, sizeof tokens);
    msg m = tokens_message(SELF, S, epoch, 4, tokens, 3, true_hash(7));
    if (i == 0) tokens[0]++;                   /* an overlapping token */
    if (i == 1) m.u.tokens.hash.bytes[3] ^= 1; /* the hash after them */
    if (i == 2)
      m = tokens_message(SELF, S, epoch, 5, NULL, 0, true_hash(4)); /* a heartbeat of another prefix */
    rig_say(&w->r, TARGET, m);
    expect_out_of_step(w, 5); /* nothing of it was taken */
  }
}

/* A target that says more than fits: the session is given up, nothing else. */
static void test_tokens_beyond_the_context_are_desync(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.context = 10;
  open_and_greet(w, m);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  rig_clear(&w->r);
  tell_tokens(w, 3, 7); /* all that it has room for */
  assert_int_equal(w->f.advanced, 1);
  rig_clear(&w->r);
  tell_tokens(w, 10, 1);
  expect_out_of_step(w, 10);
  assert_int_equal(w->f.advanced, 1); /* a drafter sees no more than it was opened for */
  rig_advance(&w->r, SETTLE);
  tell_tokens(w, 3, CONTEXT + 40);
  rig_advance(&w->r, SETTLE);
  rig_clear(&w->r);
  pass(w, 2000000, true, true);
  assert_true(w->r.out.count < 60);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  assert_true(rig_last(&w->r, ORCH, MSG_ENDED)->u.existed);
}

static void test_open_repairs_a_conflict(void **state) {
  world *w = *state;
  attach(w, false);
  msg m = tokens_message(SELF, S, 1, 2, truth(), 1, true_hash(3));
  rig_say(&w->r, TARGET, m);
  expect_out_of_step(w, 3);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, delta(1, 3, 2)); /* the same epoch: it is lost, so this is no repetition */
  assert_int_equal(rig_only(&w->r, ORCH, MSG_OPENED)->u.state.length, 5);
  rig_only(&w->r, TARGET, MSG_ATTACH);
  rig_say(&w->r, TARGET, attached_message(1, 5, 7));
  settle(w);
  assert_int_equal(w->generation, 7);
  assert_int_equal(w->base, 5);
}

/* Each time may be lost, and an orchestrator that never answers is not told for ever. */
static void test_a_desync_is_repeated_a_few_times(void **state) {
  world *w = *state;
  attach(w, false);
  rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_DESYNC));
  pass(w, 30000000, true, true);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DESYNC), ATTACHMENT_DESYNC_TRIES);
}

/* --- generations and time --- */

static void test_tree_reset_begins_a_generation(void **state) {
  world *w = *state;
  attach(w, false);
  tell_tokens(w, 3, 1);
  settle(w);
  uint64_t digest, again;
  int32_t length;
  assert_true(draft_digest(w->d, S, 1, &digest, &length));
  rig_clear(&w->r);
  msg m = message(MSG_TREE_RESET, SELF, S, 1);
  m.u.reset.generation = 5;
  rig_say(&w->r, TARGET, m);
  settle(w);
  assert_int_equal(w->generation, 5);
  assert_int_equal(w->next_id - 1, GOAL); /* all its live ones, from id 1 */
  assert_true(draft_digest(w->d, S, 1, &again, &length));
  assert_true(digest == again);
  rig_clear(&w->r);
  static const uint32_t old[] = {5, 4, 0};
  for (int i = 0; i < 3; i++) {
    m.u.reset.generation = old[i];
    rig_say(&w->r, TARGET, m);
  }
  rig_advance(&w->r, SETTLE);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 0);
}

/* Lockstep: the mark is part of the answer to TREE_RESET and to ATTACHED, or the target would wait for ever.
 */
static void test_tree_reset_is_followed_by_a_done_mark(void **state) {
  world *w = *state;
  for (int32_t candidates = 0; candidates <= 2; candidates += 2) {
    w->f.candidates = candidates;
    w->generation = 0;
    rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 99));
    attach(w, true);
    msg m = message(MSG_TREE_RESET, SELF, S, 1);
    m.u.reset.generation = 9;
    w->done = false;
    rig_say(&w->r, TARGET, m);
    settle(w);
    assert_int_equal(w->generation, 9);
    assert_true(w->done);
  }
}

/* A storm of TREE_RESET is answered by so many nodes at most as are live, each time, and ends. */
static void test_a_storm_of_resets_ends(void **state) {
  world *w = *state;
  attach(w, false);
  msg m = message(MSG_TREE_RESET, SELF, S, 1);
  for (uint32_t g = 2; g < 500; g++) {
    m.u.reset.generation = g;
    rig_say(&w->r, TARGET, m);
  }
  m.u.reset.generation = UINT32_MAX;
  rig_say(&w->r, TARGET, m);
  settle(w);
  assert_int_equal(w->generation, UINT32_MAX);
  assert_int_equal(w->next_id - 1, GOAL);
  assert_true(rig_count_all(&w->r, TARGET) <= 3 * 500);
}

/* Nothing is left to give ids to a node: thousands of TOKENS later the ids still fit. */
static void test_ids_suffice_for_a_long_completion(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.budget = 64;
  m.u.open.options.lockstep = false;
  open_and_greet(w, m);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  for (int32_t n = 3; n < CONTEXT - 2; n++) {
    rig_advance(&w->r, 1000);
    gather(w);
    rig_clear(&w->r);
    tell_tokens(w, n, 1);
    if (n % 16 == 0) pass(w, 1000, true, true);
    gather(w);
    rig_clear(&w->r);
  }
  uint64_t digest;
  int32_t length;
  assert_true(draft_digest(w->d, S, 1, &digest, &length));
  assert_int_equal(length, CONTEXT - 2);
}

static void test_empty_nodes_name_the_base_while_nothing_happens(void **state) {
  world *w = *state;
  attach(w, false);
  pass(w, 5 * DRAFT_IDLE_US, true, true);
  int32_t n = rig_count(&w->r, TARGET, MSG_NODES);
  assert_true(n >= 4 && n <= 6);
  assert_int_equal(rig_last(&w->r, TARGET, MSG_NODES)->u.nodes.count, 0);
  assert_int_equal(rig_last(&w->r, TARGET, MSG_NODES)->u.nodes.first_id, w->next_id);
}

/* --- leaving --- */

static void test_a_detached_session_is_lost(void **state) {
  world *w = *state;
  attach(w, false);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, message(MSG_DETACH, SELF, S, 1));
  rig_expect_error(&w->r, ORCH, ERR_STATE);
  expect_lost(w);
}

/* The target has begun another generation for the newest ATTACH, and the ids of this one stand for other
 * nodes. */
static void test_an_attached_of_an_earlier_attach_is_dropped(void **state) {
  world *w = *state;
  attach(w, false);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET,
          error_message(SELF, S, 1, ERR_FULL)); /* a late one, too, and it waits for this draft */
  rig_only(&w->r, TARGET, MSG_DETACH);
  rig_expect_error(&w->r, ORCH, ERR_FULL);
  rig_say(&w->r, ORCH, prompt_message());
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 0);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 2));
  assert_true(rig_count(&w->r, TARGET, MSG_NODES) > 0);
}

/* It was on its way when this draft was told to attach anew. */
static void test_a_detach_before_attached_is_about_an_earlier_attachment(void **state) {
  world *w = *state;
  open_and_greet(w, prompt_message());
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, message(MSG_DETACH, SELF, S, 1));
  assert_int_equal(rig_count_all(&w->r, RIG_ANY), 0);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  gather(w);
  assert_true(w->next_id > 1);
}

static void test_a_session_gone_at_its_target_attaches_again(void **state) {
  world *w = *state;
  attach(w, false);
  rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_GONE));
  pass(w, DRAFT_REPEAT_US, true, true);
  assert_true(rig_count(&w->r, TARGET, MSG_ATTACH) >= 1);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 0);
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 4));
  settle(w);
  assert_int_equal(w->generation, 4);
}

static void test_errors_of_the_target_end_the_attachment(void **state) {
  world *w = *state;
  attach(w, false);
  rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_DESYNC));
  expect_out_of_step(w, PROMPT_LENGTH);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, delta(2, 0, 3));
  rig_say(&w->r, TARGET, attached_message(2, PROMPT_LENGTH, 2));
  rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_LIMIT)); /* of an epoch that has passed */
  rig_clear(&w->r);
  rig_advance(&w->r, DRAFT_IDLE_US + 1);
  assert_true(rig_count(&w->r, TARGET, MSG_NODES) >= 1);
  rig_say(&w->r, TARGET, error_message(SELF, S, 2, ERR_LIMIT));
  expect_lost(w);
}

static void test_frames_of_other_epochs_are_dropped(void **state) {
  world *w = *state;
  open_and_greet(w, open_message(S, 3, PROMPT, PROMPT_LENGTH));
  rig_say(&w->r, TARGET, attached_message(2, PROMPT_LENGTH, 1));
  rig_say(&w->r, TARGET, attached_message(4, PROMPT_LENGTH, 1));
  rig_advance(&w->r, SETTLE);
  assert_int_equal(rig_count(&w->r, TARGET, MSG_NODES), 0);
  rig_say(&w->r, TARGET, attached_message(3, PROMPT_LENGTH, 1));
  rig_clear(&w->r);
  rig_say(&w->r, TARGET, tokens_message(SELF, S, 2, 3, truth() + 3, 1, true_hash(4)));
  rig_say(&w->r, TARGET, tokens_message(SELF, S, 4, 3, truth() + 3, 1, true_hash(4)));
  assert_int_equal(w->f.advanced, 0);
}

/* Its END was lost, and so is the session at the target: the place is not taken for ever. */
static void test_a_session_that_all_have_forgotten_is_given_up(void **state) {
  world *w = *state;
  attach(w, false);
  rig_say(&w->r, TARGET, error_message(SELF, S, 1, ERR_GONE));
  pass(w, 50000000, true, true);
  assert_int_equal(w->f.closed, 0); /* OPEN may still be under way to the target */
  assert_true(rig_count(&w->r, TARGET, MSG_ATTACH) > 100);
  rig_clear(&w->r);
  pass(w, 15000000, true, true);
  assert_int_equal(w->f.closed, 1);
}

/* The same where nobody tells, because the target is gone as well. */
static void test_a_session_that_outlives_its_target_is_given_up(void **state) {
  world *w = *state;
  attach(w, false);
  pass(w, 50000000, true, false);
  assert_int_equal(w->f.closed, 0);
  pass(w, 15000000, true, false);
  assert_int_equal(w->f.closed, 1);
}

/* But a session that goes on for hours is kept. */
static void test_a_session_that_goes_on_is_kept(void **state) {
  world *w = *state;
  attach(w, false);
  for (int i = 0; i < 10; i++) {
    pass(w, 20000000, true, true);
    rig_clear(&w->r);
  }
  assert_int_equal(w->f.closed, 0);
}

/* C beyond what the cache holds, as a longer session may be: the same. */
static void test_a_session_that_outgrows_the_model_is_detached(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.context = CONTEXT + 100;
  open_and_greet(w, m);
  rig_say(&w->r, TARGET, attached_message(1, PROMPT_LENGTH, 1));
  rig_clear(&w->r);
  tell_tokens(w, 3, CONTEXT + 40);
  rig_only(&w->r, TARGET, MSG_DETACH);
  rig_expect_error(&w->r, ORCH, ERR_LIMIT);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DESYNC), 0);
}

/* The target has verified in time, while this draft stood still. */
static void test_our_own_stall_does_not_make_the_target_slow(void **state) {
  for (int stalls = 0; stalls < 2; stalls++) {
    tear_down(state);
    set_up(state);
    world *w = *state;
    attach(w, false);
    const average *verify = &w->d->sessions[0].session.pacing.verify_us;
    w->r.now += stalls ? 4000000 : 400000;
    tell_tokens(w, PROMPT_LENGTH, 1);
    assert_int_equal(verify->count, !stalls);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_attach_is_repeated_until_attached),
      CASE(test_our_own_stall_does_not_make_the_target_slow),
      CASE(test_attach_is_tried_again_when_the_target_has_no_session_yet),
      CASE(test_attach_that_was_too_early_is_repeated_soon_and_then_less_often),
      CASE(test_a_refused_attach_is_told_once),
      CASE(test_a_longer_prefix_at_the_target_is_asked_for),
      CASE(test_another_prefix_at_the_target_is_desync),
      CASE(test_a_repeated_attached_does_no_harm),
      CASE(test_free_pace_grows_a_budget_ahead),
      CASE(test_lockstep_grows_the_budget_and_says_so),
      CASE(test_the_done_mark_comes_last),
      CASE(test_a_drafter_without_candidates_is_done),
      CASE(test_a_budget_of_nothing_sends_no_nodes),
      CASE(test_the_most_probable_node_comes_first),
      CASE(test_no_token_outside_the_vocabulary_is_sent),
      CASE(test_scores_are_sent_within_their_range),
      CASE(test_tokens_along_the_tree_keep_what_is_below),
      CASE(test_tokens_away_from_the_tree_begin_a_new_one),
      CASE(test_every_tokens_gets_nodes_with_the_new_base),
      CASE(test_repeated_and_overlapping_tokens_do_no_harm),
      CASE(test_tokens_beyond_c_are_asked_for_again_now_and_then),
      CASE(test_conflicting_tokens_are_desync),
      CASE(test_tokens_beyond_the_context_are_desync),
      CASE(test_open_repairs_a_conflict),
      CASE(test_a_desync_is_repeated_a_few_times),
      CASE(test_tree_reset_begins_a_generation),
      CASE(test_tree_reset_is_followed_by_a_done_mark),
      CASE(test_a_storm_of_resets_ends),
      CASE(test_ids_suffice_for_a_long_completion),
      CASE(test_empty_nodes_name_the_base_while_nothing_happens),
      CASE(test_a_detached_session_is_lost),
      CASE(test_an_attached_of_an_earlier_attach_is_dropped),
      CASE(test_a_detach_before_attached_is_about_an_earlier_attachment),
      CASE(test_a_session_gone_at_its_target_attaches_again),
      CASE(test_errors_of_the_target_end_the_attachment),
      CASE(test_frames_of_other_epochs_are_dropped),
      CASE(test_a_session_that_all_have_forgotten_is_given_up),
      CASE(test_a_session_that_outlives_its_target_is_given_up),
      CASE(test_a_session_that_goes_on_is_kept),
      MODEL_CASE(test_a_session_that_outgrows_the_model_is_detached),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
