/* libs: target wire spec base */
#include "target_worker/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PLACES = 3, CONTEXT = 512, CREDIT = 256, NOW = 5000 };

static int set_up(void **state) {
  session_store *s = calloc(1, sizeof *s);
  err e = {0};
  assert_int_equal(session_store_init(s, PLACES, CONTEXT, &e), ERR_OK);
  *state = s;
  return 0;
}

static int tear_down(void **state) {
  session_store_fini(*state);
  free(*state);
  return 0;
}

/* Ready for a plain step: a prompt of `prompt`, all of it in the cache. */
static session *ready(session_store *s, uint64_t id, int32_t prompt) {
  bool fresh;
  session *x = session_store_take(s, id, NOW, &fresh);
  assert_non_null(x);
  for (int32_t t = 0; t < prompt; t++) prefix_append(&x->committed, &t, 1);
  x->state = SESSION_RUNNING;
  x->epoch = 1;
  x->prompt_length = prompt;
  x->kv_rows = prompt - 1;
  x->acked = prompt;
  x->kv_valid = INT32_MAX;
  x->options = (msg_options){.max_tokens = 100, .context = CONTEXT, .budget = 8};
  return x;
}

static void grow(session *x, int32_t count) {
  for (int32_t t = 0; t < count; t++) prefix_append(&x->committed, &t, 1);
  x->kv_rows += count;
}

static schedule_kind kind_of(const session *x) {
  uint64_t until = 0;
  return schedule_session(x, CREDIT, NOW, &until);
}

static void test_states(void **state) {
  session *x = ready(*state, 1, 10);
  assert_int_equal(kind_of(x), SCHEDULE_STEP);
  x->kv_rows = 3;
  assert_int_equal(kind_of(x), SCHEDULE_PREFILL);
  x->kv_rows = 9;
  x->state = SESSION_DESYNCED;
  assert_int_equal(kind_of(x), SCHEDULE_IDLE);
  x->state = SESSION_FINISHED;
  assert_int_equal(kind_of(x), SCHEDULE_IDLE);
  x->state = SESSION_RUNNING;
  x->job = 5; /* one at a time */
  assert_int_equal(kind_of(x), SCHEDULE_IDLE);
}

/* n tokens have n-1 rows. */
static void test_one_token_needs_no_prefill(void **state) {
  session *x = ready(*state, 1, 1);
  assert_int_equal(x->kv_rows, 0);
  assert_int_equal(kind_of(x), SCHEDULE_STEP);
}

static void test_credit(void **state) {
  session *x = ready(*state, 1, 10);
  x->options.max_tokens = 400;
  grow(x, CREDIT - 1);
  assert_int_equal(kind_of(x), SCHEDULE_STEP);
  grow(x, 1);
  assert_int_equal(kind_of(x), SCHEDULE_IDLE);
  x->acked += 1;
  assert_int_equal(kind_of(x), SCHEDULE_STEP);
}

/* Prefill of a long prompt does not need credit: those tokens came from the orchestrator. */
static void test_prefill_needs_no_credit(void **state) {
  session *x = ready(*state, 1, 10);
  grow(x, CREDIT + 5);
  x->kv_rows = 0;
  assert_int_equal(kind_of(x), SCHEDULE_PREFILL);
}

static void test_room_and_budget(void **state) {
  static const struct {
    int32_t prompt, output, max_tokens, context, budget;
    int32_t room, least, most; /* nodes */
  } table[] = {
      {10, 0, 100, 512, 8, 100, 8, 8}, {10, 40, 100, 512, 8, 60, 8, 8}, {10, 99, 100, 512, 8, 1, 0, 0},
      {10, 0, 1, 512, 8, 1, 0, 0},     {10, 0, 100, 512, 0, 100, 0, 0}, {10, 0, 100, 512, 64, 100, 64, 64},
      {10, 98, 100, 512, 8, 2, 1, 8},  {10, 0, 100, 11, 8, 1, 0, 0},    {10, 0, 100, 15, 8, 5, 4, 8},
      {10, 100, 100, 512, 8, 0, 0, 0}, {10, 0, 100, 10, 8, 0, 0, 0},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    session *x = ready(*state, 100 + i, table[i].prompt);
    x->options.max_tokens = table[i].max_tokens;
    x->options.context = table[i].context;
    x->options.budget = table[i].budget;
    grow(x, table[i].output);
    assert_non_null(session_draft_take(x, 10));
    tree_add(&x->live, TREE_ROOT, 5, -0.5f, NULL);
    int32_t room = schedule_room(x), budget = schedule_budget(x);
    if (room != table[i].room) fail_msg("row %d: room %d", (int)i, (int)room);
    if (budget < table[i].least || budget > table[i].most) fail_msg("row %d: budget %d", (int)i, (int)budget);
    session_store_end(*state, 100 + i);
  }
}

/* Nodes are taken only where they can pay: never a budget without a node at hand. */
static void test_no_node_no_budget(void **state) {
  session *x = ready(*state, 1, 10);
  assert_int_equal(schedule_budget(x), 0);
  assert_non_null(session_draft_take(x, 10));
  assert_int_equal(schedule_budget(x), 0);
  tree_add(&x->live, TREE_ROOT, 5, -0.5f, NULL);
  assert_int_equal(schedule_budget(x), 8);
  x->off_for_good = true;
  assert_int_equal(schedule_budget(x), 0);
  x->off_for_good = false;
  x->pay.off = true;
  assert_int_equal(schedule_budget(x), 0);
  x->options.lockstep = true; /* the on/off rule is disabled */
  assert_int_equal(schedule_budget(x), 8);
}

