/* libs: drafters model : far */
/* The engine of a draft head over a toy head, which makes of a row nothing but a number. Whatever was
 * computed before and in whatever company, a result is what the head says of C's features and the path's own
 * states. */
#include "draft_worker/drafters/eagle3_engine.h"
#include "common/model/kv_rows.h"
#include "tests/support/models.h"
#include "tests/support/random.h"

#include <string.h>

enum { SEQUENCES = 3, CONTEXT = 100, EMBED = 2, MODULUS = 1009, TOKENS = 60, CANDIDATES = 3, DEPTH_MAX = 5 };
enum { PROMPT_LENGTH = 4 };

static const int32_t biased[] = {5, 7};
static const float biases[] = {1, -2};

/* --- the toy --- */

struct draft_head {
  head_config shape;
  float states[DRAFT_JOBS_MAX][MODEL_ROWS_MAX][EMBED];
  ops_ranked ranked[DRAFT_JOBS_MAX][MODEL_ROWS_MAX];
  bool has[DRAFT_JOBS_MAX][MODEL_ROWS_MAX];
  int32_t failures_left, forwards;
  int32_t text[SEQUENCES][CONTEXT + 1], seen[SEQUENCES]; /* what the head was told of each sequence's text */
};

static int32_t state_of(int32_t input, int32_t token, int32_t row) {
  return (7 * input + 31 * token + 101 * row + 5) % MODULUS;
}

static void rank(int32_t state, ops_ranked *out) {
  out->count = CANDIDATES;
  for (int32_t i = 0; i < CANDIDATES; i++)
    out->list[i] = (ranking_token){(state + 13 * i) % TOKENS, (float)(-i)};
}

static int32_t depth_of(const kv_cache *k, int32_t seq, int32_t parent) {
  int32_t depth = 0;
  for (; parent >= 0; parent = kv_parent(k, seq, parent)) depth++;
  return depth;
}

static void compute(draft_head *h, kv_cache *k, const draft_head_segment *m, int32_t segment) {
  const model_segment *r = &m->rows;
  bool below = r->kind == MODEL_TREE;
  assert_int_equal(
      below ? kv_check_tree(k, r->seq, r->parents, r->count) : kv_check_append(k, r->seq, r->count), ERR_OK);
  assert_true(m->input == (below ? DRAFT_HEAD_STATES : DRAFT_HEAD_TAPS));
  for (int32_t i = 0; i < r->count; i++) {
    int32_t row = kv_length(k, r->seq) + (below ? depth_of(k, r->seq, r->parents[i]) : i);
    int32_t state = state_of((int32_t)m->values[i * EMBED], r->tokens[i], row);
    for (int32_t c = 0; c < EMBED; c++) h->states[segment][i][c] = (float)state;
    rank(state, &h->ranked[segment][i]);
    h->has[segment][i] = r->all_logits || (i == r->count - 1 && !r->no_logits);
  }
  bool last = below || !r->no_logits; /* its row is that of the last token of C, or of the path */
  int32_t row = kv_length(k, r->seq) + (below ? depth_of(k, r->seq, r->parents[0]) : r->count - 1);
  int32_t position = r->ranking->history_count - 1 + (below ? r->ranking->paths[0].count : 0);
  assert_true(!last || row + r->shift == position);
  assert_int_equal(h->seen[r->seq], r->ranking->history_count);
  assert_memory_equal(h->text[r->seq], r->ranking->history, (size_t)h->seen[r->seq] * sizeof **h->text);
  assert_int_equal(r->ranking->prompt_count, PROMPT_LENGTH);
  assert_true(r->ranking->bias_count == 2 && r->ranking->bias_tokens == biased);
  assert_true(r->ranking->bias_values == biases);
  if (below)
    kv_staged(k, r->seq);
  else
    kv_appended(k, r->seq, r->count);
}

int draft_head_forward(draft_head *h, kv_cache *k, const draft_head_segment *segments, int32_t count) {
  if (h->failures_left > 0 && h->failures_left--) return ERR_INTERNAL;
  for (int32_t i = 0; i < count; i++) compute(h, k, &segments[i], i);
  h->forwards++;
  return ERR_OK;
}

const ops_ranked *draft_head_ranked(const draft_head *h, int32_t segment, int32_t row) {
  return h->has[segment][row] ? &h->ranked[segment][row] : NULL;
}

void draft_head_clear_text(draft_head *h, int32_t seq) {
  h->seen[seq] = 0;
}

