/* libs: target : far */
/* The engine against plain decoding done here, by the model and the sampler alone. */
#include "target_worker/engine.h"
#include "tests/support/count_malloc.h"
#include "tests/support/models.h"
#include "tests/support/random.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define CONTEXT 400
#define PROMPT  20
#define OUTPUT  200
#define SLOTS   6

typedef struct setup {
  gguf_builder bytes;
  model_file *file;
  model *model;
  kv_cache *kv;
  engine *engine;
  mem mem;
} setup;

static bool virtual_cache; /* what the tests run over */
enum { SEQUENCES = SLOTS + 1, EACH = (CONTEXT + KV_BLOCK - 1) / KV_BLOCK };

/* The i-th block of a sequence, which lie apart from each other. */
static int32_t block_of(int32_t seq, int32_t i) {
  return i * SEQUENCES + seq;
}

static void map_sequence(kv_cache *kv, int32_t seq) {
  int32_t blocks[EACH];
  for (int32_t i = 0; i < EACH; i++) blocks[i] = block_of(seq, i);
  if (virtual_cache) kv_map(kv, seq, blocks, EACH, 0);
}

static setup *open_setup(const char *fault) {
  setup *s = calloc(1, sizeof *s);
  err e = {0};
  s->file = support_tiny_file(&s->bytes);
  device *d = support_open_device(support_device(), OPS_MATH_INT8, 2, &s->mem);
  if (model_open(&s->model, s->file, d, &(model_options){0}, &s->mem, &e)) fail_msg("%s", e.text);
  kv_options ko = {.sequences = SLOTS + 1, .context = CONTEXT, .type = KV_F16};
  if (virtual_cache) ko.blocks = SEQUENCES * EACH;
  if (kv_open(&s->kv, d, model_shape(s->model), &ko, &s->mem, &e)) fail_msg("%s", e.text);
  engine_options o = {.model = s->model, .kv = s->kv, .sequences = SLOTS};
  if (engine_fault_parse(&o.fault, fault, &e)) fail_msg("%s", e.text);
  if (engine_open(&s->engine, &o, &e)) fail_msg("%s", e.text);
  for (int32_t i = 0; i < SLOTS; i++) map_sequence(s->kv, i); /* the engine has taken these, in order */
  return s;
}

static void close_setup(setup *s) {
  engine_close(s->engine);
  kv_close(s->kv);
  support_close_model(s->model);
  model_file_close(s->file);
  gb_free(&s->bytes);
  free(s);
}

/* --- grammars, over a vocabulary of one to three letters a token --- */

enum { STOP = SUPPORT_TINY_VOCAB }; /* none: the answers go on */
static grammar_vocabulary *vocabulary;

static const char *letters(const void *context, int32_t id, size_t *size) {
  static char bytes[3];
  (void)context;
  *size = (size_t)(1 + id % 3);
  for (size_t i = 0; i < *size; i++) bytes[i] = (char)('a' + (id / 3 + 7 * (int32_t)i) % 26);
  return bytes;
}

static int open_vocabulary(void **state) {
  err e;
  (void)state;
  return grammar_vocabulary_make(&vocabulary, SUPPORT_TINY_VOCAB, letters, NULL, &e);
}

static int close_vocabulary(void **state) {
  (void)state;
  grammar_vocabulary_free(vocabulary);
  return 0;
}

static grammar_matcher *open_grammar(const char *rules) {
  static const int32_t stops[] = {STOP};
  grammar *g;
  grammar_matcher *m;
  err e;
  assert_int_equal(grammar_read(&g, rules, strlen(rules), &e), ERR_OK);
  assert_int_equal(grammar_matcher_open(&m, g, vocabulary, stops, 1, &e), ERR_OK);
  return m;
}

/* --- the reference: prompt and output of plain decoding --- */

/* Where a text is biased. */
static const int32_t biased[] = {3, 9, SUPPORT_TINY_VOCAB};
static const float biases[] = {-100, 1.5f, 100};

enum { LOGPROBS = 4 };

typedef struct text {
  sampler_options sampling;
  bool has_bias;
  grammar_matcher *grammar; /* NULL: none */
  int32_t tokens[PROMPT + OUTPUT];
  int32_t logprobs_wanted;
  ranking_token logprobs[PROMPT + OUTPUT][LOGPROBS];
} text;

/* By the tokens that the grammar allows, all of them. */
static text make_text_by(setup *s, sampler_options sampling, grammar_matcher *m) {
  text t = {.grammar = m, .sampling = sampling, .has_bias = sampling.presence_penalty != 0};
  uint64_t state = 11;
  sampler *pick;
  int32_t seq = kv_acquire(s->kv); /* the one that the engine did not take */
  assert_true(seq >= 0);
  map_sequence(s->kv, seq);
  assert_int_equal(sampler_alloc(&pick, SUPPORT_TINY_VOCAB), ERR_OK);
  for (int32_t i = 0; i < PROMPT; i++)
    t.tokens[i] = (int32_t)random_below(&state, (uint32_t)SUPPORT_TINY_VOCAB);
  for (int32_t i = 0; i < PROMPT + OUTPUT - 1; i++) {
    model_segment one = {.seq = seq, .kind = MODEL_APPEND, .count = 1, .tokens = &t.tokens[i]};
    assert_int_equal(model_forward(s->model, s->kv, &one, 1), ERR_OK);
    sampler_row row = {.history = t.tokens,
                       .history_count = i + 1,
                       .prompt_count = PROMPT,
                       .bias_tokens = biased,
                       .bias_values = biases,
                       .bias_count = t.has_bias ? 3 : 0};
    if (i + 1 < PROMPT) continue;
    const float *logits = model_logits(s->model, 0, 0);
    if (m) {
      assert_int_equal(grammar_matcher_move(m, t.tokens + PROMPT, i + 1 - PROMPT, NULL, 0), ERR_OK);
      row.mask = grammar_matcher_mask(m);
    }
    int32_t token = sampler_pick(pick, &sampling, &row, logits, i + 1);
    t.tokens[i + 1] = token < 0 ? 0 : token; /* the grammar allows none: nobody gets so far */
    sampler_logprobs(pick, logits, t.tokens[i + 1], LOGPROBS - 1, t.logprobs[i + 1]);
  }
  sampler_free(pick);
  kv_release(s->kv, seq);
  return t;
}

