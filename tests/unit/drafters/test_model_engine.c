/* libs: drafters model : far */
/* The engine of a draft against the plain way: whatever it was asked before, in whatever company, an answer
 * is what the model says after C and the path, and rows that were computed once are not computed again. */
#include "draft_worker/drafters/model_engine.h"
#include "tests/support/models.h"
#include "tests/support/random.h"

#include <math.h>
#include <string.h>

enum { SEQUENCES = 3, CONTEXT = 120, ROWS_MAX = 6, QUERIED_MAX = 200, SHIFT = 7, MISSING = 3 };

typedef struct known { /* a path that was queried, below C as it is now */
  int32_t path[TREE_DEPTH_MAX], depth;
  draft_result result;
} known;

typedef struct text { /* one session */
  int32_t tokens[CONTEXT], length, sent;
  known queried[QUERIED_MAX];
  int32_t queried_count;
  sampler_options sampling;
  int32_t prompt_length, bias_count, biased[2];
} text;

static const float biases[] = {30, 100};

typedef struct world {
  gguf_builder bytes;
  model_file *file;
  model *m;
  kv_cache *kv, *plain;
  model_engine *g;
  vocabulary_map bridge;
  text texts[SEQUENCES];
  uint64_t random;
  uint64_t serial;
  int32_t kept, results, again;
} world;

static int32_t roll(world *w, int32_t below) {
  return (int32_t)random_below(&w->random, (uint32_t)below);
}

/* The target's token t is the draft's t + SHIFT; a few have no partner. */
static void make_bridge(vocabulary_map *b, bool same) {
  *b = (vocabulary_map){SUPPORT_TINY_VOCAB, SUPPORT_TINY_VOCAB, malloc(SUPPORT_TINY_VOCAB * 4),
                        malloc(SUPPORT_TINY_VOCAB * 4), same};
  for (int32_t t = 0; t < SUPPORT_TINY_VOCAB; t++) {
    int32_t d = same ? t : (t + SHIFT) % SUPPORT_TINY_VOCAB;
    b->to_draft[t] = same || t >= MISSING ? d : -1;
    b->to_target[d] = b->to_draft[t] < 0 ? -1 : t;
  }
}

static void open_world(world *w, bool same) {
  err e = {0};
  w->random = 5;
  w->file = support_tiny_file(&w->bytes);
  w->m = support_open_model(w->file, OPS_MATH_INT8, support_device(), 1);
  w->kv = support_open_cache(w->m, SEQUENCES, CONTEXT, KV_F16);
  w->plain = support_open_cache(w->m, 1, CONTEXT, KV_F16);
  kv_acquire(w->plain);
  make_bridge(&w->bridge, same);
  const model_engine_options o = {
      .model = w->m, .kv = w->kv, .bridge = &w->bridge, .sequences = SEQUENCES, .length_max = CONTEXT};
  assert_int_equal(model_engine_open(&w->g, &o, &e), ERR_OK);
}

static void close_world(world *w) {
  model_engine_close(w->g);
  vocabulary_map_fini(&w->bridge);
  kv_close(w->kv);
  kv_close(w->plain);
  support_close_model(w->m);
  model_file_close(w->file);
  gb_free(&w->bytes);
}

/* A token that the draft has. */
static int32_t some_token(world *w) {
  return MISSING + roll(w, SUPPORT_TINY_VOCAB - MISSING);
}

static void begin(world *w, text *t) {
  *t = (text){.length = 1 + roll(w, 40), .sampling = SAMPLER_DEFAULTS};
  for (int32_t i = 0; i < t->length; i++) t->tokens[i] = some_token(w);
  if (roll(w, 2)) t->sampling.temperature = 0.8f;
  if (roll(w, 3) == 0) t->sampling.top_k = 5;
  if (roll(w, 3) == 0) t->sampling.repeat_penalty = 1.3f;
  if (roll(w, 3) == 0) t->sampling.frequency_penalty = 0.7f;
  if (roll(w, 2)) t->bias_count = 2;
  t->biased[0] = some_token(w);
  t->biased[1] = MISSING - 1; /* the draft does not have it */
  t->prompt_length = 1 + roll(w, t->length);
  t->sampling.seed = (uint64_t)roll(w, 1000);
}

