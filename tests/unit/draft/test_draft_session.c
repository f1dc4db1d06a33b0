/* libs: draft wire speculative base */
/* One session's tree and the queries about it, without a worker around them. */
#include "draft_worker/draft_session.h"
#include "draft_worker/drafters/immediate.h"
#include "draft_worker/drafters/model_drafter.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

enum { CONTEXT = 400, SEED = 3, VOCABULARY = 50, BUDGET = 4, ROWS = 3 };

/* A toy that replies at once: after token t come t + 1 (log -0.1) and t + 2 (log -1); tokens go beyond the
 * vocabulary. */
struct immediate_session {
  int32_t last;
};

static immediate_session *toy_open(void *shared, const prefix *committed, int32_t prompt_length,
                                   const msg_options *options) {
  (void)prompt_length;
  (void)options;
  immediate_session *s = *(int *)shared ? NULL : malloc(sizeof *s);
  if (s) s->last = committed->tokens[committed->length - 1];
  return s;
}
static void toy_close(immediate_session *s) {
  free(s);
}
static void toy_advance(immediate_session *s, const prefix *committed) {
  s->last = committed->tokens[committed->length - 1];
}
static int32_t toy_candidates(immediate_session *s, const int32_t *path, int32_t depth,
                              draft_candidate *out) {
  int32_t last = depth ? path[depth - 1] : s->last;
  out[0] = (draft_candidate){.token = last + 1, .score = -0.1f};
  out[1] = (draft_candidate){.token = last + 2, .score = -1};
  return 2;
}

/* Another one: after t come t + 2, of which it is surer, and t + 3. */
static int32_t other_candidates(immediate_session *s, const int32_t *path, int32_t depth,
                                draft_candidate *out) {
  int32_t last = depth ? path[depth - 1] : s->last;
  out[0] = (draft_candidate){.token = last + 2, .score = -0.2f};
  out[1] = (draft_candidate){.token = last + 3, .score = -2};
  return 2;
}

static int no_memory;
static const immediate_kind toy = {"toy", toy_open, toy_close, toy_advance, toy_candidates, NULL};
static const immediate_kind other_toy = {"other", toy_open, toy_close, toy_advance, other_candidates, NULL};

/* --- the world: drafters, and a session of theirs --- */

typedef struct world {
  draft_setup setup;
  draft_session p;
} world;

static void add_toy(draft_setup *m, const immediate_kind *kind) {
  err e;
  assert_int_equal(immediate_open(&m->drafters[m->drafter_count++], kind, &no_memory, &e), ERR_OK);
}

static void add_model(draft_setup *m) {
  err e;
  assert_int_equal(model_drafter_open(&m->drafters[m->drafter_count++], ROWS, &e), ERR_OK);
}

static void free_setup(draft_setup *m) {
  for (int32_t i = 0; i < m->drafter_count; i++) drafter_free(&m->drafters[i]);
}

static void open_session(draft_session *p, draft_setup *m, const int32_t *tokens, int32_t count,
                         bool lockstep) {
  assert_int_equal(draft_session_init(p, m, CONTEXT, SEED), ERR_OK);
  msg_open o = {.hash_seed = SEED, .tokens = tokens, .token_count = count, .prompt_length = count};
  o.options = (msg_options){.budget = BUDGET, .lockstep = lockstep};
  assert_int_equal(draft_session_open(p, m, &o), ERR_OK);
}

static void close_world(world *w) {
  draft_session_fini(&w->p, &w->setup);
  free_setup(&w->setup);
}

/* Hands results to the model drafter, and its replies to the session. */
static void give(world *w, const draft_results *r) {
  draft_reply reply;
  for (int32_t i = 0; i < w->setup.drafter_count; i++) {
    const drafter *d = &w->setup.drafters[i];
    if (d->kind->batch_done) d->kind->batch_done(d->self, r);
    while (d->kind->take(d->self, &reply)) draft_session_take(&w->p, &w->setup, i, &reply);
  }
}

static bool next_batch(world *w, draft_batch *b) {
  draft_session *list[] = {&w->p};
  return draft_session_batch(list, 1, &w->setup, 0, b);
}

