/* libs: target wire speculative base */
#include "common/speculative/policy_constants.h"
#include "target_worker/scheduler.h"
#include "tests/support/opened_session.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 3, CONTEXT = 512, CREDIT = SCHEDULE_CREDIT, NOW = 5000 };

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

/* Ready for a plain step: a prompt of `prompt`, all of it in the cache. */
static session *ready(session_store *s, uint64_t id, int32_t prompt) {
  int32_t tokens[CONTEXT];
  for (int32_t i = 0; i < prompt; i++) tokens[i] = i;
  session *x = session_opened(s, id, NOW, tokens, prompt,
                              (msg_options){.max_tokens = 100, .context = CONTEXT, .budget = 8});
  session_prefilled(x);
  return x;
}

static void grow(session *x, int32_t count) {
  for (int32_t t = 0; t < count; t++) prefix_append(&x->committed, &t, 1);
  x->cache.rows += count;
}

static schedule_kind kind_of(const session *x) {
  uint64_t until = 0;
  return schedule_session(x, NOW, &until);
}

static void test_only_a_running_session_without_a_job_is_scheduled(void **state) {
  session *x = ready(*state, 1, 10);
  assert_int_equal(kind_of(x), SCHEDULE_STEP);
  x->cache.rows = 3;
  assert_int_equal(kind_of(x), SCHEDULE_PREFILL);
  x->cache.rows = 9;
  x->state = SESSION_DESYNCED;
  assert_int_equal(kind_of(x), SCHEDULE_IDLE);
  x->state = SESSION_FINISHED;
  assert_int_equal(kind_of(x), SCHEDULE_IDLE);
  x->state = SESSION_RUNNING;
  x->job.serial = 5; /* one at a time */
  assert_int_equal(kind_of(x), SCHEDULE_IDLE);
}

/* n tokens have n-1 rows. */
static void test_one_token_needs_no_prefill(void **state) {
  session *x = ready(*state, 1, 1);
  assert_int_equal(x->cache.rows, 0);
  assert_int_equal(kind_of(x), SCHEDULE_STEP);
}

static void test_a_session_stops_at_its_credit(void **state) {
  session *x = ready(*state, 1, 10);
  x->request.options.max_tokens = 400;
  grow(x, CREDIT - 1);
  assert_int_equal(kind_of(x), SCHEDULE_STEP);
  grow(x, 1);
  assert_int_equal(kind_of(x), SCHEDULE_IDLE);
  x->stream.acked += 1;
  assert_int_equal(kind_of(x), SCHEDULE_STEP);
}

/* Prefill of a long prompt does not need credit: those tokens came from the orchestrator. */
static void test_prefill_needs_no_credit(void **state) {
  session *x = ready(*state, 1, 10);
  grow(x, CREDIT + 5);
  x->cache.rows = 0;
  assert_int_equal(kind_of(x), SCHEDULE_PREFILL);
}

static void test_the_budget_is_bounded_by_the_room(void **state) {
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
    x->request.options.max_tokens = table[i].max_tokens;
    x->request.options.context = table[i].context;
    x->request.options.budget = table[i].budget;
    grow(x, table[i].output);
    assert_non_null(session_draft_take(x, 10));
    tree_add(&x->drafts.tree, TREE_ROOT, 5, -0.5f, NULL);
    int32_t room = session_room(x), budget = schedule_budget(x);
    if (room != table[i].room) fail_msg("row %d: room %d", (int)i, (int)room);
    if (budget < table[i].least || budget > table[i].most) fail_msg("row %d: budget %d", (int)i, (int)budget);
    session_store_end(*state, 100 + i);
  }
}

/* Nodes are taken only where they can pay: never a budget without a node at hand. */
static void test_without_a_node_there_is_no_budget(void **state) {
  session *x = ready(*state, 1, 10);
  assert_int_equal(schedule_budget(x), 0);
  assert_non_null(session_draft_take(x, 10));
  assert_int_equal(schedule_budget(x), 0);
  tree_add(&x->drafts.tree, TREE_ROOT, 5, -0.5f, NULL);
  assert_int_equal(schedule_budget(x), 8);
  x->speculation.disabled = "made by a test";
  assert_int_equal(schedule_budget(x), 0);
  x->speculation.disabled = NULL;
  x->speculation.policy.state = POLICY_OFF;
  assert_int_equal(schedule_budget(x), 0);
  x->request.options.lockstep = true; /* the on/off rule is disabled */
  assert_int_equal(schedule_budget(x), 8);
}

