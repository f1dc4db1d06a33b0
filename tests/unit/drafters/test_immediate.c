/* libs: drafters */
/* A drafter that is made of one function: its replies are there as soon as it is queried. */
#include "draft_worker/drafters/immediate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

typedef struct counts {
  int32_t opened, closed, over;
  bool no_memory;
} counts;

struct immediate_session {
  counts *counts;
  int32_t last;
};

static immediate_session *toy_open(void *shared, const prefix *committed, int32_t prompt_length,
                                   const msg_options *options) {
  counts *n = shared;
  (void)prompt_length, (void)options;
  if (n->no_memory) return NULL;
  immediate_session *s = malloc(sizeof *s);
  *s = (immediate_session){n, committed->tokens[committed->length - 1]};
  n->opened++;
  return s;
}

static void toy_close(immediate_session *s) {
  s->counts->closed++;
  free(s);
}

static void toy_over(immediate_session *s) {
  s->counts->over++;
}

static void toy_advance(immediate_session *s, const prefix *committed) {
  s->last = committed->tokens[committed->length - 1];
}

static int32_t toy_candidates(immediate_session *s, const int32_t *path, int32_t depth,
                              draft_candidate *out) {
  out[0] = (draft_candidate){.token = (depth ? path[depth - 1] : s->last) + 1, .score = -1};
  return 1;
}

static const immediate_kind toy = {"toy", toy_open, toy_close, toy_advance, toy_candidates, toy_over};

typedef struct world {
  counts counts;
  drafter d;
  prefix c;
} world;

static int set_up(void **state) {
  world *w = calloc(1, sizeof *w);
  err e;
  assert_int_equal(immediate_open(&w->d, &toy, &w->counts, &e), ERR_OK);
  assert_int_equal(prefix_init(&w->c, 100, 3), ERR_OK);
  prefix_append(&w->c, (const int32_t[]){10}, 1);
  *state = w;
  return 0;
}

static int tear_down(void **state) {
  world *w = *state;
  drafter_free(&w->d);
  assert_int_equal(w->counts.opened, w->counts.closed);
  prefix_fini(&w->c);
  free(w);
  return 0;
}

static int open_session(world *w, int32_t slot) {
  const msg_options options = {.context = 100};
  return w->d.kind->open(w->d.self, slot, &(drafter_session){&w->c, 0, 1, &options});
}

static int32_t token_after(world *w, int32_t slot, int32_t depth, int32_t last) {
  draft_query q = {.slot = slot, .handle = 7, .depth = depth, .path = {last}};
  draft_reply r;
  assert_true(w->d.kind->submit(w->d.self, &q));
  assert_true(w->d.kind->take(w->d.self, &r));
  assert_true(r.slot == slot && r.handle == 7 && r.code == ERR_OK && r.count == 1);
  assert_false(w->d.kind->take(w->d.self, &r));
  return r.list[0].token;
}

static void test_a_reply_is_there_at_once(void **state) {
  world *w = *state;
  assert_int_equal(open_session(w, 3), ERR_OK);
  assert_int_equal(token_after(w, 3, 0, 0), 11);
  assert_int_equal(token_after(w, 3, 1, 20), 21);
  prefix_append(&w->c, (const int32_t[]){30}, 1);
  assert_int_equal(w->d.kind->advance(w->d.self, 3, &w->c), 2);
  assert_int_equal(token_after(w, 3, 0, 0), 31);
}

static void test_each_slot_is_a_session_of_its_own(void **state) {
  world *w = *state;
  open_session(w, 0);
  prefix_append(&w->c, (const int32_t[]){30}, 1);
  open_session(w, 1);
  assert_int_equal(token_after(w, 0, 0, 0), 11);
  assert_int_equal(token_after(w, 1, 0, 0), 31);
  open_session(w, 0); /* begun anew */
  assert_int_equal(token_after(w, 0, 0, 0), 31);
  assert_int_equal(w->counts.opened, 3);
  assert_int_equal(w->counts.closed, 1);
  w->d.kind->close(w->d.self, 5); /* is not open */
  assert_int_equal(w->counts.closed, 1);
}

static void test_a_session_is_over_when_it_is_closed(void **state) {
  world *w = *state;
  open_session(w, 0);
  open_session(w, 0); /* begun anew, it is not */
  assert_int_equal(w->counts.over, 0);
  w->d.kind->close(w->d.self, 0);
  assert_int_equal(w->counts.over, 1);
  w->d.kind->close(w->d.self, 0);
  assert_int_equal(w->counts.over, 1);
  open_session(w, 1); /* nor when the program ends */
}

static int tear_down_at_the_end(void **state) {
  world *w = *state;
  int32_t over = w->counts.over;
  drafter_free(&w->d);
  assert_int_equal(w->counts.over, over);
  return tear_down(state);
}

static void test_a_session_without_memory_is_not_open(void **state) {
  world *w = *state;
  w->counts.no_memory = true;
  assert_int_equal(open_session(w, 0), ERR_NOMEM);
  w->d.kind->close(w->d.self, 0);
}

static void test_it_computes_no_batches(void **state) {
  world *w = *state;
  assert_null(w->d.kind->batch_begin);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_a_reply_is_there_at_once, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_each_slot_is_a_session_of_its_own, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_a_session_is_over_when_it_is_closed, set_up, tear_down_at_the_end),
      cmocka_unit_test_setup_teardown(test_a_session_without_memory_is_not_open, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_it_computes_no_batches, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