static int32_t grow(world *w, uint64_t *first) {
  return draft_session_grow(&w->p, &w->setup, 0, first);
}

static int32_t child(const world *w, int32_t node, int32_t token) {
  return tree_child(&w->p.expansion.live, node, token);
}

/* --- one drafter that replies at once --- */

static void test_a_tree_grows_to_its_goal_and_follows_c(void **state) {
  (void)state;
  world w = {0};
  uint64_t first, parents[WIRE_NODES_MAX];
  int32_t tokens[WIRE_NODES_MAX];
  float scores[WIRE_NODES_MAX];
  add_toy(&w.setup, &toy);
  open_session(&w.p, &w.setup, (const int32_t[]){10}, 1, false);
  int32_t goal = DRAFTER_AHEAD_MAX * BUDGET + 1;
  assert_int_equal(draft_session_goal(&w.p, &w.setup), goal);
  assert_int_equal(draft_session_grow(&w.p, &w.setup, VOCABULARY, &first), goal);
  assert_true(w.p.done);
  assert_int_equal(draft_session_nodes(&w.p, first, parents, tokens, scores), goal);
  assert_int_equal(parents[0], 0);
  assert_int_equal(tokens[0], 11);
  assert_int_equal(parents[1], first); /* the chain is more probable than the root's second child */
  assert_int_equal(prefix_append(&w.p.committed, (const int32_t[]){11, 12}, 2), ERR_OK);
  uint64_t digest = tree_digest(&w.p.expansion.live);
  draft_session_commit(&w.p, &w.setup, 2);
  assert_true(tree_digest(&w.p.expansion.live) != digest);
  int32_t live = w.p.expansion.live.live_count;
  assert_true(live > 0 && live < goal - 1);
  draft_session_rename(&w.p, 5);
  assert_int_equal(w.p.ids.generation, 5);
  assert_int_equal(draft_session_nodes(&w.p, 1, parents, tokens, scores), live);
  assert_int_equal(tokens[0], 13);
  assert_int_equal(prefix_append(&w.p.committed, (const int32_t[]){40}, 1), ERR_OK);
  draft_session_commit(&w.p, &w.setup, 1); /* away from the tree */
  assert_int_equal(w.p.expansion.live.live_count, 0);
  assert_int_equal(grow(&w, &first), goal);
  assert_true(child(&w, TREE_ROOT, 41) >= 0); /* its drafter knows C */
  close_world(&w);
}

static void test_a_tree_of_one_candidate_a_node_is_a_chain(void **state) {
  (void)state;
  world w = {.setup = {.candidates = 1}};
  uint64_t first, parents[WIRE_NODES_MAX];
  int32_t tokens[WIRE_NODES_MAX];
  float scores[WIRE_NODES_MAX];
  add_toy(&w.setup, &toy);
  open_session(&w.p, &w.setup, (const int32_t[]){10}, 1, false);
  w.p.options.budget = 3 * BUDGET;
  int32_t count = grow(&w, &first); /* beyond 10 nodes, a second child would be likelier than the next one */
  assert_true(count > 10);
  assert_int_equal(draft_session_nodes(&w.p, first, parents, tokens, scores), count);
  for (int32_t i = 0; i < count; i++) assert_int_equal(parents[i], i);
  close_world(&w);
}

static void test_tokens_of_no_vocabulary_are_left_out(void **state) {
  (void)state;
  world w = {0};
  uint64_t first;
  add_toy(&w.setup, &toy);
  open_session(&w.p, &w.setup, (const int32_t[]){VOCABULARY - 2}, 1, true);
  assert_int_equal(draft_session_goal(&w.p, &w.setup), BUDGET);
  assert_int_equal(draft_session_grow(&w.p, &w.setup, VOCABULARY, &first), 1);
  assert_int_equal(grow(&w, &first), 0); /* what was left out does not come back */
  close_world(&w);
}

static void test_a_drafter_without_memory_refuses_the_session(void **state) {
  (void)state;
  world w = {0};
  msg_open o = {.hash_seed = SEED, .tokens = (const int32_t[]){1}, .token_count = 1, .prompt_length = 1};
  add_toy(&w.setup, &toy);
  assert_int_equal(draft_session_init(&w.p, &w.setup, CONTEXT, SEED), ERR_OK);
  no_memory = 1;
  assert_int_equal(draft_session_open(&w.p, &w.setup, &o), ERR_NOMEM);
  no_memory = 0;
  close_world(&w);
}