/* Staged rows need a place in the cache too. */
static void test_staged_rows_fit_the_cache(void **state) {
  session *x = ready(*state, 1, CONTEXT - 3);
  assert_non_null(session_draft_take(x, 10));
  tree_add(&x->drafts.tree, TREE_ROOT, 5, -0.5f, NULL);
  assert_true(schedule_budget(x) <= 3);
  assert_true(schedule_budget(x) >= 2);
}

static void test_lockstep_waits_for_a_done_mark(void **state) {
  session *x = ready(*state, 1, 10);
  uint64_t until = 0;
  x->request.options.lockstep = true;
  x->drafts.lockstep_until_us = NOW + 60000000;
  assert_int_equal(kind_of(x), SCHEDULE_STEP); /* no draft is expected, none is there */
  x->request.draft_expected = true;
  assert_int_equal(schedule_session(x, NOW, &until), SCHEDULE_WAIT);
  assert_int_equal(until, NOW + 60000000);
  session_draft *d = session_draft_take(x, 10);
  tree_add(&x->drafts.tree, TREE_ROOT, 5, -0.5f, NULL); /* nodes alone are not enough */
  assert_int_equal(kind_of(x), SCHEDULE_WAIT);
  d->done_base = 9;
  assert_int_equal(kind_of(x), SCHEDULE_WAIT);
  d->done_base = 10;
  assert_int_equal(kind_of(x), SCHEDULE_STEP);
  session_draft_drop(x, session_draft_of(x, 10)); /* an old mark of one that left */
  assert_int_equal(kind_of(x), SCHEDULE_WAIT);
}

static void test_a_session_waits_for_its_draft(void **state) {
  session *x = ready(*state, 1, 10);
  uint64_t until = 0;
  assert_non_null(session_draft_take(x, 10));
  x->speculation.wait_until_us = NOW + 700;
  assert_int_equal(schedule_session(x, NOW, &until), SCHEDULE_WAIT);
  assert_int_equal(until, NOW + 700);
  assert_int_equal(schedule_session(x, NOW + 700, &until), SCHEDULE_STEP);
  tree_add(&x->drafts.tree, TREE_ROOT, 5, -0.5f, NULL); /* a node is at hand: no more waiting */
  assert_int_equal(schedule_session(x, NOW, &until), SCHEDULE_STEP);
}

/* "Nothing more to offer" for this C ends the wait, once all drafts have said it. */
static void test_a_done_mark_ends_the_wait(void **state) {
  session *x = ready(*state, 1, 10);
  x->speculation.wait_until_us = NOW + 700;
  assert_int_equal(kind_of(x), SCHEDULE_WAIT);
  session_draft *first = session_draft_take(x, 10), *second = session_draft_take(x, 11);
  first->done_base = 10;
  assert_int_equal(kind_of(x), SCHEDULE_WAIT);
  assert_false(session_drafts_done(x));
  second->done_base = 9;
  assert_int_equal(kind_of(x), SCHEDULE_WAIT);
  second->done_base = 10;
  assert_int_equal(kind_of(x), SCHEDULE_STEP);
  assert_true(session_drafts_done(x));
}

/* --- a forward --- */

static schedule forward(session_store *s, schedule_rotation *rotation, const cost_model *costs) {
  schedule out;
  const speculation_shared shared = {.costs = *costs};
  schedule_forward(s, &shared, rotation, NOW, &out);
  return out;
}

static const cost_model unknown = {0};

/* One row costs 1000, each further one 100 up to ten, then 1000. */
static cost_model known_costs(void) {
  cost_model w = {0};
  for (int32_t rows = 1; rows <= 40; rows++)
    cost_model_measured(&w, rows, 0, rows <= 10 ? 900 + 100 * rows : 1900 + 1000 * (rows - 10));
  return w;
}

static void add_chain(session *x, int32_t count, float score) {
  assert_non_null(session_draft_take(x, 10));
  for (int32_t i = 0, at = TREE_ROOT; i < count; i++) at = tree_add(&x->drafts.tree, at, 5, score, NULL);
}

