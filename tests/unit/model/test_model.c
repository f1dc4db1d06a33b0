/* libs: model : far */
/* The model's interface on a small random model: what is refused, what is told, and what a run without a
 * draft leaves untouched. */
#include "common/base/noise.h"
#include "kernels/far/far.h"
#include "tests/support/models.h"
#include "tests/support/random.h"

#include <math.h>

#define CONTEXT 64

typedef struct fixture {
  gguf_builder b;
  model_file *g;
  mem memory;
  model *m;
  kv_cache *k;
  int32_t seq, other;
} fixture;

static int open_fixture(void **state) {
  fixture *f = calloc(1, sizeof *f);
  err e = {0};
  f->g = support_tiny_file(&f->b);
  device *d = support_open_device(support_device(), OPS_MATH_INT8, 2, &f->memory);
  assert_int_equal(model_open(&f->m, f->g, d, &(model_options){0}, &f->memory, &e), ERR_OK);
  kv_options ko = {.sequences = 2, .context = CONTEXT, .type = KV_F16};
  assert_int_equal(kv_open(&f->k, d, model_shape(f->m), &ko, &f->memory, &e), ERR_OK);
  f->seq = kv_acquire(f->k);
  f->other = kv_acquire(f->k);
  *state = f;
  return 0;
}

static int close_fixture(void **state) {
  fixture *f = *state;
  kv_close(f->k);
  support_close_model(f->m);
  model_file_close(f->g);
  gb_free(&f->b);
  free(f);
  return 0;
}

static const int32_t TOKENS[CONTEXT + 1] = {7, 8, 9, 10};

static model_segment append(int32_t seq, int32_t count) {
  return (model_segment){.seq = seq, .kind = MODEL_APPEND, .count = count, .tokens = TOKENS};
}

static const int32_t PARENTS[] = {-1, 0, 0, 1};

static model_segment tree(int32_t seq) {
  return (model_segment){
      .seq = seq, .kind = MODEL_TREE, .count = 4, .tokens = TOKENS, .parents = PARENTS, .all_logits = true};
}

static void assert_refused(fixture *f, const model_segment *s, int32_t count, int code) {
  model_counters before = model_count(f->m);
  int32_t length = kv_length(f->k, f->seq);
  assert_int_equal(model_forward(f->m, f->k, s, count), code);
  assert_int_equal(model_count(f->m).forwards, before.forwards);
  assert_int_equal(kv_length(f->k, f->seq), length);
}

static void bad_batches_change_nothing(void **state) {
  fixture *f = *state;
  const int32_t wrong[] = {7, SUPPORT_TINY_VOCAB}, negative[] = {-1}, other_parents[] = {-1, 0, 1, 1};
  model_segment s[2] = {append(f->seq, 3), append(f->seq, 1)};
  assert_int_equal(model_forward(f->m, f->k, s, 1), ERR_OK);
  assert_refused(f, s, 0, ERR_ARG);
  assert_refused(f, s, 2, ERR_ARG); /* one sequence twice */
  assert_refused(f, &(model_segment){.seq = f->seq, .count = 0}, 1, ERR_ARG);
  assert_refused(f, &(model_segment){.seq = f->seq, .count = 2, .tokens = wrong}, 1, ERR_ARG);
  assert_refused(f, &(model_segment){.seq = f->seq, .count = 1, .tokens = negative}, 1, ERR_ARG);
  s[0] = append(f->seq, CONTEXT - 2);
  assert_refused(f, s, 1, ERR_LIMIT); /* one past the context */
  s[0] = (model_segment){.seq = f->seq, .count = MODEL_ROWS_MAX + 1, .tokens = TOKENS};
  assert_refused(f, s, 1, ERR_LIMIT);
  s[0] = tree(f->seq);
  assert_refused(f, s, 1, ERR_STATE); /* not staged */
  assert_int_equal(kv_stage(f->k, f->seq, PARENTS, 4), ERR_OK);
  s[0].parents = other_parents;
  assert_refused(f, s, 1, ERR_ARG);
  s[0] = append(f->seq, 1);
  assert_refused(f, s, 1, ERR_STATE); /* a stage is open */
  s[0] = tree(f->seq);
  assert_int_equal(model_forward(f->m, f->k, s, 1), ERR_OK);
  assert_refused(f, s, 1, ERR_STATE); /* has run */
}

