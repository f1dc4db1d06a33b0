/* libs: target wire speculative base */
#include "tests/support/target_world.h"

#include "target_worker/attached_drafts.h"

static void test_a_draft_attaches_with_the_ticket(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  play(w, 2);
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, attach_message(1, TICKET));
  const msg *m = rig_only(&w->r, DRAFT, MSG_ATTACHED);
  hash16 h = true_hash(5);
  assert_int_equal(m->u.state.length, 5);
  assert_memory_equal(&m->u.state.hash, &h, sizeof h);
  assert_true(m->u.state.generation >= 1);
  assert_int_equal(session_draft_count(held(w, S)), 1);
}

static void test_a_draft_that_attaches_again_is_attached_once(void **state) {
  world *w = *state;
  uint32_t first = open_with_draft(w, false), again = attach(w, DRAFT);
  assert_true(again >= first);
  assert_int_equal(session_draft_count(held(w, S)), 1);
  send_chain(w, DRAFT, again, 3, 1, 2, false);
  assert_int_equal(held(w, S)->drafts.tree.live_count, 2);
}

/* The batches of a session with such a draft say so, until it turns out not to pay. */
static void test_a_draft_may_compute_beside_the_target(void **state) {
  world *w = *state;
  enum { BESIDE = DRAFT + 7 };
  msg hello = hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, ID(BESIDE));
  hello.u.hello.host = (hash16){{1}};
  hello.u.hello.device = wire_text("cpu:c beside");
  rig_say(&w->r, BESIDE, hello);
  open_with_draft(w, false);
  prefill(w);
  assert_true(take_job(w));
  assert_false(w->batch.beside);
  give_result(w);
  attach(w, BESIDE);
  assert_true(held(w, S)->speculation.policy.beside);
  held(w, S)->speculation.policy.state = POLICY_ON;
  assert_true(take_job(w));
  assert_true(w->batch.beside);
  give_result(w);
  held(w, S)->speculation.policy.state = POLICY_OFF;
  assert_true(take_job(w));
  assert_false(w->batch.beside);
  give_result(w);
}

static void test_a_wrong_ticket_or_epoch_is_refused(void **state) {
  world *w = *state;
  rig_say(&w->r, DRAFT, attach_message(1, TICKET));
  rig_expect_error(&w->r, DRAFT, ERR_GONE); /* its OPEN may be under way */
  say_and_open(w, open_message(S, 2, PROMPT, PROMPT_LENGTH));
  rig_say(&w->r, DRAFT, attach_message(3, TICKET));
  rig_expect_error(&w->r, DRAFT, ERR_GONE);
  rig_clear(&w->r);
  rig_say(&w->r, DRAFT, attach_message(1, TICKET)); /* a lower epoch is dropped */
  assert_int_equal(rig_count_all(&w->r, DRAFT), 0);
  rig_say(&w->r, DRAFT, attach_message(2, id_of(201)));
  rig_expect_error(&w->r, DRAFT, ERR_TICKET);
  rig_clear(&w->r);
  wire_id nearly = TICKET;
  nearly.bytes[15] ^= 1;
  rig_say(&w->r, DRAFT, attach_message(2, nearly));
  rig_expect_error(&w->r, DRAFT, ERR_TICKET);
  assert_int_equal(session_draft_count(held(w, S)), 0);
}

/* The ticket of the newest OPEN counts, of the same epoch too: whoever has another one leaves. */
static void test_a_dismissed_draft_does_not_attach_any_more(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  rig_clear(&w->r);
  msg m = prompt_message();
  rig_say(&w->r, ORCH, m); /* repeated: nothing changes */
  assert_int_equal(session_draft_count(held(w, S)), 1);
  m.u.open.ticket = id_of(202);
  rig_say(&w->r, ORCH, m);
  assert_int_equal(rig_count(&w->r, ORCH, MSG_OPENED), 2);
  rig_only(&w->r, DRAFT, MSG_DETACH);
  assert_int_equal(session_draft_count(held(w, S)), 0);
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, prompt_message()); /* late: the newest OPEN has overtaken it */
  rig_only(&w->r, ORCH, MSG_OPENED);
  rig_say(&w->r, DRAFT, attach_message(1, TICKET));
  rig_expect_error(&w->r, DRAFT, ERR_TICKET);
  rig_say(&w->r, DRAFT, attach_message(1, id_of(202)));
  rig_only(&w->r, DRAFT, MSG_ATTACHED);
}