static void test_all_sessions_step_in_one_forward(void **state) {
  session_store *s = *state;
  session *all[SLOTS];
  for (int i = 0; i < SLOTS; i++) all[i] = ready(s, (uint64_t)i + 1, 10);
  schedule_rotation rotation = {0};
  schedule f = forward(s, &rotation, &unknown);
  assert_int_equal(f.count, SLOTS);
  assert_int_equal(f.steps, SLOTS);
  int32_t seen = 0;
  for (int i = 0; i < SLOTS; i++) {
    assert_int_equal(f.picks[i].kind, SCHEDULE_STEP);
    seen |= 1 << f.picks[i].slot;
  }
  assert_int_equal(seen, (1 << SLOTS) - 1);
  all[1]->state = SESSION_FINISHED;
  assert_int_equal(forward(s, &rotation, &unknown).count, SLOTS - 1);
}

/* More sessions than a forward takes: nobody is passed over twice. */
static void test_sessions_beyond_a_forward_are_in_the_next_one(void **state) {
  (void)state;
  enum { MANY = 2 * SCHEDULE_STEPS_MAX + 3 };
  session_store many;
  err e = {0};
  assert_int_equal(session_store_init(&many, MANY, CONTEXT, 0, &e), ERR_OK);
  for (int i = 0; i < MANY; i++) ready(&many, (uint64_t)i + 1, 10);
  schedule_rotation rotation = {0};
  int32_t seen[MANY] = {0};
  for (int i = 0; i < MANY; i++) {
    schedule f = forward(&many, &rotation, &unknown);
    assert_int_equal(f.count, SCHEDULE_STEPS_MAX);
    for (int32_t k = 0; k < f.count; k++) seen[f.picks[k].slot]++;
  }
  for (int i = 0; i < MANY; i++) assert_int_equal(seen[i], SCHEDULE_STEPS_MAX);
  session_store_fini(&many);
}

/* Of all sessions' nodes the most probable ones, as many as pay for their rows. */
static void test_the_most_probable_nodes_of_all_sessions_are_taken(void **state) {
  session_store *s = *state;
  session *sure = ready(s, 1, 10), *unsure = ready(s, 2, 10);
  ready(s, 3, 10);
  sure->request.options.budget = unsure->request.options.budget = 20;
  sure->speculation.policy = unsure->speculation.policy = (policy){.own = {.accepted = 1000}};
  add_chain(sure, 20, -0.05f);
  add_chain(unsure, 20, -0.3f); /* 0.74, 0.55: one of them before the other's seventh, 0.70 */
  cost_model w = known_costs();
  schedule_rotation rotation = {0};
  schedule f = forward(s, &rotation, &w);
  int32_t nodes[SLOTS] = {0};
  for (int32_t i = 0; i < f.count; i++) nodes[f.picks[i].slot] = f.picks[i].rows;
  int32_t first = (int32_t)(sure - s->slots), second = (int32_t)(unsure - s->slots);
  assert_int_equal(3 + nodes[first] + nodes[second], 10); /* as many rows as are cheap */
  assert_int_equal(nodes[first], 6);
  assert_int_equal(nodes[second], 1);
  assert_int_equal(f.picks[0].offered + f.picks[1].offered + f.picks[2].offered, 40);
  sure->request.options.lockstep = true; /* its budget, whatever it costs */
  session_draft_of(sure, 10)->done_base = 10;
  f = forward(s, &rotation, &w);
  for (int32_t i = 0; i < f.count; i++) nodes[f.picks[i].slot] = f.picks[i].rows;
  assert_int_equal(nodes[first], 20);
}