static void logits_are_where_they_were_asked_for(void **state) {
  fixture *f = *state;
  model_segment s[] = {append(f->seq, 3), append(f->other, 2)};
  s[1].all_logits = true;
  assert_null(model_logits(f->m, 0, 0));
  assert_int_equal(model_forward(f->m, f->k, s, 2), ERR_OK);
  assert_null(model_logits(f->m, 0, 0));
  assert_null(model_logits(f->m, 0, 1));
  assert_non_null(model_logits(f->m, 0, 2));
  assert_non_null(model_logits(f->m, 1, 0));
  assert_non_null(model_logits(f->m, 1, 1));
  assert_null(model_logits(f->m, 1, 2));
  assert_null(model_logits(f->m, 2, 0));
  assert_null(model_logits(f->m, -1, 0));
  assert_int_equal(support_argmax(f->m, 0, 1), -1);
  const float *logits = model_logits(f->m, 1, 1);
  int32_t best = 0;
  for (int32_t i = 1; i < SUPPORT_TINY_VOCAB; i++) best = logits[i] > logits[best] ? i : best;
  assert_int_equal(support_argmax(f->m, 1, 1), best);
  model_counters c = model_count(f->m);
  assert_int_equal(c.logit_rows, 3);
  s[0] = append(f->seq, 2);
  s[0].no_logits = true;
  assert_int_equal(model_forward(f->m, f->k, s, 1), ERR_OK);
  assert_null(model_logits(f->m, 0, 1));
  assert_int_equal(model_count(f->m).logit_rows, 3);
  assert_int_equal(model_count(f->m).rows, 7);
}

/* What model.h says, of logits that were kept. */
static int32_t choice_of(const model_sampling *s, const float *logits, int32_t position) {
  const noise_source noise = {s->seed, s->choice, (uint32_t)position};
  int32_t best = 0;
  float most = -INFINITY;
  for (int32_t t = 0; t < SUPPORT_TINY_VOCAB; t++) {
    float value = s->scale == 0 ? logits[t] : logits[t] * s->scale + noise_of(&noise, t);
    if (value > most) most = value, best = t;
  }
  return best;
}

static const model_sampling samplings[] = {{0}, {1.25f, 42, 0}, {0.1f, 1ull << 63, 7}};

/* Two equal sequences in one batch: one keeps its logits, the other chooses. */
static void choices_are_those_of_the_logits(void **state) {
  fixture *f = *state;
  enum { ROUNDS = 60 };
  const int32_t depths[] = {0, 1, 1, 2};
  int distinct = 0;
  uint64_t random = 5;
  for (int round = 0; round < ROUNDS; round++) {
    int32_t tokens[4];
    for (int i = 0; i < 4; i++) tokens[i] = (int32_t)random_below(&random, (uint32_t)SUPPORT_TINY_VOCAB);
    kv_rollback(f->k, f->seq, round / 10);
    kv_rollback(f->k, f->other, round / 10);
    const model_sampling *sampling = &samplings[round % 3];
    int keeps = round % 2, chooses = !keeps; /* either may come first */
    model_segment s[2];
    s[keeps] = append(f->seq, 3);
    s[keeps].all_logits = true;
    s[chooses] = append(f->other, 3);
    s[chooses].sampling = sampling;
    s[keeps].tokens = s[chooses].tokens = tokens;
    assert_int_equal(model_forward(f->m, f->k, s, 2), ERR_OK);
    int32_t length = kv_length(f->k, f->seq);
    assert_int_equal(model_sampled(f->m, chooses, 2),
                     choice_of(sampling, model_logits(f->m, keeps, 2), length));
    assert_int_equal(model_sampled(f->m, chooses, 1), -1);
    assert_null(model_logits(f->m, chooses, 2));
    assert_int_equal(support_argmax(f->m, chooses, 2), -1);
    s[keeps] = tree(f->seq);
    s[chooses] = tree(f->other);
    s[chooses].sampling = sampling;
    s[keeps].tokens = s[chooses].tokens = tokens;
    assert_int_equal(kv_stage(f->k, f->seq, PARENTS, 4), ERR_OK);
    assert_int_equal(kv_stage(f->k, f->other, PARENTS, 4), ERR_OK);
    assert_int_equal(model_forward(f->m, f->k, s, 2), ERR_OK);
    for (int32_t row = 0; row < 4; row++) {
      int32_t expected = choice_of(sampling, model_logits(f->m, keeps, row), length + depths[row] + 1);
      assert_int_equal(model_sampled(f->m, chooses, row), expected);
      assert_int_equal(model_sampled(f->m, keeps, row), -1);
      assert_null(model_logits(f->m, chooses, row));
      distinct += expected != support_argmax(f->m, keeps, row);
    }
    assert_int_equal(kv_commit(f->k, f->seq, (const int32_t[]){0, 2}, 2), ERR_OK);
    assert_int_equal(kv_commit(f->k, f->other, (const int32_t[]){0, 2}, 2), ERR_OK);
  }
  assert_true(distinct > ROUNDS); /* noise decided */
  assert_int_equal(model_count(f->m).logit_rows, ROUNDS * (3 + 1 + 8));
}