/* Staged rows need a place in the cache too. */
static void test_budget_within_the_cache(void **state) {
  session *x = ready(*state, 1, CONTEXT - 3);
  assert_non_null(session_draft_take(x, 10));
  tree_add(&x->live, TREE_ROOT, 5, -0.5f, NULL);
  assert_true(schedule_budget(x) <= 3);
  assert_true(schedule_budget(x) >= 2);
}

static void test_lockstep(void **state) {
  session *x = ready(*state, 1, 10);
  uint64_t until = 0;
  x->options.lockstep = true;
  x->lockstep_until_us = NOW + 60000000;
  assert_int_equal(kind_of(x), SCHEDULE_STEP); /* no draft is expected, none is there */
  x->draft_expected = true;
  assert_int_equal(schedule_session(x, CREDIT, NOW, &until), SCHEDULE_WAIT);
  assert_int_equal(until, NOW + 60000000);
  session_draft *d = session_draft_take(x, 10);
  tree_add(&x->live, TREE_ROOT, 5, -0.5f, NULL); /* nodes alone are not enough */
  assert_int_equal(kind_of(x), SCHEDULE_WAIT);
  d->done_base = 9;
  assert_int_equal(kind_of(x), SCHEDULE_WAIT);
  d->done_base = 10;
  assert_int_equal(kind_of(x), SCHEDULE_STEP);
  session_draft_drop(x, 10); /* an old mark of one that left */
  assert_int_equal(kind_of(x), SCHEDULE_WAIT);
}

static void test_waits_for_its_draft(void **state) {
  session *x = ready(*state, 1, 10);
  uint64_t until = 0;
  assert_non_null(session_draft_take(x, 10));
  x->wait_until_us = NOW + 700;
  assert_int_equal(schedule_session(x, CREDIT, NOW, &until), SCHEDULE_WAIT);
  assert_int_equal(until, NOW + 700);
  assert_int_equal(schedule_session(x, CREDIT, NOW + 700, &until), SCHEDULE_STEP);
  tree_add(&x->live, TREE_ROOT, 5, -0.5f, NULL); /* a node is at hand: no more waiting */
  assert_int_equal(schedule_session(x, CREDIT, NOW, &until), SCHEDULE_STEP);
}

/* "Nothing more to offer" for this C ends the wait, once all drafts have said it. */
static void test_a_done_mark_ends_the_wait(void **state) {
  session *x = ready(*state, 1, 10);
  x->wait_until_us = NOW + 700;
  assert_int_equal(kind_of(x), SCHEDULE_WAIT);
  session_draft *first = session_draft_take(x, 10), *second = session_draft_take(x, 11);
  first->done_base = 10;
  assert_int_equal(kind_of(x), SCHEDULE_WAIT);
  assert_false(schedule_drafts_done(x));
  second->done_base = 9;
  assert_int_equal(kind_of(x), SCHEDULE_WAIT);
  second->done_base = 10;
  assert_int_equal(kind_of(x), SCHEDULE_STEP);
  assert_true(schedule_drafts_done(x));
}

static void test_round_robin(void **state) {
  session_store *s = *state;
  session *all[PLACES];
  for (int i = 0; i < PLACES; i++) all[i] = ready(s, (uint64_t)i + 1, 10);
  schedule_kind kind;
  uint64_t until = 0;
  int32_t last = -1, seen[PLACES] = {0};
  for (int i = 0; i < 3 * PLACES; i++) {
    last = schedule_next(s, last, CREDIT, NOW, &kind, &until);
    assert_true(last >= 0 && last < PLACES);
    assert_int_equal(kind, SCHEDULE_STEP);
    seen[last]++;
  }
  for (int i = 0; i < PLACES; i++) assert_int_equal(seen[i], 3);
  all[1]->state = SESSION_FINISHED;
  for (int i = 0; i < 6; i++) {
    last = schedule_next(s, last, CREDIT, NOW, &kind, &until);
    assert_true(last >= 0);
    assert_true(s->places[last].id != 2);
  }
}

/* A session that waits holds up nobody; and when all wait, the earliest end counts. */
static void test_waiting_ones_are_passed_over(void **state) {
  session_store *s = *state;
  session *a = ready(s, 1, 10), *b = ready(s, 2, 10);
  schedule_kind kind;
  uint64_t until = 0;
  assert_non_null(session_draft_take(a, 10));
  a->wait_until_us = NOW + 700;
  for (int i = 0; i < 3; i++) {
    int32_t next = schedule_next(s, i - 1, CREDIT, NOW, &kind, &until);
    assert_true(next >= 0);
    assert_int_equal(s->places[next].id, 2);
  }
  assert_non_null(session_draft_take(b, 11));
  b->wait_until_us = NOW + 300;
  assert_int_equal(schedule_next(s, 0, CREDIT, NOW, &kind, &until), -1);
  assert_int_equal(until, NOW + 300);
}

static void test_nobody(void **state) {
  schedule_kind kind;
  uint64_t until = 0;
  assert_int_equal(schedule_next(*state, -1, CREDIT, NOW, &kind, &until), -1);
  assert_true(until == UINT64_MAX);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_states),
      CASE(test_one_token_needs_no_prefill),
      CASE(test_credit),
      CASE(test_prefill_needs_no_credit),
      CASE(test_room_and_budget),
      CASE(test_no_node_no_budget),
      CASE(test_budget_within_the_cache),
      CASE(test_lockstep),
      CASE(test_waits_for_its_draft),
      CASE(test_a_done_mark_ends_the_wait),
      CASE(test_round_robin),
      CASE(test_waiting_ones_are_passed_over),
      CASE(test_nobody),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