static text make_text(setup *s, sampler_options sampling) {
  return make_text_by(s, sampling, NULL);
}

/* --- jobs --- */

static engine_job job_from(const text *t, int32_t slot, int32_t kv_length) {
  return (engine_job){.kind = ENGINE_VERIFY,
                      .slot = slot,
                      .kv_length = kv_length,
                      .count = 1,
                      .tokens = {t->tokens[kv_length]},
                      .parents = {-1},
                      .sampling = t->sampling,
                      .history = sampler_penalises(&t->sampling) || t->grammar ? t->tokens : NULL,
                      .grammar = t->grammar,
                      .prompt_length = PROMPT,
                      .logprobs = t->logprobs_wanted,
                      .bias_tokens = biased,
                      .bias_values = biases,
                      .bias_count = t->has_bias ? 3 : 0,
                      .sampled_max = ENGINE_ROWS_MAX};
}

static engine_results run_all(setup *s, const engine_batch *batch) {
  engine_results r;
  engine_run(s->engine, batch, &r);
  assert_int_equal(r.count, batch->count);
  for (int32_t i = 0; i < r.count; i++) {
    assert_int_equal(r.of[i].kind, batch->jobs[i].kind);
    assert_int_equal(r.of[i].serial, batch->jobs[i].serial);
  }
  return r;
}

static engine_result run(setup *s, const engine_job *job) {
  engine_batch one = {.count = 1, .jobs = {*job}};
  return run_all(s, &one).of[0];
}

static void prefill(setup *s, const text *t, int32_t slot, int32_t from, int32_t to) {
  engine_job job = {.kind = ENGINE_PREFILL, .slot = slot, .kv_length = from, .count = to - from};
  memcpy(job.tokens, t->tokens + from, (size_t)(to - from) * sizeof *job.tokens);
  engine_result r = run(s, &job);
  assert_int_equal(r.code, ERR_OK);
  assert_int_equal(r.kv_length, to);
}

static void add_node(engine_job *job, int32_t parent, int32_t token) {
  job->tokens[job->count] = token;
  job->parents[job->count++] = parent;
}

/* The right tokens up to `depth`, each after a wrong sibling with a child of its own. */
static int32_t add_tree(engine_job *job, const text *t, int32_t depth) {
  int32_t last = 0;
  for (int32_t i = 1; i <= depth && job->kv_length + i < PROMPT + OUTPUT; i++) {
    int32_t right = t->tokens[job->kv_length + i];
    add_node(job, last, (right + 1) % SUPPORT_TINY_VOCAB);
    add_node(job, job->count - 1, right);
    add_node(job, last, right);
    last = job->count - 1;
  }
  return last;
}

static void assert_tokens(const text *t, int32_t base, const engine_result *r) {
  assert_int_equal(r->code, ERR_OK);
  for (int32_t i = 0; i < r->sampled_count && base + i < PROMPT + OUTPUT; i++)
    assert_int_equal(r->sampled[i], t->tokens[base + i]);
  assert_true((r->logprobs != NULL) == (t->logprobs_wanted > 0));
  for (int32_t i = 0; r->logprobs && i < r->sampled_count && base + i < PROMPT + OUTPUT; i++)
    assert_memory_equal(r->logprobs + i * t->logprobs_wanted, t->logprobs[base + i],
                        (size_t)t->logprobs_wanted * sizeof **t->logprobs);
}

/* --- tests --- */

static const sampler_options samplings[] = {
    {.temperature = 0, .top_p = 1, .repeat_penalty = 1},
    {.temperature = 0.9f, .top_p = 0.95f, .repeat_penalty = 1, .seed = 7},
    {.temperature = 0.8f,
     .top_p = 1,
     .top_k = 40,
     .repeat_penalty = 1.3f,
     .seed = 1234567890123u,
     .choice = 2},
    {.temperature = 0.8f, .top_p = 1, .repeat_penalty = 1, .seed = 99, .choice = 1}, /* the forward chooses */
    {.temperature = 0, .top_p = 0.5f, .top_k = 3, .repeat_penalty = 1}, /* nor here: greedy wants no filter */
    {.temperature = 1.5f, .top_p = 1, .top_k = SUPPORT_TINY_VOCAB, .repeat_penalty = 1.0f, .seed = 3},
    {.temperature = 0, .top_p = 1, .repeat_penalty = 1.2f},
    {.temperature = 0, .top_p = 1, .repeat_penalty = 1, .frequency_penalty = 1.7f},
    {.temperature = 0.7f,
     .top_p = 1,
     .repeat_penalty = 1.1f,
     .presence_penalty = 1.3f,
     .frequency_penalty = 0.6f,
     .seed = 4},
};