/* The nodes that the engine gets are those that the scheduler weighed, each with its parent's index. */
static void test_a_pick_carries_its_nodes(void **state) {
  session_store *s = *state;
  session *x = ready(s, 1, 10);
  assert_non_null(session_draft_take(x, 10));
  int32_t unlikely = tree_add(&x->drafts.tree, TREE_ROOT, 5, -3, NULL);
  int32_t first = tree_add(&x->drafts.tree, TREE_ROOT, 6, -0.1f, NULL);
  int32_t second = tree_add(&x->drafts.tree, first, 7, -0.2f, NULL);
  int32_t beside = tree_add(&x->drafts.tree, first, 8, -2, NULL);
  x->request.options.lockstep = true;
  session_draft_of(x, 10)->done_base = 10;
  schedule_rotation rotation = {0};
  schedule f = forward(s, &rotation, &unknown);
  const schedule_pick *p = &f.picks[0];
  assert_int_equal(p->offered, 4);
  assert_int_equal(p->rows, 4);
  const int32_t nodes[] = {first, second, beside, unlikely}, parents[] = {-1, 0, 0, -1};
  assert_memory_equal(p->nodes, nodes, sizeof nodes);
  assert_memory_equal(p->parents, parents, sizeof parents);
}

/* A session whose draft has not been right yet verifies fewer nodes than later; in lockstep all. */
static void test_a_session_starts_with_few_nodes(void **state) {
  session_store *s = *state;
  session *p = ready(s, 1, 10);
  p->request.options.budget = 20;
  add_chain(p, 20, -0.05f);
  cost_model w = known_costs();
  schedule_rotation rotation = {0};
  p->speculation.policy = (policy){.own = {.promised = 40, .accepted = 1}};
  int32_t few = forward(s, &rotation, &w).picks[0].rows;
  p->speculation.policy = (policy){.own = {.promised = 40, .accepted = 40}};
  assert_true(forward(s, &rotation, &w).picks[0].rows > few);
  p->speculation.policy = (policy){0};
  p->request.options.lockstep = true;
  session_draft_of(p, 10)->done_base = 10;
  assert_int_equal(forward(s, &rotation, &w).picks[0].rows, 20);
}

/* Who expects a draft has the end of its prompt read in a forward as wide as its first verify; nobody else
 * has. */
static void test_a_prompt_waits_a_moment_for_the_draft_that_is_expected(void **state) {
  session_store *s = *state;
  session *x = ready(s, 1, 40);
  uint64_t until;
  x->cache.rows = 0;
  x->used_us = NOW;
  x->request.options.budget = 5;
  assert_int_equal(schedule_session(x, NOW, &until), SCHEDULE_PREFILL);
  x->request.draft_expected = true; /* which may read features, or none */
  assert_int_equal(schedule_session(x, NOW, &until), SCHEDULE_PREFILL);
  x->request.reader_expected = true;
  assert_int_equal(schedule_session(x, NOW, &until), SCHEDULE_WAIT);
  assert_int_equal(until, NOW + SCHEDULE_ATTACH_US);
  assert_int_equal(schedule_session(x, until, &until), SCHEDULE_PREFILL);
  x->request.options.lockstep = true;
  assert_int_equal(schedule_lockstep_deadline(x), UINT64_MAX); /* it is not the wait for a done mark */
  x->drafts.gave_up = true;
  assert_int_equal(schedule_session(x, NOW, &until), SCHEDULE_PREFILL);
}

static void test_the_end_of_a_prompt_measures_a_verify(void **state) {
  session_store *s = *state;
  session *p = ready(s, 1, SCHEDULE_MEASURED + 1);
  schedule_rotation rotation = {0};
  cost_model w = {0};
  p->cache.rows = SCHEDULE_MEASURED - 104;
  p->request.options.budget = 5;
  p->request.draft_expected = true;
  p->used_us = NOW - SCHEDULE_ATTACH_US;
  schedule f = forward(s, &rotation, &w);
  assert_false(f.measures);
  assert_int_equal(f.picks[0].rows, 100);
  p->cache.rows = SCHEDULE_MEASURED - 4;
  f = forward(s, &rotation, &w);
  assert_true(f.measures && f.count == 1);
  assert_int_equal(f.picks[0].rows, 4);
  session *other = ready(s, 2, 10); /* steps beside it */
  assert_false(forward(s, &rotation, &w).measures);
  other->state = SESSION_FINISHED;
  assert_true(forward(s, &rotation, &w).measures);
  p->request.draft_expected = false;
  assert_false(forward(s, &rotation, &w).measures);
  p->request.draft_expected = true;
  p->request.options.lockstep = true;
  assert_false(forward(s, &rotation, &w).measures);
  p->request.options.lockstep = false;
  p->request.options.budget = 0;
  assert_false(forward(s, &rotation, &w).measures);
  p->request.options.budget = 5;
  p->committed.length--; /* too short to hide it in */
  assert_false(forward(s, &rotation, &w).measures);
  p->committed.length++;
  cost_model_measured(&w, 4, 0, 1000);
  assert_false(forward(s, &rotation, &w).measures); /* known */
}

