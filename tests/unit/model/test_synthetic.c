/* libs: model */
/* Models of random weights: their names, what their weights are like, and that they are read and run as files
 * are. */
#include "common/file/synthetic.h"
#include "common/file/tensor_values.h"
#include "tests/support/models.h"
#include "tests/support/quant_blocks.h"

static synthetic *open_right(const char *name) {
  synthetic *s;
  err e = {0};
  if (synthetic_open(&s, name, &e) != ERR_OK) fail_msg("%s: %s", name, e.text);
  return s;
}

static const gguf_tensor *tensor_of(synthetic *s, const char *name, synthetic_kind kind, int64_t columns,
                                    int64_t rows) {
  err e = {0};
  const gguf_tensor *t = synthetic_tensor(s, name, kind, 0, columns, rows, &e);
  if (!t) fail_msg("%s", e.text);
  return t;
}

static void a_name_is_a_model_and_perhaps_a_type_and_a_seed(void **state) {
  (void)state;
  const char *const right[] = {"synth:llama-3.2-1b",
                               "synth:Llama-3.2-1B:q8_0",
                               "synth:70b-quarter:Q4_K_M:7",
                               "synth:llama-3.1-8b::12",
                               "synth:qwen2.5-1.5b:BF16",
                               "synth:70b-quarter:Q2_K:0",
                               "synth:qwen2.5-1.5b:F32:4294967295"};
  const char *const wrong[] = {"synth:",
                               "synth:gpt-2",
                               "synth:llama-3.2-1b:Q9",
                               "synth:llama-3.2-1b:I8",
                               "synth:llama-3.2-1b:Q8_0:x",
                               "synth:llama-3.2-1b:Q8_0:-1",
                               "synth:llama-3.2-1b:Q8_0:4294967296",
                               "synth:llama-3.2-1b:Q8_0:1:2",
                               "synth:llama-3.2-1b:Q8_0:1:",
                               "synth:llama-3.2-1b:::",
                               "synth:llama-3.2-1b:Q8_0:1x",
                               "synth:a-name-of-more-than-thirty-two-letters"};
  for (size_t i = 0; i < sizeof right / sizeof *right; i++) synthetic_close(open_right(right[i]));
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    synthetic *s = NULL;
    err e = {0};
    if (synthetic_open(&s, wrong[i], &e) != ERR_ARG || s) fail_msg("%s is let in", wrong[i]);
    if (!strstr(e.text, "qwen2.5-1.5b") || !strstr(e.text, "IQ4_NL")) fail_msg("%s", e.text);
  }
  assert_true(synthetic_is("synth:x") && !synthetic_is("models/synth:x") && !synthetic_is("synth"));
}

/* Weight i of a row of blocks, or of a plain type. */
static double weight_at(const gguf_tensor *t, size_t i) {
  for (size_t q = 0; q < QUANT_TYPE_COUNT; q++) {
    const quant_type *type = &QUANT_TYPES[q];
    if (type->gguf != (uint32_t)t->type) continue;
    const size_t inputs = (size_t)type->inputs;
    return quant_value(type, (const uint8_t *)t->data + i / inputs * (size_t)type->bytes, (int)(i % inputs));
  }
  float value;
  tensor_values(t->type, t->data, i, 1, &value);
  return (double)value;
}

/* As weights of a trained model: nowhere far from 0.02, without a mean to speak of. */
static void weights_of_every_type_are_about_as_large(void **state) {
  (void)state;
  const char *const types[] = {"F32",  "F16",    "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
                               "Q8_0", "IQ4_NL", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"};
  enum { COUNT = 1 << 16 };
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    char name[64];
    double sum = 0, squares = 0;
    snprintf(name, sizeof name, "synth:llama-3.2-1b:%s", types[i]);
    synthetic *s = open_right(name);
    const gguf_tensor *t = tensor_of(s, "w", SYNTHETIC_MATRIX, 2048, 32);
    assert_string_equal(gguf_type_name(t->type), types[i]);
    assert_true(tensor_is_finite(t));
    for (size_t k = 0; k < COUNT; k++) sum += weight_at(t, k), squares += weight_at(t, k) * weight_at(t, k);
    const double deviation = sqrt(squares / COUNT);
    if (deviation < 0.017 || deviation > 0.023 || fabs(sum / COUNT) > 0.004)
      fail_msg("%s: mean %g, deviation %g", types[i], sum / COUNT, deviation);
    synthetic_close(s);
  }
}

