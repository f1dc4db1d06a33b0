/* libs: target wire speculative base */
#include "tests/support/target_world.h"

enum { LONG = 3 * KV_BLOCK + 5 };

static msg long_prompt(uint64_t id, uint32_t epoch, int32_t tokens) {
  static int32_t prompt[LONG];
  for (int32_t i = 0; i < LONG; i++) prompt[i] = i % VOCAB;
  msg m = open_message(id, epoch, prompt, LONG);
  m.u.open.options.max_tokens = tokens;
  return m;
}

/* Of two sessions with one prompt, the second one reads the first one's blocks and computes the rest. */
static void test_sessions_of_one_prompt_share_its_blocks(void **state) {
  world *w = *state;
  int32_t tables = 0;
  block_pool *b = &target_sessions(w->t)->blocks;
  say_and_open(w, long_prompt(S, 1, 8));
  assert_int_equal(play(w, 2), 2);
  say_and_open(w, long_prompt(S + 1, 1, 8));
  const session *first = held(w, S), *second = held(w, S + 1);
  assert_int_equal(second->cache.rows, 3 * KV_BLOCK);
  assert_false(first->cache.remap); /* a block table is sent to the engine once, */
  assert_true(second->cache.remap);
  assert_memory_equal(first->cache.blocks, second->cache.blocks, 3 * sizeof *first->cache.blocks);
  assert_int_not_equal(first->cache.blocks[3], second->cache.blocks[3]);
  assert_int_equal(b->shared, 3);
  assert_int_equal(block_pool_holders(b, first->cache.blocks[0]), 2);
  while (run_job(w))
    for (int32_t i = 0; i < w->batch.count; i++) tables += w->batch.jobs[i].blocks != NULL;
  assert_true(tables <= 3); /* and again when a block is replaced by an equal one of another session */
  assert_int_equal(held(w, S)->state, SESSION_FINISHED);
  assert_int_equal(held(w, S + 1)->state, SESSION_FINISHED);
  assert_memory_equal(held(w, S)->committed.tokens, held(w, S + 1)->committed.tokens,
                      (LONG + 8) * sizeof(int32_t));
  assert_int_equal(block_pool_available(b), b->count); /* finished sessions hold no blocks */
}

/* Rows that others read stay where they are: those that are computed again lie in blocks of their own, until
 * they are found to be equal. */
static void test_rows_that_are_computed_again_leave_shared_blocks(void **state) {
  world *w = *state;
  session_store *all = target_sessions(w->t);
  int32_t before[3 * KV_BLOCK];
  say_and_open(w, long_prompt(S, 1, 8));
  assert_int_equal(play(w, 2), 2);
  const session *first = held(w, S);
  for (int32_t i = 0; i < 3 * KV_BLOCK; i++)
    before[i] = w->pool[first->cache.blocks[i / KV_BLOCK]][i % KV_BLOCK];
  say_and_open(w, long_prompt(S + 1, 1, 8));
  session *second = held(w, S + 1);
  int32_t blocks = second->cache.block_count;
  assert_true(session_store_rewind(all, second, 2 * KV_BLOCK - 1));
  assert_int_equal(second->cache.rows, KV_BLOCK);
  assert_int_equal(second->cache.block_count, blocks);
  assert_int_equal(second->cache.blocks[0], first->cache.blocks[0]);
  for (int32_t i = 1; i < blocks; i++)
    for (int32_t k = 0; k < first->cache.block_count; k++)
      assert_int_not_equal(second->cache.blocks[i], first->cache.blocks[k]);
  assert_true(block_pool_check(&all->blocks));
  while (run_job(w)) continue;
  for (int32_t i = 0; i < 3 * KV_BLOCK; i++)
    assert_int_equal(before[i], w->pool[w->map[first->slot][i / KV_BLOCK]][i % KV_BLOCK]);
  assert_memory_equal(held(w, S)->committed.tokens, second->committed.tokens, (LONG + 8) * sizeof(int32_t));
  assert_int_equal(block_pool_available(&all->blocks), all->blocks.count);
}

static void test_without_blocks_to_spare_no_row_is_computed_again(void **state) {
  world *w = *state;
  session_store *all = target_sessions(w->t);
  say_and_open(w, long_prompt(S, 1, 60));
  assert_int_equal(play(w, 2), 2);
  say_and_open(w, long_prompt(S + 1, 1, 60));
  session *second = held(w, S + 1);
  int32_t blocks = second->cache.block_count;
  assert_true(block_pool_available(&all->blocks) < blocks);
  assert_false(session_store_rewind(all, second, 5));
  assert_int_equal(second->cache.rows, 3 * KV_BLOCK);
  assert_int_equal(second->cache.block_count, blocks);
  assert_true(session_store_rewind(all, second, 3 * KV_BLOCK)); /* nothing to leave */
  while (run_job(w)) continue;
  assert_memory_equal(held(w, S)->committed.tokens, second->committed.tokens, (LONG + 60) * sizeof(int32_t));
}