static const model_ranking rankings[] = {
    {.options = SAMPLER_DEFAULTS, .count = 5},
    {.options = {.temperature = 0.8f, .top_k = 40, .top_p = 0.9f, .repeat_penalty = 1.4f, .seed = 5},
     .count = 16},
    {.options = {.temperature = 1, .top_p = 1, .min_p = 0.02f, .repeat_penalty = 1, .choice = 2}, .count = 1},
};

/* The list of a row whose logits another sequence has kept, by the sampler itself. */
static void check_ranked(const model_ranking *k, const float *logits, const model_path *path,
                         int32_t position, const int32_t *ids, const ops_ranked *got) {
  float z[SUPPORT_TINY_VOCAB];
  ops_ranked want;
  sampler *s;
  const sampler_row row = {.history = k->history,
                           .history_count = k->history_count,
                           .extra = path ? path->tokens : NULL,
                           .extra_count = path ? path->count : 0};
  for (int32_t t = 0; t < SUPPORT_TINY_VOCAB; t++) z[t] = ids ? -INFINITY : logits[t];
  for (int32_t i = 0; ids && i < SUPPORT_TINY_VOCAB; i++)
    if (ids[i] >= 0) z[ids[i]] = logits[i];
  assert_int_equal(sampler_alloc(&s, SUPPORT_TINY_VOCAB), ERR_OK);
  want.count = sampler_rank(s, &k->options, &row, z, position, k->count, want.list);
  sampler_free(s);
  assert_non_null(got);
  assert_int_equal(got->count, want.count);
  assert_memory_equal(got->list, want.list, (size_t)want.count * sizeof *want.list);
}

/* Two equal sequences again: one keeps its logits, the other is ranked, in an appended row and in a tree. */
static void rank_beside_logits(fixture *f, int round, const int32_t *ids) {
  static const int32_t history[] = {7, 8, 9, 300, 7}, nodes[] = {8, 9, 8, 10};
  static const model_path paths[] = {{nodes, 0}, {nodes, 1}, {nodes + 1, 1}, {nodes + 2, 2}};
  const int32_t depths[] = {0, 1, 1, 2};
  int keeps = round % 2, ranks = !keeps;
  model_ranking k = rankings[round % 3];
  if (round % 4 < 3) k.history = history, k.history_count = 5;
  model_segment s[2];
  s[keeps] = append(f->seq, 3), s[ranks] = append(f->other, 3);
  s[ranks].ranking = &k;
  assert_int_equal(model_forward(f->m, f->k, s, 2), ERR_OK);
  int32_t length = kv_length(f->k, f->seq);
  check_ranked(&k, model_logits(f->m, keeps, 2), NULL, length, ids, model_ranked(f->m, ranks, 2));
  assert_null(model_ranked(f->m, ranks, 1));
  assert_null(model_ranked(f->m, keeps, 2));
  assert_null(model_logits(f->m, ranks, 2));
  assert_int_equal(model_sampled(f->m, ranks, 2), -1);
  s[keeps] = tree(f->seq), s[ranks] = tree(f->other);
  if (round % 4) k.paths = paths;
  s[ranks].ranking = &k;
  assert_int_equal(kv_stage(f->k, f->seq, PARENTS, 4), ERR_OK);
  assert_int_equal(kv_stage(f->k, f->other, PARENTS, 4), ERR_OK);
  assert_int_equal(model_forward(f->m, f->k, s, 2), ERR_OK);
  if (round % 2) model_rank_all(f->m);
  for (int32_t row = 0; row < 4; row++)
    check_ranked(&k, model_logits(f->m, keeps, row), k.paths ? &paths[row] : NULL, length + depths[row] + 1,
                 ids, model_ranked(f->m, ranks, row));
  kv_rollback(f->k, f->seq, round / 6);
  kv_rollback(f->k, f->other, round / 6);
}