/* Whatever stands in the trees, the tokens are those of plain decoding. */
static void trees_give_the_plain_tokens(void **state) {
  (void)state;
  setup *s = open_setup(NULL);
  for (size_t k = 0; k < 2 * sizeof samplings / sizeof *samplings; k++) {
    text t = make_text(s, samplings[k / 2]);
    t.logprobs_wanted = k % 2 ? LOGPROBS - (int32_t)k % 3 : 0;
    int32_t length = PROMPT, rounds = 0, accepted = 0;
    prefill(s, &t, 1, 0, PROMPT - 1);
    while (length < PROMPT + OUTPUT - 8) {
      engine_job job = job_from(&t, 1, length - 1);
      job.serial = (uint64_t)length;
      int32_t depth = rounds % 6, expected = depth + 1;
      if (rounds % 3 == 2) { /* nothing but wrong ones */
        for (int32_t i = 0; i < depth; i++)
          add_node(&job, i, (t.tokens[length + i] + 1) % SUPPORT_TINY_VOCAB);
        expected = 1;
      } else {
        add_tree(&job, &t, depth);
      }
      job.selfcheck = rounds % 4 == 0;
      engine_result r = run(s, &job);
      assert_tokens(&t, length, &r);
      assert_int_equal(r.sampled_count, expected);
      assert_int_equal(r.node_count, job.count - 1);
      assert_int_equal(r.kv_length, length - 1 + expected);
      assert_false(r.selfcheck_differs);
      length += r.sampled_count;
      accepted += r.sampled_count - 1;
      rounds++;
    }
    assert_true(accepted > 30);
  }
  const engine_counters *n = engine_count(s->engine);
  assert_int_equal(n->tokens, n->forwards + n->accepted);
  assert_true(n->selfchecks > 10);
  close_setup(s);
}

/* Each node of a tree has the grammar's state of its own path. */
static void trees_give_the_plain_tokens_of_a_grammar(void **state) {
  static const char *const rules[] = {"root ::= ([a-m] [n-z])*",
                                      "root ::= (\"ah\" | [c-t]{1,4} \"u\" | [v-z])*",
                                      "root ::= r root\nr ::= [a-h] r [p-z] | [i-o]"};
  (void)state;
  setup *s = open_setup(NULL);
  for (size_t k = 0; k < 3 * sizeof samplings / sizeof *samplings; k++) {
    grammar_matcher *m = open_grammar(rules[k % 3]);
    text t = make_text_by(s, samplings[k / 3], m);
    t.logprobs_wanted = k % 2 ? LOGPROBS : 0;
    int32_t length = PROMPT, accepted = 0;
    prefill(s, &t, 1, 0, PROMPT - 1);
    for (int32_t round = 0; length < PROMPT + OUTPUT - 8; round++) {
      engine_job job = job_from(&t, 1, length - 1);
      add_tree(&job, &t, round % 6);
      job.selfcheck = round % 4 == 0;
      engine_result r = run(s, &job);
      assert_tokens(&t, length, &r);
      assert_int_equal(r.sampled_count, round % 6 + 1);
      assert_false(r.selfcheck_differs);
      length += r.sampled_count;
      accepted += r.sampled_count - 1;
    }
    assert_true(accepted > 30);
    grammar_matcher_close(m);
  }
  close_setup(s);
}

/* Where a grammar allows no token, the answer is over: what came before it is kept. */
static void a_grammar_may_allow_no_token(void **state) {
  (void)state;
  setup *s = open_setup(NULL);
  grammar_matcher *m = open_grammar("root ::= [a-z] [a-z]{2}{2} \"1\"");
  text t = make_text_by(s, samplings[0], m);
  int32_t letters_left = 5, fitting = 0;
  while (letters_left > 0) letters_left -= 1 + t.tokens[PROMPT + fitting++] % 3;
  assert_true(letters_left == 0 && fitting > 1);
  prefill(s, &t, 0, 0, PROMPT - 1);
  engine_job job = job_from(&t, 0, PROMPT - 1);
  add_tree(&job, &t, fitting);
  engine_result r = run(s, &job);
  assert_tokens(&t, PROMPT, &r);
  assert_int_equal(r.sampled_count, fitting);
  assert_int_equal(r.kv_length, PROMPT - 1 + fitting);
  for (int32_t nodes = 0; nodes < 3; nodes++) { /* plainly, and with nodes */
    job = job_from(&t, 0, PROMPT - 1 + fitting);
    add_tree(&job, &t, nodes);
    r = run(s, &job);
    assert_int_equal(r.code, ERR_LIMIT);
    assert_int_equal(r.sampled_count, 0);
    assert_int_equal(r.kv_length, PROMPT - 1 + fitting);
  }
  assert_int_equal(engine_count(s->engine)->failures, 0);
  grammar_matcher_close(m);
  close_setup(s);
}

/* Whatever the filters and penalties are, tokens come from the device, not logits. */
static void no_logits_come_to_the_host(void **state) {
  (void)state;
  static const bool ranked[] = {false, true, true, false, false, false, true, true, true};
  setup *s = open_setup(NULL);
  for (size_t k = 0; k < sizeof samplings / sizeof *samplings; k++) {
    text t = make_text(s, samplings[k]);
    prefill(s, &t, 0, 0, PROMPT - 1);
    uint64_t lines = model_count(s->model).logit_lines;
    assert_true(lines > 0); /* the reference's */
    engine_job job = job_from(&t, 0, PROMPT - 1);
    engine_result r = run(s, &job);
    assert_tokens(&t, PROMPT, &r);
    job = job_from(&t, 0, PROMPT);
    int32_t last = add_tree(&job, &t, 2);
    r = run(s, &job);
    assert_int_equal(r.sampled_count, 3);
    assert_tokens(&t, PROMPT + 1, &r);
    assert_int_equal(model_sampled(s->model, 0, last) >= 0, !ranked[k]);
    assert_int_equal(model_ranked(s->model, 0, last) != NULL, ranked[k]);
    assert_null(model_logits(s->model, 0, last));
    assert_int_equal(model_count(s->model).logit_lines, lines);
  }
  close_setup(s);
}

/* A piece of a prompt that is measured does the work of a verify of as many rows, and changes no token. */
static void a_measured_piece_chooses_tokens(void **state) {
  (void)state;
  setup *s = open_setup(NULL);
  text t = make_text(s, samplings[0]);
  prefill(s, &t, 0, 0, PROMPT - 5);
  uint64_t before = model_count(s->model).logit_rows;
  engine_job job = {.kind = ENGINE_PREFILL, .slot = 0, .kv_length = PROMPT - 5, .count = 4, .measures = true};
  memcpy(job.tokens, t.tokens + PROMPT - 5, 4 * sizeof *job.tokens);
  engine_result r = run(s, &job);
  assert_int_equal(r.code, ERR_OK);
  assert_int_equal(r.kv_length, PROMPT - 1);
  assert_int_equal(r.sampled_count, 0);
  assert_int_equal(model_count(s->model).logit_rows, before + 4);
  job = job_from(&t, 0, PROMPT - 1);
  add_tree(&job, &t, 3);
  r = run(s, &job);
  assert_tokens(&t, PROMPT, &r);
  close_setup(s);
}

