/* libs: draft speculative base */
/* A tree and what drafters have said of its nodes, without a session around them. */
#include "draft_worker/expansion.h"

#include "common/base/err.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { CAPACITY = 8 };

static const expansion_limits exact[2] = {{.least = -100}, {.least = -100}};

static expansion with_drafters(int32_t count) {
  expansion x;
  assert_int_equal(expansion_init(&x, CAPACITY, count), ERR_OK);
  return x;
}

/* A drafter has been queried about a node, and has replied with nothing. */
static void replied(expansion *x, int32_t by, int32_t node) {
  expansion_query(x, by, node, 1);
  expansion_entry_of(x, by, node)->handle = 0;
}

/* ... with tokens and their scores. */
static void reply(expansion *x, int32_t by, int32_t node, int32_t count, const int32_t *tokens,
                  const float *scores) {
  replied(x, by, node);
  expansion_entry *e = expansion_entry_of(x, by, node);
  e->count = count;
  for (int32_t i = 0; i < count; i++) e->list[i] = (draft_candidate){.token = tokens[i], .score = scores[i]};
}

static int32_t add(expansion *x, int32_t parent, int32_t token, float score) {
  int32_t slot = tree_add(&x->live, parent, token, score, NULL);
  assert_true(slot >= 0);
  return slot;
}

static expansion_entry *outstanding(expansion *x, int32_t by, uint64_t handle) {
  bool in_tree;
  return expansion_outstanding(x, by, handle, &in_tree);
}

/* --- queries --- */

static void test_an_outstanding_query_is_found_by_its_handle_alone(void **state) {
  (void)state;
  expansion x = with_drafters(2);
  int32_t node = add(&x, TREE_ROOT, 5, -1);
  uint64_t old = expansion_query(&x, 0, TREE_ROOT, 3);
  uint64_t a = expansion_query(&x, 0, TREE_ROOT, 1), b = expansion_query(&x, 1, node, 2);
  assert_true(a != b && a > 0 && b > 0);
  assert_ptr_equal(outstanding(&x, 0, a), expansion_entry_of(&x, 0, TREE_ROOT));
  assert_ptr_equal(outstanding(&x, 1, b), expansion_entry_of(&x, 1, node));
  assert_null(outstanding(&x, 1, a)); /* another drafter's */
  assert_null(outstanding(&x, 0, b));
  assert_null(outstanding(&x, 0, old));
  assert_true(expansion_queried(&x, 0, TREE_ROOT) && !expansion_replied(&x, 0, TREE_ROOT));
  expansion_entry_of(&x, 0, TREE_ROOT)->handle = 0;
  assert_true(expansion_replied(&x, 0, TREE_ROOT));
  expansion_fini(&x);
}

static void test_a_slot_that_is_used_again_has_no_query(void **state) {
  (void)state;
  expansion x = with_drafters(1);
  int32_t node = add(&x, TREE_ROOT, 5, -1);
  uint64_t handle = expansion_query(&x, 0, node, 1);
  tree_advance(&x.live, (const int32_t[]){9}, 1); /* the node is dead */
  assert_null(outstanding(&x, 0, handle));
  while (x.live.live_count < CAPACITY) add(&x, TREE_ROOT, 20 + x.live.live_count, -1);
  assert_null(outstanding(&x, 0, handle));
  assert_false(expansion_queried(&x, 0, node));
  expansion_fini(&x);
}