static known *known_path(text *t, const int32_t *path, int32_t depth) {
  for (int32_t i = 0; i < t->queried_count; i++)
    if (t->queried[i].depth == depth && memcmp(t->queried[i].path, path, (size_t)depth * 4) == 0)
      return &t->queried[i];
  return NULL;
}

/* C grows: along a path that was queried, and now and then away from it. Paths below stay. */
static void advance(world *w, text *t) {
  const known *k = t->queried_count ? &t->queried[roll(w, t->queried_count)] : NULL;
  int32_t grown[TREE_DEPTH_MAX], count = 0, depth = k ? k->depth : 0;
  for (; count < depth; count++) grown[count] = k->path[count];
  if (roll(w, 3) == 0) grown[count++] = some_token(w);
  if (count == 0 || t->length + count >= CONTEXT - 8) return;
  w->kept += count == depth && count > 0;
  memcpy(t->tokens + t->length, grown, (size_t)count * 4);
  t->length += count;
  int32_t kept = 0;
  for (int32_t i = 0; i < t->queried_count; i++) {
    known *x = &t->queried[i];
    if (x->depth < count || memcmp(x->path, grown, (size_t)count * 4) != 0) continue;
    known moved = *x;
    moved.depth -= count;
    memmove(moved.path, moved.path + count, (size_t)moved.depth * 4);
    t->queried[kept++] = moved;
  }
  t->queried_count = kept;
}

/* C becomes shorter: what was queried is gone. */
static void shorten(world *w, text *t) {
  t->length = 1 + roll(w, t->length);
  if (t->sent > t->length) t->sent = t->length;
  t->queried_count = 0;
}

static draft_job *add_job(world *w, draft_batch *b, int32_t slot) {
  text *t = &w->texts[slot];
  draft_job *j = &b->jobs[b->job_count++];
  int32_t room = DRAFT_CHUNK - b->token_count, left = t->length - t->sent, part = 1 + roll(w, 60);
  *j = (draft_job){.slot = slot,
                   .base = t->sent,
                   .first = b->token_count,
                   .first_query = b->query_count,
                   .sampling = t->sampling,
                   .prompt_length = t->prompt_length,
                   .bias_tokens = t->biased,
                   .bias_values = biases,
                   .bias_count = t->bias_count};
  j->count = left < part ? left : part;
  if (j->count > room) j->count = room;
  memcpy(b->tokens + j->first, t->tokens + t->sent, (size_t)j->count * 4);
  b->token_count += j->count;
  t->sent += j->count;
  j->whole = t->sent == t->length;
  return j;
}

/* The root if it is not known, else children that known places have proposed, those of earlier batches, too.
 */
static void add_queries(world *w, draft_batch *b, draft_job *j) {
  text *t = &w->texts[j->slot];
  const known *first = &t->queried[t->queried_count], *before;
  for (int32_t tries = 0; tries < ROWS_MAX && j->query_count < ROWS_MAX && t->queried_count < QUERIED_MAX;
       tries++) {
    int32_t path[TREE_DEPTH_MAX] = {0}, depth = 0;
    if (known_path(t, path, 0)) {
      known *k = &t->queried[roll(w, t->queried_count)];
      if (k->result.count == 0 || k->depth >= 12) continue;
      depth = k->depth + 1;
      memcpy(path, k->path, (size_t)k->depth * 4);
      path[depth - 1] = k->result.list[roll(w, k->result.count)].token;
      before = known_path(t, path, depth);
      if (before >= first) continue;
      w->again += before != NULL;
    }
    known *k = &t->queried[t->queried_count++];
    *k = (known){.depth = depth};
    memcpy(k->path, path, sizeof path);
    draft_query *p = &b->queries[b->query_count++];
    *p = (draft_query){.handle = ++w->serial, .depth = depth};
    memcpy(p->path, path, sizeof path);
    j->query_count++;
    if (depth == 0) return;
  }
}