static void test_scores_stay_in_range(void **state) {
  (void)state;
  assert_true(draft_session_score(NAN) == TREE_SCORE_MIN);
  assert_true(draft_session_score(-INFINITY) == TREE_SCORE_MIN);
  assert_true(draft_session_score(1) == 0);
  assert_true(draft_session_score(-0.5f) == -0.5f);
}

static int32_t observed;
static void count_observed(void *self, const draft_candidate *list, int32_t count, int32_t token) {
  (void)self;
  (void)list;
  (void)count;
  (void)token;
  observed++;
}

/* In lockstep too: its scores do not depend on that there, but what was learnt can be kept. */
static void test_a_drafter_observes_what_was_chosen(void **state) {
  (void)state;
  for (int lockstep = 0; lockstep <= 1; lockstep++) {
    world w = {0};
    uint64_t first;
    add_toy(&w.setup, &toy);
    drafter_kind watched = *w.setup.drafters[0].kind;
    watched.observe = count_observed;
    w.setup.drafters[0].kind = &watched;
    open_session(&w.p, &w.setup, (const int32_t[]){10}, 1, lockstep);
    assert_true(grow(&w, &first) > 0);
    assert_int_equal(prefix_append(&w.p.committed, (const int32_t[]){11}, 1), ERR_OK);
    observed = 0;
    draft_session_commit(&w.p, &w.setup, 1);
    assert_int_equal(observed, 1);
    close_world(&w);
  }
}

/* --- one drafter that computes batches --- */

/* Two sessions, one with a text that no single batch holds: it is sent in pieces, and queried when it is sent
 * whole. */
static void test_c_is_sent_before_it_is_queried(void **state) {
  (void)state;
  static draft_batch b;
  static int32_t text[2 * DRAFT_CHUNK + 9];
  draft_setup m = {0};
  draft_session one = {0}, other = {.slot = 1};
  add_model(&m);
  open_session(&one, &m, (const int32_t[]){1, 2, 3}, 3, false);
  open_session(&other, &m, text, 2 * DRAFT_CHUNK + 9, false);
  draft_session *list[] = {&one, &other};
  assert_true(draft_session_batch(list, 2, &m, 0, &b));
  assert_int_equal(b.job_count, 2);
  assert_int_equal(b.token_count, DRAFT_CHUNK);
  assert_true(b.jobs[0].whole && b.jobs[0].count == 3 && b.jobs[0].query_count == 1);
  assert_true(!b.jobs[1].whole && b.jobs[1].count == DRAFT_CHUNK - 3 && b.jobs[1].query_count == 0);
  assert_int_equal(b.queries[0].depth, 0);
  assert_int_equal(m.query_count, 1);
  for (int i = 0; i < 2; i++) draft_session_batch(list, 2, &m, 0, &b);
  assert_int_equal(other.held[0], other.committed.length);
  assert_int_equal(b.job_count, 1); /* the first one's reply is outstanding */
  assert_int_equal(b.jobs[0].slot, 1);
  assert_int_equal(b.jobs[0].query_count, 1);
  assert_false(draft_session_batch(list, 2, &m, 0, &b));
  draft_session_fini(&one, &m);
  draft_session_fini(&other, &m);
  free_setup(&m);
}

static void test_replies_let_the_tree_grow(void **state) {
  (void)state;
  static draft_batch b;
  static draft_results r;
  world w = {.setup = {.query_count = 40}};
  uint64_t first;
  add_model(&w.setup);
  open_session(&w.p, &w.setup, (const int32_t[]){1}, 1, false);
  assert_true(next_batch(&w, &b));
  uint64_t handle = b.queries[0].handle;
  r = (draft_results){.result_count = 1,
                      .results = {{.slot = 0, .handle = handle - 1, .count = 2, .list = {{7, 3}, {8, 1}}}}};
  give(&w, &r); /* nobody has queried that */
  assert_false(w.p.replied);
  assert_int_equal(grow(&w, &first), 0);
  assert_false(w.p.done);
  r.results[0].handle = handle;
  give(&w, &r);
  assert_true(w.p.replied);
  assert_true(grow(&w, &first) >= 1);
  assert_true(child(&w, TREE_ROOT, 7) >= 0);
  assert_true(next_batch(&w, &b)); /* what may follow 7? */
  assert_int_equal(b.queries[0].depth, 1);
  assert_int_equal(b.queries[0].path[0], 7);
  close_world(&w);
}