static void test_no_more_than_four_drafts_attach(void **state) {
  world *w = *state;
  say_and_open(w, prompt_message());
  for (peer_id p = 20; p <= 20 + SESSION_DRAFTS_MAX; p++) {
    rig_say(&w->r, p, hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, ID(p)));
    rig_clear(&w->r);
    rig_say(&w->r, p, attach_message(1, TICKET));
    if (p < 20 + SESSION_DRAFTS_MAX) rig_only(&w->r, p, MSG_ATTACHED);
  }
  rig_expect_error(&w->r, 20 + SESSION_DRAFTS_MAX, ERR_FULL);
}

static void test_a_draft_that_leaves_or_falls_silent_is_detached(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  attach(w, DRAFT2);
  rig_say(&w->r, DRAFT, message(MSG_DETACH, SELF, S, 1));
  assert_int_equal(session_draft_count(held(w, S)), 1);
  for (int i = 0; i < 8; i++) { /* DRAFT2 is silent */
    rig_advance(&w->r, 400000);
    rig_say(&w->r, ORCH, ack(1, PROMPT_LENGTH));
  }
  assert_int_equal(session_draft_count(held(w, S)), 0);
  assert_true(play(w, 1) == 1); /* a plain step */
}

/* Its orchestrator cannot know otherwise; who asked for none is told nothing. */
static void test_a_session_without_its_draft_says_so(void **state) {
  world *w = *state;
  for (int expected = 0; expected < 2; expected++) {
    msg m = open_message(S, 1 + (uint32_t)expected, PROMPT, PROMPT_LENGTH);
    m.u.open.draft_expected = expected;
    say_and_open(w, m);
    rig_clear(&w->r);
    uint64_t told = held(w, S)->drafts.alone_us + ATTACHED_DRAFTS_ALONE_US;
    rig_advance(&w->r, told - w->r.now - 1);
    assert_int_equal(rig_count(&w->r, ORCH, MSG_DETACH), 0);
    rig_advance(&w->r, 1);
    assert_int_equal(rig_count(&w->r, ORCH, MSG_DETACH), expected);
    rig_advance(&w->r, ATTACHED_DRAFTS_ALONE_US);
    assert_int_equal(rig_count(&w->r, ORCH, MSG_DETACH), 2 * expected);
  }
  assert_int_equal(rig_last(&w->r, ORCH, MSG_DETACH)->epoch, 2);
  rig_say(&w->r, DRAFT, attach_message(2, TICKET));
  rig_clear(&w->r);
  for (int i = 0; i < 10; i++) { /* it is there */
    rig_advance(&w->r, ATTACHED_DRAFTS_ALONE_US / 4);
    rig_say(&w->r, DRAFT, ping_message(MSG_PING, SELF, 1, 1, 0));
    rig_say(&w->r, ORCH, ping_message(MSG_PING, SELF, 1, 1, 0));
  }
  assert_int_equal(rig_count(&w->r, ORCH, MSG_DETACH), 0);
  rig_event(&w->r, EVENT_DISCONNECTED, DRAFT, 0, NULL, NULL);
  rig_advance(&w->r, ROSTER_DOUBT_US);
  assert_int_equal(session_draft_count(held(w, S)), 0);
  rig_advance(&w->r, ATTACHED_DRAFTS_ALONE_US);
  assert_true(text_has(rig_only(&w->r, ORCH, MSG_DETACH)->u.state.reason, "its connection ended"));
}

/* After a restart, the program on the same connection is another draft. */
static void test_a_draft_that_restarts_is_detached(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  rig_say(&w->r, DRAFT, hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, id_of(222)));
  assert_int_equal(session_draft_count(held(w, S)), 0);
  rig_clear(&w->r);
  send_chain(w, DRAFT, g, 3, 1, 2, false);
  rig_expect_error(&w->r, DRAFT, ERR_GONE);
}

/* A second HELLO may show another vocabulary: then the draft cannot stay attached. */
static void test_a_draft_that_comes_back_with_another_vocabulary_is_detached(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  msg m = hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, ID(DRAFT));
  m.u.hello.vocabulary_size = VOCAB + 1;
  rig_say(&w->r, DRAFT, m);
  rig_expect_error(&w->r, DRAFT, ERR_MISMATCH);
  assert_int_equal(session_draft_count(held(w, S)), 0);
}