/* What the model says after C and the path, from nothing. */
static void check_result(world *w, const text *t, const draft_query *p, const draft_result *a) {
  int32_t tokens[CONTEXT + TREE_DEPTH_MAX], ids[CONTEXT + TREE_DEPTH_MAX], n = t->length + p->depth;
  float logits[SUPPORT_TINY_VOCAB];
  ranking_token want[DRAFT_CANDIDATES_MAX];
  sampler *s;
  memcpy(tokens, t->tokens, (size_t)t->length * 4);
  memcpy(tokens + t->length, p->path, (size_t)p->depth * 4);
  for (int32_t i = 0; i < n; i++) ids[i] = w->bridge.to_draft[tokens[i]];
  kv_rollback(w->plain, 0, 0);
  support_prefill(w->m, w->plain, 0, ids, n, 64);
  const float *own = model_logits(w->m, 0, (n - 1) % 64);
  for (int32_t i = 0; i < SUPPORT_TINY_VOCAB; i++)
    logits[i] = w->bridge.to_draft[i] < 0 ? -INFINITY : own[w->bridge.to_draft[i]];
  const sampler_row row = {.history = tokens,
                           .history_count = n,
                           .prompt_count = t->prompt_length,
                           .bias_tokens = t->biased,
                           .bias_values = biases,
                           .bias_count = t->bias_count};
  assert_int_equal(sampler_alloc(&s, SUPPORT_TINY_VOCAB), ERR_OK);
  int32_t count = sampler_rank(s, &t->sampling, &row, logits, n, DRAFT_CANDIDATES_MAX, want);
  assert_int_equal(a->count, count);
  assert_memory_equal(a->list, want, (size_t)count * sizeof *want);
  assert_int_equal(sampler_pick(s, &t->sampling, &row, logits, n), a->list[0].token);
  sampler_free(s);
  w->results++;
}

/* A device whose next forwards fail. */
static const device_table *real_table;
static int32_t failures_left;

static ops_code failing_wait(device *d, ops_answer *a) {
  ops_code code = real_table->wait(d, a);
  return failures_left > 0 && failures_left-- ? OPS_FAILED : code;
}

static void run_failing(world *w, const draft_batch *b, draft_results *r, int32_t failures) {
  device *d = model_device(w->m);
  real_table = d->table;
  device_table failing = *real_table;
  failing.wait = failing_wait;
  failures_left = failures;
  d->table = &failing;
  model_engine_run(w->g, b, r);
  d->table = real_table;
}

static void one_batch(world *w) {
  static draft_batch b;
  static draft_results r;
  b.job_count = b.query_count = b.token_count = 0;
  int32_t first_queried[SEQUENCES];
  for (int32_t slot = 0; slot < SEQUENCES; slot++) {
    text *t = &w->texts[slot];
    int32_t what = roll(w, 20);
    if (what < 6)
      advance(w, t);
    else if (what == 6)
      shorten(w, t);
    else if (what == 7 || t->length > CONTEXT - 20)
      begin(w, t);
    first_queried[slot] = t->queried_count;
    draft_job *j = add_job(w, &b, slot);
    if (j->whole) add_queries(w, &b, j);
  }
  uint64_t lines = model_count(w->m).logit_lines;
  run_failing(w, &b, &r, roll(w, 5) == 0);                /* it is repeated, and nobody sees that */
  assert_int_equal(model_count(w->m).logit_lines, lines); /* no logits come to the host */
  assert_int_equal(r.failure_count, 0);
  assert_int_equal(r.result_count, b.query_count);
  for (int32_t i = 0; i < b.job_count; i++)
    for (int32_t k = 0; k < b.jobs[i].query_count; k++) {
      int32_t at = b.jobs[i].first_query + k;
      text *t = &w->texts[b.jobs[i].slot];
      assert_int_equal(r.results[at].handle, b.queries[at].handle);
      check_result(w, t, &b.queries[at], &r.results[at]);
      t->queried[first_queried[b.jobs[i].slot] + k].result = r.results[at];
    }
}