/* On the target's processors: nothing is read before the target calls for nodes by what it sends, and nothing
 * is sent before the tree is grown as far as it pays. */
static void test_a_colocated_draft_keeps_its_tree_back(void **state) {
  (void)state;
  static draft_batch b;
  static draft_results r;
  world w = {.setup = {.colocated = true,
                       .reader = -1,
                       .costs = {.forward_us = {.mean = 1, .count = 9}, .best = {.mean = 0.7, .count = 9}}}};
  uint64_t first;
  add_model(&w.setup);
  open_session(&w.p, &w.setup, (const int32_t[]){1}, 1, false);
  assert_false(next_batch(&w, &b));
  assert_int_equal(prefix_append(&w.p.committed, (const int32_t[]){2}, 1), ERR_OK);
  draft_session_commit(&w.p, &w.setup, 1);
  assert_true(next_batch(&w, &b));
  assert_int_equal(b.token_count, 2);
  r = (draft_results){
      .result_count = 1,
      .results = {{.slot = 0, .handle = b.queries[0].handle, .count = 2, .list = {{7, 3}, {8, 1}}}}};
  give(&w, &r);
  w.p.pacing.verify_us = (average){.mean = 1000, .count = 9}; /* so dear that the tree should be large */
  assert_int_equal(grow(&w, &first), 0);
  assert_true(draft_session_keeps(&w.p, &w.setup));
  assert_true(w.p.expansion.live.live_count > 0);
  assert_true(next_batch(&w, &b));
  r.results[0] = (draft_result){.slot = 0, .handle = b.queries[0].handle, .count = 1, .list = {{9, 3}}};
  give(&w, &r);
  w.p.pacing.verify_us = (average){.mean = 0.001, .count = 9}; /* so cheap that it should begin at once */
  int32_t named = grow(&w, &first);
  assert_false(draft_session_keeps(&w.p, &w.setup));
  assert_true(named >= 2);
  assert_int_equal(named, w.p.expansion.live.live_count);
  assert_int_equal(first + (uint64_t)named, w.p.ids.next);
  assert_false(next_batch(&w, &b)); /* until C grows */
  close_world(&w);
}

/* Features of the prompt are sent to be computed; what may follow the prompt is not looked for yet. */
static void test_a_colocated_head_reads_the_prompt_at_once(void **state) {
  (void)state;
  static draft_batch b;
  world w = {.setup = {.colocated = true, .reader = 0}};
  add_model(&w.setup);
  open_session(&w.p, &w.setup, (const int32_t[]){1, 2, 3}, 3, false);
  assert_true(next_batch(&w, &b));
  assert_true(b.token_count == 3 && b.query_count == 0);
  assert_false(next_batch(&w, &b));
  assert_int_equal(prefix_append(&w.p.committed, (const int32_t[]){2}, 1), ERR_OK);
  draft_session_commit(&w.p, &w.setup, 1);
  assert_true(next_batch(&w, &b));
  assert_true(b.token_count == 1 && b.query_count == 1);
  close_world(&w);
}

/* There the target waits for the done mark, and a frame for each reply would be most of the bytes. */
static void test_in_lockstep_a_tree_is_sent_whole(void **state) {
  (void)state;
  static draft_batch b;
  static draft_results r;
  world w = {.setup = {.reader = -1}};
  uint64_t first;
  int32_t named = 0, batches = 0;
  add_model(&w.setup);
  open_session(&w.p, &w.setup, (const int32_t[]){1}, 1, true);
  while (next_batch(&w, &b)) {
    assert_int_equal(named, 0);
    r = (draft_results){.result_count = b.query_count};
    for (int32_t i = 0; i < b.query_count; i++)
      r.results[i] = (draft_result){.handle = b.queries[i].handle, .count = 1, .list = {{7 + batches, 3}}};
    give(&w, &r);
    named = grow(&w, &first);
    assert_int_equal(draft_session_keeps(&w.p, &w.setup), named == 0);
    assert_true(++batches < 20);
  }
  assert_true(batches > 1);
  assert_int_equal(named, w.p.expansion.live.live_count);
  close_world(&w);
}