static void test_the_frontier_is_the_most_probable_nodes_without_a_query(void **state) {
  (void)state;
  expansion x = with_drafters(2), y = with_drafters(2);
  int32_t likely = add(&x, TREE_ROOT, 1, -0.5f), below = add(&x, likely, 2, -0.5f);
  int32_t poor = add(&x, TREE_ROOT, 3, -4), other = add(&y, TREE_ROOT, 1, -0.7f);
  replied(&x, 0, TREE_ROOT);
  replied(&y, 0, TREE_ROOT);
  expansion_frontier f = {.room = 2};
  expansion_frontier_add(&f, &x, 0, &(expansion_limits){.least = -3});
  expansion_frontier_add(&f, &y, 0, &(expansion_limits){.least = -3});
  assert_int_equal(f.count, 2);
  assert_true(f.list[0].of == &x && f.list[0].spot == likely);
  assert_true(f.list[1].of == &y && f.list[1].spot == other);
  replied(&x, 0, likely);
  f = (expansion_frontier){.room = 8};
  expansion_frontier_add(&f, &x, 0, &(expansion_limits){.least = -3});
  assert_int_equal(f.count, 1);
  assert_int_equal(f.list[0].spot, below); /* and `poor` is too poor */
  f = (expansion_frontier){.room = 8};
  expansion_frontier_add(&f, &x, 0, &(expansion_limits){.least = -5});
  assert_int_equal(f.count, 2);
  assert_int_equal(f.list[1].spot, poor);
  expansion_fini(&x);
  expansion_fini(&y);
}

/* Each node is queried after its parent, even if another drafter has proposed both. */
static void test_the_frontier_follows_the_replies_of_its_own_drafter(void **state) {
  (void)state;
  expansion x = with_drafters(2);
  int32_t node = add(&x, TREE_ROOT, 1, -0.5f), below = add(&x, node, 2, -0.5f);
  replied(&x, 0, TREE_ROOT);
  replied(&x, 0, node);
  expansion_frontier f = {.room = 8};
  expansion_frontier_add(&f, &x, 1, &(expansion_limits){.least = -5});
  assert_true(f.count == 1 && f.list[0].spot == TREE_ROOT);
  expansion_query(&x, 1, TREE_ROOT, 7); /* and after its reply has come */
  f = (expansion_frontier){.room = 8};
  expansion_frontier_add(&f, &x, 1, &(expansion_limits){.least = -5});
  assert_int_equal(f.count, 0);
  expansion_entry_of(&x, 1, TREE_ROOT)->handle = 0;
  expansion_frontier_add(&f, &x, 1, &(expansion_limits){.least = -5});
  assert_true(f.count == 1 && f.list[0].spot == node);
  f = (expansion_frontier){.room = 8};
  expansion_frontier_add(&f, &x, 0, &(expansion_limits){.least = -5});
  assert_true(f.count == 1 && f.list[0].spot == below);
  expansion_fini(&x);
}

/* A drafter that may not go past its own guess: of a block of two tokens, the second follows any first one,
 * and nothing follows the second, whoever has proposed it. */
static void test_no_node_beyond_a_drafters_reach_is_queried(void **state) {
  (void)state;
  expansion x = with_drafters(2);
  const expansion_limits block[2] = {{.least = -100, .reach = 2}, {.least = -100, .absent = true}};
  int32_t node = add(&x, TREE_ROOT, 4, -1), below = add(&x, node, 5, -1);
  for (int32_t by = 0; by < 2; by++) reply(&x, by, TREE_ROOT, 0, NULL, NULL);
  expansion_frontier f = {.room = 8};
  expansion_frontier_add(&f, &x, 0, block);
  assert_true(f.count == 1 && f.list[0].spot == node);
  expansion_step s = expansion_best(&x, block);
  assert_true(s.any && s.query && s.by == 0 && s.node == node);
  for (int32_t by = 0; by < 2; by++) reply(&x, by, node, 0, NULL, NULL);
  f = (expansion_frontier){.room = 8};
  expansion_frontier_add(&f, &x, 0, block);
  assert_int_equal(f.count, 0);
  assert_false(expansion_best(&x, block).any); /* nobody waits for a reply about what lies below */
  expansion_frontier_add(&f, &x, 1, exact);
  assert_true(f.count == 1 && f.list[0].spot == below); /* the other one may be queried there */
  s = expansion_best(&x, exact);
  assert_true(s.any && s.query && s.node == below);
  expansion_fini(&x);
}

/* --- candidates that are not in the tree --- */

/* The drafter is queried about a candidate of its reply about a spot. */
static uint64_t query_ahead(expansion *x, int32_t by, int32_t spot, int32_t token, uint64_t number) {
  return expansion_query_ahead(x, by, spot, &(draft_candidate){.token = token, .score = -0.1f}, number);
}

