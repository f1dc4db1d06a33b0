/* libs: target : far */
/* Partial KV: which blocks are shown; guesses over a view that shows every block are plain decoding's tokens;
 * and an engine that guesses over a few blocks gives plain decoding's tokens all the same. */
#include "target_worker/engine.h"
#include "tests/support/models.h"
#include "tests/support/random.h"

enum {
  CONTEXT = 400,
  PROMPT = 40,
  OUTPUT = 280,
  SLOTS = 3,
  SEQUENCES = SLOTS + 1, /* the last one is for plain decoding */
  EACH = (CONTEXT + KV_BLOCK - 1) / KV_BLOCK
};

/* --- which blocks --- */

typedef struct choice {
  msg_partial how;
  int32_t rows;
  float mass[12];
  int32_t count, blocks[12];
} choice;

#define HOW(tokens, first, heavy, last)                                                                      \
  { .block = tokens, .sink = first, .retrieval = heavy, .window = last }

static void blocks_that_weigh_most_are_shown(void **state) {
  (void)state;
  static const choice choices[] = {
      {HOW(16, 1, 2, 2), 160, {9, 1, 5, 2, 7, 3, 0, 8, 4, 6}, 5, {0, 4, 7, 8, 9}},
      {HOW(16, 1, 2, 2),
       145,
       {9, 1, 5, 2, 7, 3, 0, 8, 4, 6},
       5,
       {0, 4, 7, 8, 9}},                                                        /* the last one has a row */
      {HOW(16, 0, 3, 1), 160, {1, 1, 1, 1, 2, 1, 1, 1, 1, 1}, 4, {0, 1, 4, 9}}, /* the earlier ones */
      {HOW(16, 2, 0, 3), 160, {9, 1, 5, 2, 7, 3, 0, 8, 4, 6}, 5, {0, 1, 7, 8, 9}},
      {HOW(16, 1, 9, 2), 80, {1, 2, 3, 4, 5}, 5, {0, 1, 2, 3, 4}}, /* all */
      {HOW(16, 4, 2, 4), 96, {1, 2, 3, 4, 5, 6}, 6, {0, 1, 2, 3, 4, 5}},
      {HOW(16, 2, 1, 4), 17, {1, 2}, 2, {0, 1}},
      {HOW(16, 2, 1, 4), 1, {1}, 1, {0}},
      {HOW(16, 1, 2, 1), 96, {9, 0, 0, 0, 0, 9}, 4, {0, 1, 2, 5}}, /* nothing is known of them */
      /* Blocks of two of the cache's: they weigh 10, 7, 10, 8, 10 together */
      {HOW(32, 1, 1, 1), 160, {9, 1, 5, 2, 7, 3, 0, 8, 4, 6}, 6, {0, 1, 4, 5, 8, 9}},
      {HOW(32, 0, 2, 1), 160, {1, 1, 0, 3, 0, 0, 4, 0, 0, 0}, 6, {2, 3, 6, 7, 8, 9}},
      {HOW(32, 0, 1, 1), 144, {1, 1, 0, 0, 9, 0, 0, 0, 9}, 3, {4, 5, 8}}, /* the last one is half a block */
  };
  for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
    const choice *c = &choices[i];
    float room[24];
    int32_t got[12];
    assert_int_equal(partial_choose(&c->how, c->mass, c->rows, room, got), c->count);
    assert_memory_equal(got, c->blocks, (size_t)c->count * sizeof *got);
  }
}

/* --- a model, and plain decoding --- */

typedef struct setup {
  gguf_builder bytes;
  model_file *file;
  model *model;
  kv_cache *kv;
  mem mem;
} setup;

static bool virtual_cache;
static int32_t staging; /* rows of the pool; 0: enough for all */

static void map_sequence(kv_cache *kv, int32_t seq) {
  int32_t blocks[EACH];
  for (int32_t i = 0; i < EACH; i++) blocks[i] = i * SEQUENCES + seq;
  if (virtual_cache) kv_map(kv, seq, blocks, EACH, 0);
}

static setup *open_setup(void) {
  setup *s = calloc(1, sizeof *s);
  err e = {0};
  s->file = support_tiny_file(&s->bytes);
  device *d = support_open_device(support_device(), OPS_MATH_INT8, 2, &s->mem);
  if (model_open(&s->model, s->file, d, &(model_options){0}, &s->mem, &e)) fail_msg("%s", e.text);
  kv_options o = {
      .sequences = SEQUENCES, .context = CONTEXT, .type = KV_F16, .views = SLOTS, .stage = staging};
  if (virtual_cache) o.blocks = SEQUENCES * EACH;
  if (kv_open(&s->kv, d, model_shape(s->model), &o, &s->mem, &e)) fail_msg("%s", e.text);
  return s;
}

static void close_setup(setup *s) {
  kv_close(s->kv);
  support_close_model(s->model);
  model_file_close(s->file);
  gb_free(&s->bytes);
  free(s);
}

typedef struct text {
  sampler_options sampling;
  model_sampling choosing;
  int32_t tokens[PROMPT + OUTPUT];
} text;

static text make_text(setup *s, int32_t seq, float temperature, uint64_t seed) {
  text t = {.sampling = {.temperature = temperature, .top_p = 1, .repeat_penalty = 1, .seed = seed}};
  uint64_t random = 11 + seed;
  t.choosing = (model_sampling){sampler_scale(&t.sampling), seed, 0};
  for (int32_t i = 0; i < PROMPT; i++)
    t.tokens[i] = (int32_t)random_below(&random, (uint32_t)SUPPORT_TINY_VOCAB);
  for (int32_t i = 0; i + 1 < PROMPT + OUTPUT; i++) {
    model_segment one = {
        .seq = seq, .kind = MODEL_APPEND, .count = 1, .tokens = &t.tokens[i], .sampling = &t.choosing};
    assert_int_equal(model_forward(s->model, s->kv, &one, 1), ERR_OK);
    if (i + 1 >= PROMPT) t.tokens[i + 1] = model_sampled(s->model, 0, 0);
  }
  assert_int_equal(kv_rollback(s->kv, seq, 0), ERR_OK);
  return t;
}

static void append(setup *s, int32_t seq, const int32_t *tokens, int32_t count) {
  const model_segment rows = {
      .seq = seq, .kind = MODEL_APPEND, .count = count, .tokens = tokens, .no_logits = true};
  assert_int_equal(model_forward(s->model, s->kv, &rows, 1), ERR_OK);
}

/* --- guesses --- */