/* Parent 0 is the last token of the C that the draft knew. */
static void test_nodes_of_an_older_base_continue_it(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  play_slowly(w, 2); /* C has 5 tokens, the draft knows 3 */
  const int32_t *c = truth();
  guess list[] = {{0, c[3], -0.1f}, {1, c[4], -0.1f}, {2, c[5], -0.1f}, {3, c[6], -0.1f}, {0, c[5], -0.1f}};
  send_nodes(w, DRAFT, g, 3, 1, list, 5, false);
  assert_int_equal(held(w, S)->drafts.tree.live_count,
                   2); /* c[5] and c[6]; the last one is dead, not a child of the root */
  assert_true(take_job(w));
  assert_int_equal(w->job.count, 3);
  give_result(w);
  assert_int_equal(held(w, S)->committed.length, 8);
}

static void test_nodes_of_another_generation_are_dropped(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  uint64_t dropped = held(w, S)->stats.dropped;
  for (int i = 0; i < 3; i++) send_chain(w, DRAFT, g + 1, 3, 1, 2, true);
  assert_int_equal(rig_only(&w->r, DRAFT, MSG_TREE_RESET)->u.reset.generation,
                   g); /* once for the three messages */
  assert_int_equal(held(w, S)->drafts.tree.live_count, 0);
  assert_int_equal(held(w, S)->stats.dropped - dropped, 3);
  assert_int_equal(held(w, S)->drafts.of[0].done_base, 0);
  w->r.now += 60000;
  send_chain(w, DRAFT, g + 1, 3, 1, 2, true);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_TREE_RESET), 2);
}

static void test_nodes_beyond_c_are_dropped(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  send_chain(w, DRAFT, g, 5, 1, 2, true);
  const msg *m = rig_only(&w->r, DRAFT, MSG_TOKENS);
  assert_int_equal(m->u.tokens.base_length, 3);
  assert_int_equal(m->u.tokens.token_count, 0);
  assert_int_equal(held(w, S)->drafts.tree.live_count, 0);
  assert_non_null(session_draft_of(held(w, S), DRAFT));
}

static void test_nodes_of_another_prefix_detach_the_draft(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  batch b;
  guess one = {0, 10, -0.1f};
  msg m = nodes_message(&b, 1, g, 3, 1, &one, 1, true);
  m.u.nodes.base_hash.bytes[7] ^= 4;
  rig_say(&w->r, DRAFT, m);
  rig_expect_error(&w->r, DRAFT, ERR_DESYNC);
  assert_null(session_draft_of(held(w, S), DRAFT));
  assert_int_equal(held(w, S)->drafts.tree.live_count, 0);
}

static void test_nodes_of_a_draft_that_is_not_attached_are_refused(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  send_chain(w, DRAFT2, g, 3, 1, 2, true);
  rig_expect_error(&w->r, DRAFT2, ERR_GONE);
  assert_int_equal(held(w, S)->drafts.tree.live_count, 0);
}

static void test_a_gap_in_ids_resets_the_tree(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  believe(w);
  send_chain(w, DRAFT, g, 3, 1, 2, false);
  guess late = {4, 10, -0.1f};
  send_nodes(w, DRAFT, g, 3, 5, &late, 1, false); /* ids 3 and 4 were lost */
  uint32_t next = rig_only(&w->r, DRAFT, MSG_TREE_RESET)->u.reset.generation;
  assert_true(next > g);
  assert_int_equal(held(w, S)->stats.resets, 1);
  send_chain(w, DRAFT, next, 3, 1, 4, false); /* it sends its live nodes again */
  assert_true(take_job(w));
  assert_int_equal(w->job.count, 5);
  give_result(w);
}

static void test_repeated_nodes_change_nothing(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  guess other[] = {{0, 70, 0.0f}, {0, 71, 0.0f}};
  send_chain(w, DRAFT, g, 3, 1, 2, false);
  send_chain(w, DRAFT, g, 3, 1, 2, false);
  send_nodes(w, DRAFT, g, 3, 1, other, 2, false); /* what id 1 is was settled by the first message */
  assert_int_equal(held(w, S)->drafts.tree.live_count, 2);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_TREE_RESET), 0);
  assert_int_equal(tree_child(&held(w, S)->drafts.tree, TREE_ROOT, 70), -1);
}

