/* libs: target : far */
/* The states that the engine returns, against plain decoding done here, one token after the other. */
#include "target_worker/tap_rows.h"
#include "target_worker/engine.h"
#include "tests/support/models.h"
#include "tests/support/random.h"

enum { CONTEXT = 128, LENGTH = 40, SLOTS = 2 };

typedef struct setup {
  gguf_builder bytes;
  model_file *file;
  model *model;
  kv_cache *kv;
  engine *engine;
  mem mem;
  int32_t layers, embed;
  int32_t tokens[LENGTH];
  float *states; /* [LENGTH][layers + 1][embed], as plain decoding has them */
} setup;

static const float *state_of(const setup *s, int32_t position, int32_t tap) {
  return s->states + ((size_t)position * (size_t)(s->layers + 1) + (size_t)tap) * (size_t)s->embed;
}

/* Greedy decoding after 20 tokens, in the sequence that the engine did not take. */
static void decode(setup *s) {
  uint64_t random = 5;
  int32_t seq = kv_acquire(s->kv), all[OPS_CAPTURES_MAX];
  const model_sampling greedy = {0};
  for (int32_t i = 0; i <= s->layers; i++) all[i] = i;
  for (int32_t i = 0; i < 20; i++)
    s->tokens[i] = (int32_t)random_below(&random, (uint32_t)SUPPORT_TINY_VOCAB);
  for (int32_t i = 0; i < LENGTH; i++) {
    model_segment one = {.seq = seq, .kind = MODEL_APPEND, .count = 1, .tokens = &s->tokens[i], .taps = all};
    one.tap_count = s->layers + 1;
    one.sampling = &greedy;
    assert_int_equal(model_forward(s->model, s->kv, &one, 1), ERR_OK);
    if (i >= 19 && i + 1 < LENGTH) s->tokens[i + 1] = model_sampled(s->model, 0, 0);
    for (int32_t tap = 0; tap <= s->layers; tap++)
      memcpy((float *)state_of(s, i, tap), model_tapped(s->model, 0, 0, tap),
             (size_t)s->embed * sizeof(float));
  }
  kv_release(s->kv, seq);
}

static setup *open_setup(void) {
  setup *s = calloc(1, sizeof *s);
  err e = {0};
  s->file = support_tiny_file(&s->bytes);
  device *d = support_open_device(support_device(), OPS_MATH_INT8, 2, &s->mem);
  if (model_open(&s->model, s->file, d, &(model_options){0}, &s->mem, &e)) fail_msg("%s", e.text);
  kv_options ko = {.sequences = SLOTS + 1, .context = CONTEXT, .type = KV_F16};
  if (kv_open(&s->kv, d, model_shape(s->model), &ko, &s->mem, &e)) fail_msg("%s", e.text);
  engine_options o = {.model = s->model, .kv = s->kv, .sequences = SLOTS};
  if (engine_open(&s->engine, &o, &e)) fail_msg("%s", e.text);
  s->layers = model_shape(s->model)->layers;
  s->embed = model_shape(s->model)->embed;
  assert_true(s->layers >= 2 && s->layers < OPS_CAPTURES_MAX);
  s->states = calloc((size_t)(LENGTH * (s->layers + 1) * s->embed), sizeof(float));
  decode(s);
  return s;
}

static void close_setup(setup *s) {
  engine_close(s->engine);
  kv_close(s->kv);
  support_close_model(s->model);
  model_file_close(s->file);
  gb_free(&s->bytes);
  free(s->states);
  free(s);
}

static taps_set raw(const setup *s, int32_t first, int32_t second, wire_type type) {
  return (taps_set){.list = {first, second}, .count = 2, .type = type, .width = 2 * s->embed};
}

static engine_job prefill(const setup *s, int32_t slot, int32_t from, int32_t to) {
  engine_job job = {.kind = ENGINE_PREFILL, .slot = slot, .kv_length = from, .count = to - from};
  memcpy(job.tokens, s->tokens + from, (size_t)(to - from) * sizeof *job.tokens);
  return job;
}

/* The root and a chain of `right` right tokens, each beside a wrong one. */
static engine_job verify(const setup *s, int32_t slot, int32_t at, int32_t right) {
  engine_job job = {.kind = ENGINE_VERIFY,
                    .slot = slot,
                    .kv_length = at,
                    .count = 1,
                    .tokens = {s->tokens[at]},
                    .parents = {-1},
                    .sampling = {.top_p = 1, .repeat_penalty = 1},
                    .sampled_max = ENGINE_ROWS_MAX};
  for (int32_t i = 1, last = 0; i <= right; i++) {
    job.tokens[job.count] = (s->tokens[at + i] + 1) % SUPPORT_TINY_VOCAB;
    job.parents[job.count++] = last;
    job.tokens[job.count] = s->tokens[at + i];
    job.parents[job.count] = last;
    last = job.count++;
  }
  return job;
}

static void check(const setup *s, const engine_result *r, const taps_set *t, int32_t base, int32_t count) {
  assert_int_equal(r->code, ERR_OK);
  assert_int_equal(r->feature_count, count);
  assert_int_equal(r->feature_bytes, taps_row_bytes(t));
  assert_int_equal(r->feature_base, base);
  size_t part = (size_t)s->embed * wire_type_size(t->type);
  uint8_t *wanted = malloc(part);
  for (int32_t i = 0; i < count; i++)
    for (int32_t k = 0; k < t->count; k++) {
      taps_pack(t->type, state_of(s, base + i, t->list[k]), s->embed, wanted);
      assert_memory_equal(r->features + (size_t)i * r->feature_bytes + (size_t)k * part, wanted, part);
    }
  free(wanted);
}

