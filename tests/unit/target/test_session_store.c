/* libs: target wire speculative base */
#include "target_worker/session_store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SLOTS = 3, CONTEXT = 64 };

static int set_up(void **state) {
  session_store *s = calloc(1, sizeof *s);
  err e = {0};
  assert_int_equal(session_store_init(s, SLOTS, CONTEXT, 0, &e), ERR_OK);
  *state = s;
  return 0;
}

static int tear_down(void **state) {
  session_store_fini(*state);
  free(*state);
  return 0;
}

static session *take(session_store *s, uint64_t id, uint64_t now, bool want_fresh) {
  bool fresh = !want_fresh;
  session *x = session_store_take(s, id, now, NULL, 0, &fresh);
  if (x) {
    assert_int_equal(fresh, want_fresh);
    assert_int_equal(x->id, id);
  }
  return x;
}

static session *running(session_store *s, uint64_t id, uint64_t now) {
  session *x = take(s, id, now, true);
  assert_non_null(x);
  x->state = SESSION_RUNNING;
  x->used_us = now;
  return x;
}

static void test_a_session_is_found_or_created(void **state) {
  session_store *s = *state;
  assert_null(session_store_get(s, 7));
  session *x = running(s, 7, 1);
  assert_ptr_equal(session_store_get(s, 7), x);
  assert_ptr_equal(take(s, 7, 2, false), x);
  assert_null(session_store_get(s, 8));
  assert_int_equal(x->committed.length, 0);
  assert_true(x->committed.capacity >= CONTEXT);
}

static void test_sessions_have_slots_of_their_own(void **state) {
  session_store *s = *state;
  session *a = running(s, 1, 1), *b = running(s, 2, 1), *c = running(s, 3, 1);
  assert_true(a->slot != b->slot && b->slot != c->slot && a->slot != c->slot);
  assert_true(a->slot >= 0 && a->slot < SLOTS && b->slot >= 0 && b->slot < SLOTS);
}

static void test_a_store_of_running_sessions_is_full(void **state) {
  session_store *s = *state;
  running(s, 1, 1);
  running(s, 2, 1);
  running(s, 3, 1)->state = SESSION_DESYNCED; /* it waits for its repair, so it is not idle */
  assert_null(take(s, 4, 9, true));
  assert_non_null(session_store_get(s, 1));
  assert_int_equal(session_store_active(s), 3);
}

static void test_the_least_recently_used_finished_session_makes_room(void **state) {
  session_store *s = *state;
  running(s, 1, 10)->state = SESSION_FINISHED;
  running(s, 2, 5);
  running(s, 3, 7)->state = SESSION_FINISHED;
  assert_int_equal(session_store_active(s), 1);
  session *x = running(s, 4, 20);
  assert_null(session_store_get(
      s, 3)); /* it was used before session 1; session 2 was used earlier still, but it runs */
  assert_non_null(session_store_get(s, 1));
  assert_non_null(session_store_get(s, 2));
  assert_ptr_equal(session_store_get(s, 4), x);
  assert_int_equal(session_store_active(s), 2);
}

/* The next session in a slot must see nothing of the one before. */
static void test_a_slot_that_is_taken_again_is_clean(void **state) {
  session_store *s = *state;
  const int32_t tokens[] = {1, 2, 3};
  session *x = running(s, 1, 1);
  running(s, 2, 1);
  running(s, 3, 1);
  prefix_append(&x->committed, tokens, 3);
  x->cache.rows = 2;
  x->epoch = 9;
  x->stream.acked = 3;
  x->speculation.disabled = "it was";
  x->stats.forwards = 4;
  assert_non_null(session_draft_take(x, 77));
  int32_t slot = x->slot;
  assert_true(session_store_end(s, 1));
  session *y = take(s, 4, 2, true);
  assert_int_equal(y->slot, slot);
  assert_int_equal(y->committed.length, 0);
  assert_int_equal(y->cache.rows, 0);
  assert_int_equal(y->epoch, 0);
  assert_int_equal(y->stream.acked, 0);
  assert_null(y->speculation.disabled);
  assert_int_equal(y->stats.forwards, 0);
  assert_int_equal(session_draft_count(y), 0);
  assert_int_equal(y->drafts.tree.live_count, 0);
}