static int32_t prompt_rows(const schedule *f) {
  int32_t rows = 0;
  for (int32_t i = f->steps; i < f->count; i++) rows += f->picks[i].rows;
  return rows;
}

/* Whole pieces of prompts when nobody steps, small ones beside those who do, unless a row of a prompt takes
 * next to nothing; prompts take turns. */
static void test_prompts_share_a_forward_by_turns(void **state) {
  session_store *s = *state;
  session *a = ready(s, 1, 400), *b = ready(s, 2, 400);
  a->cache.rows = b->cache.rows = 0;
  schedule_rotation rotation = {0};
  schedule f = forward(s, &rotation, &unknown);
  assert_int_equal(f.count, 1);
  assert_int_equal(f.picks[0].kind, SCHEDULE_PREFILL);
  assert_int_equal(f.picks[0].rows, ENGINE_CHUNK);
  int32_t first = f.picks[0].slot;
  f = forward(s, &rotation, &unknown);
  assert_int_not_equal(f.picks[0].slot, first);
  s->slots[f.picks[0].slot].cache.rows = 389; /* ten rows left: the rest is for the other one */
  rotation.prefill = first;
  f = forward(s, &rotation, &unknown);
  assert_int_equal(f.count, 2);
  assert_int_equal(f.picks[0].rows, 10);
  assert_int_equal(f.picks[1].rows, ENGINE_CHUNK - 10);
  ready(s, 3, 10);
  f = forward(s, &rotation, &unknown);
  assert_int_equal(f.steps, 1);
  assert_int_equal(f.picks[0].kind, SCHEDULE_STEP);
  assert_int_equal(prompt_rows(&f), POLICY_BESIDE_ROWS);
  const speculation_shared quick = {.costs = known_costs(), .prompt_row_us = {.mean = 1, .count = 1}};
  schedule_forward(s, &quick, &rotation, NOW, &f);
  assert_int_equal(f.steps, 1);
  assert_int_equal(prompt_rows(&f), ENGINE_CHUNK);
}

/* Where the device does best with many rows and nobody is held up, a forward reads as many; of a prompt whose
 * features a draft wants no more than before. */
static void test_a_prompt_alone_is_read_in_large_pieces(void **state) {
  session_store *s = *state;
  const speculation_shared wide = {.prompt_rows = 300};
  session *a = ready(s, 1, 400);
  schedule_rotation rotation = {0};
  schedule f;
  a->cache.rows = 0;
  schedule_forward(s, &wide, &rotation, NOW, &f);
  assert_int_equal(f.count, 1);
  assert_int_equal(f.picks[0].rows, 300);
  a->drafts.features.taps.count = 3;
  session *c = ready(s, 3, 400);
  c->cache.rows = 0;
  c->drafts.features.taps.count = 3;
  schedule_forward(s, &wide, &rotation, NOW, &f);
  assert_int_equal(prompt_rows(&f), ENGINE_CHUNK); /* of both together */
  a->drafts.features.taps.count = c->drafts.features.taps.count = 0;
  c->cache.rows = 399;
  c->finish.reason = 1; /* no more of it */
  session *b = ready(s, 2, 10);
  assert_non_null(session_draft_take(b, 10));
  b->speculation.wait_until_us = NOW + 700; /* its nodes may come at any moment */
  schedule_forward(s, &wide, &rotation, NOW, &f);
  assert_int_equal(f.count, 1);
  assert_int_equal(f.picks[0].rows, ENGINE_CHUNK);
  b->speculation.wait_until_us = 0;
  schedule_forward(s, &wide, &rotation, NOW, &f);
  assert_int_equal(f.steps, 1);
  assert_int_equal(prompt_rows(&f), POLICY_BESIDE_ROWS);
}

