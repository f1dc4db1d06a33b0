/* libs: model : far emulated */
/* Taps: the states that enter layers, of rows that ask for them; and nothing at all where nobody asks. */
#include "tests/support/models.h"
#include "tests/support/quant_blocks.h"

#include <math.h>

enum { LENGTH = 21, SEQUENCES = 3, CONTEXT = 64, LAYERS = SUPPORT_TINY_LAYERS, EMBED = SUPPORT_TINY_EMBED };

static const int32_t all_taps[] = {0, 1, LAYERS};
static int32_t tokens[LENGTH];

static int make_tokens(void **state) {
  (void)state;
  for (int32_t i = 0; i < LENGTH; i++) tokens[i] = i * 37 % SUPPORT_TINY_VOCAB;
  return 0;
}

static model_segment whole(int32_t seq, bool taps) {
  return (model_segment){.seq = seq,
                         .kind = MODEL_APPEND,
                         .count = LENGTH,
                         .tokens = tokens,
                         .all_logits = true,
                         .taps = all_taps,
                         .tap_count = taps ? 3 : 0};
}

static void forward(model *m, kv_cache *k, const model_segment *s) {
  assert_int_equal(model_forward(m, k, s, 1), ERR_OK);
}

static float *copy_of(const float *x, size_t n) {
  assert_non_null(x);
  return memcpy(malloc(n * sizeof *x), x, n * sizeof *x);
}

static void with_model(void (*body)(model *m, kv_cache *k, const model_file *g)) {
  gguf_builder b;
  model_file *g = support_tiny_file(&b);
  for (int32_t math = 0; math < 2; math++) {
    model *m = support_open_model(g, (ops_math)math, support_device(), 2);
    kv_cache *k = support_open_cache(m, SEQUENCES, CONTEXT, KV_F16);
    for (int32_t i = 0; i < SEQUENCES; i++) assert_int_equal(kv_acquire(k), i);
    body(m, k, g);
    kv_close(k);
    support_close_model(m);
  }
  model_file_close(g);
  gb_free(&b);
}

/* --- off means untouched, on changes nothing else --- */

static void compare_logits(model *m, kv_cache *k, const model_file *g) {
  (void)g;
  model_segment plain = whole(0, false), tapped = whole(1, true);
  float *logits[LENGTH];
  forward(m, k, &plain); /* the first one may take memory */
  kv_rollback(k, 0, 0);
  ops_counters before = model_device(m)->counters;
  forward(m, k, &plain);
  assert_null(model_tapped(m, 0, 0, 0));
  ops_counters after = model_device(m)->counters;
  assert_int_equal(after.captured_rows, before.captured_rows);
  for (int32_t i = 0; i < LENGTH; i++) logits[i] = copy_of(model_logits(m, 0, i), SUPPORT_TINY_VOCAB);
  forward(m, k, &tapped);
  assert_int_equal(model_device(m)->counters.captured_rows - after.captured_rows, 3 * LENGTH);
  for (int32_t i = 0; i < LENGTH; i++) {
    assert_memory_equal(model_logits(m, 0, i), logits[i], SUPPORT_TINY_VOCAB * sizeof **logits);
    free(logits[i]);
  }
  uint64_t launches = after.launches - before.launches;
  kv_rollback(k, 0, 0);
  before = model_device(m)->counters;
  forward(m, k, &plain);
  after = model_device(m)->counters;
  assert_int_equal(after.launches - before.launches, launches);
  assert_int_equal(after.captured_rows, before.captured_rows);
  assert_null(model_tapped(m, 0, 0, 0));
}

static void taps_change_no_logits_and_cost_nothing_where_nobody_asks(void **state) {
  (void)state;
  with_model(compare_logits);
}

static uint64_t allocations(const mem *m) {
  uint64_t all = 0;
  for (int32_t i = 0; i < MEM_TAG_COUNT; i++) all += m->calls[i];
  return all;
}

static void no_memory_is_taken_where_nobody_asks(void **state) {
  (void)state;
  gguf_builder b;
  model_file *g = support_tiny_file(&b);
  mem memory = {0};
  device *d = support_open_device(support_device(), OPS_MATH_INT8, 1, &memory);
  model *m;
  err e = {0};
  assert_int_equal(model_open(&m, g, d, &(model_options){0}, &memory, &e), ERR_OK);
  kv_cache *k = support_open_cache(m, SEQUENCES, CONTEXT, KV_F16);
  for (int32_t i = 0; i < SEQUENCES; i++) kv_acquire(k);
  model_segment plain = whole(0, false), tapped = whole(1, true);
  forward(m, k, &plain);
  kv_rollback(k, 0, 0);
  uint64_t before = allocations(&memory);
  forward(m, k, &plain);
  kv_rollback(k, 0, 0);
  assert_int_equal(allocations(&memory), before);
  forward(m, k, &tapped);
  before = allocations(&memory);
  forward(m, k, &plain);
  assert_int_equal(allocations(&memory), before);
  kv_close(k);
  model_close(m);
  d->table->close(d);
  model_file_close(g);
  gb_free(&b);
}

/* --- what they are --- */

/* Value i of a tensor of Q8_0 or Q4_1. */
static double value_at(const gguf_tensor *t, size_t i) {
  const quant_type *q = quant_type_of(t->type == GGUF_Q8_0 ? OPS_Q8_0 : OPS_Q4_1);
  size_t each = (size_t)q->inputs;
  return quant_value(q, (const uint8_t *)t->data + i / each * (size_t)q->bytes, (int)(i % each));
}

static void check_embedding(const model_file *g, const float *state, int32_t token) {
  const gguf_tensor *t = model_file_tensor(g, MODEL_EMBED, 0);
  for (size_t i = 0; i < EMBED; i++) assert_true(state[i] == (float)value_at(t, (size_t)token * EMBED + i));
}

