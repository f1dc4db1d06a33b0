/* libs: target model : far emulated */
/* fc in the target's engine: its rows are fc's of the very states that a forward has committed. */
#include "target_worker/engine.h"
#include "tests/support/models.h"

#include "tests/support/head_builder.h"
#include "tests/support/random.h"

#include <math.h>

enum { CONTEXT = 128, SLOTS = 2, LONG = 120, SHORT = 20, EMBED = 32, TAPS = 2 * SUPPORT_TINY_EMBED };
_Static_assert(LONG + SHORT > FUSION_ROWS_MAX, "more rows than one forward of fc has");

static const head_shape SHAPE = {EMBED, SUPPORT_TINY_EMBED, 2, 1, 16, 64, SUPPORT_TINY_VOCAB, 24, {0, 2}, 2};

typedef struct setup {
  gguf_builder bytes;
  model_file *file;
  model *model;
  kv_cache *kv;
  fusion *fusion;
  engine *engine;
  mem mem;
  engine_batch batch;
  engine_results r;
} setup;

static void open_fusion(setup *s) {
  head_builder *b = calloc(1, sizeof *b);
  const model_config target = head_target(&SHAPE);
  head_file *f;
  err e = {0};
  b->prefix = "midlayer";
  head_weights(b, "embed_tokens.weight", SUPPORT_TINY_VOCAB, EMBED);
  folder at = head_folder(b, &SHAPE, "");
  if (head_file_open(&f, at.path, &target, &e)) fail_msg("%s", e.text);
  if (head_file_settle(f, GGUF_F32, &e)) fail_msg("%s", e.text);
  if (fusion_open(&s->fusion, f, model_device(s->model), &s->mem, &e)) fail_msg("%s", e.text);
  head_file_close(f);
  folder_remove(&at);
  free(b);
}

static setup *open_setup(void) {
  setup *s = calloc(1, sizeof *s);
  err e = {0};
  s->file = support_tiny_file(&s->bytes);
  device *d = support_open_device(support_device(), OPS_MATH_INT8, 2, &s->mem);
  if (model_open(&s->model, s->file, d, &(model_options){0}, &s->mem, &e)) fail_msg("%s", e.text);
  kv_options ko = {.sequences = SLOTS, .context = CONTEXT, .type = KV_F16};
  if (kv_open(&s->kv, d, model_shape(s->model), &ko, &s->mem, &e)) fail_msg("%s", e.text);
  open_fusion(s);
  engine_options o = {.model = s->model, .kv = s->kv, .fusion = s->fusion, .sequences = SLOTS};
  if (engine_open(&s->engine, &o, &e)) fail_msg("%s", e.text);
  return s;
}

static void close_setup(setup *s) {
  engine_close(s->engine);
  fusion_close(s->fusion);
  kv_close(s->kv);
  support_close_model(s->model);
  model_file_close(s->file);
  gb_free(&s->bytes);
  free(s);
}

static taps_set fused(wire_type type) {
  return (taps_set){.list = {0, 2}, .count = 2, .type = type, .fused = true, .width = EMBED};
}

/* Prompts of both slots, in one forward. */
static void read_prompts(setup *s) {
  uint64_t random = 5;
  s->batch = (engine_batch){.count = 2};
  for (int32_t i = 0; i < 2; i++) {
    engine_job *j = &s->batch.jobs[i];
    *j = (engine_job){.kind = ENGINE_PREFILL, .slot = i, .count = i ? SHORT : LONG};
    j->taps = fused(i ? WIRE_BF16 : WIRE_F32);
    for (int32_t t = 0; t < j->count; t++)
      j->tokens[t] = (int32_t)random_below(&random, (uint32_t)SUPPORT_TINY_VOCAB);
  }
  engine_run(s->engine, &s->batch, &s->r);
}

static void fuse(setup *s) {
  engine_batch next = {.count = 2};
  for (int32_t i = 0; i < 2; i++) {
    const engine_result *r = &s->r.of[i];
    assert_true(r->code == ERR_OK && r->states && !r->features);
    next.jobs[i] = (engine_job){.kind = ENGINE_FUSE,
                                .serial = 7 + (uint64_t)i,
                                .slot = i,
                                .kv_length = r->feature_base,
                                .count = r->feature_count,
                                .states = r->states,
                                .taps = s->batch.jobs[i].taps};
  }
  s->batch = next;
  engine_run(s->engine, &s->batch, &s->r);
}