/* The drafter's reply about a candidate has come. */
static void reply_ahead(expansion *x, int32_t by, uint64_t handle, int32_t token, float score) {
  bool in_tree = true;
  expansion_entry *e = expansion_outstanding(x, by, handle, &in_tree);
  assert_non_null(e);
  assert_false(in_tree);
  e->list[e->count++] = (draft_candidate){.token = token, .score = score};
  e->handle = 0;
}

/* The best candidate of a drafter's reply about a node enters the tree. */
static int32_t add_candidate(expansion *x, int32_t by, int32_t node) {
  return expansion_add(x, &(expansion_step){.any = true, .by = by, .node = node}, 0);
}

static void test_the_frontier_goes_on_with_candidates(void **state) {
  (void)state;
  expansion x = with_drafters(2);
  const expansion_limits l = {.least = -3};
  reply(&x, 0, TREE_ROOT, 4, (const int32_t[]){4, 5, 6, 7}, (const float[]){-0.1f, -0.5f, -1, -4});
  reply(&x, 1, TREE_ROOT, 1, (const int32_t[]){9}, (const float[]){-0.1f});
  int32_t node = add_candidate(&x, 0, TREE_ROOT), poor = add(&x, TREE_ROOT, 5, -2);
  expansion_frontier f = {.room = 8};
  expansion_frontier_add(&f, &x, 0, &l);
  expansion_frontier_add_ahead(&f, &x, 0, &l);
  assert_true(f.count == 3 && f.nodes == 2); /* 5 is a node; 7 is too poor; 9 is not its own */
  assert_true(f.list[0].spot == node && f.list[1].spot == poor && f.list[0].candidate.token < 0);
  assert_true(f.list[2].spot == TREE_ROOT && f.list[2].candidate.token == 6 && f.list[2].total == -1);
  assert_true(query_ahead(&x, 0, TREE_ROOT, 6, 1) > 0);
  f = (expansion_frontier){.room = 8};
  expansion_frontier_add_ahead(&f, &x, 0, &l);
  assert_int_equal(f.count, 0); /* it is queried already */
  f = (expansion_frontier){.room = 1};
  expansion_frontier_add(&f, &x, 0, &l);
  expansion_frontier_add_ahead(&f, &x, 0, &l);
  assert_true(f.count == 1 && f.list[0].spot == node);
  expansion_fini(&x);
}

static void test_no_candidate_beyond_a_drafters_reach_is_queried(void **state) {
  (void)state;
  expansion x = with_drafters(1);
  reply(&x, 0, TREE_ROOT, 1, (const int32_t[]){4}, (const float[]){-0.1f});
  expansion_frontier f = {.room = 8};
  expansion_frontier_add_ahead(&f, &x, 0, &(expansion_limits){.least = -9, .reach = 1});
  assert_int_equal(f.count, 0);
  expansion_frontier_add_ahead(&f, &x, 0, &(expansion_limits){.least = -9, .reach = 2});
  assert_int_equal(f.count, 1);
  expansion_fini(&x);
}

static void test_a_candidates_reply_is_that_of_its_node(void **state) {
  (void)state;
  expansion x = with_drafters(2);
  reply(&x, 0, TREE_ROOT, 2, (const int32_t[]){4, 5}, (const float[]){-0.1f, -0.5f});
  uint64_t early = query_ahead(&x, 0, TREE_ROOT, 4, 1);
  uint64_t late = query_ahead(&x, 0, TREE_ROOT, 5, 2);
  assert_null(outstanding(&x, 1, early)); /* another drafter's */
  reply_ahead(&x, 0, early, 40, -0.2f);
  int32_t node = add_candidate(&x, 0, TREE_ROOT);
  assert_true(expansion_replied(&x, 0, node) && !expansion_queried(&x, 1, node));
  assert_int_equal(expansion_entry_of(&x, 0, node)->list[0].token, 40);
  node = add_candidate(&x, 0, TREE_ROOT); /* before its reply has come */
  assert_true(expansion_queried(&x, 0, node) && !expansion_replied(&x, 0, node));
  bool in_tree = false;
  assert_ptr_equal(expansion_outstanding(&x, 0, late, &in_tree), expansion_entry_of(&x, 0, node));
  assert_true(in_tree);
  expansion_fini(&x);
}

