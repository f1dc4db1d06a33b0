/* libs: drafters */
/* How a model's drafter gathers batches, and what it makes of their results. */
#include "draft_worker/drafters/model_drafter.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

enum { ROWS = 3, CONTEXT = 1000, SEED = 3 };

typedef struct world {
  drafter d;
  draft_batch b;
  prefix c; /* of every session */
} world;

static world open_world(int32_t length) {
  world w;
  err e;
  memset(&w, 0, sizeof w);
  assert_int_equal(model_drafter_open(&w.d, ROWS, &e), ERR_OK);
  assert_int_equal(prefix_init(&w.c, CONTEXT, SEED), ERR_OK);
  for (int32_t i = 0; i < length; i++) prefix_append(&w.c, &i, 1);
  return w;
}

static void close_world(world *w) {
  prefix_fini(&w->c);
  drafter_free(&w->d);
}

static void open_session(world *w, int32_t slot, int32_t kept, bool lockstep) {
  const msg_options options = {.lockstep = lockstep};
  const drafter_session s = {&w->c, kept, 1, &options};
  assert_int_equal(w->d.kind->open(w->d.self, slot, &s), ERR_OK);
}

static int32_t advance(world *w, int32_t slot) {
  return w->d.kind->advance(w->d.self, slot, &w->c);
}

static bool submit(world *w, int32_t slot, uint64_t handle) {
  const draft_query q = {.slot = slot, .handle = handle};
  return w->d.kind->submit(w->d.self, &q);
}

static void begin(world *w) {
  w->d.kind->batch_begin(w->d.self, &w->b);
}

static bool end(world *w) {
  return w->d.kind->batch_end(w->d.self);
}

static void test_c_is_sent_in_chunks_and_once(void **state) {
  (void)state;
  world w = open_world(DRAFT_CHUNK + 5);
  open_session(&w, 0, 0, false);
  assert_int_equal(advance(&w, 0), 0); /* no batch takes it yet */
  begin(&w);
  assert_int_equal(advance(&w, 0), DRAFT_CHUNK);
  assert_true(end(&w));
  assert_false(w.b.jobs[0].whole);
  begin(&w);
  assert_int_equal(advance(&w, 0), DRAFT_CHUNK + 5);
  assert_true(submit(&w, 0, 7));
  assert_true(end(&w));
  const draft_job *j = &w.b.jobs[0];
  assert_true(j->whole && j->base == DRAFT_CHUNK && j->count == 5 && j->query_count == 1);
  assert_int_equal(w.b.tokens[j->first], DRAFT_CHUNK);
  begin(&w);
  assert_int_equal(advance(&w, 0), DRAFT_CHUNK + 5);
  assert_false(end(&w)); /* there is nothing to compute */
  close_world(&w);
}

static void test_a_session_that_is_opened_again_keeps_what_was_sent(void **state) {
  (void)state;
  world w = open_world(20);
  open_session(&w, 0, 0, false);
  begin(&w);
  advance(&w, 0);
  end(&w);
  open_session(&w, 0, 12, false);
  begin(&w);
  advance(&w, 0);
  end(&w);
  assert_true(w.b.jobs[0].base == 12 && w.b.jobs[0].count == 8);
  w.d.kind->close(w.d.self, 0);
  open_session(&w, 0, 9, false); /* another session, which begins alike */
  begin(&w);
  advance(&w, 0);
  end(&w);
  assert_true(w.b.jobs[0].base == 9 && w.b.jobs[0].count == 11);
  open_session(&w, 0, 0, false);
  begin(&w);
  advance(&w, 0);
  end(&w);
  assert_int_equal(w.b.jobs[0].base, 0);
  close_world(&w);
}

/* The engine may read the last batch while the session is opened again. */
static void test_a_job_carries_how_the_session_is_sampled(void **state) {
  (void)state;
  world w = open_world(20);
  int32_t token = 9;
  float value = -4;
  msg_options o = {.frequency_penalty = 0.5f, .bias_tokens = &token, .bias_values = &value, .bias_count = 1};
  const drafter_session s = {&w.c, 0, 13, &o};
  assert_int_equal(w.d.kind->open(w.d.self, 3, &s), ERR_OK);
  open_session(&w, 4, 0, false);
  begin(&w);
  advance(&w, 4);
  advance(&w, 3);
  end(&w);
  assert_int_equal(w.b.jobs[0].bias_count, 0);
  const draft_job *j = &w.b.jobs[1];
  assert_true(j->sampling.frequency_penalty == 0.5f && j->prompt_length == 13 && j->bias_count == 1);
  token = 8, value = 3;
  assert_int_equal(w.d.kind->open(w.d.self, 3, &s), ERR_OK);
  assert_true(j->bias_tokens[0] == 9 && j->bias_values[0] == -4);
  begin(&w);
  advance(&w, 3);
  end(&w);
  assert_true(w.b.jobs[0].bias_tokens[0] == 8 && w.b.jobs[0].bias_values[0] == 3);
  close_world(&w);
}