/* Three candidates of each path, which depend on it alone. */
static void reply_about(const draft_query *q, draft_result *to) {
  uint32_t hash = 17;
  for (int32_t i = 0; i < q->depth; i++) hash = hash * 31 + (uint32_t)q->path[i];
  *to = (draft_result){.handle = q->handle, .count = 3};
  for (int32_t i = 0; i < 3; i++)
    to->list[i] = (ranking_token){(int32_t)(hash / (uint32_t)(5 + i) % 40) * 3 + i, 3 - 0.4f * (float)i};
}

/* Grows a tree in lockstep; returns how many batches it takes. surer: what the first candidates are above the
 * others besides. */
static int32_t grow_in_lockstep(world *w, int32_t rows, int32_t budget, float surer) {
  static draft_batch b;
  static draft_results r;
  uint64_t first;
  int32_t batches = 0;
  w->setup.reader = -1;
  w->setup.drafter_count = 1;
  assert_int_equal(model_drafter_open(&w->setup.drafters[0], rows, NULL), ERR_OK);
  open_session(&w->p, &w->setup, (const int32_t[]){1}, 1, true);
  w->p.options.budget = budget;
  for (; next_batch(w, &b); batches++) {
    assert_in_range(b.query_count, 1, rows);
    r = (draft_results){.result_count = b.query_count};
    for (int32_t i = 0; i < b.query_count; i++) {
      reply_about(&b.queries[i], &r.results[i]);
      r.results[i].list[0].value += surer;
    }
    give(w, &r);
    grow(w, &first);
  }
  assert_true(w->p.done);
  return batches;
}

/* How many batches a tree takes, and which one it is. */
static int32_t batches_of(int32_t rows, uint64_t *digest) {
  world w = {0};
  int32_t batches = grow_in_lockstep(&w, rows, 24, 0);
  assert_int_equal(w.p.expansion.live.live_count, 24);
  *digest = tree_digest(&w.p.expansion.live);
  close_world(&w);
  return batches;
}

/* A forward with room for it also computes what the tree will probably ask for next. */
static void test_more_rows_give_the_same_tree_sooner(void **state) {
  (void)state;
  uint64_t one, three, eight;
  int32_t alone = batches_of(1, &one), few = batches_of(3, &three), many = batches_of(8, &eight);
  assert_true(one == three && one == eight);
  assert_true(few <= alone / 2 && many < few);
}

static int32_t deepest(const world *w) {
  const tree *live = &w->p.expansion.live;
  int32_t most = 0;
  for (int32_t i = 0; i < live->capacity; i++)
    if (live->nodes[i].live && live->nodes[i].depth > most) most = live->nodes[i].depth;
  return most;
}

/* How deep a tree of this budget gets, of a drafter whose first candidate is nearly certain. */
static int32_t depth_of_sure_tree(int32_t candidates, int32_t budget) {
  world w = {.setup = {.candidates = candidates}};
  int32_t batches = grow_in_lockstep(&w, 8, budget, 6);
  int32_t depth = deepest(&w);
  assert_in_range(batches, 1, depth);
  close_world(&w);
  return depth;
}

static void test_a_tree_in_lockstep_takes_six_forwards(void **state) {
  (void)state;
  assert_int_equal(depth_of_sure_tree(0, 24), 6);
  assert_int_equal(depth_of_sure_tree(1, 9), 9); /* a chain is as long as it is */
}

/* --- drafters that may not go past their own guess --- */

/* A block of two tokens: two candidates, and two after each of them. The tree is done then, and the next
 * block comes when C has grown. */