static int32_t acquire(setup *s) {
  const int32_t seq = kv_acquire(s->kv);
  assert_true(seq >= 0);
  map_sequence(s->kv, seq);
  return seq;
}

static msg_partial how; /* of the test's sessions */

static partial_options options_of(int32_t sink, int32_t retrieval, int32_t threshold, int32_t rows) {
  how = (msg_partial){.mode = WIRE_PARTIAL_EXACT,
                      .block = KV_BLOCK,
                      .sink = sink,
                      .retrieval = retrieval,
                      .window = 4,
                      .buffer = 128,
                      .threshold = threshold,
                      .refresh = 32};
  return (partial_options){how, rows, false};
}

#define STEP(slot, session, rows)                                                                            \
  { slot, session, rows, &how, false, 0 }

/* The length that all steps of a plan have; *weighs: does the pass weigh? */
static int32_t plan_all(partial_kv *p, partial_step *steps, int32_t count, bool *weighs) {
  const partial_plan plan = partial_kv_plan(p, steps, count, 100);
  for (int32_t i = 1; i < count; i++) assert_int_equal(steps[i].length, steps[0].length);
  *weighs = plan.weighs;
  assert_true(plan.learns == (plan.why != PARTIAL_SHORT) || steps[0].drafted);
  assert_true(steps[0].length == 0 || plan.why == PARTIAL_NONE);
  return steps[0].length;
}

/* What is planned for one session: how many guesses; -1: the pass does not weigh either. */
static int32_t planned(partial_kv *p, int32_t slot, uint64_t session, int32_t rows, int32_t most) {
  partial_step step = STEP(slot, session, rows);
  const partial_plan plan = partial_kv_plan(p, &step, 1, most);
  assert_true(plan.weighs || step.length == 0);
  return plan.weighs ? step.length : -1;
}

/* So many passes of one session with chains of this length took so long; 0: plain ones. */
static void measure(partial_kv *p, int32_t length, double us) {
  for (int32_t i = 0; i < 40; i++) partial_kv_measured(p, 1, length, 1, us);
}

/* The row of the token after the first `rows` weighs the blocks of these. */
static void weigh(setup *s, partial_kv *p, int32_t slot, int32_t seq, const text *t, int32_t rows) {
  model_segment one = {
      .seq = seq, .kind = MODEL_APPEND, .count = 1, .tokens = &t->tokens[rows], .weighs = true};
  assert_int_equal(model_forward(s->model, s->kv, &one, 1), ERR_OK);
  assert_non_null(model_mass(s->model, 0));
  planned(p, slot, 7, rows, 1);
  partial_kv_passed(p, slot, 7, rows, model_mass(s->model, 0), 0, 0, 0);
  assert_int_equal(kv_rollback(s->kv, seq, rows), ERR_OK);
}

/* All blocks are shown, and the lengths are at every place of a block. */
static void all_blocks_guess_what_plain_decoding_says(void **state) {
  (void)state;
  setup *s = open_setup();
  err e = {0};
  partial_kv *p;
  const partial_options all = options_of(0, EACH, 1, 0);
  const int32_t seqs[] = {acquire(s), acquire(s)};
  text texts[] = {make_text(s, seqs[0], 0, 1), make_text(s, seqs[1], 0.8f, 2)};
  partial_chain chains[2], *both[2] = {&chains[0], &chains[1]};
  assert_int_equal(partial_kv_open(&p, &all, s->model, s->kv, SLOTS, CONTEXT, &e), ERR_OK);
  measure(p, 0, 1e9);
  for (int32_t rows = PROMPT; rows < PROMPT + 40; rows++) {
    for (int32_t i = 0; i < 2; i++) {
      append(s, seqs[i], texts[i].tokens + kv_length(s->kv, seqs[i]),
             rows + 100 * i - kv_length(s->kv, seqs[i]));
      weigh(s, p, i, seqs[i], &texts[i], rows + 100 * i);
      chains[i] = (partial_chain){.slot = i,
                                  .seq = seqs[i],
                                  .root = texts[i].tokens[rows + 100 * i],
                                  .most = 9 + 8 * i,
                                  .sampling = &texts[i].choosing};
    }
    partial_kv_guess(p, both, 2);
    for (int32_t i = 0; i < 2; i++) {
      assert_int_equal(chains[i].count, chains[i].most);
      assert_memory_equal(chains[i].tokens, texts[i].tokens + rows + 100 * i + 1,
                          (size_t)chains[i].count * sizeof *chains[i].tokens);
      assert_int_equal(kv_length(s->kv, seqs[i]), rows + 100 * i);
    }
  }
  assert_int_equal(partial_kv_count(p)->chains, 80);
  assert_int_equal(partial_kv_count(p)->guessed, 40 * (9 + 17));
  assert_int_equal(partial_kv_count(p)->forwards, 40 * 17);
  partial_kv_close(p);
  close_setup(s);
}

/* A chain ends with a stop token; nothing is guessed for a session that was not weighed. */
static void chains_end_and_begin(void **state) {
  (void)state;
  setup *s = open_setup();
  err e = {0};
  partial_kv *p;
  const partial_options all = options_of(0, EACH, 60, 0);
  const int32_t seq = acquire(s);
  const text t = make_text(s, seq, 0.8f, 5);
  assert_int_equal(partial_kv_open(&p, &all, s->model, s->kv, SLOTS, CONTEXT, &e), ERR_OK);
  append(s, seq, t.tokens, 70);
  assert_int_equal(planned(p, 2, 7, 70, 20), -1); /* it is not known what a plain pass takes */
  measure(p, 0, 1000);
  assert_int_equal(planned(p, 2, 7, 59, 20), -1); /* below the threshold */
  assert_int_equal(planned(p, 2, 7, 70, 20), 0);  /* nothing was weighed */
  weigh(s, p, 2, seq, &t, 70);
  assert_true(planned(p, 2, 7, 70, 20) > 0);
  assert_int_equal(planned(p, 2, 7, 70, 3), 3);
  assert_int_equal(planned(p, 2, 7, 69, 20), 0); /* rolled back below */
  assert_int_equal(planned(p, 1, 7, 70, 20), 0); /* another slot */
  assert_int_equal(planned(p, 2, 8, 70, 20), 0); /* another session, */
  assert_int_equal(planned(p, 2, 7, 70, 20), 0); /* and so this one is new */
  weigh(s, p, 2, seq, &t, 70);
  int32_t stop = t.tokens[74], ends = 4;
  for (int32_t i = 4; i > 0; i--)
    if (t.tokens[70 + i] == stop) ends = i;
  partial_chain c = {.slot = 2,
                     .seq = seq,
                     .root = t.tokens[70],
                     .most = 20,
                     .sampling = &t.choosing,
                     .stops = &stop,
                     .stop_count = 1},
                *one = &c;
  partial_kv_guess(p, &one, 1);
  assert_int_equal(c.count, ends);
  assert_int_equal(c.tokens[c.count - 1], stop);
  partial_kv_close(p);
  close_setup(s);
}