/* Also a tensor that is larger than what it repeats. */
static void weights_follow_from_the_name_and_the_seed(void **state) {
  (void)state;
  enum { COLUMNS = 4096, ROWS = 8192 };
  synthetic *a = open_right("synth:llama-3.1-8b:Q8_0"), *b = open_right("synth:llama-3.1-8b:Q8_0:0"),
            *c = open_right("synth:llama-3.1-8b:Q8_0:1");
  const gguf_tensor *one = tensor_of(a, "w", SYNTHETIC_MATRIX, COLUMNS, ROWS),
                    *same = tensor_of(b, "w", SYNTHETIC_MATRIX, COLUMNS, ROWS),
                    *other = tensor_of(b, "v", SYNTHETIC_MATRIX, COLUMNS, ROWS),
                    *seeded = tensor_of(c, "w", SYNTHETIC_MATRIX, COLUMNS, ROWS);
  assert_int_equal(one->bytes, (size_t)COLUMNS / 32 * 34 * ROWS);
  assert_memory_equal(one->data, same->data, one->bytes);
  assert_true(memcmp(one->data, other->data, one->bytes) != 0);
  assert_true(memcmp(one->data, seeded->data, one->bytes) != 0);
  assert_true(tensor_is_finite(one) && tensor_is_finite(other) && tensor_is_finite(seeded));
  synthetic_close(a), synthetic_close(b), synthetic_close(c);
}

static void a_row_is_whole_blocks(void **state) {
  (void)state;
  synthetic *s = open_right("synth:llama-3.2-1b:Q4_K");
  err e = {0};
  assert_null(synthetic_tensor(s, "w", SYNTHETIC_MATRIX, 0, 128, 4, &e));
  assert_int_equal(e.code, ERR_ARG);
  synthetic_close(s);
}

static model_file *open_file(const char *name) {
  model_file *f;
  err e = {0};
  if (model_file_open(&f, name, &e) != ERR_OK) fail_msg("%s: %s", name, e.text);
  return f;
}

static int32_t count_of(const model_file *f, model_role role, gguf_type type) {
  int32_t count = 0;
  for (int32_t i = 0; i < model_file_config(f)->layers; i++)
    count += model_file_tensor(f, role, i)->type == type;
  return count;
}

/* The real file of this model: Q6_K in v and down of 14 layers of 28, and for the tied matrix. */
static void the_mixture_is_that_of_llama_cpp(void **state) {
  (void)state;
  model_file *f = open_file("synth:qwen2.5-1.5b"), *plain = open_file("synth:qwen2.5-1.5b:Q4_K"),
             *part = open_file("synth:70b-quarter");
  assert_int_equal(model_file_tensor(f, MODEL_EMBED, 0)->type, GGUF_Q6_K);
  assert_null(model_file_tensor(f, MODEL_OUTPUT, 0));
  assert_int_equal(count_of(f, MODEL_V, GGUF_Q6_K), 14);
  assert_int_equal(count_of(f, MODEL_DOWN, GGUF_Q6_K), 14);
  assert_int_equal(count_of(f, MODEL_DOWN, GGUF_Q4_K), 14);
  assert_int_equal(count_of(f, MODEL_Q, GGUF_Q4_K), 28);
  assert_int_equal(count_of(plain, MODEL_DOWN, GGUF_Q4_K), 28);
  assert_int_equal(count_of(part, MODEL_DOWN, GGUF_Q6_K), 13); /* of 80 layers: 0 to 9, 12, 15 and 18 */
  const gguf_tensor *bias = model_file_tensor(f, MODEL_Q_BIAS, 27),
                    *norm = model_file_tensor(f, MODEL_FFN_NORM, 27);
  assert_true(bias->shape[0] == 1536 && bias->bytes == 1536 * sizeof(float));
  for (int32_t i = 0; i < 1536; i++)
    assert_true(((const float *)bias->data)[i] == 0.0f && ((const float *)norm->data)[i] == 1.0f);
  model_file_close(f), model_file_close(plain), model_file_close(part);
}