static void test_a_block_draft_waits_at_the_end_of_its_block(void **state) {
  (void)state;
  for (int lockstep = 0; lockstep <= 1; lockstep++) {
    world w = {0};
    uint64_t first;
    add_toy(&w.setup, &toy);
    drafter_kind block = *w.setup.drafters[0].kind;
    assert_true(block.goes_past_guess && block.tokens_per_forward == 1);
    block.goes_past_guess = false;
    block.tokens_per_forward = 2;
    w.setup.drafters[0].kind = &block;
    open_session(&w.p, &w.setup, (const int32_t[]){10}, 1, lockstep);
    w.p.options.budget = 12;
    assert_int_equal(grow(&w, &first), 2 + 4);
    assert_true(w.p.done);
    assert_int_equal(deepest(&w), 2);
    assert_int_equal(prefix_append(&w.p.committed, (const int32_t[]){11}, 1), ERR_OK);
    draft_session_commit(&w.p, &w.setup, 1);
    assert_true(grow(&w, &first) > 0);
    assert_int_equal(deepest(&w), 2);
    close_world(&w);
  }
}

/* One that gives a token a forward is queried about C alone: not about its own candidate, nor about those of
 * the drafter beside it, which goes on below both. */
static void test_a_block_draft_is_not_queried_below_others_guesses(void **state) {
  (void)state;
  static draft_batch b;
  static draft_results r;
  world w = {.setup = {.reader = -1}};
  uint64_t first;
  add_toy(&w.setup, &toy);
  add_model(&w.setup);
  drafter_kind block = *w.setup.drafters[1].kind;
  assert_true(block.goes_past_guess && block.tokens_per_forward == 1);
  block.goes_past_guess = false;
  w.setup.drafters[1].kind = &block;
  open_session(&w.p, &w.setup, (const int32_t[]){10}, 1, true);
  w.p.options.budget = 12;
  assert_true(next_batch(&w, &b));
  assert_true(b.query_count == 1 && b.queries[0].depth == 0);
  r = (draft_results){
      .result_count = 1,
      .results = {{.slot = 0, .handle = b.queries[0].handle, .count = 2, .list = {{30, 9}, {11, 1}}}}};
  give(&w, &r);
  assert_int_equal(grow(&w, &first), 12);
  assert_true(w.p.done);
  assert_false(next_batch(&w, &b));
  int32_t node = child(&w, TREE_ROOT, 30);
  assert_true(node >= 0 && child(&w, node, 31) >= 0);
  close_world(&w);
}

/* --- several drafters on one tree --- */

/* Each may see its candidates come, and the one that both propose is one node, with the score of whoever was
 * surer. */
static void test_two_drafters_feed_one_tree(void **state) {
  (void)state;
  world w = {0};
  uint64_t first;
  add_toy(&w.setup, &toy);
  add_toy(&w.setup, &other_toy);
  open_session(&w.p, &w.setup, (const int32_t[]){10}, 1, true);
  w.p.options.budget = 12;
  assert_int_equal(grow(&w, &first), 12);
  assert_true(w.p.done);
  int32_t one = child(&w, TREE_ROOT, 11), both = child(&w, TREE_ROOT, 12);
  assert_true(one >= 0 && both >= 0);
  assert_true(w.p.expansion.live.nodes[both].score == -0.2f);
  assert_true(child(&w, both, 14) >= 0 && child(&w, both, 13) >= 0); /* below it both go on */
  for (uint64_t id = first + 1; id < w.p.ids.next; id++) {           /* the tree is best first all the same */
    const tree_node *a = &w.p.expansion.live.nodes[w.p.ids.ring[(id - 1) % TREE_IDS_MAX].slot];
    const tree_node *b = &w.p.expansion.live.nodes[w.p.ids.ring[id % TREE_IDS_MAX].slot];
    assert_true(b->total <= a->total);
  }
  assert_int_equal(prefix_append(&w.p.committed, (const int32_t[]){12}, 1), ERR_OK);
  draft_session_commit(&w.p, &w.setup, 1);
  assert_int_equal(w.p.held[0], 2);
  assert_int_equal(w.p.held[1], 2);
  assert_true(child(&w, TREE_ROOT, 14) >= 0);
  close_world(&w);
}