/* The session's text ends with the tokens before `rows` and that one, and says that `ahead` follow them. */
static void foretell(partial_kv *p, const text *t, int32_t rows, const int32_t *ahead, int32_t count,
                     uint64_t session) {
  enum { ENDING = 20 };
  int32_t said[CONTEXT];
  memcpy(said, t->tokens + rows + 1 - ENDING, ENDING * sizeof *said);
  memcpy(said + ENDING, ahead, (size_t)count * sizeof *said);
  memcpy(said + ENDING + count, t->tokens + rows + 1 - ENDING, ENDING * sizeof *said);
  const partial_news n = {
      .session = session, .tokens = said, .count = 2 * ENDING + count, .prompt_length = 1};
  partial_kv_text(p, 2, &n);
}

enum { LOOKED_ROWS = 100, LOOKED_MOST = 20 };

/* Guesses the chain `first` once more; returns the forwards that it took. */
static uint64_t guess_again(partial_kv *p, const partial_chain *first) {
  const uint64_t before = partial_kv_count(p)->forwards;
  partial_chain c = *first, *one = &c;
  partial_kv_guess(p, &one, 1);
  assert_int_equal(c.count, LOOKED_MOST);
  assert_memory_equal(c.tokens, first->tokens, LOOKED_MOST * sizeof *c.tokens);
  return partial_kv_count(p)->forwards - before;
}

/* Though what follows a stop is looked up too. */
static void check_stop(partial_kv *p, const partial_chain *first) {
  partial_chain c = *first, *one = &c;
  int32_t ends = 3;
  for (int32_t i = 2; i >= 0; i--)
    if (first->tokens[i] == first->tokens[2]) ends = i + 1;
  c.stops = &first->tokens[2];
  c.stop_count = 1;
  partial_kv_guess(p, &one, 1);
  assert_int_equal(c.count, ends);
}

static void check_lookups(partial_kv *p, const text *t, const partial_chain *first) {
  const partial_counters *n = partial_kv_count(p);
  foretell(p, t, LOOKED_ROWS, first->tokens, LOOKED_MOST, 8); /* another session */
  assert_int_equal(guess_again(p, first), LOOKED_MOST);
  assert_int_equal(n->looked_up, 0);
  foretell(p, t, LOOKED_ROWS, first->tokens, LOOKED_MOST, 7);
  const uint64_t forwards = guess_again(p, first);
  assert_true(forwards < LOOKED_MOST / 2 && n->found == n->looked_up);
  assert_int_equal(n->found + forwards, LOOKED_MOST); /* each gives one token more than was found */
  int32_t wrong[LOOKED_MOST];
  for (int32_t i = 0; i < LOOKED_MOST; i++)
    wrong[i] = i % 4 == 3 ? (first->tokens[i] + 1) % SUPPORT_TINY_VOCAB : first->tokens[i];
  foretell(p, t, LOOKED_ROWS, wrong, LOOKED_MOST, 7);
  const uint64_t looked_up = n->looked_up, found = n->found;
  guess_again(p, first);
  assert_true(n->looked_up - looked_up > n->found - found && n->found > found);
  foretell(p, t, LOOKED_ROWS, first->tokens, LOOKED_MOST, 7);
  check_stop(p, first);
}

/* A session whose blocks were weighed, and its chain. */
static partial_kv *open_looked(setup *s, float temperature, text *t, partial_chain *first) {
  const partial_options few = options_of(1, 1, 1, 0);
  err e = {0};
  partial_kv *p;
  const int32_t seq = acquire(s);
  *t = make_text(s, seq, temperature, 5);
  assert_int_equal(partial_kv_open(&p, &few, s->model, s->kv, SLOTS, CONTEXT, &e), ERR_OK);
  append(s, seq, t->tokens, LOOKED_ROWS);
  weigh(s, p, 2, seq, t, LOOKED_ROWS);
  *first = (partial_chain){
      .slot = 2, .seq = seq, .root = t->tokens[LOOKED_ROWS], .most = LOOKED_MOST, .sampling = &t->choosing};
  partial_kv_guess(p, &first, 1);
  assert_int_equal(first->count, LOOKED_MOST);
  return p;
}

/* What is looked up is checked, several tokens at a time. Chains are the same whatever it is. */
static void looked_up_tokens_are_checked(void **state) {
  (void)state;
  for (int32_t greedy = 0; greedy < 2; greedy++) {
    setup *s = open_setup();
    text t;
    partial_chain first;
    partial_kv *p = open_looked(s, greedy ? 0 : 0.8f, &t, &first);
    check_lookups(p, &t, &first);
    assert_int_equal(kv_length(s->kv, first.seq), LOOKED_ROWS);
    partial_kv_close(p);
    close_setup(s);
  }
}

/* The text says several times that wrong tokens follow every fourth token of the chain. */
static void mislead(partial_kv *p, const text *t, const partial_chain *c) {
  enum { ENDING = 4, TIMES = 3 };
  int32_t said[CONTEXT], count = 0, all[ENDING + LOOKED_MOST];
  memcpy(all, t->tokens + LOOKED_ROWS + 1 - ENDING, ENDING * sizeof *all);
  memcpy(all + ENDING, c->tokens, LOOKED_MOST * sizeof *all);
  for (int32_t i = 0; i < TIMES * LOOKED_MOST; i += ENDING) {
    const int32_t at = i % LOOKED_MOST;
    memcpy(said + count, all + at, ENDING * sizeof *said);
    for (int32_t k = 0; k < ENDING; k++)
      said[count + ENDING + k] = (all[at + ENDING + k] + 1) % SUPPORT_TINY_VOCAB;
    count += 2 * ENDING;
  }
  memcpy(said + count, all, ENDING * sizeof *said);
  const partial_news n = {
      .session = 7, .tokens = said, .count = count + ENDING, .prompt_length = count + ENDING};
  partial_kv_text(p, 2, &n);
}