/* A conversation's next request gets the slot whose cache begins with its tokens, and no other request does.
 */
static void test_rows_of_ended_sessions_serve_again(void **state) {
  session_store *s = *state;
  int32_t a[40], b[40];
  bool fresh;
  for (int32_t i = 0; i < 40; i++) {
    a[i] = i;
    b[i] = i < 5 ? i : 100 + i; /* both begin with the same template */
  }
  session *x = running(s, 1, 10), *y = running(s, 2, 20), *z = running(s, 3, 5);
  prefix_append(&x->committed, a, 30);
  prefix_append(&y->committed, b, 30);
  x->cache.rows = y->cache.rows = 29;
  z->cache.rows = 0;
  x->job.serial = 7; /* under way, and C was shortened meanwhile */
  x->job.valid_rows = 20;
  assert_true(session_store_end(s, 1) && session_store_end(s, 2) && session_store_end(s, 3));
  session *next = session_store_take(s, 4, 30, b, 40, &fresh);
  assert_ptr_equal(next, y);
  assert_int_equal(next->cache.rows, 29);
  assert_int_equal(next->committed.length, 29);
  assert_memory_equal(next->committed.tokens, b, 29 * sizeof *b);
  next = session_store_take(s, 5, 31, b, 40,
                            &fresh); /* five tokens are not worth a's rows: the slot that is free longest */
  assert_ptr_equal(next, z);
  assert_int_equal(next->cache.rows, 0);
  next = session_store_take(s, 6, 32, a, 12, &fresh); /* a shorter prompt */
  assert_ptr_equal(next, x);
  assert_int_equal(next->cache.rows, 12);
  assert_int_equal(next->committed.length, 12);
  assert_true(session_store_end(s, 6));
  next = session_store_take(s, 7, 33, a, 40, &fresh);
  assert_int_equal(next->cache.rows, 12);
}

/* A slot keeps rows of C that no job under way can change. */
static void test_only_rows_that_are_surely_right_are_kept(void **state) {
  session_store *s = *state;
  static const struct {
    int32_t length, rows, valid, kept;
    uint64_t job;
  } table[] = {{30, 29, INT32_MAX, 29, 0},
               {30, 29, 20, 29, 0},
               {30, 29, 20, 20, 7},
               {30, 29, INT32_MAX, 29, 7},
               {10, 29, INT32_MAX, 10, 0}};
  int32_t tokens[40];
  bool fresh;
  for (int32_t i = 0; i < 40; i++) tokens[i] = i;
  running(s, 2, 1);
  running(s, 3, 1); /* one slot is left */
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    session *x = running(s, 1, 1);
    prefix_reset(&x->committed, 0);
    prefix_append(&x->committed, tokens, table[i].length);
    x->cache.rows = table[i].rows;
    x->job.valid_rows = table[i].valid;
    x->job.serial = table[i].job;
    assert_true(session_store_end(s, 1));
    session *next = session_store_take(s, 4, 30, tokens, 40, &fresh);
    assert_int_equal(next->cache.rows, table[i].kept);
    assert_int_equal(next->committed.length, table[i].kept);
    assert_true(session_store_end(s, 4));
  }
}

/* Rows serve another prompt if they are at least half of it, or half of what would be lost. */
static void test_rows_serve_where_they_are_half_of_the_prompt(void **state) {
  session_store *s = *state;
  for (int32_t same = 9; same <= 11; same++)
    for (int32_t shorter = 0; shorter < 2; shorter++) {
      int32_t held[40], asked[40];
      bool fresh;
      for (int32_t i = 0; i < 40; i++) held[i] = i, asked[i] = i < same ? i : 100 + i;
      session *x = running(s, 1, 1);
      running(s, 2, 1);
      running(s, 3, 1);
      prefix_reset(&x->committed, 0);
      prefix_append(&x->committed, held, 40);
      x->cache.rows = shorter ? 20 : 39;
      assert_true(session_store_end(s, 1));
      session *next = session_store_take(s, 4, 30, asked, shorter ? 40 : 20, &fresh);
      assert_int_equal(next->cache.rows, same >= 10 ? same : 0);
      assert_true(session_store_end(s, 4) && session_store_end(s, 2) && session_store_end(s, 3));
    }
}

