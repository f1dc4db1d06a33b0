/* libs: model : far emulated */
/* Files of every weight type, alone and mixed as quantisers mix them, from the bytes of a GGUF to logits: in
 * f32 math the same bits as the file whose weights stand there in F32; in int8 math near them, and the same
 * on every instruction set. */
#include "tests/support/models.h"
#include "tests/support/quant_blocks.h"
#include "tests/support/random.h"

enum { EMBED = 256, HEADS = 4, KV_HEADS = 2, DIM = 64, FFN = 512, VOCAB = 80, LAYERS = 2, COUNT = 20 };

#define INT8_ERROR 0.06 /* of int8 math, relative to the logits */

static uint64_t random_state;

static uint32_t random_bits(void) {
  return (uint32_t)(random_next(&random_state) >> 40);
}

/* Types of the matrices of a layer, of the embedding and of the head. */
typedef struct mix {
  const char *name;
  uint32_t q, k, v, output, gate, up, down, embed, head; /* head GGUF_F32: the embedding is the head */
} mix;

static void put_layer(gguf_builder *b, int32_t layer, const mix *m, bool plain) {
  const struct {
    const char *suffix;
    uint64_t columns, rows;
    uint32_t type;
  } tensors[] = {
      {"attn_norm", EMBED, 0, GGUF_F32},
      {"attn_q", EMBED, HEADS * DIM, m->q},
      {"attn_k", EMBED, KV_HEADS * DIM, m->k},
      {"attn_v", EMBED, KV_HEADS * DIM, m->v},
      {"attn_output", HEADS * DIM, EMBED, m->output},
      {"ffn_norm", EMBED, 0, GGUF_F32},
      {"ffn_gate", EMBED, FFN, m->gate},
      {"ffn_up", EMBED, FFN, m->up},
      {"ffn_down", FFN, EMBED, m->down},
  };
  for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", layer, tensors[i].suffix);
    gb_tensor(b, name, tensors[i].columns, tensors[i].rows, plain ? GGUF_F32 : tensors[i].type);
  }
}

/* All weights zero as yet. plain: every tensor F32. */
static gguf *open_file(gguf_builder *b, const mix *m, bool plain) {
  *b = gb_begin(3);
  gb_key_text(b, "general.architecture", "llama");
  gb_key_u32(b, "llama.block_count", LAYERS);
  gb_key_u32(b, "llama.embedding_length", EMBED);
  gb_key_u32(b, "llama.feed_forward_length", FFN);
  gb_key_u32(b, "llama.attention.head_count", HEADS);
  gb_key_u32(b, "llama.attention.head_count_kv", KV_HEADS);
  gb_key_u32(b, "llama.context_length", 256);
  gb_key_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
  gb_key_f32(b, "llama.rope.freq_base", 10000.0f);
  gb_tensor(b, "token_embd.weight", EMBED, VOCAB, plain ? GGUF_F32 : m->embed);
  for (int32_t i = 0; i < LAYERS; i++) put_layer(b, i, m, plain);
  gb_tensor(b, "output_norm.weight", EMBED, 0, GGUF_F32);
  if (m->head != GGUF_F32) gb_tensor(b, "output.weight", EMBED, VOCAB, plain ? GGUF_F32 : m->head);
  gb_end(b);
  err e = {0};
  gguf *g;
  if (gguf_open_memory(&g, b->bytes, b->size, &e) != ERR_OK) fail_msg("%s", e.text);
  return g;
}

static model_file *open_model(const gguf_builder *b) {
  err e = {0};
  model_file *f;
  if (model_file_open_memory(&f, b->bytes, b->size, &e) != ERR_OK) fail_msg("%s", e.text);
  return f;
}

static const quant_type *quant_of(gguf_type type) {
  for (size_t i = 0; i < QUANT_TYPE_COUNT; i++)
    if (QUANT_TYPES[i].gguf == (uint32_t)type) return &QUANT_TYPES[i];
  return NULL;
}

/* Random weights into t, the same values in F32 into plain; matrices of up to about 2^-3. */
static void fill_tensor(const gguf_tensor *t, const gguf_tensor *plain) {
  const quant_type *q = quant_of(t->type);
  uint8_t *file = (uint8_t *)(uintptr_t)t->data;
  float *values = (float *)(uintptr_t)plain->data;
  for (size_t i = 0; i < plain->bytes / sizeof *values && !q; i++) {
    values[i] = 1.0f + (float)(random_bits() % 256) / 512.0f;
    memcpy(file + i * sizeof *values, &values[i], sizeof *values);
  }
  for (size_t i = 0; q && i < plain->bytes / sizeof *values; i += (size_t)q->inputs, file += q->bytes) {
    quant_fill(q, file, random_bits, 0);
    quant_put_half(file + q->d_at, random_bits, q->d_top - 5, q->d_top - 4);
    if (q->m_at >= 0) quant_put_half(file + q->m_at, random_bits, q->d_top - 5, q->d_top - 4);
    for (int k = 0; k < q->inputs; k++) values[i + (size_t)k] = (float)quant_value(q, file, k);
  }
}