static void test_a_token_outside_the_vocabulary_detaches_the_draft(void **state) {
  world *w = *state;
  static const int32_t bad[] = {VOCAB, INT32_MAX};
  for (int i = 0; i < 2; i++) {
    uint32_t g = i == 0 ? open_with_draft(w, false) : attach(w, DRAFT);
    guess list[] = {{0, 10, -0.1f}, {1, bad[i], -0.1f}};
    rig_clear(&w->r);
    send_nodes(w, DRAFT, g, 3, 1, list, 2, true);
    rig_expect_error(&w->r, DRAFT, ERR_ARG);
    assert_null(session_draft_of(held(w, S), DRAFT));
    assert_int_equal(held(w, S)->drafts.tree.live_count, 0);
  }
  assert_true(play(w, 1) == 1);
}

/* Too many nodes are an error, none is dropped silently, and the session goes on with plain steps. */
static void test_nodes_beyond_the_limit_detach_the_draft(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  guess list[WIRE_NODES_MAX];
  for (int32_t i = 0; i < WIRE_NODES_MAX; i++) {
    list[i] = (guess){(uint64_t)(i / 90), i % 90, -1.0f}; /* all of them different */
  }
  send_nodes(w, DRAFT, g, 3, 1, list, WIRE_NODES_MAX, false);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_ERROR), 0);
  assert_int_equal(held(w, S)->drafts.tree.live_count, TREE_NODE_MAX);
  guess more = {0, 95, -1.0f};
  send_nodes(w, DRAFT, g, 3, WIRE_NODES_MAX + 1, &more, 1, false);
  rig_expect_error(&w->r, DRAFT, ERR_LIMIT);
  assert_null(session_draft_of(held(w, S), DRAFT));
  rig_clear(&w->r);
  play(w, 1);
  rig_advance(&w->r, 50000);
  play(w, 1);
  assert_true(rig_count(&w->r, ORCH, MSG_TOKENS) >= 1);
}

/* Sends `count` different nodes below C, in as many messages as that takes. */
static void send_many(world *w, peer_id from, uint32_t g, uint64_t first, int32_t count, int32_t token) {
  guess list[WIRE_NODES_MAX];
  for (int32_t i = 0; i < count; i++) /* rows of 40, each below the first node of the one before */
    list[i] = (guess){i < 40 ? 0 : first + (uint64_t)(i / 40 - 1) * 40, token + i % 40, -1.0f};
  send_nodes(w, from, g, 3, first, list, count, true);
}

/* When the tree is full, the draft that holds too much of it is detached, not the one that finds no room. */
static void test_the_draft_that_holds_too_many_nodes_is_detached(void **state) {
  world *w = *state;
  uint32_t greedy = open_with_draft(w, false), modest = attach(w, DRAFT2);
  send_many(w, DRAFT, greedy, 1, 1000, 0);
  assert_int_equal(held(w, S)->drafts.tree.live_count, 1000);
  rig_clear(&w->r);
  send_many(w, DRAFT2, modest, 1, 256, 50);
  assert_int_equal(rig_count(&w->r, DRAFT2, MSG_ERROR), 0);
  rig_expect_error(&w->r, DRAFT, ERR_LIMIT);
  assert_null(session_draft_of(held(w, S), DRAFT));
  assert_int_equal(held(w, S)->drafts.tree.live_count, 256);
  assert_true(run_job(w)); /* with the nodes of the other one */
}

/* Nodes that a draft left behind when it was detached, or that belong to a generation of the past, count
 * against nobody. */
static void test_nodes_that_nobody_names_any_more_make_room(void **state) {
  world *w = *state;
  open_with_draft(w, false);
  uint32_t modest = attach(w, DRAFT2), gone = attach(w, DRAFT);
  send_many(w, DRAFT, gone, 1, 1000, 0);
  rig_say(&w->r, DRAFT, message(MSG_DETACH, SELF, S, 1));
  send_many(w, DRAFT2, modest, 1, 200, 50);
  assert_int_equal(held(w, S)->drafts.tree.live_count, 200);
  for (int32_t i = 1; i < 12; i++) {
    rig_clear(&w->r);
    modest = attach(w, DRAFT2);
    send_many(w, DRAFT2, modest, 1, 200, 4 * i);
    assert_int_equal(rig_count(&w->r, DRAFT2, MSG_ERROR), 0);
  }
  assert_non_null(session_draft_of(held(w, S), DRAFT2));
}