/* Plain and with trees, greedy and sampled. */
static void a_round_allocates_nothing(void **state) {
  (void)state;
  if (strncmp(support_device(), "cuda", 4) == 0) skip(); /* a GPU's driver takes memory of its own */
  setup *s = open_setup(NULL);
  for (size_t k = 0; k < sizeof samplings / sizeof *samplings; k++) {
    text t = make_text(s, samplings[k]);
    prefill(s, &t, 0, 0, PROMPT - 1);
    unsigned long before = 0;
    int32_t length = PROMPT;
    for (int32_t i = 0; i < 20; i++) {
      if (i == 4) before = malloc_calls(); /* the widest tree has been there */
      engine_job job = job_from(&t, 0, length - 1);
      add_tree(&job, &t, i % 4);
      engine_result r = run(s, &job);
      assert_tokens(&t, length, &r);
      length += r.sampled_count;
    }
    assert_int_equal(malloc_calls() - before, 0);
  }
  assert_true(!COUNT_MALLOC || malloc_calls() > 0);
  close_setup(s);
}

static int32_t told; /* what the device was told: 1, another program computes; 0, none does; -1, nothing */

static void note_beside(device *d, bool another) {
  (void)d;
  told = another;
}

static void the_device_learns_who_computes_beside_it(void **state) {
  (void)state;
  setup *s = open_setup(NULL);
  text t = make_text(s, samplings[0]);
  device *d = model_device(s->model);
  const device_table *real = d->table;
  device_table noted = *real;
  noted.beside = note_beside;
  d->table = &noted;
  prefill(s, &t, 0, 0, PROMPT - 1);
  for (int beside = 1; beside >= 0; beside--) {
    engine_batch one = {.count = 1, .beside = beside, .jobs = {job_from(&t, 0, PROMPT - beside)}};
    told = -1;
    run_all(s, &one);
    assert_int_equal(told, beside);
  }
  d->table = real;
  close_setup(s);
}

/* Off means untouched. */
static void plain_steps_touch_no_staging(void **state) {
  (void)state;
  setup *s = open_setup(NULL);
  text t = make_text(s, samplings[0]);
  prefill(s, &t, 0, 0, PROMPT - 1);
  for (int32_t length = PROMPT; length < PROMPT + 50; length++) {
    engine_job job = job_from(&t, 0, length - 1);
    engine_result r = run(s, &job);
    assert_int_equal(r.sampled_count, 1);
    assert_tokens(&t, length, &r);
  }
  kv_counters k = kv_count(s->kv);
  assert_int_equal(k.stage_operations, 0);
  assert_int_equal(k.staged_rows, 0);
  assert_int_equal(k.committed_rows, 0);
  assert_int_equal(model_count(s->model).staged_rows, 0);
  assert_int_equal(model_count(s->model).commit_copies, 0);
  assert_int_equal(atomic_load(&s->mem.calls[MEM_SPECULATION]), 0);
  engine_job job = job_from(&t, 0, PROMPT + 49);
  add_tree(&job, &t, 2);
  run(s, &job);
  assert_true(kv_count(s->kv).staged_rows > 0);
  assert_true(atomic_load(&s->mem.calls[MEM_SPECULATION]) > 0);
  close_setup(s);
}

static void a_longer_cache_is_rolled_back(void **state) {
  (void)state;
  setup *s = open_setup(NULL);
  text t = make_text(s, samplings[0]);
  text other = t;
  for (int32_t i = 10; i < PROMPT; i++) other.tokens[i] = (t.tokens[i] + 3) % SUPPORT_TINY_VOCAB;
  prefill(s, &other, 0, 0, PROMPT - 1);
  prefill(s, &t, 0, 10, PROMPT - 1);
  engine_job job = job_from(&t, 0, PROMPT - 1);
  add_tree(&job, &t, 3);
  engine_result r = run(s, &job);
  assert_int_equal(r.sampled_count, 4);
  assert_tokens(&t, PROMPT, &r);
  job = job_from(&t, 0, PROMPT - 1); /* the same again: the rows of the round above go */
  r = run(s, &job);
  assert_int_equal(r.kv_length, PROMPT);
  assert_tokens(&t, PROMPT, &r);
  close_setup(s);
}

static void a_shorter_cache_is_desync(void **state) {
  (void)state;
  setup *s = open_setup(NULL);
  text t = make_text(s, samplings[0]);
  prefill(s, &t, 0, 0, 12);
  engine_job job = job_from(&t, 0, PROMPT - 1);
  engine_result r = run(s, &job);
  assert_int_equal(r.code, ERR_DESYNC);
  assert_int_equal(r.kv_length, 12);
  assert_int_equal(r.sampled_count, 0);
  prefill(s, &t, 0, 12, PROMPT - 1);
  r = run(s, &job);
  assert_tokens(&t, PROMPT, &r);
  close_setup(s);
}