/* Wrong tokens take no room that a chain needs. */
static void looked_up_tokens_leave_room(void **state) {
  (void)state;
  staging = 2 * OPS_TILE;
  setup *s = open_setup();
  text t;
  partial_chain first;
  partial_kv *p = open_looked(s, 0.8f, &t, &first);
  mislead(p, &t, &first);
  guess_again(p, &first);
  const partial_counters *n = partial_kv_count(p);
  assert_int_equal(n->looked_up - n->found, staging - LOOKED_MOST); /* all the room that is left */
  partial_kv_close(p);
  close_setup(s);
  staging = 0;
}

/* A tree whose rows are wrong but for those of the chain, which has so many of its tokens in it. */
static int32_t make_tree(const partial_chain *c, int32_t deep, int32_t *tokens, int32_t *parents) {
  int32_t count = 1, before = 0;
  tokens[0] = c->root;
  parents[0] = -1;
  for (int32_t i = 0; i < deep; i++, before = count - 1) {
    tokens[count] = (c->tokens[i] + 1) % SUPPORT_TINY_VOCAB;
    parents[count++] = before;
    tokens[count] = c->tokens[i];
    parents[count++] = before;
  }
  return count;
}

/* What drafts say follows is checked in the first forward, as far as there are rows for it. Chains stay what
 * they are. */
static void drafted_nodes_are_checked(void **state) {
  (void)state;
  setup *s = open_setup();
  text t;
  partial_chain first;
  partial_kv *p = open_looked(s, 0.8f, &t, &first);
  const partial_counters *n = partial_kv_count(p);
  int32_t tokens[2 * LOOKED_MOST], parents[2 * LOOKED_MOST];
  partial_chain c = first;
  c.tree = tokens, c.parents = parents;
  c.tree_rows = make_tree(&first, 6, tokens, parents);
  assert_int_equal(guess_again(p, &c), LOOKED_MOST - 6);
  assert_true(n->checked == 12 && n->right == 6);
  c.tree_rows = make_tree(&first, 12, tokens, parents); /* 24 nodes, of which 15 are checked */
  assert_int_equal(guess_again(p, &c), LOOKED_MOST - 7);
  assert_true(n->checked == 12 + 15 && n->right == 6 + 7);
  tokens[2] = tokens[1]; /* all are wrong */
  assert_int_equal(guess_again(p, &c), LOOKED_MOST);
  assert_int_equal(n->right, 6 + 7);
  partial_kv_close(p);
  close_setup(s);
}

/* A session of 200 rows that was weighed, and what a guess takes is known: next to nothing beside what is
 * said of passes. */
static partial_kv *open_timed(setup *s, text *t, double plain_us) {
  const partial_options few = options_of(1, 1, 60, 0);
  err e = {0};
  partial_kv *p;
  const int32_t seq = acquire(s);
  *t = make_text(s, seq, 0.8f, 5);
  assert_int_equal(partial_kv_open(&p, &few, s->model, s->kv, SLOTS, CONTEXT, &e), ERR_OK);
  append(s, seq, t->tokens, 200);
  measure(p, 0, plain_us);
  weigh(s, p, 0, seq, t, 200);
  partial_chain c = {.slot = 0, .seq = seq, .root = t->tokens[200], .most = 7, .sampling = &t->choosing},
                *one = &c;
  for (int32_t i = 0; i < 20; i++) partial_kv_guess(p, &one, 1);
  return p;
}

static const float no_mass[EACH];

/* Of so many chains of 7 so many tokens a chain were right. */
static void pass(partial_kv *p, int32_t slot, uint64_t session, int32_t chains, int32_t right) {
  for (int32_t i = 0; i < chains; i++) partial_kv_passed(p, slot, session, 200, no_mass, 7, right, 0);
}

/* Chains are as long as they pay. Their lengths make the rows of the pass a power of two. */
static void chains_are_as_long_as_they_pay(void **state) {
  (void)state;
  setup *s = open_setup();
  text t;
  partial_kv *p = open_timed(s, &t, 1e9);
  assert_int_equal(planned(p, 0, 7, 200, 100), 7); /* is tried */
  pass(p, 0, 7, 40, 7);
  assert_int_equal(planned(p, 0, 7, 200, 100), 31); /* twice as many rows are tried, */
  measure(p, 31, 1e11);                             /* and prove too dear, */
  assert_int_equal(planned(p, 0, 7, 200, 100), 15);
  measure(p, 15, 3.5e9); /* these do not, */
  assert_int_equal(planned(p, 0, 7, 200, 100), 15);
  measure(p, 7, 1.7e9); /* but fewer give more */
  assert_int_equal(planned(p, 0, 7, 200, 100), 7);
  assert_int_equal(planned(p, 0, 7, 200, 5), 3); /* the most that there is room for */
  pass(p, 0, 7, 1000, 1);                        /* one in two is right */
  assert_int_equal(planned(p, 0, 7, 200, 100), 3);
  partial_kv_close(p);
  close_setup(s);
}

/* What eight sessions take together says nothing of one. */
static void sessions_that_share_a_pass_have_times_of_their_own(void **state) {
  (void)state;
  setup *s = open_setup();
  text t;
  bool weighs;
  partial_kv *p = open_timed(s, &t, 1e9);
  partial_step steps[] = {STEP(0, 7, 200), STEP(1, 8, 200), STEP(2, 9, 200)};
  planned(p, 0, 7, 200, 100);
  pass(p, 0, 7, 40, 7);
  for (int32_t i = 0; i < 40; i++) {
    partial_kv_measured(p, 8, 0, 8, 1e10);
    for (int32_t length = 1; length <= 31; length = 2 * length + 1)
      partial_kv_measured(p, 8, length, 1, 1e12);
  }
  assert_int_equal(planned(p, 0, 7, 200, 100), 31);
  assert_int_equal(plan_all(p, steps, 3, &weighs), 0); /* nothing was measured of three */
  assert_false(weighs);
  for (int32_t i = 0; i < 2; i++) partial_kv_measured(p, 3, 0, 3, 1e9);
  assert_int_equal(plan_all(p, steps, 3, &weighs), 0); /* two were not weighed */
  assert_true(weighs);
  for (int32_t i = 1; i < 3; i++) partial_kv_passed(p, i, (uint64_t)i + 7, 200, no_mass, 0, 0, 0);
  assert_int_equal(plan_all(p, steps, 3, &weighs), 7);
  partial_step with_short_one[] = {STEP(0, 7, 200), STEP(1, 8, 59)};
  assert_int_equal(plan_all(p, with_short_one, 2, &weighs), 0);
  assert_false(weighs);
  partial_kv_close(p);
  close_setup(s);
}