/* Logits of COUNT positions, [COUNT][VOCAB]. */
static float *run_model(const model_file *f, ops_math math, const char *name) {
  model *m = support_open_model(f, math, name, 2);
  kv_cache *k = support_open_cache(m, 1, 64, math == OPS_MATH_F32 ? KV_F32 : KV_F16);
  float *logits = malloc((size_t)COUNT * VOCAB * sizeof *logits);
  int32_t tokens[COUNT], seq = kv_acquire(k);
  for (int32_t i = 0; i < COUNT; i++) tokens[i] = (i * 37 + 11) % VOCAB;
  model_segment s = {.seq = seq, .kind = MODEL_APPEND, .count = COUNT, .tokens = tokens, .all_logits = true};
  assert_int_equal(model_forward(m, k, &s, 1), ERR_OK);
  for (int32_t i = 0; i < COUNT; i++)
    memcpy(logits + i * VOCAB, model_logits(m, 0, i), VOCAB * sizeof *logits);
  kv_close(k);
  support_close_model(m);
  return logits;
}

/* Of two sets of logits, the root of the mean squared difference over that of the logits. */
static double relative_error(const float *got, const float *expected) {
  double squares = 0, errors = 0;
  for (int32_t i = 0; i < COUNT * VOCAB; i++) {
    double error = (double)got[i] - (double)expected[i];
    squares += (double)expected[i] * (double)expected[i];
    errors += error * error;
  }
  return sqrt(errors / squares);
}

static void check_mix(const mix *m) {
  gguf_builder b, plain_b;
  gguf *g = open_file(&b, m, false), *plain = open_file(&plain_b, m, true);
  const size_t bytes = (size_t)COUNT * VOCAB * sizeof(float);
  random_state = 42;
  for (int32_t i = 0; i < gguf_tensor_count(g); i++)
    fill_tensor(gguf_tensor_at(g, i), gguf_tensor_at(plain, i));
  gguf_close(g), gguf_close(plain);
  model_file *f = open_model(&b), *plain_f = open_model(&plain_b);
  float *expected = run_model(plain_f, OPS_MATH_F32, "cpu:c");
  float *exact = run_model(f, OPS_MATH_F32, support_device());
  float *int8 = run_model(f, OPS_MATH_INT8, support_device()), *int8_c = run_model(f, OPS_MATH_INT8, "cpu:c");
  if (memcmp(exact, expected, bytes) != 0)
    fail_msg("%s: f32 math differs from the same weights in F32", m->name);
  if (memcmp(int8, int8_c, bytes) != 0) fail_msg("%s: int8 math differs from plain C's", m->name);
  double error = relative_error(int8, expected);
  print_message("%s: int8 math is off by %.3f of the logits\n", m->name, error);
  assert_true(error > 0 && error <= INT8_ERROR);
  free(expected), free(exact), free(int8), free(int8_c);
  model_file_close(f), model_file_close(plain_f);
  gb_free(&b), gb_free(&plain_b);
}

static void every_type_alone(void **state) {
  (void)state;
  for (size_t i = 0; i < QUANT_TYPE_COUNT; i++) {
    uint32_t t = QUANT_TYPES[i].gguf;
    check_mix(&(mix){QUANT_TYPES[i].name, t, t, t, t, t, t, t, t, i % 2 ? t : GGUF_F32});
  }
}

static void mixed_as_quantisers_mix(void **state) {
  (void)state;
  const mix mixes[] = {
      {"Q4_K_M", GGUF_Q4_K, GGUF_Q4_K, GGUF_Q6_K, GGUF_Q4_K, GGUF_Q4_K, GGUF_Q4_K, GGUF_Q6_K, GGUF_Q4_K,
       GGUF_Q6_K},
      {"Q4_K_M, tied", GGUF_Q5_0, GGUF_Q5_0, GGUF_Q8_0, GGUF_Q5_0, GGUF_Q5_0, GGUF_Q5_0, GGUF_Q6_K, GGUF_Q8_0,
       GGUF_F32},
      {"Q3_K_M", GGUF_Q3_K, GGUF_Q3_K, GGUF_Q5_K, GGUF_Q4_K, GGUF_Q3_K, GGUF_Q3_K, GGUF_Q4_K, GGUF_Q3_K,
       GGUF_Q6_K},
      {"all", GGUF_Q2_K, GGUF_IQ4_NL, GGUF_Q5_1, GGUF_Q4_0, GGUF_Q4_1, GGUF_Q5_K, GGUF_Q6_K, GGUF_Q3_K,
       GGUF_Q5_0},
  };
  for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++) check_mix(&mixes[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_type_alone),
                                     cmocka_unit_test(mixed_as_quantisers_mix)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