static void stops_and_limits_cut_the_chain(void **state) {
  (void)state;
  setup *s = open_setup(NULL);
  text t = make_text(s, samplings[1]);
  prefill(s, &t, 0, 0, PROMPT - 1);
  engine_job job = job_from(&t, 0, PROMPT - 1);
  add_tree(&job, &t, 8);
  job.sampled_max = 3;
  engine_result r = run(s, &job);
  assert_int_equal(r.sampled_count, 3);
  assert_int_equal(r.kv_length, PROMPT - 1 + 3);
  assert_tokens(&t, PROMPT, &r);

  job = job_from(&t, 0, PROMPT + 2);
  add_tree(&job, &t, 8);
  job.stops[0] = -5;
  job.stops[1] = t.tokens[PROMPT + 3 + 4];
  job.stop_count = 2;
  int32_t first = 0; /* the stop may come earlier by chance */
  while (t.tokens[PROMPT + 3 + first] != job.stops[1]) first++;
  r = run(s, &job);
  assert_int_equal(r.sampled_count, first + 1);
  assert_tokens(&t, PROMPT + 3, &r);
  close_setup(s);
}

static void a_failed_verify_leaves_nothing(void **state) {
  (void)state;
  setup *s = open_setup("verify-error:2");
  text t = make_text(s, samplings[0]);
  prefill(s, &t, 0, 0, PROMPT - 1);
  engine_job job = job_from(&t, 0, PROMPT - 1);
  add_tree(&job, &t, 2);
  engine_result r = run(s, &job);
  assert_int_equal(r.sampled_count, 3);
  job = job_from(&t, 0, PROMPT + 2);
  r = run(s, &job); /* without nodes: not counted */
  assert_int_equal(r.code, ERR_OK);
  job = job_from(&t, 0, PROMPT + 3);
  add_tree(&job, &t, 2);
  r = run(s, &job);
  assert_int_equal(r.code, ERR_INTERNAL);
  assert_int_equal(r.kv_length, PROMPT + 3);
  assert_int_equal(r.sampled_count, 0);
  assert_int_equal(r.node_count, 6);
  r = run(s, &job); /* once only */
  assert_int_equal(r.sampled_count, 3);
  assert_tokens(&t, PROMPT + 4, &r);
  assert_int_equal(engine_count(s->engine)->failures, 1);

  job = job_from(&t, 0, PROMPT + 6); /* refused by the forward, when the stage is open already */
  add_tree(&job, &t, 2);
  add_node(&job, 0, SUPPORT_TINY_VOCAB);
  assert_int_equal(run(s, &job).code, ERR_INTERNAL);
  job.count--;
  r = run(s, &job);
  assert_int_equal(r.sampled_count, 3);
  assert_tokens(&t, PROMPT + 7, &r);
  close_setup(s);
}

/* The logprobs of the token after `count` rows of a prompt, and of its alternatives. */
static void next_of(setup *s, int32_t slot, int32_t count, ranking_token to[LOGPROBS]) {
  const engine_job job = {.kind = ENGINE_VERIFY,
                          .slot = slot,
                          .kv_length = count,
                          .count = 1,
                          .tokens = {1},
                          .parents = {-1},
                          .sampling = samplings[0],
                          .prompt_length = count + 1,
                          .logprobs = LOGPROBS,
                          .sampled_max = 1};
  const engine_result r = run(s, &job);
  assert_int_equal(r.code, ERR_OK);
  memcpy(to, r.logprobs, LOGPROBS * sizeof *to);
}

/* As a device reads a prompt that does best with many rows (device.h: prompt_rows), and as others do. */
static void a_large_piece_of_a_prompt_equals_small_ones(void **state) {
  (void)state;
  enum { ROWS = 300 };
  setup *s = open_setup(NULL);
  engine_job whole = {.kind = ENGINE_PREFILL, .slot = 0, .count = ROWS};
  for (int32_t i = 0; i < ROWS; i++) whole.tokens[i] = (i * 7 + 3) % SUPPORT_TINY_VOCAB;
  engine_result r = run(s, &whole);
  assert_int_equal(r.code, ERR_OK);
  assert_int_equal(r.kv_length, ROWS);
  for (int32_t from = 0; from < ROWS; from += ENGINE_CHUNK) {
    engine_job piece = {.kind = ENGINE_PREFILL, .slot = 1, .kv_length = from};
    piece.count = ROWS - from < ENGINE_CHUNK ? ROWS - from : ENGINE_CHUNK;
    memcpy(piece.tokens, whole.tokens + from, (size_t)piece.count * sizeof *piece.tokens);
    assert_int_equal(run(s, &piece).code, ERR_OK);
  }
  ranking_token after[2][LOGPROBS];
  for (int32_t slot = 0; slot < 2; slot++) next_of(s, slot, ROWS, after[slot]);
  assert_memory_equal(after[0], after[1], sizeof after[0]);
  close_setup(s);
}

/* Not a fault on purpose: the context is full. */
static void a_full_context_is_an_error(void **state) {
  (void)state;
  setup *s = open_setup(NULL);
  text t = make_text(s, samplings[0]);
  engine_job fill = {.kind = ENGINE_PREFILL, .slot = 0, .count = ENGINE_CHUNK};
  for (fill.kv_length = 0; fill.kv_length < CONTEXT; fill.kv_length += fill.count) {
    if (fill.count > CONTEXT - fill.kv_length) fill.count = CONTEXT - fill.kv_length;
    assert_int_equal(run(s, &fill).code, ERR_OK);
  }
  engine_job job = job_from(&t, 0, 0);
  job.kv_length = CONTEXT;
  assert_int_equal(run(s, &job).code, ERR_INTERNAL);
  add_node(&job, 0, 1);
  engine_result r = run(s, &job);
  assert_int_equal(r.code, ERR_INTERNAL);
  assert_int_equal(r.kv_length, CONTEXT);
  close_setup(s);
}

static void a_rollback_behind_the_back_is_seen(void **state) {
  (void)state;
  setup *s = open_setup("kv-rollback:3:5");
  text t = make_text(s, samplings[0]);
  prefill(s, &t, 0, 0, PROMPT - 1);
  for (int32_t i = 0; i < 4; i++) {
    int32_t length = PROMPT - 1 + i;
    if (i == 3) prefill(s, &t, 0, PROMPT + 1 - 5, length);
    engine_job job = job_from(&t, 0, length);
    engine_result r = run(s, &job);
    assert_int_equal(r.code, i == 2 ? ERR_DESYNC : ERR_OK);
    if (i == 2) assert_int_equal(r.kv_length, length - 5);
    if (i != 2) assert_tokens(&t, length + 1, &r);
  }
  close_setup(s);
}