static void it_is_a_model_without_a_vocabulary(void **state) {
  (void)state;
  model_file *f = open_file("synth:llama-3.2-1b:Q4_0");
  hash16 vocabulary;
  err e = {0};
  assert_true(!model_file_gguf(f) && !model_file_tokenizer(f) && model_file_stops(f, (int32_t[16]){0}) == 0);
  assert_int_equal(model_file_config(f)->scaling.kind, ROPE_LLAMA3);
  assert_int_equal(model_file_vocabulary(f, &vocabulary, &e), ERR_OK);
  assert_true(hash_is_zero(vocabulary));
  model_file_close(f);
}

static hash16 hash_named(const char *name) {
  model_file *f = open_file(name);
  hash16 recalled, read;
  assert_true(model_file_recall_hash(f, &recalled) && model_file_read_hash(f, NULL, &read));
  assert_true(hash_equal(recalled, read) && hash_equal(read, model_file_fingerprint(f)));
  model_file_close(f);
  return read;
}

static void its_hash_is_that_of_its_weights(void **state) {
  (void)state;
  const hash16 hash = hash_named("synth:qwen2.5-1.5b");
  const char *const same[] = {"synth:Qwen2.5-1.5B:q4_k_m", "synth:qwen2.5-1.5b::0",
                              "synth:qwen2.5-1.5b:Q4_K_M:0"},
                    *const others[] = {"synth:qwen2.5-1.5b:Q4_K", "synth:qwen2.5-1.5b::1",
                                       "synth:llama-3.2-1b"};
  for (size_t i = 0; i < 3; i++) {
    assert_true(hash_equal(hash, hash_named(same[i])));
    assert_false(hash_equal(hash, hash_named(others[i])));
  }
}

/* Matrices of one shape, in all layers. */
static void no_two_tensors_are_alike(void **state) {
  (void)state;
  model_file *f = open_file("synth:llama-3.1-8b:Q6_K");
  const int32_t layers = model_file_config(f)->layers;
  for (int32_t i = 0; i < layers; i++)
    for (int32_t k = 0; k < i; k++) {
      const gguf_tensor *a = model_file_tensor(f, MODEL_DOWN, i), *b = model_file_tensor(f, MODEL_DOWN, k);
      if (memcmp(a->data, b->data, 1 << 12) == 0) fail_msg("layers %d and %d", i, k);
    }
  model_file_close(f);
}

/* Of one layer, so that the test is short. */
static void it_runs(void **state) {
  (void)state;
  model_file *f = open_file("synth:llama-3.2-1b:Q4_0");
  err e = {0};
  assert_int_equal(model_file_keep_layers(f, 1, &e), ERR_OK);
  model *m = support_open_model(f, OPS_MATH_INT8, support_device(), 2);
  kv_cache *k = support_open_cache(m, 1, 64, KV_F16);
  const int32_t tokens[] = {5, 128255, 77}, seq = kv_acquire(k);
  model_segment s = {.seq = seq, .kind = MODEL_APPEND, .count = 3, .tokens = tokens, .all_logits = true};
  assert_int_equal(model_forward(m, k, &s, 1), ERR_OK);
  for (int32_t row = 0; row < 3; row++) {
    const float *logits = model_logits(m, 0, row);
    for (int32_t i = 0; i < model_shape(m)->vocab; i++) assert_true(isfinite(logits[i]));
    assert_true(logits[0] != logits[1]);
  }
  kv_close(k);
  support_close_model(m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_name_is_a_model_and_perhaps_a_type_and_a_seed),
      cmocka_unit_test(weights_of_every_type_are_about_as_large),
      cmocka_unit_test(weights_follow_from_the_name_and_the_seed),
      cmocka_unit_test(a_row_is_whole_blocks),
      cmocka_unit_test(the_mixture_is_that_of_llama_cpp),
      cmocka_unit_test(it_is_a_model_without_a_vocabulary),
      cmocka_unit_test(its_hash_is_that_of_its_weights),
      cmocka_unit_test(no_two_tensors_are_alike),
      cmocka_unit_test(it_runs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