/* Four drafts that keep to their quota have room, even if no node of one equals another's. */
static void test_four_drafts_within_their_quota_all_have_room(void **state) {
  world *w = *state;
  static const peer_id more[] = {STRANGER, STRANGER + 1};
  open_with_draft(w, false);
  for (int i = 0; i < 2; i++) rig_say(&w->r, more[i], hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, ID(more[i])));
  const peer_id all[] = {DRAFT, DRAFT2, more[0], more[1]};
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++) {
    uint32_t g = attach(w, all[i]);
    guess list[256]; /* their own tokens below the root, so that nothing merges */
    for (int32_t k = 0; k < 256; k++)
      list[k] = (guess){k < 20 ? 0 : (uint64_t)(k / 20), 20 * i + k % 20, -1.0f};
    send_nodes(w, all[i], g, 3, 1, list, 256, true);
    assert_int_equal(rig_count(&w->r, RIG_ANY, MSG_ERROR), 0);
    assert_int_equal(held(w, S)->drafts.tree.live_count, 256 * (i + 1));
  }
}

/* A little more than the quota is too much as soon as others need the room. */
static void test_a_draft_just_over_its_quota_makes_room(void **state) {
  world *w = *state;
  static const peer_id all[] = {DRAFT, DRAFT2, STRANGER, STRANGER + 1};
  open_with_draft(w, false);
  for (int i = 2; i < 4; i++) rig_say(&w->r, all[i], hello_message(MSG_HELLO, WIRE_ROLE_DRAFT, ID(all[i])));
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++) {
    uint32_t g = attach(w, all[i]);
    int32_t count = i == 0 ? 300 : 256;
    guess list[300]; /* their own tokens below the root, so that nothing merges */
    for (int32_t k = 0; k < count; k++)
      list[k] = (guess){k < 20 ? 0 : (uint64_t)(k / 20), 20 * i + k % 20, -1.0f};
    rig_clear(&w->r);
    send_nodes(w, all[i], g, 3, 1, list, count, true);
    assert_int_equal(rig_count(&w->r, all[i], MSG_ERROR), 0);
  }
  rig_expect_error(&w->r, DRAFT, ERR_LIMIT);
  assert_null(session_draft_of(held(w, S), DRAFT));
  assert_int_equal(held(w, S)->drafts.tree.live_count, 3 * 256);
}

static void test_nodes_that_are_too_deep_detach_the_draft(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  guess list[TREE_DEPTH_MAX + 1];
  for (int32_t i = 0; i <= TREE_DEPTH_MAX; i++) list[i] = (guess){(uint64_t)i, 50, 0};
  send_nodes(w, DRAFT, g, 3, 1, list, TREE_DEPTH_MAX + 1, false);
  rig_expect_error(&w->r, DRAFT, ERR_LIMIT);
  assert_null(session_draft_of(held(w, S), DRAFT));
}

/* 4096 ids are remembered: a draft that never names a newer base has to start a new generation. */
static void test_too_many_ids_reset_the_tree(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  guess list[WIRE_NODES_MAX];
  uint64_t first = 1;
  for (int32_t i = 0; i < WIRE_NODES_MAX; i++) list[i] = (guess){0, i % 5, -1.0f}; /* aliases of five nodes */
  for (int i = 0; i < 4; i++, first += WIRE_NODES_MAX)
    send_nodes(w, DRAFT, g, 3, first, list, WIRE_NODES_MAX, false);
  assert_int_equal(rig_count(&w->r, DRAFT, MSG_TREE_RESET), 0);
  send_nodes(w, DRAFT, g, 3, first, list, 1, false);
  assert_true(rig_only(&w->r, DRAFT, MSG_TREE_RESET)->u.reset.generation > g);
}

static void test_a_draft_that_lags_is_sent_tokens(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  rig_advance(&w->r, 50000);
  play(w, 2);
  rig_advance(&w->r, 250000); /* so it has not got the TOKENS: they were lost */
  rig_clear(&w->r);
  send_nodes(w, DRAFT, g, 3, 1, NULL, 0, false);
  expect_tokens(rig_only(&w->r, DRAFT, MSG_TOKENS), 3, held(w, S)->committed.length);
  rig_clear(&w->r);
  send_nodes(w, DRAFT, g, held(w, S)->committed.length, 1, NULL, 0, false);
  assert_int_equal(rig_count_all(&w->r, DRAFT), 0);
}