static void selfcheck_finds_a_wrong_token(void **state) {
  (void)state;
  for (int checked = 0; checked < 2; checked++) {
    setup *s = open_setup("wrong-token:1");
    text t = make_text(s, samplings[2]);
    prefill(s, &t, 0, 0, PROMPT - 1);
    engine_job job = job_from(&t, 0, PROMPT - 1);
    add_tree(&job, &t, 4);
    job.selfcheck = checked;
    engine_result r = run(s, &job);
    assert_int_equal(r.selfcheck_differs, checked);
    if (checked) { /* the plain token wins, and what stood on the wrong one is gone */
      assert_int_equal(r.sampled_count, 1);
      assert_tokens(&t, PROMPT, &r);
      assert_int_equal(r.kv_length, PROMPT);
    } else {
      assert_int_not_equal(r.sampled[0], t.tokens[PROMPT]);
    }
    close_setup(s);
  }
}

/* Sessions that step plainly, verify, check themselves, read a prompt and have lost rows: in one forward,
 * each as if it were alone. */
static void a_batch_is_one_forward(void **state) {
  (void)state;
  setup *s = open_setup("verify-error:5");
  text greedy = make_text(s, samplings[0]), sampled = make_text(s, samplings[1]),
       penalised = make_text(s, samplings[2]);
  const text *texts[SLOTS] = {&greedy, &sampled, &penalised, &greedy, &sampled, &greedy};
  int32_t length[SLOTS];
  for (int32_t slot = 0; slot < SLOTS; slot++) {
    length[slot] = slot == 4 ? 0 : PROMPT - 1;
    if (slot != 4) prefill(s, texts[slot], slot, 0, PROMPT - 1);
  }
  for (int round = 0; round < 3; round++) {
    engine_batch batch = {.count = SLOTS};
    for (int32_t slot = 0; slot < SLOTS; slot++) {
      engine_job *job = &batch.jobs[slot];
      *job = job_from(texts[slot], slot, length[slot]);
      job->serial = (uint64_t)(10 * round + slot + 1);
      if (slot == 1 || slot == 2)
        add_tree(job, texts[slot], 3); /* in the third round the first of them fails */
      job->selfcheck = slot == 2;
    }
    engine_job *prompt = &batch.jobs[4];
    prompt->kind = ENGINE_PREFILL;
    prompt->count = 5;
    memcpy(prompt->tokens, sampled.tokens + length[4], 5 * sizeof *prompt->tokens);
    if (round == 1) batch.jobs[3].kv_length += 2;
    ops_counters before = model_device(s->model)->counters;
    engine_results r = run_all(s, &batch);
    uint64_t forwards = model_device(s->model)->counters.forwards - before.forwards;
    assert_int_equal(forwards, 1 + (uint64_t)r.of[2].sampled_count); /* and those of the selfcheck */
    for (int32_t slot = 0; slot < SLOTS; slot++) {
      const engine_result *one = &r.of[slot];
      bool desync = round == 1 && slot == 3, failed = round == 2 && slot == 1;
      assert_int_equal(one->code, desync ? ERR_DESYNC : failed ? ERR_INTERNAL : ERR_OK);
      if (!desync && !failed) assert_tokens(texts[slot], length[slot] + 1, one);
      assert_int_equal(one->sampled_count, slot == 4 || desync || failed ? 0
                                           : slot == 1 || slot == 2      ? 4
                                                                         : 1);
      length[slot] += slot == 4 ? 5 : one->sampled_count;
      assert_int_equal(one->kv_length, length[slot]);
      assert_false(one->selfcheck_differs);
    }
  }
  assert_int_equal(engine_count(s->engine)->batches, 3 + SLOTS - 1);
  close_setup(s);
}

/* Where the forward itself refuses (here: a context is full), the others lose nothing. */
static void one_at_fault_fails_alone(void **state) {
  (void)state;
  setup *s = open_setup(NULL);
  text t = make_text(s, samplings[0]);
  engine_job fill = {.kind = ENGINE_PREFILL, .slot = 1, .count = ENGINE_CHUNK};
  for (fill.kv_length = 0; fill.kv_length < CONTEXT; fill.kv_length += fill.count) {
    if (fill.count > CONTEXT - fill.kv_length) fill.count = CONTEXT - fill.kv_length;
    assert_int_equal(run(s, &fill).code, ERR_OK);
  }
  prefill(s, &t, 0, 0, PROMPT - 1);
  prefill(s, &t, 2, 0, PROMPT - 1);
  engine_batch batch = {.count = 3};
  for (int32_t slot = 0; slot < 3; slot++) batch.jobs[slot] = job_from(&t, slot, PROMPT - 1);
  batch.jobs[1].kv_length = CONTEXT;
  add_tree(&batch.jobs[2], &t, 2);
  engine_results r = run_all(s, &batch);
  assert_int_equal(r.of[1].code, ERR_INTERNAL);
  assert_int_equal(r.of[0].sampled_count, 1);
  assert_int_equal(r.of[2].sampled_count, 3);
  assert_tokens(&t, PROMPT, &r.of[0]);
  assert_tokens(&t, PROMPT, &r.of[2]);
  close_setup(s);
}

/* --- a device that is lost --- */

static const device_table *real_table;
static device_table lost_table; /* as the real one, but no forward succeeds any more */

static ops_code lost_wait(device *d, ops_answer *a) {
  real_table->wait(d, a);
  return OPS_LOST;
}

static int32_t waits_until_lost;

static ops_code late_lost_wait(device *d, ops_answer *a) {
  ops_code code = real_table->wait(d, a);
  return waits_until_lost > 0 && waits_until_lost-- ? code : OPS_LOST;
}