/* Root > 4 > 40 > 400, of which nothing is in the tree. Returns the handle of the query about 40. */
static uint64_t three_ahead(expansion *x, int32_t by) {
  reply(x, by, TREE_ROOT, 1, (const int32_t[]){4}, (const float[]){-0.1f});
  reply_ahead(x, by, query_ahead(x, by, TREE_ROOT, 4, 1), 40, -0.2f);
  return query_ahead(x, by, EXPANSION_SPOT_AHEAD(2 * by), 40, 2); /* two records each */
}

static void test_the_frontier_goes_on_below_candidates(void **state) {
  (void)state;
  expansion x = with_drafters(1);
  int32_t path[TREE_DEPTH_MAX];
  reply(&x, 0, TREE_ROOT, 2, (const int32_t[]){4, 5}, (const float[]){-0.1f, -0.5f});
  reply_ahead(&x, 0, query_ahead(&x, 0, TREE_ROOT, 4, 1), 40, -0.25f);
  expansion_frontier f = {.room = 8};
  expansion_frontier_add_ahead(&f, &x, 0, exact);
  assert_int_equal(f.count, 2);
  assert_true(f.list[0].spot == EXPANSION_SPOT_AHEAD(0) && f.list[0].candidate.token == 40);
  assert_true(fabsf(f.list[0].total - -0.35f) < 1e-6f);
  assert_true(f.list[1].spot == TREE_ROOT && f.list[1].candidate.token == 5);
  assert_int_equal(expansion_path(&x, EXPANSION_SPOT_AHEAD(0), path), 1);
  assert_int_equal(path[0], 4);
  f = (expansion_frontier){.room = 8};
  expansion_frontier_add_ahead(&f, &x, 0, &(expansion_limits){.least = -9, .reach = 2});
  assert_true(f.count == 1 && f.list[0].candidate.token == 5); /* 40 is beyond its reach */
  uint64_t below = query_ahead(&x, 0, EXPANSION_SPOT_AHEAD(0), 40, 2);
  f = (expansion_frontier){.room = 8};
  expansion_frontier_add_ahead(&f, &x, 0, exact);
  assert_true(f.count == 1 && f.list[0].candidate.token == 5); /* 40 is queried */
  reply_ahead(&x, 0, below, 400, -0.2f);
  assert_int_equal(expansion_path(&x, EXPANSION_SPOT_AHEAD(1), path), 2);
  assert_true(path[0] == 4 && path[1] == 40);
  expansion_fini(&x);
}

static void test_a_level_is_there_before_the_tree_gets_to_it(void **state) {
  (void)state;
  expansion x = with_drafters(1);
  reply_ahead(&x, 0, three_ahead(&x, 0), 400, -0.2f);
  int32_t node = add_candidate(&x, 0, TREE_ROOT);
  assert_true(expansion_replied(&x, 0, node));
  node = add_candidate(&x, 0, node);
  assert_true(expansion_replied(&x, 0, node) && x.live.nodes[node].token == 40);
  node = add_candidate(&x, 0, node);
  assert_true(x.live.nodes[node].token == 400 && !expansion_queried(&x, 0, node));
  expansion_fini(&x);
}

static void test_what_hangs_below_a_candidate_goes_with_it(void **state) {
  (void)state;
  expansion x = with_drafters(2);
  uint64_t below[2];
  for (int32_t by = 0; by < 2; by++) below[by] = three_ahead(&x, by);
  add_candidate(&x, 0, TREE_ROOT);
  expansion_reroot(&x, 0, DRAFTER_REPLIES_LAST, (const int32_t[]){4}, 1);
  expansion_reroot(&x, 1, DRAFTER_REPLIES_ARE_GUESSES, (const int32_t[]){4}, 1);
  tree_advance(&x.live, (const int32_t[]){4}, 1);
  assert_null(outstanding(&x, 1, below[1]));
  reply_ahead(&x, 0, below[0], 400, -0.3f);
  int32_t node = add_candidate(&x, 0, TREE_ROOT);
  assert_true(expansion_replied(&x, 0, node) && x.live.nodes[node].token == 40);
  below[0] = query_ahead(&x, 0, node, 400, 3);
  expansion_reroot(&x, 0, DRAFTER_REPLIES_LAST, (const int32_t[]){9}, 1);
  tree_advance(&x.live, (const int32_t[]){9}, 1);
  assert_null(outstanding(&x, 0, below[0]));
  expansion_fini(&x);
}