/* Sessions that share a pass have chains of one length, which is what all of them gain by together. */
static void sessions_that_share_a_pass_share_a_length(void **state) {
  (void)state;
  setup *s = open_setup();
  text t;
  bool weighs;
  partial_kv *p = open_timed(s, &t, 1e9);
  partial_step both[] = {STEP(0, 7, 200), STEP(1, 8, 200)};
  for (int32_t i = 0; i < 2; i++) partial_kv_measured(p, 2, 0, 2, 1e9);
  plan_all(p, both, 2, &weighs);
  partial_kv_passed(p, 1, 8, 200, no_mass, 0, 0, 0);
  partial_chain chains[] = {{.slot = 0, .seq = 0, .root = 1, .most = 1, .sampling = &t.choosing},
                            {.slot = 0, .seq = 0, .root = 1, .most = 0, .sampling = &t.choosing}},
                *two[] = {&chains[0], &chains[1]};
  partial_kv_guess(p, two, 2);
  assert_int_equal(plan_all(p, both, 2, &weighs), 7);
  for (int32_t length = 1; length <= 31; length = 2 * length + 1)
    for (int32_t i = 0; i < 40; i++) partial_kv_measured(p, 2, length, 1, length > 7 ? 1e12 : 4.2e9);
  pass(p, 0, 7, 40, 7);
  pass(p, 1, 8, 40, 7);
  assert_int_equal(plan_all(p, both, 2, &weighs), 7); /* 16 tokens in 4.2 plain passes' time */
  pass(p, 1, 8, 200, 0);
  pass(p, 0, 7, 200, 7);
  assert_int_equal(plan_all(p, both, 2, &weighs), 7); /* the one gains more than the other loses */
  pass(p, 0, 7, 200, 0);
  pass(p, 1, 8, 200, 0);
  assert_int_equal(plan_all(p, both, 2, &weighs), 0);
  assert_false(weighs);
  partial_kv_close(p);
  close_setup(s);
}

/* With drafts, chains have to give more than passes with the drafts' nodes do. */
static void chains_pay_against_what_drafts_give(void **state) {
  (void)state;
  setup *s = open_setup();
  text t;
  bool weighs;
  partial_kv *p = open_timed(s, &t, 1e9);
  partial_step drafted = STEP(0, 7, 200);
  drafted.drafted = true;
  for (int32_t i = -2; i < 8; i++) {
    const partial_plan plan = partial_kv_plan(p, &drafted, 1, 100);
    assert_true(drafted.length == 0 && !plan.weighs);
    assert_true(plan.learns == (i >= 0)); /* nodes are late at first */
    if (plan.learns) partial_kv_measured(p, 1, 0, i % 2 ? 3 : 5, 1e9);
  }
  partial_chain c = {.slot = 0, .seq = 0, .root = t.tokens[200], .most = 7, .sampling = &t.choosing},
                *one = &c;
  assert_int_equal(plan_all(p, &drafted, 1, &weighs), 7); /* is tried */
  partial_kv_guess(p, &one, 1);
  pass(p, 0, 7, 40, 7);
  for (int32_t length = 1; length <= 31; length = 2 * length + 1)
    for (int32_t i = 0; i < 40; i++) partial_kv_measured(p, 1, length, 1, length == 7 ? 1.9e9 : 1e12);
  assert_int_equal(plan_all(p, &drafted, 1, &weighs),
                   7); /* 8 tokens, where plain passes give 7.6 meanwhile */
  for (int32_t i = 0; i < 40; i++) partial_kv_measured(p, 1, 7, 1, 2.1e9);
  assert_int_equal(plan_all(p, &drafted, 1, &weighs), 0);
  assert_int_equal(plan_all(p, &drafted, 1, &weighs), 0); /* it rests, */
  pass(p, 0, 7, 1, 0);
  assert_int_equal(planned(p, 0, 7, 200, 100), 7); /* but not without drafts */
  partial_kv_close(p);
  close_setup(s);
}

/* What was measured of four sessions holds for three, each of which gets a token of a plain pass. */
static void fewer_sessions_are_weighed_against_fewer_tokens(void **state) {
  (void)state;
  setup *s = open_setup();
  text t;
  bool weighs;
  partial_kv *p = open_timed(s, &t, 1e9);
  partial_step steps[] = {STEP(0, 7, 200), STEP(1, 8, 200), STEP(2, 9, 200)};
  for (int32_t i = 0; i < 2; i++) partial_kv_measured(p, 4, 0, 4, 1e9);
  plan_all(p, steps, 3, &weighs);
  for (int32_t i = 1; i < 3; i++) partial_kv_passed(p, i, (uint64_t)i + 7, 200, no_mass, 0, 0, 0);
  assert_int_equal(plan_all(p, steps, 3, &weighs), 7); /* is tried */
  partial_chain one = {.slot = 0, .seq = 0, .root = 1, .most = 1, .sampling = &t.choosing}, none = one,
                *chains[] = {&one, &none, &none};
  none.most = 0;
  partial_kv_guess(p, chains, 3);
  for (int32_t i = 0; i < 3; i++) pass(p, i, (uint64_t)i + 7, 40, 7);
  for (int32_t length = 1; length <= 31; length = 2 * length + 1)
    for (int32_t i = 0; i < 40; i++) partial_kv_measured(p, 4, length, 1, length == 7 ? 6.5e9 : 1e12);
  assert_int_equal(plan_all(p, steps, 3, &weighs), 7); /* 24 tokens, where plain passes give 19.5 meanwhile */
  partial_kv_close(p);
  close_setup(s);
}

/* Where no chain pays, passes are plain, and ever more seldom one is tried. */
static void all_rest_where_no_chain_pays(void **state) {
  (void)state;
  enum { PASSES = 256 * (1 + 2 + 4 + 8) + 16 };
  setup *s = open_setup();
  text t;
  int32_t plain = 0, weighed = 0, tried = 0;
  partial_kv *p = open_timed(s, &t, 1e-3); /* plain passes take nothing */
  for (int32_t i = 0; i < PASSES; i++) {
    const int32_t length = planned(p, 0, 7, 200, 100);
    plain += length < 0;
    weighed += length == 0;
    tried += length > 0;
    partial_chain c = {.slot = 0, .seq = 0, .root = t.tokens[200], .most = length, .sampling = &t.choosing},
                  *one = &c;
    if (length > 0) partial_kv_guess(p, &one, 1); /* what one takes is forgotten with each rest */
    if (length >= 0) partial_kv_passed(p, 0, 7, 200, no_mass, length, i % 2 ? length : 0, 0);
  }
  assert_int_equal(plain + weighed + tried, PASSES);
  assert_int_equal(tried, 5);                       /* at once, and after each rest */
  assert_int_equal(weighed, 4);                     /* it was weighed before the first one */
  assert_int_equal(planned(p, 1, 9, 200, 100), -1); /* another session rests with it */
  partial_kv_close(p);
  close_setup(s);
}