/* One message was too small for all that it lacked. */
static void test_a_draft_that_has_got_a_part_is_sent_the_next_at_once(void **state) {
  for (int part = 0; part < 2; part++) {
    tear_down(state);
    set_up(state);
    world *w = *state;
    uint32_t g = open_with_draft(w, false);
    prefill(w);
    rig_advance(&w->r, 50000);
    play(w, 2);
    session_draft *d = session_draft_of(held(w, S), DRAFT);
    d->resent_end = 4;
    d->resent_part = part;
    rig_clear(&w->r);
    send_nodes(w, DRAFT, g, 4, 1, NULL, 0, false);
    assert_int_equal(rig_count(&w->r, DRAFT, MSG_TOKENS), part);
  }
}

/* However often a draft says that it lags, the target does not send all of C each time. */
static void test_a_draft_that_keeps_lagging_is_not_sent_tokens_each_time(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  rig_advance(&w->r, 50000);
  play(w, 5);
  rig_clear(&w->r);
  for (int i = 0; i < 1000; i++) {
    w->r.now += 10; /* 10 ms in all */
    send_nodes(w, DRAFT, g, 3, 1, NULL, 0, false);
  }
  assert_true(rig_count(&w->r, DRAFT, MSG_TOKENS) <= 2);
}

/* A draft that answers while this program stands still answers in time. */
static void test_our_own_stall_does_not_make_a_draft_slow(void **state) {
  for (int stalls = 0; stalls < 2; stalls++) {
    tear_down(state);
    set_up(state);
    world *w = *state;
    uint32_t g = open_with_draft(w, false);
    prefill(w);
    rig_advance(&w->r, 50000);
    play(w, 1);
    const average *arrival = &held(w, S)->speculation.policy.arrival_us;
    uint32_t before = arrival->count;
    w->r.now += stalls ? 4000000 : 400000;
    send_chain(w, DRAFT, g, held(w, S)->committed.length, 1, 1, false);
    assert_int_equal(arrival->count - before, !stalls);
  }
}

/* A draft names what it has before it computes: that tells how far away it is. */
static void test_the_first_reply_counts_also_without_nodes(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  prefill(w);
  rig_advance(&w->r, 50000);
  play(w, 1);
  const policy *p = &held(w, S)->speculation.policy;
  int32_t length = held(w, S)->committed.length;
  w->r.now += 300;
  send_nodes(w, DRAFT, g, length, 1, NULL, 0, false);
  assert_int_equal(p->reply_us.count, 1);
  assert_true(p->reply_us.mean == 300);
  assert_int_equal(p->arrival_us.count, 0);
  w->r.now += 500;
  send_chain(w, DRAFT, g, length, 1, 1, false);
  assert_int_equal(p->reply_us.count, 1);
  assert_true(p->arrival_us.mean == 800);
}

static void test_several_drafts_feed_one_tree(void **state) {
  world *w = *state;
  uint32_t g1 = open_with_draft(w, false), g2 = attach(w, DRAFT2);
  const int32_t *c = truth();
  guess a[] = {{0, c[3], -0.5f}, {1, c[4], -0.5f}},
        b[] = {{0, 70, -0.5f}, {0, c[3], -0.5f}, {2, c[4], -0.5f}, {3, c[5], -0.5f}};
  send_nodes(w, DRAFT, g1, 3, 1, a, 2, false);
  send_nodes(w, DRAFT2, g2, 3, 1, b, 4, false); /* its ids are its own; equal paths merge */
  assert_int_equal(held(w, S)->drafts.tree.live_count, 4);
  prefill(w);
  believe(w);
  assert_true(run_job(w));
  assert_int_equal(held(w, S)->committed.length, 7);
  rig_say(&w->r, DRAFT, message(MSG_DETACH, SELF, S, 1));
  rig_clear(&w->r);
  guess more = {4, c[6], -0.1f}; /* DRAFT2's id 4 is trunk now; c[6] was the bonus */
  send_nodes(w, DRAFT2, g2, 3, 5, &more, 1, false);
  more = (guess){5, c[7], -0.1f};
  send_nodes(w, DRAFT2, g2, 3, 6, &more, 1, false);
  assert_int_equal(held(w, S)->drafts.tree.live_count, 1);
}

static void test_nodes_after_the_end_are_dropped(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 1;
  say_and_open(w, m);
  uint32_t g = attach(w, DRAFT);
  rig_advance(&w->r, 50000);
  while (held(w, S)->state == SESSION_RUNNING) assert_true(run_job(w));
  rig_clear(&w->r);
  send_chain(w, DRAFT, g, 4, 1, 3, true);
  assert_int_equal(rig_count_all(&w->r, DRAFT), 0);
  assert_int_equal(play(w, 1), 0);
}

