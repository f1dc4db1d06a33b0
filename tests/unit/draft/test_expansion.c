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

/* A drafter has been queried about a node and has replied with tokens and their scores. */
static void reply(expansion *x, int32_t by, int32_t node, int32_t count, const int32_t *tokens,
                  const float *scores) {
  expansion_query(x, by, node, 0);
  expansion_entry *e = expansion_entry_of(x, by, node);
  e->count = count;
  for (int32_t i = 0; i < count; i++) e->list[i] = (draft_candidate){.token = tokens[i], .score = scores[i]};
}

static int32_t add(expansion *x, int32_t parent, int32_t token, float score) {
  int32_t slot = tree_add(&x->live, parent, token, score, NULL);
  assert_true(slot >= 0);
  return slot;
}

/* --- queries --- */

static void test_an_outstanding_query_is_found_by_its_handle_alone(void **state) {
  (void)state;
  expansion x = with_drafters(2);
  int32_t node = add(&x, TREE_ROOT, 5, -1);
  uint64_t a = expansion_handle(&x, TREE_ROOT, 1), b = expansion_handle(&x, node, 2);
  assert_true(a != b && a > 0 && b > 0);
  expansion_query(&x, 0, TREE_ROOT, a);
  expansion_query(&x, 1, node, b);
  assert_ptr_equal(expansion_outstanding(&x, 0, a), expansion_entry_of(&x, 0, TREE_ROOT));
  assert_ptr_equal(expansion_outstanding(&x, 1, b), expansion_entry_of(&x, 1, node));
  assert_null(expansion_outstanding(&x, 1, a)); /* another drafter's */
  assert_null(expansion_outstanding(&x, 0, b));
  assert_null(expansion_outstanding(&x, 0, expansion_handle(&x, TREE_ROOT, 3)));
  assert_true(expansion_queried(&x, 0, TREE_ROOT) && !expansion_replied(&x, 0, TREE_ROOT));
  expansion_entry_of(&x, 0, TREE_ROOT)->handle = 0;
  assert_true(expansion_replied(&x, 0, TREE_ROOT));
  expansion_fini(&x);
}

static void test_a_slot_that_is_used_again_has_no_query(void **state) {
  (void)state;
  expansion x = with_drafters(1);
  int32_t node = add(&x, TREE_ROOT, 5, -1);
  uint64_t handle = expansion_handle(&x, node, 1);
  expansion_query(&x, 0, node, handle);
  tree_advance(&x.live, (const int32_t[]){9}, 1); /* the node is dead */
  assert_null(expansion_outstanding(&x, 0, handle));
  while (x.live.live_count < CAPACITY) add(&x, TREE_ROOT, 20 + x.live.live_count, -1);
  assert_null(expansion_outstanding(&x, 0, handle));
  assert_false(expansion_queried(&x, 0, node));
  expansion_fini(&x);
}

static void test_the_frontier_is_the_most_probable_nodes_without_a_query(void **state) {
  (void)state;
  expansion x = with_drafters(2), y = with_drafters(2);
  int32_t likely = add(&x, TREE_ROOT, 1, -0.5f), below = add(&x, likely, 2, -0.5f);
  int32_t poor = add(&x, TREE_ROOT, 3, -4), other = add(&y, TREE_ROOT, 1, -0.7f);
  expansion_query(&x, 0, TREE_ROOT, 0);
  expansion_query(&y, 0, TREE_ROOT, 0);
  expansion_frontier f = {.room = 2};
  expansion_frontier_add(&f, &x, 0, &(expansion_limits){.least = -3});
  expansion_frontier_add(&f, &y, 0, &(expansion_limits){.least = -3});
  assert_int_equal(f.count, 2);
  assert_true(f.list[0].of == &x && f.list[0].node == likely);
  assert_true(f.list[1].of == &y && f.list[1].node == other);
  expansion_query(&x, 0, likely, 0);
  f = (expansion_frontier){.room = 8};
  expansion_frontier_add(&f, &x, 0, &(expansion_limits){.least = -3});
  assert_int_equal(f.count, 1);
  assert_int_equal(f.list[0].node, below); /* and `poor` is too poor */
  f = (expansion_frontier){.room = 8};
  expansion_frontier_add(&f, &x, 0, &(expansion_limits){.least = -5});
  assert_int_equal(f.count, 2);
  assert_int_equal(f.list[1].node, poor);
  expansion_fini(&x);
  expansion_fini(&y);
}