/* It is tried once for all jobs, not once more for each. */
static void a_lost_device_fails_every_job_at_once(void **state) {
  (void)state;
  setup *s = open_setup(NULL);
  text t = make_text(s, samplings[0]);
  device *d = model_device(s->model);
  for (int32_t slot = 0; slot < 3; slot++) prefill(s, &t, slot, 0, PROMPT - 1);
  engine_batch batch = {.count = 3};
  for (int32_t slot = 0; slot < 3; slot++) batch.jobs[slot] = job_from(&t, slot, PROMPT - 1);
  add_tree(&batch.jobs[2], &t, 2);
  real_table = d->table;
  lost_table = *real_table;
  lost_table.wait = lost_wait;
  d->table = &lost_table;
  uint64_t before = d->counters.forwards;
  engine_results r = run_all(s, &batch);
  d->table = real_table;
  assert_int_equal(d->counters.forwards - before, 1);
  for (int32_t slot = 0; slot < 3; slot++) {
    assert_int_equal(r.of[slot].code, ERR_DEVICE);
    assert_int_equal(r.of[slot].sampled_count, 0);
    assert_int_equal(r.of[slot].kv_length, PROMPT - 1);
  }
  assert_int_equal(engine_count(s->engine)->failures, 3);
  close_setup(s);
}

/* --- a device that fails once, or does not give what it has ranked --- */

static int32_t failures_left, unread_left;

static ops_code failing_wait(device *d, ops_answer *a) {
  ops_code code = real_table->wait(d, a);
  return failures_left > 0 && failures_left-- ? OPS_FAILED : code;
}

static const ops_ranked *failing_ranked(device *d, int32_t first, int32_t count) {
  return unread_left > 0 && unread_left-- ? NULL : real_table->ranked(d, first, count);
}

/* After all sessions have their prompts: so many waits, and readings of ranked tokens, fail. */
static void let_fail(setup *s, int32_t waits, int32_t readings) {
  device *d = model_device(s->model);
  real_table = d->table;
  lost_table = *real_table;
  lost_table.wait = failing_wait;
  lost_table.ranked = failing_ranked;
  failures_left = waits;
  unread_left = readings;
  d->table = &lost_table;
}

static engine_result step_of(setup *s, const text *t, int32_t nodes) {
  engine_job job = job_from(t, 0, PROMPT - 1);
  if (nodes) add_tree(&job, t, nodes);
  engine_result r = run(s, &job);
  model_device(s->model)->table = real_table;
  return r;
}

static void a_forward_that_fails_once_is_repeated(void **state) {
  (void)state;
  for (int32_t nodes = 0; nodes <= 2; nodes += 2) {
    setup *s = open_setup(NULL);
    text t = make_text(s, samplings[0]);
    prefill(s, &t, 0, 0, PROMPT - 1);
    let_fail(s, 1, 0);
    engine_result r = step_of(s, &t, nodes);
    assert_int_equal(r.code, ERR_OK);
    assert_int_equal(r.sampled_count, nodes + 1);
    assert_tokens(&t, PROMPT, &r);
    assert_int_equal(engine_count(s->engine)->failures, 0);
    close_setup(s);
  }
}

/* Nothing of it is left in the cache, and the next one is well. */
static void a_forward_that_fails_twice_fails_its_job(void **state) {
  (void)state;
  for (int32_t nodes = 0; nodes <= 2; nodes += 2) {
    setup *s = open_setup(NULL);
    text t = make_text(s, samplings[0]);
    prefill(s, &t, 0, 0, PROMPT - 1);
    let_fail(s, 2, 0);
    engine_result r = step_of(s, &t, nodes);
    assert_int_equal(r.code, ERR_INTERNAL);
    assert_int_equal(r.sampled_count, 0);
    assert_int_equal(r.kv_length, PROMPT - 1);
    let_fail(s, 0, 0);
    r = step_of(s, &t, nodes);
    assert_int_equal(r.code, ERR_OK);
    assert_tokens(&t, PROMPT, &r);
    close_setup(s);
  }
}

/* A sampling with a filter, whose tokens the device ranks and then does not give. */
static void ranked_tokens_that_cannot_be_read_are_computed_again(void **state) {
  (void)state;
  const sampler_options filtered = {.temperature = 0.9f, .top_p = 0.8f, .repeat_penalty = 1, .seed = 5};
  for (int32_t nodes = 0; nodes <= 2; nodes += 2)
    for (int32_t fails = 1; fails <= 2; fails++) {
      setup *s = open_setup(NULL);
      text t = make_text(s, filtered);
      prefill(s, &t, 0, 0, PROMPT - 1);
      let_fail(s, 0, fails);
      engine_result r = step_of(s, &t, nodes);
      assert_int_equal(r.code, fails == 1 ? ERR_OK : ERR_INTERNAL);
      assert_int_equal(r.sampled_count, fails == 1 ? nodes + 1 : 0);
      assert_int_equal(r.kv_length, fails == 1 ? PROMPT + nodes : PROMPT - 1);
      if (fails == 1) assert_tokens(&t, PROMPT, &r);
      close_setup(s);
    }
}

/* Lost after its forward, when the ranked tokens are read: the second forward tells. */
static void a_device_that_is_lost_when_ranked_tokens_are_read_is_lost(void **state) {
  (void)state;
  const sampler_options filtered = {.temperature = 0.9f, .top_p = 0.8f, .repeat_penalty = 1, .seed = 5};
  setup *s = open_setup(NULL);
  text t = make_text(s, filtered);
  prefill(s, &t, 0, 0, PROMPT - 1);
  let_fail(s, 0, 1);
  waits_until_lost = 1;
  lost_table.wait = late_lost_wait;
  engine_result r = step_of(s, &t, 0);
  assert_int_equal(r.code, ERR_DEVICE);
  close_setup(s);
}