/* After a new epoch the draft has to attach again. */
/* It would be attached for nothing, with memory for a tree and features, until END. */
static void test_nobody_attaches_to_what_does_not_run(void **state) {
  world *w = *state;
  msg m = prompt_message();
  m.u.open.options.max_tokens = 1;
  say_and_open(w, m);
  play(w, 1);
  for (int at = 0; at < 2; at++) { /* finished, then out of step */
    if (at == 1) {
      say_and_open(w, delta(2, 0, PROMPT, PROMPT_LENGTH));
      rig_say(&w->r, ORCH, state_message(MSG_ACK, SELF, S, 2, 2, true_hash(3)));
    }
    assert_int_equal(held(w, S)->state, at == 0 ? SESSION_FINISHED : SESSION_DESYNCED);
    rig_clear(&w->r);
    rig_say(&w->r, DRAFT, attach_message(held(w, S)->epoch, TICKET));
    rig_expect_error(&w->r, DRAFT, ERR_GONE);
    assert_int_equal(session_draft_count(held(w, S)), 0);
    assert_false(held(w, S)->drafts.has_tree);
  }
}

static void test_a_new_epoch_ends_every_attachment(void **state) {
  world *w = *state;
  uint32_t g = open_with_draft(w, false);
  send_chain(w, DRAFT, g, 3, 1, 2, false);
  say_and_open(w, delta(2, 3, truth() + 3, 1));
  assert_int_equal(held(w, S)->drafts.tree.live_count, 0);
  assert_int_equal(session_draft_count(held(w, S)), 0);
  batch b;
  guess one = {0, 10, -0.1f};
  rig_say(&w->r, DRAFT, nodes_message(&b, 1, g, 3, 3, &one, 1, true)); /* of the old epoch: dropped */
  assert_int_equal(rig_count_all(&w->r, DRAFT), 0);
  assert_true(attach(w, DRAFT) > g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_draft_attaches_with_the_ticket),
      CASE(test_a_draft_that_attaches_again_is_attached_once),
      CASE(test_a_wrong_ticket_or_epoch_is_refused),
      CASE(test_a_dismissed_draft_does_not_attach_any_more),
      CASE(test_no_more_than_four_drafts_attach),
      CASE(test_a_draft_that_leaves_or_falls_silent_is_detached),
      CASE(test_a_session_without_its_draft_says_so),
      CASE(test_a_draft_may_compute_beside_the_target),
      CASE(test_a_draft_that_restarts_is_detached),
      CASE(test_a_draft_that_comes_back_with_another_vocabulary_is_detached),
      CASE(test_nodes_of_an_older_base_continue_it),
      CASE(test_nodes_of_another_generation_are_dropped),
      CASE(test_nodes_beyond_c_are_dropped),
      CASE(test_nodes_of_another_prefix_detach_the_draft),
      CASE(test_nodes_of_a_draft_that_is_not_attached_are_refused),
      CASE(test_a_gap_in_ids_resets_the_tree),
      CASE(test_repeated_nodes_change_nothing),
      CASE(test_a_token_outside_the_vocabulary_detaches_the_draft),
      CASE(test_nodes_beyond_the_limit_detach_the_draft),
      CASE(test_the_draft_that_holds_too_many_nodes_is_detached),
      CASE(test_nodes_that_nobody_names_any_more_make_room),
      CASE(test_four_drafts_within_their_quota_all_have_room),
      CASE(test_a_draft_just_over_its_quota_makes_room),
      CASE(test_nodes_that_are_too_deep_detach_the_draft),
      CASE(test_too_many_ids_reset_the_tree),
      CASE(test_a_draft_that_lags_is_sent_tokens),
      CASE(test_a_draft_that_has_got_a_part_is_sent_the_next_at_once),
      CASE(test_a_draft_that_keeps_lagging_is_not_sent_tokens_each_time),
      CASE(test_our_own_stall_does_not_make_a_draft_slow),
      CASE(test_the_first_reply_counts_also_without_nodes),
      CASE(test_several_drafts_feed_one_tree),
      CASE(test_nodes_after_the_end_are_dropped),
      CASE(test_nobody_attaches_to_what_does_not_run),
      CASE(test_a_new_epoch_ends_every_attachment),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