/* ... and one that takes the place of a candidate does not inherit what hung below it. */
static void test_a_candidate_in_anothers_place_begins_anew(void **state) {
  (void)state;
  expansion x = with_drafters(1);
  uint64_t below = three_ahead(&x, 0);
  expansion_reroot(&x, 0, DRAFTER_REPLIES_LAST, (const int32_t[]){9}, 1);
  assert_null(outstanding(&x, 0, below));
  reply(&x, 0, TREE_ROOT, 1, (const int32_t[]){6}, (const float[]){-0.1f});
  query_ahead(&x, 0, TREE_ROOT, 6, 7);
  assert_null(outstanding(&x, 0, below));
  expansion_fini(&x);
}

static void test_a_query_that_is_taken_back_was_not_made(void **state) {
  (void)state;
  expansion x = with_drafters(1);
  expansion_unquery(&x, 0, expansion_query(&x, 0, TREE_ROOT, 1));
  assert_false(expansion_queried(&x, 0, TREE_ROOT));
  reply(&x, 0, TREE_ROOT, 1, (const int32_t[]){4}, (const float[]){-0.1f});
  uint64_t handle = query_ahead(&x, 0, TREE_ROOT, 4, 2);
  expansion_unquery(&x, 0, handle);
  assert_null(outstanding(&x, 0, handle));
  expansion_frontier f = {.room = 8};
  expansion_frontier_add_ahead(&f, &x, 0, exact);
  assert_int_equal(f.count, 1);
  expansion_fini(&x);
}

static void test_there_is_an_end_to_what_is_queried_ahead(void **state) {
  (void)state;
  expansion x = with_drafters(1);
  int32_t node = add(&x, TREE_ROOT, 4, -1);
  for (int32_t i = 0; i < EXPANSION_AHEAD_MAX; i++)
    assert_true(query_ahead(&x, 0, node, i, 1 + (uint64_t)i) > 0);
  assert_true(query_ahead(&x, 0, TREE_ROOT, 5, 1000) == 0);
  tree_advance(&x.live, (const int32_t[]){9}, 1); /* the node is dead */
  assert_true(query_ahead(&x, 0, TREE_ROOT, 5, 1001) > 0);
  expansion_fini(&x);
}

static void test_candidates_move_to_the_root_with_c(void **state) {
  (void)state;
  expansion x = with_drafters(2);
  uint64_t above[2], below[2];
  int32_t node = add(&x, TREE_ROOT, 4, -1);
  for (int32_t by = 0; by < 2; by++) {
    replied(&x, by, TREE_ROOT);
    reply(&x, by, node, 1, (const int32_t[]){7}, (const float[]){-0.1f});
    above[by] = query_ahead(&x, by, TREE_ROOT, 5, 1);
    below[by] = query_ahead(&x, by, node, 7, 2);
  }
  expansion_reroot(&x, 0, DRAFTER_REPLIES_LAST, (const int32_t[]){4}, 1);
  expansion_reroot(&x, 1, DRAFTER_REPLIES_ARE_GUESSES, (const int32_t[]){4}, 1);
  tree_advance(&x.live, (const int32_t[]){4}, 1);
  for (int32_t by = 0; by < 2; by++) assert_null(outstanding(&x, by, above[by]));
  assert_null(outstanding(&x, 1, below[1]));
  reply_ahead(&x, 0, below[0], 70, -0.3f);
  node = add_candidate(&x, 0, TREE_ROOT);
  assert_true(expansion_replied(&x, 0, node) && x.live.nodes[node].token == 7);
  assert_int_equal(expansion_entry_of(&x, 0, node)->list[0].token, 70);
  expansion_fini(&x);
}