static void check_results(bool same) {
  world *w = calloc(1, sizeof *w);
  open_world(w, same);
  for (int32_t i = 0; i < SEQUENCES; i++) begin(w, &w->texts[i]);
  for (int32_t i = 0; i < 400; i++) one_batch(w);
  const model_engine_counters *c = model_engine_count(w->g);
  assert_true(w->results > 500 && w->kept > 50 && w->again > 50);
  assert_true(c->kept_rows >= (uint64_t)w->kept); /* what was taken of the stage was not computed again */
  assert_int_equal(c->failures, 0);
  close_world(w);
  free(w);
}

static void test_candidates_of_the_same_vocabulary_are_the_models_own(void **state) {
  (void)state;
  check_results(true);
}

static void test_candidates_through_a_bridge_are_the_models_own(void **state) {
  (void)state;
  check_results(false);
}

/* A committed token that the draft lacks: that session is given up, beside it the others go on. */
static void test_a_token_without_partner_fails_its_session_alone(void **state) {
  (void)state;
  world *w = calloc(1, sizeof *w);
  static draft_batch b;
  static draft_results r;
  open_world(w, false);
  b = (draft_batch){.job_count = 2, .query_count = 2, .token_count = 4, .tokens = {10, 11, 10, 1}};
  b.jobs[0] =
      (draft_job){.slot = 0, .count = 2, .query_count = 1, .whole = true, .sampling = SAMPLER_DEFAULTS};
  b.jobs[1] = (draft_job){.slot = 1,
                          .first = 2,
                          .count = 2,
                          .first_query = 1,
                          .query_count = 1,
                          .whole = true,
                          .sampling = SAMPLER_DEFAULTS};
  model_engine_run(w->g, &b, &r);
  assert_int_equal(r.failure_count, 1);
  assert_int_equal(r.failures[0].slot, 1);
  assert_int_equal(r.failures[0].code, ERR_MISMATCH);
  assert_int_equal(r.results[0].count, DRAFT_CANDIDATES_MAX);
  assert_int_equal(r.results[1].count, 0);
  close_world(w);
  free(w);
}

/* Those of that forward alone, and only then. */
static void test_a_forward_that_fails_twice_fails_its_sessions(void **state) {
  (void)state;
  world *w = calloc(1, sizeof *w);
  static draft_batch b;
  static draft_results r;
  open_world(w, true);
  b = (draft_batch){.job_count = 1, .query_count = 1, .token_count = 2, .tokens = {10, 11}};
  b.jobs[0] =
      (draft_job){.slot = 0, .count = 2, .query_count = 1, .whole = true, .sampling = SAMPLER_DEFAULTS};
  run_failing(w, &b, &r, 2);
  assert_int_equal(r.failure_count, 1);
  assert_int_equal(r.failures[0].code, ERR_INTERNAL);
  run_failing(w, &b, &r, 0);
  assert_int_equal(r.failure_count, 0);
  assert_int_equal(r.results[0].count, DRAFT_CANDIDATES_MAX);
  close_world(w);
  free(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_candidates_of_the_same_vocabulary_are_the_models_own),
      cmocka_unit_test(test_candidates_through_a_bridge_are_the_models_own),
      cmocka_unit_test(test_a_token_without_partner_fails_its_session_alone),
      cmocka_unit_test(test_a_forward_that_fails_twice_fails_its_sessions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