/* Contexts grow: now and then it is measured what a plain pass takes, and after a failure all rest. */
static void some_passes_are_plain(void **state) {
  (void)state;
  setup *s = open_setup();
  text t;
  partial_kv *p = open_timed(s, &t, 1e9);
  int32_t plain = 0;
  for (int32_t i = 0; i < 640; i++) {
    const int32_t length = planned(p, 0, 7, 200, 100);
    plain += length < 0;
    if (length > 0) partial_kv_passed(p, 0, 7, 200, no_mass, length, length, 0);
  }
  assert_int_equal(plain, 10);
  partial_kv_failed(p);
  assert_int_equal(planned(p, 0, 7, 200, 100), -1);
  partial_kv_close(p);
  close_setup(s);
}

/* Lossy sessions have chains of their refresh interval, whatever pays; exact ones beside them have none. */
static void lossy_sessions_refresh_at_intervals(void **state) {
  (void)state;
  setup *s = open_setup();
  text t;
  partial_kv *p = open_timed(s, &t, 1e-3); /* no chain pays */
  msg_partial lossy = how;
  lossy.mode = WIRE_PARTIAL_LOSSY;
  lossy.refresh = 11;
  partial_step steps[] = {{0, 7, 200, &lossy, false, 0}, STEP(1, 8, 200)};
  partial_plan plan = partial_kv_plan(p, steps, 2, 100);
  assert_true(plan.weighs && !plan.learns && steps[0].length == 0); /* the other one was not weighed */
  partial_kv_passed(p, 1, 8, 200, no_mass, 0, 0, 0);
  plan = partial_kv_plan(p, steps, 2, 100);
  assert_true(plan.weighs && !plan.learns && steps[0].length == 11 && steps[1].length == 0);
  plan = partial_kv_plan(p, steps, 1, 5);
  assert_int_equal(steps[0].length, 5); /* the room */
  partial_kv_passed(p, 0, 7, 200, no_mass, 5, 5, 2);
  assert_int_equal(partial_kv_count(p)->lossy, 2);
  partial_kv_close(p);
  close_setup(s);
}

/* No chain is longer than any session's refresh interval. */
static void chains_end_at_the_refresh_interval(void **state) {
  (void)state;
  setup *s = open_setup();
  text t;
  partial_kv *p = open_timed(s, &t, 1e9);
  planned(p, 0, 7, 200, 100);
  pass(p, 0, 7, 40, 7);
  how.refresh = 2; /* another way, of which nothing is known yet */
  assert_int_equal(planned(p, 0, 7, 200, 100), -1);
  measure(p, 0, 1e9);
  assert_int_equal(planned(p, 0, 7, 200, 100), 2); /* the first try */
  partial_chain c = {.slot = 0, .seq = 0, .root = t.tokens[200], .most = 2, .sampling = &t.choosing},
                *chain = &c;
  partial_kv_guess(p, &chain, 1);
  assert_int_equal(planned(p, 0, 7, 200, 100), 1);
  how.refresh = 32;
  assert_true(planned(p, 0, 7, 200, 100) > 2); /* which the first way has not forgotten */
  partial_kv_close(p);
  close_setup(s);
}

/* Sessions that ask for other blocks teach nothing to the target's own, and share chains with them. */
static void ways_are_learnt_apart(void **state) {
  (void)state;
  setup *s = open_setup();
  text t;
  partial_kv *p = open_timed(s, &t, 1e9);
  assert_int_equal(planned(p, 0, 7, 200, 100), 7);
  const msg_partial own = how;
  for (int32_t i = 0; i < 9; i++) { /* more ways than are known at once, and none of them pays */
    how.retrieval = 10 + i;
    for (int32_t k = 0; k < 20; k++) {
      if (planned(p, 1, 8, 200, 100) < 0) partial_kv_measured(p, 1, 0, 1, 1e-3);
      partial_kv_passed(p, 1, 8, 200, no_mass, 7, 0, 0);
    }
    assert_int_equal(planned(p, 1, 8, 200, 100), -1);
  }
  const msg_partial other = how;
  how = own;
  assert_true(planned(p, 0, 7, 200, 100) > 0);
  partial_step steps[] = {STEP(0, 7, 200), {1, 8, 200, &other, false, 0}};
  for (int32_t i = 0; i < 2; i++) { /* a forward of both ways is timed as the target's own are */
    const partial_plan plan = partial_kv_plan(p, steps, 2, 100);
    assert_true(plan.learns && !plan.weighs && plan.why == PARTIAL_NONE);
    partial_kv_measured(p, 2, 0, 2, 1e9);
  }
  assert_true(partial_kv_plan(p, steps, 2, 100).weighs);
  for (int32_t i = 0; i < 2; i++) partial_kv_passed(p, i, (uint64_t)i + 7, 200, no_mass, 0, 0, 0);
  assert_true(partial_kv_plan(p, steps, 2, 100).weighs);
  assert_true(steps[0].length == 7 && steps[1].length == 7);
  partial_kv_close(p);
  close_setup(s);
}

/* A lossy session has no chains either after a forward has failed, for ever longer. */
static void failures_end_chains_of_all(void **state) {
  (void)state;
  setup *s = open_setup();
  text t;
  partial_kv *p = open_timed(s, &t, 1e9);
  msg_partial lossy = how;
  lossy.mode = WIRE_PARTIAL_LOSSY;
  partial_step step = {0, 7, 200, &lossy, false, 0};
  for (int32_t rest = 256; rest <= 512; rest *= 2) {
    for (int32_t k = 0; k < 8; k++) partial_kv_failed(p); /* one that eight sessions share */
    for (int32_t i = 0; i < rest; i++) {
      const partial_plan plan = partial_kv_plan(p, &step, 1, 100);
      assert_true(plan.why == PARTIAL_FAILED && !plan.weighs && !plan.learns);
    }
    assert_true(partial_kv_plan(p, &step, 1, 100).weighs);
  }
  partial_kv_passed(p, 0, 7, 200, no_mass, 7, 7, 0); /* all is well again */
  partial_kv_failed(p);
  for (int32_t i = 0; i < 256; i++) assert_int_equal(partial_kv_plan(p, &step, 1, 100).why, PARTIAL_FAILED);
  assert_true(partial_kv_plan(p, &step, 1, 100).weighs);
  partial_kv_close(p);
  close_setup(s);
}