/* --- growing --- */

static void test_the_best_step_is_a_query_before_an_equal_candidate(void **state) {
  (void)state;
  expansion x = with_drafters(1);
  expansion_step s = expansion_best(&x, exact);
  assert_true(s.any && s.query && s.node == TREE_ROOT);
  reply(&x, 0, TREE_ROOT, 2, (const int32_t[]){4, 6}, (const float[]){-0.5f, -1});
  s = expansion_best(&x, exact);
  assert_true(s.any && !s.query && s.node == TREE_ROOT && s.total == -0.5f);
  int32_t first = add(&x, TREE_ROOT, 4, -1); /* as probable as the next candidate */
  expansion_entry_of(&x, 0, TREE_ROOT)->next = 1;
  s = expansion_best(&x, exact);
  assert_true(s.query && s.node == first);
  const expansion_limits hope = {.hope = -0.7f, .least = -100}, none = {.least = -0.9f};
  s = expansion_best(&x, &hope); /* less is hoped of the reply */
  assert_true(!s.query && s.node == TREE_ROOT);
  s = expansion_best(&x, &none); /* the node is not worth a query */
  assert_true(!s.query && s.node == TREE_ROOT);
  expansion_entry_of(&x, 0, TREE_ROOT)->next = 2;
  assert_false(expansion_best(&x, &none).any);
  expansion_fini(&x);
}

static void test_the_best_step_is_that_of_any_drafter(void **state) {
  (void)state;
  expansion x = with_drafters(2);
  reply(&x, 0, TREE_ROOT, 1, (const int32_t[]){4}, (const float[]){-0.5f});
  reply(&x, 1, TREE_ROOT, 1, (const int32_t[]){6}, (const float[]){-0.4f});
  expansion_step s = expansion_best(&x, exact);
  assert_true(s.any && !s.query && s.by == 1 && s.total == -0.4f);
  expansion_entry_of(&x, 1, TREE_ROOT)->next = 1;
  s = expansion_best(&x, exact);
  assert_true(s.any && !s.query && s.by == 0);
  expansion_fini(&x);
}

static void test_a_node_that_several_propose_keeps_the_best_score(void **state) {
  (void)state;
  expansion x = with_drafters(2);
  static const expansion_limits late[2] = {{.hope = -9, .least = -100},
                                           {.hope = -9, .least = -100}}; /* queries can wait */
  reply(&x, 0, TREE_ROOT, 1, (const int32_t[]){4}, (const float[]){-0.9f});
  expansion_step s = expansion_best(&x, late);
  int32_t node = expansion_add(&x, &s, 0), below = add(&x, node, 7, -0.5f);
  reply(&x, 1, TREE_ROOT, 1, (const int32_t[]){4}, (const float[]){-0.2f});
  s = expansion_best(&x, late);
  assert_true(s.by == 1 && !s.query);
  assert_int_equal(expansion_add(&x, &s, 0), -1); /* nothing new */
  assert_true(x.live.nodes[node].score == -0.2f && x.live.nodes[below].total == -0.2f - 0.5f);
  expansion_fini(&x);
}

/* Of tokens 1, 2, 3, ... with these match probabilities. */
static expansion_entry entry_of(int32_t count, const int32_t *tokens, const double *rates) {
  expansion_entry e = {.count = count};
  for (int32_t i = 0; i < count; i++)
    e.list[i] = (draft_candidate){.token = tokens[i], .score = (float)log(rates[i])};
  return e;
}

static void expect_entry(const expansion_entry *e, const int32_t *tokens, const double *rates) {
  for (int32_t i = 0; i < e->count; i++) {
    assert_int_equal(e->list[i].token, tokens[i]);
    assert_true(fabs(exp((double)e->list[i].score) - rates[i]) < 1e-5);
  }
}

