/* libs: draft wire speculative base */
/* One session's tree and the questions about it, without a worker around them. */
#include "draft_worker/questions.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

enum { CONTEXT = 400, SEED = 3, VOCABULARY = 50, BUDGET = 4, ROWS = 3 };

/* At once: after token t come t + 1 (log -0.1) and t + 2 (log -1); scores beyond their range, tokens beyond
 * the vocabulary. */
struct drafter {
  int32_t last;
};

static drafter *toy_open(void *shared, const prefix *committed, int32_t prompt_length,
                         const msg_options *options) {
  (void)prompt_length;
  (void)options;
  drafter *d = *(int *)shared ? NULL : malloc(sizeof *d);
  if (d) d->last = committed->tokens[committed->length - 1];
  return d;
}
static void toy_close(drafter *d) {
  free(d);
}
static void toy_advance(drafter *d, const prefix *committed) {
  d->last = committed->tokens[committed->length - 1];
}
static int32_t toy_candidates(drafter *d, const int32_t *path, int32_t depth, draft_candidate *out) {
  int32_t last = depth ? path[depth - 1] : d->last;
  out[0] = (draft_candidate){last + 1, -0.1f};
  out[1] = (draft_candidate){last + 2, -1};
  return 2;
}

static int no_memory;
static const drafter_kind toy = {"toy", toy_open, toy_close, toy_advance, toy_candidates};
static const drafter_kind batches = {.method = "toy"};

typedef struct world {
  draft_method method;
  draft_session p;
} world;

static void open_world(world *w, const drafter_kind *kind, const int32_t *tokens, int32_t count,
                       bool lockstep) {
  *w = (world){.method = {.kind = kind, .shared = &no_memory, .rows = ROWS}};
  assert_int_equal(draft_session_init(&w->p, CONTEXT, SEED), ERR_OK);
  msg_open o = {.hash_seed = SEED, .tokens = tokens, .token_count = count, .prompt_length = count};
  o.options = (msg_options){.budget = BUDGET, .lockstep = lockstep};
  assert_int_equal(draft_session_open(&w->p, &w->method, &o), ERR_OK);
}

static void grows_to_its_goal_and_follows(void **state) {
  (void)state;
  world w;
  uint64_t first, parents[WIRE_NODES_MAX];
  int32_t tokens[WIRE_NODES_MAX];
  float scores[WIRE_NODES_MAX];
  open_world(&w, &toy, (const int32_t[]){10}, 1, false);
  assert_int_equal(draft_session_goal(&w.p, &w.method), DRAFT_AHEAD * BUDGET + 1);
  assert_int_equal(draft_session_grow(&w.p, &w.method, VOCABULARY, &first), DRAFT_AHEAD * BUDGET + 1);
  assert_true(w.p.done);
  assert_int_equal(draft_session_nodes(&w.p, first, parents, tokens, scores), DRAFT_AHEAD * BUDGET + 1);
  assert_int_equal(parents[0], 0);
  assert_int_equal(tokens[0], 11);
  assert_int_equal(parents[1], first); /* the chain is more probable than the root's second child */
  assert_int_equal(prefix_append(&w.p.committed, (const int32_t[]){11, 12}, 2), ERR_OK);
  uint64_t digest = tree_digest(&w.p.grown.live);
  draft_session_commit(&w.p, &w.method, 2);
  assert_true(tree_digest(&w.p.grown.live) != digest);
  assert_int_equal(w.p.guess->last, 12);
  int32_t live = w.p.grown.live.live_count;
  assert_true(live > 0 && live < DRAFT_AHEAD * BUDGET);
  draft_session_rename(&w.p, 5);
  assert_int_equal(w.p.ids.generation, 5);
  assert_int_equal(draft_session_nodes(&w.p, 1, parents, tokens, scores), live);
  assert_int_equal(tokens[0], 13);
  draft_session_fini(&w.p, &w.method);
}

static void tokens_of_no_vocabulary_are_left_out(void **state) {
  (void)state;
  world w;
  uint64_t first;
  open_world(&w, &toy, (const int32_t[]){VOCABULARY - 2}, 1, true);
  assert_int_equal(draft_session_goal(&w.p, &w.method), BUDGET);
  assert_int_equal(draft_session_grow(&w.p, &w.method, VOCABULARY, &first), 1);
  assert_int_equal(draft_session_grow(&w.p, &w.method, 0, &first),
                   0); /* what was left out does not come back */
  draft_session_fini(&w.p, &w.method);
}

static void no_drafter_is_no_memory(void **state) {
  (void)state;
  world w = {.method = {.kind = &toy, .shared = &no_memory, .rows = ROWS}};
  msg_open o = {.hash_seed = SEED, .tokens = (const int32_t[]){1}, .token_count = 1, .prompt_length = 1};
  assert_int_equal(draft_session_init(&w.p, CONTEXT, SEED), ERR_OK);
  no_memory = 1;
  assert_int_equal(draft_session_open(&w.p, &w.method, &o), ERR_NOMEM);
  no_memory = 0;
  draft_session_fini(&w.p, &w.method);
}

static void scores_stay_in_range(void **state) {
  (void)state;
  assert_true(draft_session_score(NAN) == TREE_SCORE_MIN);
  assert_true(draft_session_score(-INFINITY) == TREE_SCORE_MIN);
  assert_true(draft_session_score(1) == 0);
  assert_true(draft_session_score(-0.5f) == -0.5f);
}

/* Two sessions, one with a text that no single batch tells: it is told in pieces, and asked about when that
 * is done. */
