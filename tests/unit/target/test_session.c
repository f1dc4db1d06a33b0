/* libs: target wire speculative base */
#include "target_worker/session.h"
#include "tests/support/opened_session.h"

#include <stdlib.h>

enum { SLOTS = 2, CONTEXT = 64 };

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

static session *some_session(session_store *s) {
  static const int32_t tokens[] = {1, 2, 3, 4};
  return session_opened(s, 1, 1, tokens, 4, (msg_options){.max_tokens = 10, .context = CONTEXT});
}

/* --- tokens --- */

static void test_the_room_is_bounded_by_max_tokens_and_the_context(void **state) {
  session *x = some_session(*state);
  assert_int_equal(session_room(x), 10);
  prefix_append(&x->committed, (const int32_t[]){5, 6, 7}, 3);
  assert_int_equal(session_room(x), 7);
  x->request.options.context = 9;
  assert_int_equal(session_room(x), 2);
  x->request.options.context = 6; /* a prompt beyond it has no room either */
  assert_int_equal(session_room(x), 0);
}

static void test_lockstep_waits_for_a_minute(void **state) {
  session *x = some_session(*state);
  session_lockstep_begin(x, 500);
  assert_int_equal(x->drafts.lockstep_until_us, 500 + SESSION_LOCKSTEP_US);
}

/* --- drafts --- */

static void test_a_session_has_four_draft_entries(void **state) {
  session_store *s = *state;
  session *x = some_session(s);
  assert_null(session_draft_of(x, 10));
  assert_false(x->drafts.has_tree);
  for (peer_id p = 10; p < 10 + SESSION_DRAFTS_MAX; p++) {
    session_draft *d = session_draft_take(x, p);
    assert_non_null(d);
    assert_int_equal(d->peer, p);
    assert_ptr_equal(session_draft_of(x, p), d);
  }
  assert_true(x->drafts.has_tree);
  assert_int_equal(session_draft_count(x), SESSION_DRAFTS_MAX);
  assert_null(session_draft_take(x, 99));
  session_draft_drop(x, session_draft_of(x, 11));
  assert_null(session_draft_of(x, 11));
  assert_int_equal(session_draft_count(x), SESSION_DRAFTS_MAX - 1);
  assert_non_null(session_draft_take(x, 99));
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++)
    tree_ids_give(&x->drafts.of[i].ids, &x->drafts.tree,
                  tree_add(&x->drafts.tree, TREE_ROOT, 5 + i, -1, NULL));
  for (int i = 0; i < SESSION_DRAFTS_MAX; i++) {
    assert_int_equal(x->drafts.tree.live_count, SESSION_DRAFTS_MAX - i);
    session_draft_drop(x, &x->drafts.of[i]); /* nobody will name its node again */
  }
  assert_int_equal(x->drafts.tree.live_count, 0);
}

static void test_draft_generations_grow(void **state) {
  session_store *s = *state;
  session *x = some_session(s);
  session_draft *a = session_draft_take(x, 10), *b = session_draft_take(x, 11);
  assert_true(a->ids.generation >= 1);
  assert_true(b->ids.generation != a->ids.generation);
  tree_add(&x->drafts.tree, TREE_ROOT, 5, -1, NULL);
  uint32_t most = x->drafts.generation;
  a->done_base = b->done_base = 7;
  a->base_named = 9;
  session_draft_restart(x);
  assert_int_equal(x->drafts.tree.live_count, 0);
  assert_true(a->ids.generation > most && b->ids.generation > most);
  assert_int_equal(a->ids.next, 1);
  assert_true(a->done_base == 0 && b->done_base == 0 && a->base_named == 1); /* until their next NODES */
  uint32_t before = x->drafts.generation;
  session_draft_drop(x, session_draft_of(x, 10));
  assert_true(session_draft_take(x, 10)->ids.generation > before); /* attached again */
}

static void test_draft_maps_are_those_of_the_attached_drafts(void **state) {
  session_store *s = *state;
  session *x = some_session(s);
  tree_ids *maps[SESSION_DRAFTS_MAX];
  assert_int_equal(session_draft_maps(x, maps), 0);
  session_draft *a = session_draft_take(x, 10);
  session_draft_take(x, 11);
  session_draft *c = session_draft_take(x, 12);
  session_draft_drop(x, session_draft_of(x, 11));
  assert_int_equal(session_draft_maps(x, maps), 2);
  assert_true((maps[0] == &a->ids && maps[1] == &c->ids) || (maps[1] == &a->ids && maps[0] == &c->ids));
}

static void test_a_session_has_nodes_while_one_is_live(void **state) {
  session *x = some_session(*state);
  assert_false(session_has_nodes(x)); /* without a tree */
  assert_non_null(session_draft_take(x, 10));
  assert_false(session_has_nodes(x));
  tree_add(&x->drafts.tree, TREE_ROOT, 5, -1, NULL);
  assert_true(session_has_nodes(x));
  session_draft_restart(x);
  assert_false(session_has_nodes(x));
}

static void test_drafts_are_done_when_all_of_them_are(void **state) {
  session *x = some_session(*state);
  assert_false(session_drafts_done(x)); /* there is none */
  session_draft *a = session_draft_take(x, 10), *b = session_draft_take(x, 11);
  a->done_base = 4;
  b->done_base = 3; /* the mark of an older base */
  assert_int_equal(session_draft_done_count(x), 1);
  assert_false(session_drafts_done(x));
  b->done_base = 4;
  assert_int_equal(session_draft_done_count(x), 2);
  assert_true(session_drafts_done(x));
  session_draft_drop(x, a);
  assert_true(session_drafts_done(x));
  session_draft_drop(x, b);
  assert_false(session_drafts_done(x));
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_the_room_is_bounded_by_max_tokens_and_the_context),
      CASE(test_lockstep_waits_for_a_minute),
      CASE(test_a_session_has_four_draft_entries),
      CASE(test_draft_generations_grow),
      CASE(test_draft_maps_are_those_of_the_attached_drafts),
      CASE(test_a_session_has_nodes_while_one_is_live),
      CASE(test_drafts_are_done_when_all_of_them_are),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