static void test_two_replies_about_a_node_are_joined_once(void **state) {
  (void)state;
  expansion_entry model = entry_of(3, (const int32_t[]){1, 2, 3}, (const double[]){0.5, 0.2, 0.1});
  expansion_entry text = entry_of(2, (const int32_t[]){9, 3}, (const double[]){0.9, 0.8});
  expansion_entry again = text, nothing = {.count = 0};
  expansion_join(&nothing, &text, 1);
  expect_entry(&text, (const int32_t[]){9, 3}, (const double[]){0.9, 0.8});
  expansion_join(&model, &nothing, 1);
  expansion_join(&model, &text, 1);
  const double both = 1 - 0.9 * (1 - 0.512);
  expect_entry(&model, (const int32_t[]){3, 1, 2}, (const double[]){both, 0.5, 0.2});
  expect_entry(&text, (const int32_t[]){9, 3}, (const double[]){0.729, both});
  expansion_join(&model, &again, 1); /* a reply that lasts meets a new one */
  expect_entry(&model, (const int32_t[]){3, 1, 2}, (const double[]){both, 0.5, 0.2});
  expect_entry(&again, (const int32_t[]){9, 3}, (const double[]){0.729, both});
}

static void test_two_that_look_up_are_joined_each(void **state) {
  (void)state;
  expansion_entry model = entry_of(2, (const int32_t[]){1, 2}, (const double[]){0.5, 0.2});
  expansion_entry text = entry_of(1, (const int32_t[]){2}, (const double[]){0.5});
  expansion_entry other = entry_of(1, (const int32_t[]){2}, (const double[]){0.9});
  expansion_join(&model, &text, 0);
  const double one = 1 - 0.8 * (1 - 0.125), both = 1 - (1 - one) * (1 - 0.729);
  expect_entry(&text, (const int32_t[]){2}, (const double[]){one});
  expansion_join(&model, &other, 2);
  expect_entry(&model, (const int32_t[]){2, 1}, (const double[]){both, 0.5});
  expect_entry(&other, (const int32_t[]){2}, (const double[]){both});
}

static void test_what_is_in_the_tree_keeps_its_place_when_replies_are_joined(void **state) {
  (void)state;
  expansion_entry model = entry_of(3, (const int32_t[]){1, 2, 3}, (const double[]){0.5, 0.2, 0.1});
  expansion_entry text = entry_of(1, (const int32_t[]){3}, (const double[]){0.9});
  model.next = 1;
  expansion_join(&model, &text, 1);
  expect_entry(&model, (const int32_t[]){1, 3, 2}, (const double[]){0.5, 1 - 0.9 * (1 - 0.729), 0.2});
}

static void test_lasting_replies_move_to_the_root_with_c(void **state) {
  (void)state;
  expansion x = with_drafters(2);
  int32_t node = add(&x, TREE_ROOT, 4, -1);
  uint64_t handle = 0;
  for (int32_t by = 1; by >= 0; by--) {
    reply(&x, by, TREE_ROOT, 1, (const int32_t[]){4}, (const float[]){-1});
    handle = expansion_query(&x, by, node, 7);
  }
  expansion_reroot(&x, 0, DRAFTER_REPLIES_LAST, (const int32_t[]){4}, 1);
  expansion_reroot(&x, 1, DRAFTER_REPLIES_BUT_ROOT, (const int32_t[]){4}, 1);
  tree_advance(&x.live, (const int32_t[]){4}, 1);
  assert_true(expansion_queried(&x, 0, TREE_ROOT) && !expansion_replied(&x, 0, TREE_ROOT));
  assert_ptr_equal(outstanding(&x, 0, handle), expansion_entry_of(&x, 0, TREE_ROOT));
  assert_false(expansion_queried(&x, 1, TREE_ROOT));
  expansion_reroot(&x, 0, DRAFTER_REPLIES_LAST, (const int32_t[]){50}, 1); /* nobody was queried about that */
  assert_false(expansion_queried(&x, 0, TREE_ROOT));
  expansion_fini(&x);
}