static void rankings_are_those_of_the_logits(void **state) {
  fixture *f = *state;
  int32_t ids[SUPPORT_TINY_VOCAB];
  for (int32_t t = 0; t < SUPPORT_TINY_VOCAB; t++) ids[t] = t % 7 ? (t + 11) % SUPPORT_TINY_VOCAB : -1;
  for (int round = 0; round < 24; round++) rank_beside_logits(f, round, NULL);
  assert_int_equal(model_set_ids(f->m, ids, SUPPORT_TINY_VOCAB), ERR_OK);
  for (int round = 0; round < 24; round++) rank_beside_logits(f, round, ids);
  assert_int_equal(model_set_ids(f->m, NULL, SUPPORT_TINY_VOCAB), ERR_OK);
  rank_beside_logits(f, 1, NULL);
}

/* Where all rows choose, the memory for logits does not grow; a GPU chooses from logits in its memory. */
static void choosing_keeps_no_logits(void **state) {
  fixture *f = *state;
  if (strncmp(model_device_name(f->m), "cpu", 3) != 0) skip();
  model_segment s = append(f->seq, 20);
  s.all_logits = true;
  s.sampling = &samplings[1];
  assert_int_equal(model_forward(f->m, f->k, &s, 1), ERR_OK); /* what an op needs is there from now on */
  uint64_t calls = f->memory.calls[MEM_ACTIVATIONS];
  s = append(f->other, 20);
  s.all_logits = true;
  s.sampling = &samplings[1];
  assert_int_equal(model_forward(f->m, f->k, &s, 1), ERR_OK);
  assert_int_equal(f->memory.calls[MEM_ACTIVATIONS], calls);
  for (int32_t row = 0; row < 20; row++) assert_true(model_sampled(f->m, 0, row) >= 0);
  assert_int_equal(kv_rollback(f->k, f->other, 0), ERR_OK);
  s = append(f->other, 20);
  s.all_logits = true;
  size_t before = f->memory.bytes[MEM_ACTIVATIONS];
  assert_int_equal(model_forward(f->m, f->k, &s, 1), ERR_OK);
  assert_int_equal(f->memory.calls[MEM_ACTIVATIONS], calls + 1);
  assert_int_equal(f->memory.bytes[MEM_ACTIVATIONS] - before, 20 * SUPPORT_TINY_VOCAB * sizeof(float));
  assert_int_equal(model_sampled(f->m, 0, 0), -1);
}

/* Counters of the device and the allocator: nothing for speculation without a tree, and seen above 0 with
 * one. */
static void off_means_untouched(void **state) {
  fixture *f = *state;
  model_segment s = append(f->seq, 20);
  s.all_logits = true; /* memory that grows, but not for speculation */
  assert_int_equal(model_forward(f->m, f->k, &s, 1), ERR_OK);
  uint64_t calls = f->memory.calls[MEM_ACTIVATIONS];
  for (int32_t i = 0; i < 10; i++) {
    s = append(f->seq, 1);
    assert_int_equal(model_forward(f->m, f->k, &s, 1), ERR_OK);
  }
  model_counters c = model_count(f->m);
  assert_int_equal(c.forwards, 11);
  assert_int_equal(c.rows, 30);
  assert_int_equal(c.staged_rows + c.commit_copies + f->memory.calls[MEM_SPECULATION], 0);
  assert_int_equal(f->memory.calls[MEM_ACTIVATIONS], calls); /* a step allocates nothing */
  s = tree(f->seq);
  assert_int_equal(kv_stage(f->k, f->seq, PARENTS, 4), ERR_OK);
  assert_int_equal(model_forward(f->m, f->k, &s, 1), ERR_OK);
  assert_int_equal(kv_commit(f->k, f->seq, (const int32_t[]){0, 1, 3}, 3), ERR_OK);
  c = model_count(f->m);
  assert_int_equal(c.staged_rows, 4);
  assert_int_equal(c.commit_copies, 3 * SUPPORT_TINY_LAYERS);
  assert_true(f->memory.calls[MEM_SPECULATION] > 0);
  assert_int_equal(kv_length(f->k, f->seq), 33);
}