/* The logits from the last state: norm and output matrix, in doubles. */
static void check_logits(const model_file *g, const float *state, const float *logits) {
  const gguf_tensor *w = model_file_tensor(g, MODEL_OUTPUT, 0);
  float norm[EMBED];
  double squares = 0;
  memcpy(norm, model_file_tensor(g, MODEL_OUTPUT_NORM, 0)->data, sizeof norm);
  for (int32_t i = 0; i < EMBED; i++) squares += (double)state[i] * (double)state[i];
  for (size_t r = 0; r < SUPPORT_TINY_VOCAB; r++) {
    double sum = 0;
    for (size_t i = 0; i < EMBED; i++)
      sum += (double)state[i] / sqrt(squares / EMBED + 1e-5) * (double)norm[i] * value_at(w, r * EMBED + i);
    if (fabs(sum - (double)logits[r]) > 1e-4 * (1 + fabs(sum)))
      fail_msg("logit %zu from the last state: %g, not %g", r, sum, (double)logits[r]);
  }
}

/* A model of the first layer alone ends with the state that enters the second one. */
static void states_are_those_between_the_layers(void **state) {
  (void)state;
  gguf_builder b[2];
  model_file *g[] = {support_tiny_file(&b[0]), support_tiny_file(&b[1])};
  const int32_t first_taps[] = {1};
  float *entered[LENGTH];
  err e = {0};
  assert_int_equal(model_file_keep_layers(g[1], 1, &e), ERR_OK);
  for (int32_t i = 0; i < 2; i++) {
    model *m = support_open_model(g[i], OPS_MATH_F32, support_device(), 2);
    kv_cache *k = support_open_cache(m, SEQUENCES, CONTEXT, KV_F32);
    model_segment s = whole(kv_acquire(k), true);
    if (i == 1) s.taps = first_taps, s.tap_count = 1;
    forward(m, k, &s);
    for (int32_t r = 0; r < LENGTH; r++) {
      check_logits(g[i], model_tapped(m, 0, r, LAYERS - i), model_logits(m, 0, r));
      if (i == 0) check_embedding(g[0], model_tapped(m, 0, r, 0), tokens[r]);
      if (i == 0) entered[r] = copy_of(model_tapped(m, 0, r, 1), EMBED);
      if (i == 1) assert_memory_equal(model_tapped(m, 0, r, 1), entered[r], EMBED * sizeof(float));
    }
    kv_close(k);
    support_close_model(m);
  }
  for (int32_t i = 0; i < 2; i++) model_file_close(g[i]), gb_free(&b[i]);
  for (int32_t r = 0; r < LENGTH; r++) free(entered[r]);
}

/* --- which rows, which taps --- */

/* Three segments: one asks for nothing, the others for other layers of other rows; without logits, but the
 * last state is wanted. */
static void check_segments(model *m, kv_cache *k, const model_file *g) {
  (void)g;
  const int32_t last[] = {LAYERS};
  model_segment all = whole(0, true);
  float *states[3][LENGTH];
  forward(m, k, &all);
  for (int32_t t = 0; t < 3; t++)
    for (int32_t r = 0; r < LENGTH; r++) states[t][r] = copy_of(model_tapped(m, 0, r, all_taps[t]), EMBED);
  kv_rollback(k, 0, 0);
  model_segment s[] = {whole(0, false), whole(1, true), whole(2, true)};
  s[1].tap_count = 2;
  s[1].tap_first = LENGTH - 2;
  s[2].taps = last;
  s[2].tap_count = 1;
  for (int32_t i = 0; i < 3; i++) s[i].all_logits = false, s[i].no_logits = true;
  assert_int_equal(model_forward(m, k, s, 3), ERR_OK);
  assert_null(model_tapped(m, 0, LENGTH - 1, 0));
  assert_null(model_tapped(m, 1, LENGTH - 3, 0));
  for (int32_t r = LENGTH - 2; r < LENGTH; r++)
    for (int32_t t = 0; t < 2; t++)
      assert_memory_equal(model_tapped(m, 1, r, all_taps[t]), states[t][r], EMBED * sizeof(float));
  for (int32_t r = 0; r < LENGTH; r++)
    assert_memory_equal(model_tapped(m, 2, r, LAYERS), states[2][r], EMBED * sizeof(float));
  for (int32_t t = 0; t < 3; t++)
    for (int32_t r = 0; r < LENGTH; r++) free(states[t][r]);
}

static void rows_and_taps_are_those_of_each_segment(void **state) {
  (void)state;
  with_model(check_segments);
}

static void refuse_taps(model *m, kv_cache *k, const model_file *g) {
  (void)g;
  const int32_t wrong[] = {-1, LAYERS + 1};
  model_segment plain = whole(0, false);
  forward(m, k, &plain);
  for (int32_t i = 0; i < 2; i++) {
    model_segment s = whole(1, true);
    s.taps = &wrong[i];
    s.tap_count = 1;
    assert_int_equal(model_forward(m, k, &s, 1), ERR_ARG);
  }
  assert_non_null(model_logits(m, 0, 0)); /* nothing has changed */
}

static void taps_of_no_layer_are_refused(void **state) {
  (void)state;
  with_model(refuse_taps);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(taps_change_no_logits_and_cost_nothing_where_nobody_asks),
      cmocka_unit_test(no_memory_is_taken_where_nobody_asks),
      cmocka_unit_test(states_are_those_between_the_layers),
      cmocka_unit_test(rows_and_taps_are_those_of_each_segment),
      cmocka_unit_test(taps_of_no_layer_are_refused),
  };
  return cmocka_run_group_tests(tests, make_tokens, NULL);
}