static engine_results run(setup *s, const engine_job *jobs, int32_t count) {
  static engine_results r;
  static engine_batch batch;
  batch = (engine_batch){.count = count};
  memcpy(batch.jobs, jobs, (size_t)count * sizeof *jobs);
  engine_run(s->engine, &batch, &r);
  return r;
}

static void committed_rows_have_the_states_of_plain_decoding(void **state) {
  (void)state;
  setup *s = open_setup();
  taps_set t = raw(s, 0, s->layers, WIRE_F32);
  engine_job job = prefill(s, 0, 0, 20);
  job.taps = t;
  engine_results r = run(s, &job, 1);
  check(s, &r.of[0], &t, 0, 20);
  job = verify(s, 0, 20, 4);
  job.taps = t = raw(s, 1, s->layers, WIRE_BF16);
  r = run(s, &job, 1);
  assert_int_equal(r.of[0].sampled_count, 5);
  check(s, &r.of[0], &t, 20, 5);
  job = verify(s, 0, 25, 0);
  job.taps = t;
  r = run(s, &job, 1);
  check(s, &r.of[0], &t, 25, 1);
  assert_int_equal(engine_count(s->engine)->tapped_rows, 26);
  close_setup(s);
}

static void rows_before_the_wanted_positions_are_left_out(void **state) {
  (void)state;
  setup *s = open_setup();
  const taps_set t = raw(s, 0, 1, WIRE_F32);
  engine_job job = prefill(s, 0, 0, 20);
  job.taps = t;
  job.taps_from = 17;
  engine_results r = run(s, &job, 1);
  check(s, &r.of[0], &t, 17, 3);
  job = verify(s, 0, 20, 3);
  job.taps = t;
  job.taps_from = 22;
  r = run(s, &job, 1);
  check(s, &r.of[0], &t, 22, 2);
  job = verify(s, 0, 24, 1);
  job.taps = t;
  job.taps_from = 100;
  r = run(s, &job, 1);
  assert_int_equal(r.of[0].sampled_count, 2);
  assert_int_equal(r.of[0].feature_count, 0);
  close_setup(s);
}

static void a_selfcheck_changes_no_features(void **state) {
  (void)state;
  setup *s = open_setup();
  const taps_set t = raw(s, 0, s->layers, WIRE_F32);
  engine_job job = prefill(s, 0, 0, 20);
  run(s, &job, 1);
  job = verify(s, 0, 20, 3);
  job.taps = t;
  job.selfcheck = true;
  engine_results r = run(s, &job, 1);
  check(s, &r.of[0], &t, 20, 4);
  close_setup(s);
}

static void jobs_of_a_batch_have_their_own(void **state) {
  (void)state;
  setup *s = open_setup();
  const taps_set a = raw(s, 0, 1, WIRE_F32), b = raw(s, 1, s->layers, WIRE_BF16);
  engine_job jobs[] = {prefill(s, 0, 0, 20), prefill(s, 1, 0, 12)};
  jobs[0].taps = a;
  jobs[1].taps = b;
  engine_results r = run(s, jobs, 2);
  check(s, &r.of[0], &a, 0, 20);
  check(s, &r.of[1], &b, 0, 12);
  close_setup(s);
}

static void a_job_without_taps_is_given_none(void **state) {
  (void)state;
  setup *s = open_setup();
  engine_job jobs[] = {prefill(s, 0, 0, 20), prefill(s, 1, 0, 12)};
  jobs[1].taps = raw(s, 0, 1, WIRE_F32);
  engine_results r = run(s, jobs, 2);
  assert_int_equal(r.of[0].feature_count, 0);
  assert_null(r.of[0].features);
  assert_int_equal(engine_count(s->engine)->tapped_rows, 12);
  close_setup(s);
}

static void more_states_than_a_forward_keeps_are_lost_without_an_error(void **state) {
  (void)state;
  tap_rows t = {0};
  engine_job a = {.count = 1, .taps = {.list = {0, 1, 2, 3, 4}, .count = 5}}, b = a;
  model_segment first = {.count = 1}, second = first, third = first;
  for (int32_t i = 0; i < 5; i++) b.taps.list[i] = 4 + i;
  tap_rows_forward(&t);
  tap_rows_ask(&t, &a, &first);
  tap_rows_ask(&t, &b, &second); /* nine different ones */
  b.taps.count = 3;
  tap_rows_ask(&t, &b, &third); /* seven */
  assert_int_equal(first.tap_count, 5);
  assert_int_equal(second.tap_count, 0);
  assert_int_equal(third.tap_count, 3);
  tap_rows_fini(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(committed_rows_have_the_states_of_plain_decoding),
      cmocka_unit_test(rows_before_the_wanted_positions_are_left_out),
      cmocka_unit_test(a_selfcheck_changes_no_features),
      cmocka_unit_test(jobs_of_a_batch_have_their_own),
      cmocka_unit_test(a_job_without_taps_is_given_none),
      cmocka_unit_test(more_states_than_a_forward_keeps_are_lost_without_an_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