/* Shares of heads are positive and add up; bounds are no shares, and their mean is less than the largest. */
static void bounds_are_no_masses(void **state) {
  (void)state;
  float sum[3] = {0};
  for (ops_weighing w = OPS_WEIGH_MASS; w <= OPS_WEIGH_BOUND_MEAN; w++) {
    setup *s = open_setup();
    err e = {0};
    partial_kv *p;
    const int32_t seq = acquire(s);
    const text t = make_text(s, seq, 0, 1);
    partial_options all = options_of(0, EACH, 1, 0);
    all.weighing = w;
    assert_int_equal(partial_kv_open(&p, &all, s->model, s->kv, SLOTS, CONTEXT, &e), ERR_OK);
    append(s, seq, t.tokens, 100);
    weigh(s, p, 0, seq, &t, 100);
    for (int32_t b = 0; b * KV_BLOCK < 100; b++) sum[w] += model_mass(s->model, 0)[b];
    partial_kv_close(p);
    close_setup(s);
  }
  const float heads = roundf(sum[0]);
  assert_true(heads >= 1 && fabsf(sum[0] - heads) < 1e-3f);
  assert_true(fabsf(sum[1] - sum[0]) > 1e-3f && sum[2] < sum[1]);
}

/* --- the engine --- */

static engine_result run(engine *g, const engine_job *job) {
  static engine_batch batch;
  static engine_results results;
  batch = (engine_batch){.count = 1};
  batch.jobs[0] = *job;
  engine_run(g, &batch, &results);
  return results.of[0];
}

static void read_prompt(engine *g, const text *t, int32_t slot) {
  engine_job job = {.kind = ENGINE_PREFILL, .slot = slot, .count = PROMPT - 1};
  memcpy(job.tokens, t->tokens, (PROMPT - 1) * sizeof *job.tokens);
  assert_int_equal(run(g, &job).code, ERR_OK);
}

static engine_job step_of(const text *t, int32_t slot, int32_t length) {
  engine_job job = {.kind = ENGINE_VERIFY,
                    .slot = slot,
                    .session = (uint64_t)slot + 1,
                    .kv_length = length - 1,
                    .count = 1,
                    .sampling = t->sampling,
                    .sampled_max = 1,
                    .partial = how,
                    .partial_most = min_i32(PARTIAL_ROWS_MAX, PROMPT + OUTPUT - length - 1)};
  job.tokens[0] = t->tokens[length - 1];
  job.parents[0] = -1;
  return job;
}

static void assert_continues(const text *t, int32_t length, const engine_result *r) {
  assert_int_equal(r->code, ERR_OK);
  assert_true(r->sampled_count >= 1 && r->sampled_count <= r->guessed + 1 && r->guessed == r->node_count);
  assert_memory_equal(r->sampled, t->tokens + length, (size_t)r->sampled_count * sizeof *r->sampled);
  assert_int_equal(r->kv_length, length - 1 + r->sampled_count);
}

/* Two sessions by turns and together; a few blocks are shown. */
static void an_engine_gives_the_plain_tokens(void **state) {
  (void)state;
  setup *s = open_setup();
  err e = {0};
  engine *g;
  const partial_options few = options_of(1, 1, 60, 9);
  const engine_options o = {
      .model = s->model, .kv = s->kv, .sequences = SLOTS, .partial = &few, .context = CONTEXT};
  assert_int_equal(engine_open(&g, &o, &e), ERR_OK);
  for (int32_t i = 0; i < SLOTS; i++) map_sequence(s->kv, i); /* which the engine has taken, in order */
  const int32_t plain = acquire(s);
  const text texts[] = {make_text(s, plain, 0, 1), make_text(s, plain, 0.8f, 2)};
  int32_t length[2] = {PROMPT, PROMPT};
  static engine_batch batch;
  static engine_results results;
  for (int32_t i = 0; i < 2; i++) read_prompt(g, &texts[i], i);
  while (length[0] < PROMPT + OUTPUT && length[1] < PROMPT + OUTPUT) {
    batch = (engine_batch){.count = 2};
    for (int32_t i = 0; i < 2; i++) batch.jobs[i] = step_of(&texts[i], i, length[i]);
    batch.jobs[0].selfcheck = true;
    engine_run(g, &batch, &results);
    for (int32_t i = 0; i < 2; i++) {
      assert_continues(&texts[i], length[i], &results.of[i]);
      assert_false(results.of[i].selfcheck_differs);
      length[i] += results.of[i].sampled_count;
    }
  }
  for (int32_t i = 0; i < 2; i++) {
    while (length[i] < PROMPT + OUTPUT) {
      engine_job job = step_of(&texts[i], i, length[i]);
      engine_result r = run(g, &job);
      assert_continues(&texts[i], length[i], &r);
      length[i] += r.sampled_count;
    }
  }
  const partial_counters *n = engine_count_partial(g);
  assert_true(engine_count(g)->selfchecks > 5);
  assert_true(n->chains > 0 && n->guessed > n->accepted && n->accepted > 0 && n->failures == 0);
  engine_close(g);
  close_setup(s);
}

/* The job's nodes say right what follows for `right` tokens. */
static engine_job drafted_step(const text *t, int32_t length, int32_t right) {
  engine_job job = step_of(t, 0, length);
  for (int32_t i = 1; i <= 4; i++) {
    const int32_t token = t->tokens[min_i32(length + i - 1, PROMPT + OUTPUT - 1)];
    job.tokens[i] = i <= right ? token : (token + 1) % SUPPORT_TINY_VOCAB;
    job.parents[i] = i - 1;
  }
  job.count = 5;
  job.sampled_max = min_i32(5, PROMPT + OUTPUT - length);
  job.partial_drafted = true;
  return job;
}

/* Nodes of drafts are checked over partial KV; the whole cache has the last word; and it is said what the
 * nodes alone would have given. */
