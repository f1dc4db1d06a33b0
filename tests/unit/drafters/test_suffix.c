/* libs: drafters */
#include "draft_worker/drafters/suffix.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#define CONTEXT 256

typedef struct world {
  suffix_source source;
  drafter d;
  prefix c;
  draft_reply reply;
} world;

static int set_up(void **state) {
  world *w = calloc(1, sizeof *w);
  err e = {0};
  assert_int_equal(corpus_open(&w->source.corpus, 1024, &e), ERR_OK);
  assert_int_equal(immediate_open(&w->d, &suffix_kind, &w->source, &e), ERR_OK);
  assert_int_equal(prefix_init(&w->c, CONTEXT, 3), ERR_OK);
  *state = w;
  return 0;
}

static int tear_down(void **state) {
  world *w = *state;
  drafter_free(&w->d);
  corpus_close(w->source.corpus);
  prefix_fini(&w->c);
  free(w);
  return 0;
}

#define COUNT(...)   ((int32_t)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)))
#define EARLIER(...) corpus_add(w->source.corpus, (const int32_t[]){__VA_ARGS__}, COUNT(__VA_ARGS__))
#define SAID(...)    prefix_append(&w->c, (const int32_t[]){__VA_ARGS__}, COUNT(__VA_ARGS__))

static void open_with(world *w, int32_t prompt_length, const msg_options *o) {
  assert_int_equal(w->d.kind->open(w->d.self, 0, &(drafter_session){&w->c, 0, prompt_length, o}), ERR_OK);
  assert_int_equal(w->d.kind->advance(w->d.self, 0, &w->c), w->c.length);
}

static void open_session(world *w, int32_t prompt_length) {
  const msg_options o = {.context = CONTEXT};
  open_with(w, prompt_length, &o);
}

/* Candidates after C and a path; the best one, or -1. */
static int32_t best_after(world *w, const int32_t *path, int32_t depth) {
  draft_query q = {.depth = depth};
  for (int32_t i = 0; i < depth; i++) q.path[i] = path[i];
  assert_true(w->d.kind->submit(w->d.self, &q));
  assert_true(w->d.kind->take(w->d.self, &w->reply));
  return w->reply.count ? w->reply.list[0].token : -1;
}

static int32_t best(world *w) {
  return best_after(w, NULL, 0);
}

static void test_it_says_what_an_earlier_text_said(void **state) {
  world *w = *state;
  EARLIER(10, 11, 12, 13, 14, 15, 16, 17, 18, 19);
  SAID(99, 10, 11);
  open_session(w, 1);
  int32_t path[6];
  float before = -100;
  for (int32_t depth = 0; depth < 6; depth++) { /* surer, the longer it agrees */
    path[depth] = best_after(w, path, depth);
    assert_int_equal(path[depth], 12 + depth);
    assert_true(w->reply.list[0].score >= before);
    before = w->reply.list[0].score;
  }
  assert_int_equal(best_after(w, (const int32_t[]){77}, 1), -1);
}

static void test_what_agrees_comes_before_what_does_not(void **state) {
  world *w = *state;
  EARLIER(1, 8, 9, 10, 11, 50);
  EARLIER(2, 8, 9, 10, 11, 50);
  EARLIER(3, 8, 9, 10, 11, 60);
  SAID(99, 8, 9, 10, 11);
  open_session(w, 1);
  assert_int_equal(best(w), 50);
  assert_int_equal(w->reply.count, 2);
  assert_int_equal(w->reply.list[1].token, 60);
  assert_true(w->reply.list[1].score < w->reply.list[0].score);
}

/* A chat template's tokens stand before every reply, and do not tell how this one begins. */
static void test_a_header_is_no_ending(void **state) {
  world *w = *state;
  const int32_t stop = 2;
  const msg_options chat = {.context = CONTEXT, .stops = &stop, .stop_count = 1};
  EARLIER(30, 31, 32, 2, 3, 4, 70, 71, 72);
  SAID(40, 41, 2, 3, 4);
  open_with(w, 5, &chat);
  assert_int_equal(best(w), -1);
  SAID(70);
  w->d.kind->advance(w->d.self, 0, &w->c);
  assert_int_equal(best(w), -1); /* one token of the reply, and the header, are too little */
  SAID(71);
  w->d.kind->advance(w->d.self, 0, &w->c);
  assert_int_equal(best(w), 72);
  prefix_truncate(&w->c, 0); /* where the prompt is the same, that counts */
  SAID(30, 31, 32, 2, 3, 4);
  open_with(w, 6, &chat);
  assert_int_equal(best(w), 70);
}

static void test_the_answer_corrects_the_odds(void **state) {
  world *w = *state;
  for (int32_t i = 0; i < 40; i++) EARLIER(100 + 3 * i, 101 + 3 * i, 102 + 3 * i);
  SAID(1, 100, 101);
  open_session(w, 1);
  assert_int_equal(best(w), 102);
  float hopeful = w->reply.list[0].score;
  for (int32_t i = 1; i < 20; i++) { /* what followed earlier never follows here */
    SAID(7, 100 + 3 * i, 101 + 3 * i);
    w->d.kind->advance(w->d.self, 0, &w->c);
  }
  assert_int_equal(best(w), 102 + 3 * 19);
  assert_true(w->reply.list[0].score < hopeful - 1);
  open_session(w, 1); /* what came before it was open may be in the corpus, and tells nothing */
  assert_int_equal(best(w), 102 + 3 * 19);
  assert_true(w->reply.list[0].score == hopeful);
}

static void test_a_session_that_is_over_is_looked_up_if_it_may(void **state) {
  world *w = *state;
  for (int learns = 0; learns < 2; learns++) {
    w->source.learns = learns;
    prefix_truncate(&w->c, 0);
    SAID(5, 6);
    open_session(w, 2);
    w->d.kind->close(w->d.self, 0);
    assert_int_equal(corpus_size(w->source.corpus), 0); /* a prompt without an answer tells nothing */
    open_session(w, 2);
    SAID(20, 21, 22);
    w->d.kind->advance(w->d.self, 0, &w->c);
    open_session(w, 2); /* begun anew: not over */
    assert_int_equal(corpus_size(w->source.corpus), 0);
    w->d.kind->close(w->d.self, 0);
    assert_int_equal(corpus_size(w->source.corpus), learns ? 5 : 0);
  }
  prefix_truncate(&w->c, 0);
  SAID(9, 20, 21);
  open_session(w, 1);
  assert_int_equal(best(w), 22);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_it_says_what_an_earlier_text_said, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_what_agrees_comes_before_what_does_not, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_a_header_is_no_ending, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_the_answer_corrects_the_odds, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_a_session_that_is_over_is_looked_up_if_it_may, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