static void it_tells_what_it_is(void **state) {
  fixture *f = *state;
  assert_string_equal(model_numerics(f->m, KV_F16), "int8/kv-f16/" OPS_NUMERICS_VERSION);
  assert_string_equal(model_numerics(f->m, KV_F32), "int8/kv-f32/" OPS_NUMERICS_VERSION);
  assert_int_equal(model_shape(f->m)->vocab, SUPPORT_TINY_VOCAB);
  assert_string_not_equal(model_variant(f->m, 1), model_variant(f->m, 8));
  for (int32_t rows = 1, width; rows <= MODEL_ROWS_MAX; rows++) {
    assert_true((width = model_width(f->m, rows)) >= rows);
    assert_int_equal(model_width(f->m, width), width);
    assert_true(rows == 1 || width >= model_width(f->m, rows - 1));
  }
}

static void note_progress(void *context, double done) {
  double *last = context;
  assert_true(done > *last && done <= 1.0);
  *last = done;
}

static void opening_tells_progress_and_refuses(void **state) {
  fixture *f = *state;
  model *m;
  err e = {0};
  double done = 0;
  model_options o = {.progress = note_progress, .progress_context = &done};
  device *d = support_open_device(support_device(), OPS_MATH_F32, 1, NULL);
  assert_int_equal(model_open(&m, f->g, d, &o, NULL, &e), ERR_OK);
  assert_true(done == 1.0);
  support_close_model(m);
  assert_int_equal(device_open(&d, support_device(), &(device_options){.threads = 0}, NULL, &e), ERR_ARG);
  assert_null(d);
  assert_true(e.text[0] != 0);
  model_close(NULL);
}

/* The tensor is named, whichever it is, and wherever in it the value stands. */
static void a_weight_that_is_no_number_is_refused(void **state) {
  static const model_role roles[] = {MODEL_EMBED, MODEL_Q, MODEL_DOWN, MODEL_FFN_NORM, MODEL_OUTPUT_NORM};
  fixture *f = *state;
  for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
    const gguf_tensor *t =
        model_file_tensor(f->g, roles[i], roles[i] == MODEL_EMBED || roles[i] == MODEL_OUTPUT_NORM ? 0 : 1);
    size_t block = t->type == GGUF_F32 ? sizeof(float) : gb_bytes(t->type, 32);
    uint8_t *p = (uint8_t *)(uintptr_t)t->data + t->bytes - block,
            kept[4]; /* the last value, or scale; the builder's own */
    model *m = NULL;
    err e = {0};
    memcpy(kept, p, sizeof kept);
    if (t->type == GGUF_F32)
      memcpy(p, &(float){-INFINITY}, sizeof(float));
    else
      p[0] = 0, p[1] = 0x7e;
    device *d = support_open_device(support_device(), OPS_MATH_INT8, 2, NULL);
    assert_int_equal(model_open(&m, f->g, d, &(model_options){0}, NULL, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, t->name));
    assert_non_null(strstr(e.text, "NaN or infinity"));
    d->table->close(d);
    memcpy(p, kept, sizeof kept);
  }
}

static void note_any(void *context, double done) {
  (void)done;
  *(bool *)context = true;
}

