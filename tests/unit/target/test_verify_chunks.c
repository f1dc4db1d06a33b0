/* libs: target wire speculative base */
/* Trees that are verified in chunks: --verify-chunk. */
#include "tests/support/target_world.h"

enum { CHUNK = 3 };

static uint32_t open_in_chunks(world *w, bool lockstep) {
  target_speculation(w->t)->verify_chunk = CHUNK;
  uint32_t g = open_with_draft(w, lockstep);
  prefill(w);
  return g;
}

static void check_counts(world *w, uint64_t cut, uint64_t left_out) {
  const session_chunks *n = &target_sessions(w->t)->chunks;
  assert_int_equal(n->cut, cut);
  assert_int_equal(n->left_out, left_out);
}

/* Of 7 right nodes three are accepted, and the fourth is the root of what is left. In lockstep the draft may
 * add to it first. */
static void test_the_next_chunk_goes_on_below_the_accepted_nodes(void **state) {
  world *w = *state;
  uint32_t g = open_in_chunks(w, true);
  send_chain(w, DRAFT, g, 3, 1, 7, true);
  assert_true(run_job(w));
  assert_int_equal(w->job.count, 1 + CHUNK);
  assert_int_equal(held(w, S)->committed.length, 3 + CHUNK + 1);
  check_counts(w, 1, 1); /* four nodes were two chunks, and three are one */
  assert_false(run_job(w));
  send_nodes(w, DRAFT, g, 7, 8, NULL, 0, true);
  assert_true(run_job(w));
  assert_int_equal(w->job.count, 1 + CHUNK);
  assert_int_equal(held(w, S)->committed.length, 3 + 7 + 1);
  assert_memory_equal(held(w, S)->committed.tokens, truth(), 11 * sizeof(int32_t));
  check_counts(w, 1, 1);
}

/* Whatever hung below a node that was not chosen need not be looked at. */
static void test_chunks_of_dead_nodes_are_left_out(void **state) {
  world *w = *state;
  uint32_t g = open_in_chunks(w, true);
  guess list[8] = {{0, truth()[3], -0.001f}, {1, wrong_of(truth()[3]), -0.01f}};
  for (int32_t i = 2; i < 8; i++) list[i] = (guess){(uint64_t)i, (5 + i) % VOCAB, -0.02f};
  send_nodes(w, DRAFT, g, 3, 1, list, 8, true);
  assert_true(run_job(w));
  assert_int_equal(w->job.count, 1 + CHUNK);
  assert_int_equal(held(w, S)->committed.length, 5);
  check_counts(w, 1, 2); /* of five nodes */
  assert_false(run_job(w));
  send_nodes(w, DRAFT, g, 5, 9, NULL, 0, true);
  assert_true(run_job(w));
  assert_int_equal(w->job.count, 1);
  check_counts(w, 1, 2);
}

/* A branch beside the accepted one is dead as well, though the tree goes on. */
static void test_only_nodes_below_the_accepted_ones_stay(void **state) {
  world *w = *state;
  uint32_t g = open_in_chunks(w, true);
  const int32_t *t = truth();
  /* A right chain of five, and below its first node a wrong one of four, which is less probable. */
  const guess list[] = {{0, t[3], -0.001f}, {1, t[4], -0.001f}, {2, t[5], -0.001f},
                        {3, t[6], -0.001f}, {4, t[7], -0.001f}, {1, wrong_of(t[3]), -2},
                        {6, 1, -0.1f},      {7, 2, -0.1f},      {8, 3, -0.1f}};
  send_nodes(w, DRAFT, g, 3, 1, list, 9, true);
  assert_true(run_job(w));
  assert_int_equal(held(w, S)->committed.length, 7);
  check_counts(w, 1, 1); /* six nodes, of which one is live */
  send_nodes(w, DRAFT, g, 7, 10, NULL, 0, true);
  assert_true(run_job(w));
  assert_int_equal(w->job.count, 2);
  assert_int_equal(held(w, S)->committed.length, 9);
  check_counts(w, 1, 1);
}

/* In free pace costs decide, but no more nodes than a chunk has go through one forward. */
static void test_costs_choose_within_a_chunk(void **state) {
  world *w = *state;
  uint32_t g = open_in_chunks(w, false);
  believe(w);
  send_chain(w, DRAFT, g, 3, 1, 8, false);
  assert_true(run_job(w));
  assert_int_equal(w->job.count, 1 + CHUNK);
  check_counts(w, 1, 0); /* five nodes and four are two chunks */
  assert_true(run_job(w));
  assert_int_equal(w->job.count, 1 + CHUNK);
  check_counts(w, 2, 1); /* one is left, which the bonus token is */
  assert_memory_equal(held(w, S)->committed.tokens, truth(), 11 * sizeof(int32_t));
}

/* A tree that fits is not cut, and nothing is counted without the flag. */
static void test_a_tree_of_one_chunk_is_not_cut(void **state) {
  world *w = *state;
  uint32_t g = open_in_chunks(w, true);
  send_chain(w, DRAFT, g, 3, 1, CHUNK, true);
  assert_true(run_job(w));
  assert_int_equal(w->job.count, 1 + CHUNK);
  check_counts(w, 0, 0);
  assert_false(run_job(w));
  target_speculation(w->t)->verify_chunk = 0;
  send_chain(w, DRAFT, g, 7, 1 + CHUNK, 8, true);
  assert_true(run_job(w));
  assert_int_equal(w->job.count, 1 + 8);
  check_counts(w, 0, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_the_next_chunk_goes_on_below_the_accepted_nodes),
      CASE(test_chunks_of_dead_nodes_are_left_out),
      CASE(test_only_nodes_below_the_accepted_ones_stay),
      CASE(test_costs_choose_within_a_chunk),
      CASE(test_a_tree_of_one_chunk_is_not_cut),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