/* A session that waits holds up nobody; and when all wait, the earliest end counts. */
static void test_a_session_that_waits_holds_up_nobody(void **state) {
  session_store *s = *state;
  session *a = ready(s, 1, 10), *b = ready(s, 2, 10);
  schedule_rotation rotation = {0};
  assert_non_null(session_draft_take(a, 10));
  a->speculation.wait_until_us = NOW + 700;
  schedule f = forward(s, &rotation, &unknown);
  assert_int_equal(f.count, 1);
  assert_int_equal(s->slots[f.picks[0].slot].id, 2);
  assert_non_null(session_draft_take(b, 11));
  b->speculation.wait_until_us = NOW + 300;
  f = forward(s, &rotation, &unknown);
  assert_int_equal(f.count, 0);
  assert_int_equal(f.until_us, NOW + 300);
}

/* Rows are limited: who would pass that waits for the next forward, and is first there. */
static void test_rows_in_lockstep_are_limited(void **state) {
  (void)state;
  enum { MANY = 6, NODES = 60 };
  session_store many;
  err e = {0};
  assert_int_equal(session_store_init(&many, MANY, CONTEXT, 0, &e), ERR_OK);
  for (int i = 0; i < MANY; i++) {
    session *x = ready(&many, (uint64_t)i + 1, 10);
    x->request.options.budget = NODES;
    x->request.options.lockstep = true;
    add_chain(x, NODES, -0.1f);
    x->drafts.of[0].done_base = 10;
  }
  schedule_rotation rotation = {0};
  schedule f = forward(&many, &rotation, &unknown);
  assert_int_equal(f.count, SCHEDULE_ROWS_MAX / (NODES + 1));
  int32_t last = f.picks[f.count - 1].slot;
  for (int32_t i = 0; i < f.count; i++) assert_int_equal(f.picks[i].rows, NODES);
  f = forward(&many, &rotation, &unknown);
  assert_int_equal(f.picks[0].slot, (last + 1) % MANY);
  session_store_fini(&many);
}

/* A draft that is on, and no prompt, which wants all threads. */
static void test_steps_leave_processors_to_a_draft_beside_them(void **state) {
  schedule_rotation rotation = {0};
  session *x = ready(*state, 1, 10), *other = ready(*state, 2, 10);
  other->speculation.policy = (policy){.state = POLICY_ON};
  x->speculation.policy = (policy){.state = POLICY_OFF, .beside = true};
  assert_false(forward(*state, &rotation, &unknown).beside);
  x->speculation.policy.state = POLICY_ON;
  schedule f = forward(*state, &rotation, &unknown);
  assert_true(f.beside);
  assert_int_equal(f.disturbed, 1);
  other->cache.rows = 3;
  f = forward(*state, &rotation, &unknown);
  assert_int_equal(f.count, 2);
  assert_false(f.beside);
}

static void test_an_empty_store_schedules_nothing(void **state) {
  schedule_rotation rotation = {0};
  schedule f = forward(*state, &rotation, &unknown);
  assert_int_equal(f.count, 0);
  assert_true(f.until_us == UINT64_MAX);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(test_only_a_running_session_without_a_job_is_scheduled),
      CASE(test_one_token_needs_no_prefill),
      CASE(test_a_session_stops_at_its_credit),
      CASE(test_prefill_needs_no_credit),
      CASE(test_the_budget_is_bounded_by_the_room),
      CASE(test_without_a_node_there_is_no_budget),
      CASE(test_staged_rows_fit_the_cache),
      CASE(test_lockstep_waits_for_a_done_mark),
      CASE(test_a_session_waits_for_its_draft),
      CASE(test_a_done_mark_ends_the_wait),
      CASE(test_all_sessions_step_in_one_forward),
      CASE(test_sessions_beyond_a_forward_are_in_the_next_one),
      CASE(test_the_most_probable_nodes_of_all_sessions_are_taken),
      CASE(test_a_pick_carries_its_nodes),
      CASE(test_a_session_starts_with_few_nodes),
      CASE(test_a_prompt_waits_a_moment_for_the_draft_that_is_expected),
      CASE(test_the_end_of_a_prompt_measures_a_verify),
      CASE(test_prompts_share_a_forward_by_turns),
      CASE(test_a_prompt_alone_is_read_in_large_pieces),
      CASE(test_rows_in_lockstep_are_limited),
      CASE(test_a_session_that_waits_holds_up_nobody),
      CASE(test_steps_leave_processors_to_a_draft_beside_them),
      CASE(test_an_empty_store_schedules_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