static void an_engine_checks_drafted_nodes(void **state) {
  (void)state;
  setup *s = open_setup();
  err e = {0};
  engine *g;
  const partial_options few = options_of(1, 1, 60, 9);
  const engine_options o = {
      .model = s->model, .kv = s->kv, .sequences = SLOTS, .partial = &few, .context = CONTEXT};
  assert_int_equal(engine_open(&g, &o, &e), ERR_OK);
  for (int32_t i = 0; i < SLOTS; i++) map_sequence(s->kv, i);
  const int32_t plain = acquire(s);
  const text t = make_text(s, plain, 0.8f, 2);
  int32_t length = PROMPT, guesses = 0;
  read_prompt(g, &t, 0);
  for (int32_t i = 0; length < PROMPT + OUTPUT; i++) {
    const engine_job job = drafted_step(&t, length, i % 5);
    const engine_result r = run(g, &job);
    assert_int_equal(r.code, ERR_OK);
    assert_memory_equal(r.sampled, t.tokens + length, (size_t)r.sampled_count * sizeof *r.sampled);
    assert_int_equal(r.node_count, r.guessed > 0 ? r.guessed : 4);
    if (r.guessed > 0) assert_int_equal(r.drafted_count, min_i32(1 + i % 5, r.sampled_count));
    guesses += r.guessed > 0;
    length += r.sampled_count;
    assert_int_equal(r.kv_length, length - 1);
  }
  const partial_counters *n = engine_count_partial(g);
  assert_true(guesses > 5 && n->checked == 4 * (uint64_t)guesses);
  assert_true(n->right > 0 && n->right < n->checked && n->accepted > 0);
  engine_close(g);
  close_setup(s);
}

/* A lossy answer goes on from what was guessed, of which so many tokens are not the model's own. */
static void an_engine_accepts_lossy_guesses(void **state) {
  (void)state;
  setup *s = open_setup();
  err e = {0};
  engine *g;
  const partial_options few = options_of(1, 1, 60, 0);
  const engine_options o = {
      .model = s->model, .kv = s->kv, .sequences = SLOTS, .partial = &few, .context = CONTEXT};
  how.mode = WIRE_PARTIAL_LOSSY;
  how.refresh = 12;
  assert_int_equal(engine_open(&g, &o, &e), ERR_OK);
  for (int32_t i = 0; i < SLOTS; i++) map_sequence(s->kv, i);
  const int32_t plain = acquire(s);
  text t = make_text(s, plain, 0, 1);
  read_prompt(g, &t, 0);
  int32_t length = PROMPT, differ = 0, first = 0;
  uint64_t guessed = 0;
  while (length < PROMPT + OUTPUT) {
    engine_job job = step_of(&t, 0, length);
    job.partial_most = min_i32(12, job.partial_most);
    const engine_result r = run(g, &job);
    assert_int_equal(r.code, ERR_OK);
    assert_int_equal(r.sampled_count, r.guessed + 1); /* all of them */
    differ += r.lossy;
    guessed += (uint64_t)r.guessed;
    if (differ > 0 && first == 0) first = length;
    if (first == 0)
      assert_memory_equal(r.sampled, t.tokens + length, (size_t)r.sampled_count * sizeof *r.sampled);
    memcpy(t.tokens + length, r.sampled, (size_t)r.sampled_count * sizeof *r.sampled);
    length += r.sampled_count;
  }
  const partial_counters *n = engine_count_partial(g);
  assert_true(differ > 0 && first > 60);
  assert_true(n->lossy == (uint64_t)differ && n->accepted == guessed && n->guessed == guessed);
  engine_close(g);
  close_setup(s);
}

/* Jobs for which it may not guess: their tokens are ranked, or nothing is left of their budget. */
static void an_engine_does_not_always_guess(void **state) {
  (void)state;
  setup *s = open_setup();
  err e = {0};
  engine *g;
  const partial_options few = options_of(1, 1, 1, 9);
  const engine_options o = {
      .model = s->model, .kv = s->kv, .sequences = SLOTS, .partial = &few, .context = CONTEXT};
  assert_int_equal(engine_open(&g, &o, &e), ERR_OK);
  for (int32_t i = 0; i < SLOTS; i++) map_sequence(s->kv, i);
  const int32_t plain = acquire(s);
  const text t = make_text(s, plain, 0.8f, 2);
  read_prompt(g, &t, 0);
  for (int32_t i = 0; i < 12; i++) {
    engine_job job = step_of(&t, 0, PROMPT + i);
    if (i % 3 == 0) job.partial_most = 0, job.partial_why = PARTIAL_ROOM;
    if (i % 3 == 1) job.sampling.top_k = 1; /* filters rank: another token */
    if (i % 3 == 2) job.logprobs = 1;
    engine_result r = run(g, &job);
    assert_int_equal(r.code, ERR_OK);
    assert_int_equal(r.sampled_count, 1);
    assert_int_equal(r.guessed, 0);
  }
  const partial_counters *n = engine_count_partial(g);
  assert_int_equal(n->guessed, 0);
  assert_int_equal(n->fallbacks[PARTIAL_SAMPLING], 8);
  assert_int_equal(n->fallbacks[PARTIAL_ROOM], 4);
  engine_close(g);
  close_setup(s);
}

static int choose_virtual(void **state) {
  (void)state;
  virtual_cache = true;
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(blocks_that_weigh_most_are_shown),
      cmocka_unit_test(all_blocks_guess_what_plain_decoding_says),
      cmocka_unit_test(chains_end_and_begin),
      cmocka_unit_test(looked_up_tokens_are_checked),
      cmocka_unit_test(looked_up_tokens_leave_room),
      cmocka_unit_test(drafted_nodes_are_checked),
      cmocka_unit_test(chains_pay_against_what_drafts_give),
      cmocka_unit_test(fewer_sessions_are_weighed_against_fewer_tokens),
      cmocka_unit_test(an_engine_checks_drafted_nodes),
      cmocka_unit_test(chains_are_as_long_as_they_pay),
      cmocka_unit_test(sessions_that_share_a_pass_have_times_of_their_own),
      cmocka_unit_test(sessions_that_share_a_pass_share_a_length),
      cmocka_unit_test(all_rest_where_no_chain_pays),
      cmocka_unit_test(some_passes_are_plain),
      cmocka_unit_test(lossy_sessions_refresh_at_intervals),
      cmocka_unit_test(chains_end_at_the_refresh_interval),
      cmocka_unit_test(ways_are_learnt_apart),
      cmocka_unit_test(bounds_are_no_masses),
      cmocka_unit_test(failures_end_chains_of_all),
      cmocka_unit_test(an_engine_gives_the_plain_tokens),
      cmocka_unit_test(an_engine_accepts_lossy_guesses),
      cmocka_unit_test(an_engine_does_not_always_guess),
  };
  const struct CMUnitTest of_virtual[] = {
      cmocka_unit_test(looked_up_tokens_are_checked),
      cmocka_unit_test(all_blocks_guess_what_plain_decoding_says),
      cmocka_unit_test(an_engine_gives_the_plain_tokens),
      cmocka_unit_test(an_engine_checks_drafted_nodes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL) +
         cmocka_run_group_tests_name("virtual", of_virtual, choose_virtual, NULL);
}