/* So a draft's nodes of its first life are not taken for those of its second. */
static void test_a_session_that_comes_again_has_higher_generations(void **state) {
  session_store *s = *state;
  running(s, 7, 1)->drafts.generation = 5;
  assert_true(session_store_end(s, 7));
  running(s, 8, 2); /* perhaps in its place */
  assert_true(running(s, 7, 3)->drafts.generation >= 5);
}

static void test_end_tells_whether_it_existed(void **state) {
  session_store *s = *state;
  assert_false(session_store_end(s, 1));
  running(s, 1, 1);
  assert_true(session_store_end(s, 1));
  assert_false(session_store_end(s, 1));
  assert_null(session_store_get(s, 1));
  assert_int_equal(session_store_active(s), 0);
}

/* --- leases --- */

static void test_a_session_that_nobody_renews_is_purged(void **state) {
  session_store *s = *state;
  uint64_t id = 0;
  assert_int_equal(session_store_deadline(s), UINT64_MAX);
  session_store_renew(running(s, 1, 10), 100);
  session_store_renew(running(s, 2, 10), 50);
  running(s, 3, 10)->state = SESSION_FINISHED; /* a finished one has a lease too */
  session_store_renew(session_store_get(s, 3), 200);
  assert_int_equal(session_store_deadline(s), 50 + SESSION_STORE_LEASE_US);
  assert_false(session_store_purge(s, 49 + SESSION_STORE_LEASE_US, &id));
  assert_true(session_store_purge(s, 50 + SESSION_STORE_LEASE_US, &id));
  assert_int_equal(id, 2);
  assert_false(session_store_purge(s, 50 + SESSION_STORE_LEASE_US, &id));
  assert_null(session_store_get(s, 2));
  assert_int_equal(session_store_deadline(s), 100 + SESSION_STORE_LEASE_US);
  session_store_renew(session_store_get(s, 1), 300);
  assert_int_equal(session_store_deadline(s), 200 + SESSION_STORE_LEASE_US);
  assert_true(session_store_purge(s, 300 + SESSION_STORE_LEASE_US, &id));
  assert_true(session_store_purge(s, 300 + SESSION_STORE_LEASE_US, &id)); /* one at a time */
  assert_false(session_store_purge(s, 300 + SESSION_STORE_LEASE_US, &id));
  assert_true(session_store_empty(s));
}

static void test_a_store_is_empty_without_sessions(void **state) {
  session_store *s = *state;
  assert_true(session_store_empty(s));
  running(s, 1, 1)->state = SESSION_FINISHED; /* its DONE may have been lost */
  assert_false(session_store_empty(s));
  assert_true(session_store_end(s, 1));
  assert_true(session_store_empty(s));
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_a_session_is_found_or_created),
      CASE(test_sessions_have_slots_of_their_own),
      CASE(test_a_store_of_running_sessions_is_full),
      CASE(test_the_least_recently_used_finished_session_makes_room),
      CASE(test_a_slot_that_is_taken_again_is_clean),
      CASE(test_a_session_that_comes_again_has_higher_generations),
      CASE(test_end_tells_whether_it_existed),
      CASE(test_rows_of_ended_sessions_serve_again),
      CASE(test_only_rows_that_are_surely_right_are_kept),
      CASE(test_rows_serve_where_they_are_half_of_the_prompt),
      CASE(test_a_session_that_nobody_renews_is_purged),
      CASE(test_a_store_is_empty_without_sessions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