/* --- faults --- */

static void faults_are_parsed_strictly(void **state) {
  (void)state;
  static const char *const bad[] = {
      "x",
      "kv-rollback",
      "kv-rollback:1",
      "kv-rollback:1:",
      "kv-rollback:0:1",
      "kv-rollback:1:0",
      "kv-rollback:1:2:3",
      "verify-error",
      "verify-error:",
      "verify-error:-1",
      "verify-error:1x",
      "verify-error:1:2",
      "verify-error:99999999999999999999",
      "wrong-token:1:1",
      "kv-rollback:0000000000000000000000000000000000000000000000000000000000001:2"};
  engine_fault f;
  err e;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(engine_fault_parse(&f, bad[i], &e), ERR_ARG);
    assert_int_equal(f.kind, ENGINE_FAULT_NONE);
  }
  assert_int_equal(engine_fault_parse(&f, "kv-rollback:17:4", &e), ERR_OK);
  assert_true(f.kind == ENGINE_FAULT_KV_ROLLBACK && f.after == 17 && f.rows == 4);
  assert_int_equal(engine_fault_parse(&f, "slow-step:40", &e), ERR_OK);
  assert_true(f.kind == ENGINE_FAULT_SLOW_STEP && f.after == 40);
  assert_int_equal(engine_fault_parse(&f, "verify-error:9", &e), ERR_OK);
  assert_true(f.kind == ENGINE_FAULT_VERIFY_ERROR && f.after == 9);
  assert_int_equal(engine_fault_parse(&f, NULL, &e), ERR_OK);
  assert_int_equal(f.kind, ENGINE_FAULT_NONE);
}

/* A slot gets the blocks that another one has filled, and goes on where they end, whatever it had before;
 * what its last verify committed went to the blocks that it had then. */
static void given_rows_serve(void **state) {
  (void)state;
  setup *s = open_setup(NULL);
  text t = make_text(s, (sampler_options){.top_p = 1, .repeat_penalty = 1});
  enum { SHARED = 2 };
  int32_t blocks[EACH];
  for (int32_t i = 0; i < EACH; i++) blocks[i] = block_of(i < SHARED ? 0 : 1, i);
  prefill(s, &t, 0, 0, SHARED * KV_BLOCK);
  prefill(s, &t, 1, 0, KV_BLOCK);
  engine_job tree = job_from(&t, 1, KV_BLOCK);
  add_tree(&tree, &t, 3);
  engine_result r = run(s, &tree);
  assert_int_equal(r.kv_length, KV_BLOCK + r.sampled_count);
  engine_job job = job_from(&t, 1, SHARED * KV_BLOCK);
  job.blocks = blocks;
  job.block_count = SHARED + 1;
  job.rows_given = true;
  r = run(s, &job);
  assert_int_equal(r.code, ERR_OK);
  assert_int_equal(r.sampled[0], t.tokens[SHARED * KV_BLOCK + 1]);
  assert_int_equal(r.kv_length, SHARED * KV_BLOCK + 1);
  prefill(s, &t, 1, r.kv_length, (SHARED + 1) * KV_BLOCK);
  job = job_from(&t, 1, (SHARED + 1) * KV_BLOCK);
  assert_int_equal(run(s, &job).code, ERR_INTERNAL); /* its blocks end here */
  job.blocks = blocks;                               /* more of them, and the rows it has stay */
  job.block_count = EACH;
  r = run(s, &job);
  assert_int_equal(r.code, ERR_OK);
  assert_int_equal(r.sampled[0], t.tokens[(SHARED + 1) * KV_BLOCK + 1]);
  job = job_from(&t, 0, SHARED * KV_BLOCK);
  assert_int_equal(run(s, &job).sampled[0], t.tokens[SHARED * KV_BLOCK + 1]);
  close_setup(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(trees_give_the_plain_tokens_of_a_grammar),
      cmocka_unit_test(a_grammar_may_allow_no_token),
      cmocka_unit_test(trees_give_the_plain_tokens),
      cmocka_unit_test(no_logits_come_to_the_host),
      cmocka_unit_test(a_measured_piece_chooses_tokens),
      cmocka_unit_test(a_round_allocates_nothing),
      cmocka_unit_test(the_device_learns_who_computes_beside_it),
      cmocka_unit_test(plain_steps_touch_no_staging),
      cmocka_unit_test(a_longer_cache_is_rolled_back),
      cmocka_unit_test(a_shorter_cache_is_desync),
      cmocka_unit_test(stops_and_limits_cut_the_chain),
      cmocka_unit_test(a_failed_verify_leaves_nothing),
      cmocka_unit_test(a_large_piece_of_a_prompt_equals_small_ones),
      cmocka_unit_test(a_full_context_is_an_error),
      cmocka_unit_test(a_rollback_behind_the_back_is_seen),
      cmocka_unit_test(selfcheck_finds_a_wrong_token),
      cmocka_unit_test(a_batch_is_one_forward),
      cmocka_unit_test(one_at_fault_fails_alone),
      cmocka_unit_test(a_lost_device_fails_every_job_at_once),
      cmocka_unit_test(a_forward_that_fails_once_is_repeated),
      cmocka_unit_test(a_forward_that_fails_twice_fails_its_job),
      cmocka_unit_test(ranked_tokens_that_cannot_be_read_are_computed_again),
      cmocka_unit_test(a_device_that_is_lost_when_ranked_tokens_are_read_is_lost),
      cmocka_unit_test(faults_are_parsed_strictly),
  };
  const struct CMUnitTest of_virtual[] = {cmocka_unit_test(given_rows_serve)};
  int failed = cmocka_run_group_tests_name("static cache", tests, open_vocabulary, close_vocabulary);
  virtual_cache = true;
  failed += cmocka_run_group_tests_name("virtual cache", tests, open_vocabulary, close_vocabulary);
  return failed + cmocka_run_group_tests(of_virtual, NULL, NULL);
}