void draft_head_add_text(draft_head *h, int32_t seq, const int32_t *tokens, int32_t count) {
  for (int32_t i = 0; i < count; i++) h->text[seq][h->seen[seq]++] = tokens[i];
}

void draft_head_rank_all(const draft_head *h) {
  (void)h;
}

const float *draft_head_state(const draft_head *h, int32_t segment, int32_t row) {
  return h->states[segment][row];
}

const head_config *draft_head_shape(const draft_head *h) {
  return &h->shape;
}

/* --- the world --- */

typedef struct text { /* one session */
  int32_t tokens[CONTEXT + 1], length, sent;
  int32_t first, next; /* rows that were sent: [first, next) */
  float features[CONTEXT][EMBED];
  int32_t paths[40][DEPTH_MAX], depths[40], path_count; /* that were queried below C as it is */
  bool root;                                            /* C itself was */
} text;

typedef struct world {
  gguf_builder bytes;
  model_file *file;
  model *m;
  kv_cache *kv;
  draft_head head;
  eagle3_engine *g;
  text texts[SEQUENCES];
  uint64_t random;
  uint64_t serial;
  int32_t results, deep, again;
} world;

static int32_t roll(world *w, int32_t below) {
  return (int32_t)random_below(&w->random, (uint32_t)below);
}

static void open_world(world *w) {
  err e = {0};
  w->random = 7;
  w->file = support_tiny_file(&w->bytes);
  w->m = support_open_model(w->file, OPS_MATH_INT8, support_device(), 1);
  w->kv = support_open_cache(w->m, SEQUENCES, CONTEXT, KV_F16);
  w->head.shape.layer.embed = EMBED;
  const eagle3_engine_options o = {
      .head = &w->head, .kv = w->kv, .sequences = SEQUENCES, .length_max = CONTEXT};
  assert_int_equal(eagle3_engine_open(&w->g, &o, &e), ERR_OK);
}

static void close_world(world *w) {
  eagle3_engine_close(w->g);
  kv_close(w->kv);
  support_close_model(w->m);
  model_file_close(w->file);
  gb_free(&w->bytes);
}

static void forget_paths(text *t) {
  t->path_count = 0;
  t->root = false;
}

/* Another C, of which the first `kept` tokens are as they were. */
static void begin(world *w, text *t, int32_t kept) {
  t->length = kept + 2 + roll(w, 20);
  for (int32_t i = kept; i < t->length; i++) t->tokens[i] = roll(w, TOKENS);
  for (int32_t i = kept; i < CONTEXT; i++) t->features[i][0] = t->features[i][1] = (float)roll(w, MODULUS);
  if (t->sent > kept) t->sent = kept;
  if (t->next > t->sent - 1) t->next = t->sent > t->first ? t->sent - 1 : t->first;
  int32_t from = roll(w, t->length - 1); /* rows of C before it that are there stay, without a gap */
  if (from < t->first || from > t->next) t->first = from;
  t->next = from;
  forget_paths(t);
}

static void grow(world *w, text *t) {
  int32_t count = 1 + roll(w, 4);
  if (t->length + count > CONTEXT) return;
  for (int32_t i = 0; i < count; i++) t->tokens[t->length++] = roll(w, TOKENS);
  if (roll(w, 9) == 0 && t->length - 2 > t->next) t->first = t->next = t->length - 2; /* some were lost */
  forget_paths(t);
}

static draft_job *add_job(world *w, draft_batch *b, int32_t slot) {
  text *t = &w->texts[slot];
  draft_job *j = &b->jobs[b->job_count++];
  int32_t left = t->length - t->sent, part = 1 + roll(w, 30);
  *j = (draft_job){.slot = slot,
                   .base = t->sent,
                   .first = b->token_count,
                   .first_query = b->query_count,
                   .sampling = SAMPLER_DEFAULTS,
                   .prompt_length = PROMPT_LENGTH,
                   .bias_tokens = biased,
                   .bias_values = biases,
                   .bias_count = 2};
  j->count = left < part ? left : part;
  memcpy(b->tokens + j->first, t->tokens + t->sent, (size_t)j->count * 4);
  b->token_count += j->count;
  t->sent += j->count;
  j->whole = t->sent == t->length;
  j->feature_base = t->next;
  j->feature_count = t->sent - 1 - t->next > 0 ? 1 + roll(w, t->sent - 1 - t->next) : 0;
  j->features = t->features[t->next];
  j->feature_width = EMBED;
  t->next += j->feature_count;
  return j;
}