static void rows_are_what_fc_makes_of_the_states(void **state) {
  (void)state;
  static float states[LONG + SHORT][TAPS];
  setup *s = open_setup();
  read_prompts(s);
  assert_int_equal(s->r.of[0].feature_bytes, sizeof states[0]);
  memcpy(states[0], s->r.of[0].states, LONG * sizeof states[0]);
  memcpy(states[LONG], s->r.of[1].states, SHORT * sizeof states[0]);
  fuse(s);
  assert_int_equal(engine_count(s->engine)->fused_rows, LONG + SHORT);
  for (int32_t i = 0; i < 2; i++) {
    const engine_result *r = &s->r.of[i];
    uint8_t wanted[EMBED * sizeof(float)];
    assert_int_equal(r->code, ERR_OK);
    assert_int_equal(r->serial, 7 + i);
    assert_int_equal(r->feature_count, i ? SHORT : LONG);
    for (int32_t n = 0; n < r->feature_count; n++) {
      assert_int_equal(fusion_run(s->fusion, states[i * LONG + n], 1), ERR_OK);
      taps_pack(s->batch.jobs[i].taps.type, fusion_row(s->fusion, 0), EMBED, wanted);
      assert_memory_equal(r->features + (size_t)n * r->feature_bytes, wanted, r->feature_bytes);
    }
  }
  close_setup(s);
}

/* Of a slot whose forward fuses: f32 rows, near those of fc's own forward. */
static void check_near(setup *s, const engine_result *r, float (*states)[TAPS]) {
  for (int32_t n = 0; n < r->feature_count; n += 7) {
    float got[EMBED], most = 0;
    memcpy(got, r->features + (size_t)n * r->feature_bytes, sizeof got);
    assert_int_equal(fusion_run(s->fusion, states[n], 1), ERR_OK);
    const float *wanted = fusion_row(s->fusion, 0);
    for (int32_t i = 0; i < EMBED; i++) most = fmaxf(most, fabsf(wanted[i]));
    for (int32_t i = 0; i < EMBED; i++) assert_true(fabsf(got[i] - wanted[i]) <= 1e-5f * most);
  }
}

/* Where the device has parts of fc: one job's rows come fused, and the other's as states, from one forward.
 */
static void a_forward_gives_fused_rows_at_once(void **state) {
  (void)state;
  static float states[LONG][TAPS];
  setup *s = open_setup();
  read_prompts(s);
  memcpy(states[0], s->r.of[0].states, sizeof states);
  bool parts = model_fuse(s->model, s->fusion) == ERR_OK;
  assert_int_equal(parts, model_device(s->model)->prepares);
  s->batch.jobs[0].fuses = parts;
  engine_run(s->engine, &s->batch, &s->r);
  if (parts) {
    assert_true(s->r.of[0].features && !s->r.of[0].states && s->r.of[1].states && !s->r.of[1].features);
    assert_int_equal(s->r.of[0].feature_bytes, EMBED * sizeof(float));
    assert_int_equal(s->r.of[0].feature_count, LONG);
    assert_int_equal(engine_count(s->engine)->fused_rows, LONG);
    check_near(s, &s->r.of[0], states);
  }
  close_setup(s);
}

/* Between the two forwards another one of the same device has run. */
static void the_next_forward_is_not_disturbed(void **state) {
  (void)state;
  int32_t tokens[2];
  for (int32_t with = 0; with < 2; with++) {
    setup *s = open_setup();
    read_prompts(s);
    if (with) fuse(s);
    s->batch = (engine_batch){.count = 1};
    s->batch.jobs[0] = (engine_job){.kind = ENGINE_VERIFY,
                                    .kv_length = LONG,
                                    .count = 1,
                                    .tokens = {3},
                                    .parents = {-1},
                                    .sampling = {.top_p = 1, .repeat_penalty = 1},
                                    .sampled_max = 1};
    engine_run(s->engine, &s->batch, &s->r);
    assert_int_equal(s->r.of[0].code, ERR_OK);
    assert_int_equal(s->r.of[0].sampled_count, 1);
    tokens[with] = s->r.of[0].sampled[0];
    close_setup(s);
  }
  assert_int_equal(tokens[0], tokens[1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_are_what_fc_makes_of_the_states),
      cmocka_unit_test(a_forward_gives_fused_rows_at_once),
      cmocka_unit_test(the_next_forward_is_not_disturbed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