static void c_is_told_before_it_is_asked_about(void **state) {
  (void)state;
  static draft_batch b;
  static int32_t text[2 * DRAFT_CHUNK + 9];
  world one, other;
  uint64_t serial = 0;
  open_world(&one, &batches, (const int32_t[]){1, 2, 3}, 3, false);
  open_world(&other, &batches, text, 2 * DRAFT_CHUNK + 9, false);
  other.p.slot = 1;
  draft_session *list[] = {&one.p, NULL, &other.p};
  assert_true(questions_fill(list, 3, &one.method, 0, &serial, &b));
  assert_int_equal(b.job_count, 2);
  assert_int_equal(b.token_count, DRAFT_CHUNK);
  assert_true(b.jobs[0].whole && b.jobs[0].count == 3 && b.jobs[0].place_count == 1);
  assert_true(!b.jobs[1].whole && b.jobs[1].count == DRAFT_CHUNK - 3 && b.jobs[1].place_count == 0);
  assert_int_equal(b.places[0].depth, 0);
  assert_int_equal(serial, 1);
  for (int i = 0; i < 2; i++) questions_fill(list, 3, &one.method, 0, &serial, &b);
  assert_int_equal(other.p.told, other.p.committed.length);
  assert_int_equal(b.job_count, 1); /* the first one's answer is awaited */
  assert_int_equal(b.jobs[0].slot, 1);
  assert_int_equal(b.jobs[0].place_count, 1);
  assert_false(questions_fill(list, 3, &one.method, 0, &serial, &b));
  draft_session_fini(&one.p, &one.method);
  draft_session_fini(&other.p, &other.method);
}

static void answers_let_it_grow(void **state) {
  (void)state;
  static draft_batch b;
  static draft_results r;
  world w;
  uint64_t serial = 40, first;
  open_world(&w, &batches, (const int32_t[]){1}, 1, false);
  draft_session *list[] = {&w.p};
  assert_true(questions_fill(list, 1, &w.method, 0, &serial, &b));
  r = (draft_results){.answer_count = 1,
                      .answers = {{.slot = 0, .serial = 40, .count = 2, .list = {{7, 3}, {8, 1}}}}};
  questions_take(list, 1, &w.method, &r); /* nobody has asked that */
  assert_false(w.p.answered);
  assert_int_equal(draft_session_grow(&w.p, &w.method, 0, &first), 0);
  assert_false(w.p.done);
  r.answers[0].serial = serial;
  questions_take(list, 1, &w.method, &r);
  assert_true(w.p.answered);
  assert_true(draft_session_grow(&w.p, &w.method, 0, &first) >= 1);
  assert_int_equal(w.p.grown.live.nodes[w.p.grown.live.first_child].token, 7);
  assert_true(questions_fill(list, 1, &w.method, 0, &serial, &b)); /* what may follow 7? */
  assert_int_equal(b.places[0].depth, 1);
  assert_int_equal(b.places[0].path[0], 7);
  draft_session_fini(&w.p, &w.method);
}

/* On the target's processors: nothing is read before the target asks by what it tells, and nothing is sent
 * before the turn is over. */
static void a_turn_keeps_the_tree_back(void **state) {
  (void)state;
  static draft_batch b;
  static draft_results r;
  world w;
  uint64_t serial = 0, first;
  open_world(&w, &batches, (const int32_t[]){1}, 1, false);
  w.method.turns = true;
  w.method.costs = (pacing_costs){.forward_us = 1, .best = 0.7};
  draft_session *list[] = {&w.p};
  assert_false(questions_fill(list, 1, &w.method, 0, &serial, &b));
  assert_int_equal(prefix_append(&w.p.committed, (const int32_t[]){2}, 1), ERR_OK);
  draft_session_commit(&w.p, &w.method, 1);
  assert_true(questions_fill(list, 1, &w.method, 0, &serial, &b));
  assert_int_equal(b.token_count, 2);
  r = (draft_results){.answer_count = 1,
                      .answers = {{.slot = 0, .serial = serial, .count = 2, .list = {{7, 3}, {8, 1}}}}};
  questions_take(list, 1, &w.method, &r);
  w.p.turn.verify_us = 1000; /* so dear that the tree should be large */
  assert_int_equal(draft_session_grow(&w.p, &w.method, 0, &first), 0);
  assert_true(draft_session_keeps(&w.p, &w.method));
  assert_true(w.p.grown.live.live_count > 0);
  assert_true(questions_fill(list, 1, &w.method, 0, &serial, &b));
  r.answers[0] = (draft_answer){.slot = 0, .serial = serial, .count = 1, .list = {{9, 3}}};
  questions_take(list, 1, &w.method, &r);
  w.p.turn.verify_us = 0.001; /* so cheap that it should begin at once */
  int32_t named = draft_session_grow(&w.p, &w.method, 0, &first);
  assert_false(draft_session_keeps(&w.p, &w.method));
  assert_true(named >= 2);
  assert_int_equal(named, w.p.grown.live.live_count);
  assert_int_equal(first + (uint64_t)named, w.p.ids.next);
  assert_false(questions_fill(list, 1, &w.method, 0, &serial, &b)); /* until C grows */
  draft_session_fini(&w.p, &w.method);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(grows_to_its_goal_and_follows),
      cmocka_unit_test(tokens_of_no_vocabulary_are_left_out),
      cmocka_unit_test(no_drafter_is_no_memory),
      cmocka_unit_test(scores_stay_in_range),
      cmocka_unit_test(c_is_told_before_it_is_asked_about),
      cmocka_unit_test(answers_let_it_grow),
      cmocka_unit_test(a_turn_keeps_the_tree_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