/* Prompt lookup has its candidates at once, a model's come later: the tree does not wait for them, and takes
 * them where they are better. */
static void test_a_slow_drafter_adds_to_the_tree_of_a_quick_one(void **state) {
  (void)state;
  static draft_batch b;
  static draft_results r;
  world w = {0};
  uint64_t first;
  add_toy(&w.setup, &toy);
  add_model(&w.setup);
  open_session(&w.p, &w.setup, (const int32_t[]){10}, 1, false);
  w.p.options.budget = 16;
  assert_int_equal(draft_session_goal(&w.p, &w.setup), 16 + 1); /* a node may cost a row of the model */
  int32_t quick = grow(&w, &first);
  assert_true(quick > 0 && !w.p.done);
  assert_true(next_batch(&w, &b));
  assert_int_equal(b.queries[0].depth, 0);
  assert_int_equal(b.query_count, 1); /* the nodes that the other one has proposed come after it */
  r = (draft_results){
      .result_count = 1,
      .results = {{.slot = 0, .handle = b.queries[0].handle, .count = 2, .list = {{30, 9}, {11, 1}}}}};
  give(&w, &r);
  assert_true(grow(&w, &first) > 0);
  assert_true(child(&w, TREE_ROOT, 30) >= 0);
  assert_true(next_batch(&w, &b));
  int32_t at = 0;
  while (at < b.query_count && b.queries[at].path[0] != 11) at++;
  assert_true(at < b.query_count);
  assert_int_equal(prefix_append(&w.p.committed, (const int32_t[]){11}, 1), ERR_OK);
  draft_session_commit(&w.p, &w.setup,
                       1); /* what the model was queried about the new root is outstanding still */
  r.results[0] = (draft_result){.slot = 0, .handle = b.queries[at].handle, .count = 1, .list = {{31, 9}}};
  give(&w, &r);
  grow(&w, &first);
  assert_true(child(&w, TREE_ROOT, 31) >= 0);
  assert_true(child(&w, TREE_ROOT, 12) >= 0);
  close_world(&w);
}

/* Who can do nothing for a session for the time being keeps no other drafter from growing its tree. */
static void test_an_absent_drafter_does_not_make_the_tree_small(void **state) {
  (void)state;
  world w = {0};
  add_toy(&w.setup, &toy);
  add_model(&w.setup);
  open_session(&w.p, &w.setup, (const int32_t[]){10}, 1, false);
  w.p.options.budget = 16;
  assert_int_equal(draft_session_goal(&w.p, &w.setup), 16 + 1);
  w.p.held[1] = DRAFTER_ABSENT;
  assert_int_equal(draft_session_goal(&w.p, &w.setup), 2 * 16 + 1);
  close_world(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_tree_grows_to_its_goal_and_follows_c),
      cmocka_unit_test(test_a_tree_of_one_candidate_a_node_is_a_chain),
      cmocka_unit_test(test_tokens_of_no_vocabulary_are_left_out),
      cmocka_unit_test(test_a_drafter_without_memory_refuses_the_session),
      cmocka_unit_test(test_scores_stay_in_range),
      cmocka_unit_test(test_a_drafter_observes_what_was_chosen),
      cmocka_unit_test(test_c_is_sent_before_it_is_queried),
      cmocka_unit_test(test_replies_let_the_tree_grow),
      cmocka_unit_test(test_a_colocated_draft_keeps_its_tree_back),
      cmocka_unit_test(test_a_colocated_head_reads_the_prompt_at_once),
      cmocka_unit_test(test_in_lockstep_a_tree_is_sent_whole),
      cmocka_unit_test(test_a_tree_in_lockstep_takes_six_forwards),
      cmocka_unit_test(test_more_rows_give_the_same_tree_sooner),
      cmocka_unit_test(test_a_block_draft_waits_at_the_end_of_its_block),
      cmocka_unit_test(test_a_block_draft_is_not_queried_below_others_guesses),
      cmocka_unit_test(test_two_drafters_feed_one_tree),
      cmocka_unit_test(test_a_slow_drafter_adds_to_the_tree_of_a_quick_one),
      cmocka_unit_test(test_an_absent_drafter_does_not_make_the_tree_small),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