static void test_guesses_are_forgotten_when_c_grows(void **state) {
  (void)state;
  expansion x = with_drafters(2);
  int32_t node = add(&x, TREE_ROOT, 4, -1), below = add(&x, node, 5, -1);
  for (int32_t by = 0; by < 2; by++) replied(&x, by, node);
  for (int32_t by = 0; by < 2; by++) replied(&x, by, below);
  expansion_reroot(&x, 0, DRAFTER_REPLIES_ARE_GUESSES, (const int32_t[]){4}, 1);
  expansion_reroot(&x, 1, DRAFTER_REPLIES_BUT_ROOT, (const int32_t[]){4}, 1);
  tree_advance(&x.live, (const int32_t[]){4}, 1);
  assert_false(expansion_queried(&x, 0, TREE_ROOT) || expansion_queried(&x, 0, below));
  assert_true(expansion_queried(&x, 1, below));
  expansion_fini(&x);
}

/* Its replies that are there count; no other is waited for. */
static void test_nobody_waits_for_a_drafter_that_is_absent(void **state) {
  (void)state;
  expansion x = with_drafters(2);
  static const expansion_limits alone[2] = {{.least = -100}, {.least = -100, .absent = true}};
  reply(&x, 0, TREE_ROOT, 0, NULL, NULL);
  assert_false(expansion_best(&x, alone).any);
  assert_true(expansion_best(&x, exact).any);
  reply(&x, 1, TREE_ROOT, 1, (const int32_t[]){4}, (const float[]){-0.5f});
  expansion_step s = expansion_best(&x, alone);
  assert_true(s.any && s.by == 1 && !s.query);
  expansion_fini(&x);
}

static void test_a_path_is_the_tokens_from_the_root(void **state) {
  (void)state;
  expansion x = with_drafters(1);
  int32_t path[TREE_DEPTH_MAX], node = add(&x, add(&x, TREE_ROOT, 4, -1), 6, -0.5f);
  assert_int_equal(expansion_path(&x, TREE_ROOT, path), 0);
  assert_int_equal(expansion_path(&x, node, path), 2);
  assert_int_equal(path[0], 4);
  assert_int_equal(path[1], 6);
  assert_true(expansion_total(&x, node) == -1.5f && expansion_total(&x, TREE_ROOT) == 0);
  expansion_fini(&x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_an_outstanding_query_is_found_by_its_handle_alone),
      cmocka_unit_test(test_a_slot_that_is_used_again_has_no_query),
      cmocka_unit_test(test_the_frontier_is_the_most_probable_nodes_without_a_query),
      cmocka_unit_test(test_the_frontier_follows_the_replies_of_its_own_drafter),
      cmocka_unit_test(test_no_node_beyond_a_drafters_reach_is_queried),
      cmocka_unit_test(test_the_frontier_goes_on_with_candidates),
      cmocka_unit_test(test_no_candidate_beyond_a_drafters_reach_is_queried),
      cmocka_unit_test(test_a_candidates_reply_is_that_of_its_node),
      cmocka_unit_test(test_the_frontier_goes_on_below_candidates),
      cmocka_unit_test(test_a_level_is_there_before_the_tree_gets_to_it),
      cmocka_unit_test(test_what_hangs_below_a_candidate_goes_with_it),
      cmocka_unit_test(test_a_candidate_in_anothers_place_begins_anew),
      cmocka_unit_test(test_a_query_that_is_taken_back_was_not_made),
      cmocka_unit_test(test_there_is_an_end_to_what_is_queried_ahead),
      cmocka_unit_test(test_candidates_move_to_the_root_with_c),
      cmocka_unit_test(test_the_best_step_is_a_query_before_an_equal_candidate),
      cmocka_unit_test(test_the_best_step_is_that_of_any_drafter),
      cmocka_unit_test(test_a_node_that_several_propose_keeps_the_best_score),
      cmocka_unit_test(test_two_replies_about_a_node_are_joined_once),
      cmocka_unit_test(test_two_that_look_up_are_joined_each),
      cmocka_unit_test(test_what_is_in_the_tree_keeps_its_place_when_replies_are_joined),
      cmocka_unit_test(test_lasting_replies_move_to_the_root_with_c),
      cmocka_unit_test(test_guesses_are_forgotten_when_c_grows),
      cmocka_unit_test(test_nobody_waits_for_a_drafter_that_is_absent),
      cmocka_unit_test(test_a_path_is_the_tokens_from_the_root),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