/* The session is refused before anything is computed, and opened when blocks are free. */
static void test_a_session_without_blocks_is_refused(void **state) {
  world *w = *state;
  say_and_open(w, long_prompt(S, 1, 60)); /* 113 tokens: 7 blocks of 12 */
  msg other = prompt_message();
  other.session = S + 1;
  other.u.open.options.max_tokens = 100; /* this one needs 7 as well */
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, other);
  const msg *m = rig_only(&w->r, ORCH, MSG_ERROR);
  assert_int_equal(m->u.error.code, ERR_FULL);
  assert_null(held(w, S + 1));
  other.u.open.options.max_tokens = 12 * KV_BLOCK;
  rig_clear(&w->r);
  rig_say(&w->r, ORCH, other);
  assert_int_equal(rig_only(&w->r, ORCH, MSG_ERROR)->u.error.code, ERR_LIMIT);
  rig_say(&w->r, ORCH, message(MSG_END, SELF, S, 1));
  other.u.open.options.max_tokens = 100;
  say_and_open(w, other);
  assert_int_equal(held(w, S + 1)->cache.block_count, 7);
}

/* The session is opened again, with rows that others have computed, while a job of the epoch before is under
 * way: the rows that this job writes are not the session's any more. */
static void test_found_rows_outlive_a_job_of_the_epoch_before(void **state) {
  world *w = *state;
  say_and_open(w, long_prompt(S, 1, 8));
  assert_int_equal(play(w, 2), 2); /* from now on its blocks can be found */
  say_and_open(w, open_message(S + 1, 1, PROMPT, PROMPT_LENGTH));
  assert_true(take_job(w));
  say_and_open(w, long_prompt(S + 1, 2, 8)); /* other tokens: it keeps no row of its own */
  assert_int_equal(held(w, S + 1)->cache.rows, 3 * KV_BLOCK);
  give_result(w);
  assert_int_equal(held(w, S + 1)->cache.rows, 3 * KV_BLOCK);
  while (run_job(w)) {
  }
  assert_memory_equal(held(w, S)->committed.tokens, held(w, S + 1)->committed.tokens,
                      (LONG + 8) * sizeof(int32_t));
}

/* The session is opened again with other tokens inside a block that another session reads: the block stays as
 * it is. */
static void test_shared_blocks_are_left_and_not_written(void **state) {
  world *w = *state;
  say_and_open(w, long_prompt(S, 1, 8));
  assert_int_equal(play(w, 2), 2);
  say_and_open(w, long_prompt(S + 1, 1, 8));
  assert_int_equal(play(w, 1), 1);
  int32_t blocks[3];
  memcpy(blocks, held(w, S)->cache.blocks, sizeof blocks);
  msg m = long_prompt(S + 1, 2, 8);
  int32_t tokens[LONG];
  memcpy(tokens, m.u.open.tokens, sizeof tokens);
  tokens[KV_BLOCK + 9]++;
  m.u.open.tokens = tokens;
  m.u.open.hash = hash_of(SEED, tokens, LONG);
  say_and_open(w, m);
  const session *s = held(w, S + 1);
  assert_int_equal(s->cache.rows, KV_BLOCK); /* nine rows are computed again */
  assert_int_equal(s->cache.blocks[0], blocks[0]);
  assert_int_not_equal(s->cache.blocks[1], blocks[1]);
  while (run_job(w)) { /* every job's rows are checked */
  }
  assert_int_equal(held(w, S)->state, SESSION_FINISHED);
  assert_int_equal(s->state, SESSION_FINISHED);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      FEW_BLOCKS(test_sessions_of_one_prompt_share_its_blocks),
      FEW_BLOCKS(test_rows_that_are_computed_again_leave_shared_blocks),
      FEW_BLOCKS(test_without_blocks_to_spare_no_row_is_computed_again),
      FEW_BLOCKS(test_a_session_without_blocks_is_refused),
      FEW_BLOCKS(test_found_rows_outlive_a_job_of_the_epoch_before),
      FEW_BLOCKS(test_shared_blocks_are_left_and_not_written),
  };
  return run_over_both_caches(tests, sizeof tests / sizeof *tests);
}