static void test_queries_are_taken_for_a_batch_up_to_its_rows(void **state) {
  (void)state;
  world w = open_world(4);
  open_session(&w, 0, 0, false);
  open_session(&w, 1, 0, false);
  assert_false(submit(&w, 0, 1)); /* between batches */
  begin(&w);
  advance(&w, 0);
  advance(&w, 1);
  assert_true(submit(&w, 0, 1) && submit(&w, 0, 2) && submit(&w, 1, 3));
  assert_false(submit(&w, 1, 4));
  assert_true(end(&w));
  assert_int_equal(w.b.query_count, ROWS);
  assert_true(w.b.jobs[0].first_query == 0 && w.b.jobs[0].query_count == 2);
  assert_true(w.b.jobs[1].first_query == 2 && w.b.jobs[1].query_count == 1);
  close_world(&w);
}

static void test_a_batch_has_room_for_so_many_sessions(void **state) {
  (void)state;
  world w = open_world(2);
  begin(&w);
  for (int32_t i = 0; i <= DRAFT_JOBS_MAX; i++) {
    open_session(&w, i, 0, false);
    assert_int_equal(advance(&w, i), i < DRAFT_JOBS_MAX ? 2 : 0);
  }
  assert_false(submit(&w, DRAFT_JOBS_MAX, 1));
  assert_true(end(&w));
  assert_int_equal(w.b.job_count, DRAFT_JOBS_MAX);
  close_world(&w);
}

static void test_failures_are_taken_before_replies(void **state) {
  (void)state;
  world w = open_world(2);
  draft_reply r;
  const draft_results results = {.result_count = 1,
                                 .failure_count = 1,
                                 .results = {{.slot = 0, .handle = 5, .count = 2, .list = {{7, 3}, {8, 1}}}},
                                 .failures = {{.slot = 1, .code = ERR_MISMATCH}},
                                 .us = 300};
  assert_false(w.d.kind->take(w.d.self, &r));
  assert_int_equal(w.d.kind->batch_done(w.d.self, &results), 300);
  assert_true(w.d.kind->take(w.d.self, &r));
  assert_true(r.slot == 1 && r.code == ERR_MISMATCH);
  assert_true(w.d.kind->take(w.d.self, &r));
  assert_true(r.slot == 0 && r.code == ERR_OK && r.handle == 5 && r.count == 2);
  assert_true(r.list[0].token == 7 && r.list[1].token == 8 && r.list[0].score > r.list[1].score);
  assert_false(w.d.kind->take(w.d.self, &r));
  close_world(&w);
}

/* The score of the better value in a reply about a session. */
static float score_at(world *w, int32_t slot) {
  draft_reply r;
  const draft_results results = {.result_count = 1,
                                 .results = {{.slot = slot, .count = 2, .list = {{7, 3}, {8, 1}}}}};
  w->d.kind->batch_done(w->d.self, &results);
  assert_true(w->d.kind->take(w->d.self, &r));
  for (int32_t i = 0; i < 1000; i++) w->d.kind->observe(w->d.self, r.list, r.count, 8);
  return r.list[r.list[0].token != 7].score;
}

static void test_scores_are_learnt_but_not_in_lockstep(void **state) {
  (void)state;
  world w = open_world(2);
  open_session(&w, 0, 0, false);
  open_session(&w, 1, 0, true);
  float before = score_at(&w, 0), still = score_at(&w, 1);
  assert_true(before == still);
  assert_true(score_at(&w, 0) < before - 1); /* the first was never right */
  assert_true(score_at(&w, 1) == still);
  close_world(&w);
}

/* The engine has forgotten it, and other sessions go on. */
static void test_a_session_that_failed_is_absent_until_it_is_opened_again(void **state) {
  (void)state;
  const draft_results results = {.failure_count = 1, .failures = {{0, ERR_IO}}};
  draft_reply r;
  world w = open_world(5);
  for (int32_t slot = 0; slot < 2; slot++) open_session(&w, slot, 0, false);
  begin(&w);
  assert_int_equal(advance(&w, 0), 5);
  end(&w);
  w.d.kind->batch_done(w.d.self, &results);
  assert_true(w.d.kind->take(w.d.self, &r));
  begin(&w);
  assert_int_equal(advance(&w, 0), DRAFTER_ABSENT);
  assert_int_equal(advance(&w, 1), 5);
  end(&w);
  open_session(&w, 0, 5, false);
  begin(&w);
  assert_int_equal(advance(&w, 0), 5);
  assert_int_equal(w.b.job_count, 1);
  assert_int_equal(w.b.jobs[0].base, 0);
  assert_int_equal(w.b.jobs[0].count, 5);
  close_world(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_c_is_sent_in_chunks_and_once),
      cmocka_unit_test(test_a_session_that_is_opened_again_keeps_what_was_sent),
      cmocka_unit_test(test_a_job_carries_how_the_session_is_sampled),
      cmocka_unit_test(test_queries_are_taken_for_a_batch_up_to_its_rows),
      cmocka_unit_test(test_a_batch_has_room_for_so_many_sessions),
      cmocka_unit_test(test_failures_are_taken_before_replies),
      cmocka_unit_test(test_scores_are_learnt_but_not_in_lockstep),
      cmocka_unit_test(test_a_session_that_failed_is_absent_until_it_is_opened_again),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