static int32_t expected(const text *t, const int32_t *path, int32_t depth) {
  int32_t p = t->length - 2, state = state_of((int32_t)t->features[p][0], t->tokens[p + 1], p - t->first);
  for (int32_t i = 0; i < depth; i++) state = state_of(state, path[i], p - t->first + 1 + i);
  return state;
}

static bool is_path(const text *t, int32_t k, const int32_t *path, int32_t depth) {
  return t->depths[k] == depth && memcmp(t->paths[k], path, (size_t)depth * 4) == 0;
}

/* C, or a child of a path that was queried before. It may have been queried in an earlier batch, too. */
static void add_queries(world *w, draft_batch *b, draft_job *j) {
  text *t = &w->texts[j->slot];
  int32_t known = t->path_count;
  if (t->next < t->length - 1) return;
  for (int32_t i = 0; i < 4; i++) {
    draft_query *q = &b->queries[b->query_count];
    *q = (draft_query){.slot = j->slot, .handle = ++w->serial};
    if (t->root && t->path_count < 40) {
      int32_t of = roll(w, known + 1) - 1, depth = of < 0 ? 0 : t->depths[of],
              *path = t->paths[t->path_count];
      if (depth == DEPTH_MAX) continue;
      for (int32_t k = 0; k < depth; k++) q->path[k] = t->paths[of][k];
      q->path[depth] = (expected(t, q->path, depth) + 13 * roll(w, CANDIDATES)) % TOKENS;
      bool twice = false;
      for (int32_t k = known; k < t->path_count; k++) twice = twice || is_path(t, k, q->path, depth + 1);
      if (twice) continue;
      for (int32_t k = 0; k < known; k++) w->again += is_path(t, k, q->path, depth + 1);
      q->depth = depth + 1;
      memcpy(path, q->path, sizeof t->paths[0]);
      t->depths[t->path_count++] = depth + 1;
    } else if (t->root || i > 0)
      break;
    j->query_count++;
    b->query_count++;
  }
  t->root = t->root || j->query_count > 0;
}

static void one_batch(world *w) {
  static draft_batch b;
  static draft_results r;
  b = (draft_batch){0};
  for (int32_t slot = 0; slot < SEQUENCES; slot++) {
    text *t = &w->texts[slot];
    int32_t what = roll(w, 20);
    if (what == 0 || t->length > CONTEXT - 5)
      begin(w, t, roll(w, t->length > 40 ? 40 : t->length));
    else if (what < 5)
      grow(w, t);
    add_queries(w, &b, add_job(w, &b, slot));
  }
  w->head.failures_left = roll(w, 5) == 0; /* it is repeated, and nobody sees that */
  eagle3_engine_run(w->g, &b, &r);
  assert_int_equal(r.failure_count, 0);
  assert_int_equal(r.result_count, b.query_count);
  for (int32_t i = 0; i < b.query_count; i++) {
    const draft_query *q = &b.queries[i];
    ops_ranked want;
    rank(expected(&w->texts[q->slot], q->path, q->depth), &want);
    assert_int_equal(r.results[i].handle, q->handle);
    assert_int_equal(r.results[i].slot, q->slot);
    assert_int_equal(r.results[i].count, CANDIDATES);
    assert_memory_equal(r.results[i].list, want.list, CANDIDATES * sizeof *want.list);
    w->results++;
    w->deep += q->depth > 2;
  }
}

static void test_candidates_are_the_heads_own(void **state) {
  (void)state;
  world *w = calloc(1, sizeof *w);
  open_world(w);
  for (int32_t i = 0; i < SEQUENCES; i++) begin(w, &w->texts[i], 0);
  for (int32_t i = 0; i < 2000; i++) one_batch(w);
  assert_true(w->results > 2000 && w->deep > 200 && w->again > 200);
  assert_int_equal(eagle3_engine_count(w->g)->failures, 0);
  close_world(w);
  free(w);
}

/* Two sessions, of two tokens and one row each; the second one is queried. */
static draft_batch two_sessions(const float *features) {
  draft_batch b = {.job_count = 2, .query_count = 1, .token_count = 4, .tokens = {10, 11, 10, 12}};
  for (int32_t i = 0; i < 2; i++)
    b.jobs[i] = (draft_job){.slot = i,
                            .first = 2 * i,
                            .count = 2,
                            .query_count = i,
                            .whole = true,
                            .sampling = SAMPLER_DEFAULTS,
                            .prompt_length = PROMPT_LENGTH,
                            .bias_tokens = biased,
                            .bias_values = biases,
                            .bias_count = 2,
                            .features = features,
                            .feature_count = 1,
                            .feature_width = EMBED};
  b.queries[0] = (draft_query){.slot = 1, .handle = 5};
  return b;
}