/* Each node is queried after its parent, even if another drafter has proposed both. */
static void test_the_frontier_follows_the_replies_of_its_own_drafter(void **state) {
  (void)state;
  expansion x = with_drafters(2);
  int32_t node = add(&x, TREE_ROOT, 1, -0.5f), below = add(&x, node, 2, -0.5f);
  expansion_query(&x, 0, TREE_ROOT, 0);
  expansion_query(&x, 0, node, 0);
  expansion_frontier f = {.room = 8};
  expansion_frontier_add(&f, &x, 1, &(expansion_limits){.least = -5});
  assert_true(f.count == 1 && f.list[0].node == TREE_ROOT);
  expansion_query(&x, 1, TREE_ROOT, 7); /* and after its reply has come */
  f = (expansion_frontier){.room = 8};
  expansion_frontier_add(&f, &x, 1, &(expansion_limits){.least = -5});
  assert_int_equal(f.count, 0);
  expansion_entry_of(&x, 1, TREE_ROOT)->handle = 0;
  expansion_frontier_add(&f, &x, 1, &(expansion_limits){.least = -5});
  assert_true(f.count == 1 && f.list[0].node == node);
  f = (expansion_frontier){.room = 8};
  expansion_frontier_add(&f, &x, 0, &(expansion_limits){.least = -5});
  assert_true(f.count == 1 && f.list[0].node == below);
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
  assert_true(f.count == 1 && f.list[0].node == node);
  expansion_step s = expansion_best(&x, block);
  assert_true(s.any && s.query && s.by == 0 && s.node == node);
  for (int32_t by = 0; by < 2; by++) reply(&x, by, node, 0, NULL, NULL);
  f = (expansion_frontier){.room = 8};
  expansion_frontier_add(&f, &x, 0, block);
  assert_int_equal(f.count, 0);
  assert_false(expansion_best(&x, block).any); /* nobody waits for a reply about what lies below */
  expansion_frontier_add(&f, &x, 1, exact);
  assert_true(f.count == 1 && f.list[0].node == below); /* the other one may be queried there */
  s = expansion_best(&x, exact);
  assert_true(s.any && s.query && s.node == below);
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
  expansion_join(&nothing, &text);
  expect_entry(&text, (const int32_t[]){9, 3}, (const double[]){0.9, 0.8});
  expansion_join(&model, &text);
  const double both = 1 - 0.9 * (1 - 0.512);
  expect_entry(&model, (const int32_t[]){3, 1, 2}, (const double[]){both, 0.5, 0.2});
  expect_entry(&text, (const int32_t[]){9, 3}, (const double[]){0.729, both});
  expansion_join(&model, &again); /* a reply that lasts meets a new one */
  expect_entry(&model, (const int32_t[]){3, 1, 2}, (const double[]){both, 0.5, 0.2});
  expect_entry(&again, (const int32_t[]){9, 3}, (const double[]){0.729, both});
}

static void test_what_is_in_the_tree_keeps_its_place_when_replies_are_joined(void **state) {
  (void)state;
  expansion_entry model = entry_of(3, (const int32_t[]){1, 2, 3}, (const double[]){0.5, 0.2, 0.1});
  expansion_entry text = entry_of(1, (const int32_t[]){3}, (const double[]){0.9});
  model.next = 1;
  expansion_join(&model, &text);
  expect_entry(&model, (const int32_t[]){1, 3, 2}, (const double[]){0.5, 1 - 0.9 * (1 - 0.729), 0.2});
}

static void test_lasting_replies_move_to_the_root_with_c(void **state) {
  (void)state;
  expansion x = with_drafters(2);
  int32_t node = add(&x, TREE_ROOT, 4, -1);
  for (int32_t by = 0; by < 2; by++) {
    reply(&x, by, TREE_ROOT, 1, (const int32_t[]){4}, (const float[]){-1});
    expansion_query(&x, by, node, expansion_handle(&x, node, 7));
  }
  expansion_reroot(&x, 0, DRAFTER_REPLIES_LAST, (const int32_t[]){4}, 1);
  expansion_reroot(&x, 1, DRAFTER_REPLIES_BUT_ROOT, (const int32_t[]){4}, 1);
  tree_advance(&x.live, (const int32_t[]){4}, 1);
  assert_true(expansion_queried(&x, 0, TREE_ROOT) && !expansion_replied(&x, 0, TREE_ROOT));
  assert_ptr_equal(expansion_outstanding(&x, 0, expansion_handle(&x, node, 7)),
                   expansion_entry_of(&x, 0, TREE_ROOT));
  assert_false(expansion_queried(&x, 1, TREE_ROOT));
  expansion_reroot(&x, 0, DRAFTER_REPLIES_LAST, (const int32_t[]){50}, 1); /* nobody was queried about that */
  assert_false(expansion_queried(&x, 0, TREE_ROOT));
  expansion_fini(&x);
}

static void test_guesses_are_forgotten_when_c_grows(void **state) {
  (void)state;
  expansion x = with_drafters(2);
  int32_t node = add(&x, TREE_ROOT, 4, -1), below = add(&x, node, 5, -1);
  for (int32_t by = 0; by < 2; by++) expansion_query(&x, by, node, 0);
  for (int32_t by = 0; by < 2; by++) expansion_query(&x, by, below, 0);
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
      cmocka_unit_test(test_the_best_step_is_a_query_before_an_equal_candidate),
      cmocka_unit_test(test_the_best_step_is_that_of_any_drafter),
      cmocka_unit_test(test_a_node_that_several_propose_keeps_the_best_score),
      cmocka_unit_test(test_two_replies_about_a_node_are_joined_once),
      cmocka_unit_test(test_what_is_in_the_tree_keeps_its_place_when_replies_are_joined),
      cmocka_unit_test(test_lasting_replies_move_to_the_root_with_c),
      cmocka_unit_test(test_guesses_are_forgotten_when_c_grows),
      cmocka_unit_test(test_nobody_waits_for_a_drafter_that_is_absent),
      cmocka_unit_test(test_a_path_is_the_tokens_from_the_root),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