/* Before anything is packed, and with the cache that would follow. A smaller cache, and it opens. */
static void a_model_without_room_is_refused_with_the_numbers(void **state) {
  fixture *f = *state;
  model *m;
  err e = {0};
  bool begun = false;
  const size_t most = (size_t)64 << 20;
  const device_options limited = {.math = OPS_MATH_INT8, .threads = 1, .memory = most};
  model_options o = {.progress = note_any, .progress_context = &begun};
  device *d;
  if (device_open(&d, support_device(), &limited, NULL, &e) != ERR_OK) fail_msg("%s", e.text);
  o.cache = (memory_needs){.rows = most, .sessions = 4, .context = 1024};
  assert_int_equal(model_open(&m, f->g, d, &o, NULL, &e), ERR_NOMEM);
  assert_null(m);
  assert_false(begun);
  const char *const parts[] = {
      "the model needs ",          " for weights, ", " for activations, 64.0 MiB for a cache of ",
      "4 sessions of 1024 tokens", d->table->name,   " left: give at most --sessions 3"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (!strstr(e.text, parts[i])) fail_msg("'%s' is not in '%s'", parts[i], e.text);
  o.cache.rows = most / 4;
  if (strncmp(d->table->name, "far:", 4) == 0) { /* a device may promise what it does not give */
    far_set_faults(d, &(far_faults){.refuse = 1});
    assert_int_equal(model_open(&m, f->g, d, &o, NULL, &e), ERR_NOMEM);
    assert_non_null(strstr(e.text, " 16.0 MiB for a cache of 4 sessions of 1024 tokens), and "));
    assert_false(begun);
  }
  o.cache.rows = most;
  d->kv_in_host = true; /* then it is no memory of the device */
  if (model_open(&m, f->g, d, &o, NULL, &e) != ERR_OK) fail_msg("%s", e.text);
  assert_true(begun);
  support_close_model(m);
}

/* What the device could not give once it may give the next time: the same logits, as if nothing had been. */
static void out_of_memory_is_no_lasting_state(void **state) {
  fixture *f = *state;
  device *d = support_open_device("far:cpu", OPS_MATH_INT8, 1, NULL);
  model *m;
  err e = {0};
  assert_int_equal(model_open(&m, f->g, d, &(model_options){0}, NULL, &e), ERR_OK);
  kv_cache *k = support_open_cache(m, 1, CONTEXT, KV_F16);
  int32_t seq = kv_acquire(k);
  const model_segment first = append(f->seq, 3), same = append(seq, 3);
  size_t row = (size_t)model_shape(m)->vocab * sizeof(float);
  far_set_faults(d, &(far_faults){.refuse_begin = 1});
  assert_int_equal(model_forward(m, k, &same, 1), ERR_NOMEM);
  assert_int_equal(kv_length(k, seq), 0);
  assert_int_equal(model_forward(m, k, &same, 1), ERR_OK);
  assert_int_equal(model_forward(f->m, f->k, &first, 1), ERR_OK);
  assert_memory_equal(model_logits(m, 0, 2), model_logits(f->m, 0, 2), row);
  far_set_faults(d, &(far_faults){.refuse = 1}); /* of the staging pool */
  assert_int_equal(kv_stage(k, seq, PARENTS, 4), ERR_NOMEM);
  assert_int_equal(kv_stage(k, seq, PARENTS, 4), ERR_OK);
  assert_int_equal(kv_stage(f->k, f->seq, PARENTS, 4), ERR_OK);
  const model_segment grown = tree(seq), expected = tree(f->seq);
  assert_int_equal(model_forward(m, k, &grown, 1), ERR_OK);
  assert_int_equal(model_forward(f->m, f->k, &expected, 1), ERR_OK);
  assert_memory_equal(model_logits(m, 0, 3), model_logits(f->m, 0, 3), row);
  kv_close(k);
  support_close_model(m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(bad_batches_change_nothing, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(logits_are_where_they_were_asked_for, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(rankings_are_those_of_the_logits, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(choices_are_those_of_the_logits, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(choosing_keeps_no_logits, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(off_means_untouched, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(it_tells_what_it_is, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(opening_tells_progress_and_refuses, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(a_weight_that_is_no_number_is_refused, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(a_model_without_room_is_refused_with_the_numbers, open_fixture,
                                      close_fixture),
      cmocka_unit_test_setup_teardown(out_of_memory_is_no_lasting_state, open_fixture, close_fixture),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