static void test_a_forward_that_fails_twice_fails_its_sessions(void **state) {
  (void)state;
  world *w = calloc(1, sizeof *w);
  static const float features[EMBED] = {4, 4};
  static draft_results r;
  open_world(w);
  draft_batch b = two_sessions(features);
  w->head.failures_left = 2;
  eagle3_engine_run(w->g, &b, &r);
  assert_int_equal(r.failure_count, 2);
  assert_int_equal(r.failures[0].code, ERR_INTERNAL);
  eagle3_engine_run(w->g, &b, &r);
  assert_int_equal(r.failure_count, 0);
  assert_int_equal(r.results[0].count, CANDIDATES);
  close_world(w);
  free(w);
}

/* A path whose parent was never queried, and features of a position whose next token has not come. */
static void test_what_cannot_be_computed_harms_no_other_session(void **state) {
  (void)state;
  world *w = calloc(1, sizeof *w);
  static const float features[2 * EMBED] = {4, 4, 6, 6};
  static draft_results r;
  open_world(w);
  draft_batch b = two_sessions(features);
  b.jobs[0].feature_count = 2;
  eagle3_engine_run(w->g, &b, &r);
  assert_int_equal(r.failure_count, 1);
  assert_true(r.failures[0].slot == 0 && r.failures[0].code == ERR_LIMIT);
  assert_int_equal(r.results[0].count, CANDIDATES);
  b = (draft_batch){
      .job_count = 1, .query_count = 2, .jobs = {{.slot = 1, .base = 2, .query_count = 2, .whole = true}}};
  b.queries[0] = (draft_query){.slot = 1, .handle = 6, .depth = 2, .path = {1, 2}};
  b.queries[1] = (draft_query){.slot = 1, .handle = 7};
  eagle3_engine_run(w->g, &b, &r);
  assert_int_equal(r.failure_count, 0);
  assert_int_equal(r.results[0].count, 0);
  assert_int_equal(r.results[1].count, CANDIDATES); /* is known still */
  close_world(w);
  free(w);
}

/* The state at hand is that of a row that is gone. */
static void test_nothing_follows_a_shorter_text_before_its_last_row_is_known(void **state) {
  (void)state;
  world *w = calloc(1, sizeof *w);
  static const float features[2 * EMBED] = {4, 4, 6, 6};
  static draft_results r;
  open_world(w);
  draft_batch b = two_sessions(features);
  eagle3_engine_run(w->g, &b, &r);
  draft_job job = b.jobs[1];
  job.base = job.count = 2;
  job.first = 0;
  job.query_count = 0;
  job.feature_base = 1;
  job.feature_count = 2;
  b = (draft_batch){.job_count = 1, .token_count = 2, .jobs = {job}, .tokens = {13, 14}};
  eagle3_engine_run(w->g, &b, &r);
  job = (draft_job){.slot = 1,
                    .base = 3,
                    .query_count = 1,
                    .whole = true,
                    .sampling = SAMPLER_DEFAULTS,
                    .prompt_length = PROMPT_LENGTH,
                    .bias_tokens = biased,
                    .bias_values = biases,
                    .bias_count = 2};
  b = (draft_batch){.job_count = 1, .query_count = 1, .jobs = {job}};
  b.queries[0] = (draft_query){.slot = 1, .handle = 6, .depth = 1, .path = {1}};
  eagle3_engine_run(w->g, &b, &r);
  assert_int_equal(r.failure_count, 0);
  assert_int_equal(r.results[0].count, 0);
  job.query_count = 0;
  job.feature_base = job.feature_count = 1;
  job.features = features;
  job.feature_width = EMBED;
  b.query_count = 0;
  b.jobs[0] = job;
  eagle3_engine_run(w->g, &b, &r);
  b.query_count = b.jobs[0].query_count = 1;
  b.jobs[0].feature_count = 0;
  eagle3_engine_run(w->g, &b, &r);
  assert_int_equal(r.results[0].count, CANDIDATES);
  close_world(w);
  free(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_candidates_are_the_heads_own),
      cmocka_unit_test(test_a_forward_that_fails_twice_fails_its_sessions),
      cmocka_unit_test(test_what_cannot_be_computed_harms_no_other_session),
      cmocka_unit_test(test_nothing_follows_a_shorter_text_before_its_last_row_is_known),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
