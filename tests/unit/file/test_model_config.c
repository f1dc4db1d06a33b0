/* libs: file base */
#include "common/file/model_file.h"
#include "tests/support/gguf_builder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define MODEL "models/SmolLM2-135M-Instruct.Q4_1.gguf"

/* One difference from the good tiny model. */
typedef struct change {
  const char *name; /* of a key or tensor: left out, unless it gets another value */
  enum { CHANGE_DROP, CHANGE_U32, CHANGE_F32, CHANGE_TEXT, CHANGE_BOOL, CHANGE_ARRAY, CHANGE_SHAPE } what;
  double value;
  const char *text;
  uint64_t columns, rows;
  uint32_t type;
} change;

#define DROP(key)                                                                                            \
  { .name = key }
#define TEXT(key, value)                                                                                     \
  { .name = key, .what = CHANGE_TEXT, .text = value }
#define VALUE(key, kind, number)                                                                             \
  { .name = key, .what = CHANGE_##kind, .value = number }
#define SHAPE(key, c, r, t)                                                                                  \
  { .name = key, .what = CHANGE_SHAPE, .columns = c, .rows = r, .type = t }

static void put_changed(gguf_builder *b, const change *c) {
  switch (c->what) {
  case CHANGE_U32:
    gb_key_u32(b, c->name, (uint32_t)c->value);
    break;
  case CHANGE_F32:
    gb_key_f32(b, c->name, (float)c->value);
    break;
  case CHANGE_TEXT:
    gb_key_text(b, c->name, c->text);
    break;
  case CHANGE_BOOL:
    gb_key_bool(b, c->name, (int)c->value);
    break;
  case CHANGE_ARRAY:
    gb_array(b, c->name, GB_U32, 2);
    gb_number(b, (uint64_t)c->value, 4), gb_number(b, (uint64_t)c->value, 4);
    break;
  default:
    break;
  }
}

static bool is_changed(const change *c, const char *name) {
  return c->name && strcmp(c->name, name) == 0;
}

static void put_u32(gguf_builder *b, const change *c, const char *key, uint32_t value) {
  if (!is_changed(c, key)) gb_key_u32(b, key, value);
}

static void put_tensor(gguf_builder *b, const change *c, const char *name, uint64_t columns, uint64_t rows,
                       uint32_t type) {
  if (!is_changed(c, name)) gb_tensor(b, name, columns, rows, type);
}

enum { LAYERS = 2, EMBED = 64, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 32, FFN = 96, VOCAB = 50 };

static void put_layer(gguf_builder *b, const change *c, int layer) {
  static const struct {
    const char *suffix;
    uint64_t columns, rows;
  } rows[] = {{"attn_norm", EMBED, 0},
              {"attn_q", EMBED, HEADS * HEAD_DIM},
              {"attn_k", EMBED, KV_HEADS * HEAD_DIM},
              {"attn_v", EMBED, KV_HEADS * HEAD_DIM},
              {"attn_output", HEADS * HEAD_DIM, EMBED},
              {"ffn_norm", EMBED, 0},
              {"ffn_gate", EMBED, FFN},
              {"ffn_up", EMBED, FFN},
              {"ffn_down", FFN, EMBED}};
  char name[64];
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    snprintf(name, sizeof name, "blk.%d.%s.weight", layer, rows[i].suffix);
    put_tensor(b, c, name, rows[i].columns, rows[i].rows, rows[i].rows ? GB_TYPE_Q8_0 : GB_TYPE_F32);
  }
}

/* The good tiny model: head_dim 32 (by key) although 64 / 4 is 16. */
static gguf_builder tiny(const change *c) {
  gguf_builder b = gb_begin(3);
  if (!is_changed(c, "general.architecture")) gb_key_text(&b, "general.architecture", "llama");
  put_u32(&b, c, "llama.block_count", LAYERS);
  put_u32(&b, c, "llama.context_length", 1000);
  put_u32(&b, c, "llama.embedding_length", EMBED);
  put_u32(&b, c, "llama.feed_forward_length", FFN);
  put_u32(&b, c, "llama.attention.head_count", HEADS);
  put_u32(&b, c, "llama.attention.head_count_kv", KV_HEADS);
  put_u32(&b, c, "llama.attention.key_length", HEAD_DIM);
  put_u32(&b, c, "llama.rope.dimension_count", HEAD_DIM);
  if (!is_changed(c, "llama.rope.freq_base")) gb_key_f32(&b, "llama.rope.freq_base", 5000);
  if (!is_changed(c, "llama.attention.layer_norm_rms_epsilon"))
    gb_key_f32(&b, "llama.attention.layer_norm_rms_epsilon", 0.0001f);
  put_changed(&b, c);
  put_tensor(&b, c, "token_embd.weight", EMBED, VOCAB, GB_TYPE_Q8_0);
  for (int i = 0; i < LAYERS; i++) put_layer(&b, c, i);
  put_tensor(&b, c, "output_norm.weight", EMBED, 0, GB_TYPE_F32);
  put_tensor(&b, c, "output.weight", EMBED, VOCAB, GB_TYPE_Q4_1);
  if (c->what == CHANGE_SHAPE) gb_tensor(&b, c->name, c->columns, c->rows, c->type);
  gb_end(&b);
  return b;
}

static int read_changed(const change *c, model_config *out, err *e) {
  gguf_builder b = tiny(c);
  model_file *f;
  *e = (err){0};
  int rc = model_file_open_memory(&f, b.bytes, b.size, e);
  if (rc == ERR_OK) *out = *model_file_config(f);
  model_file_close(f);
  gb_free(&b);
  return rc;
}

static void test_reads_the_tiny_model(void **state) {
  (void)state;
  const change none = {0};
  model_config c;
  err e;
  if (read_changed(&none, &c, &e)) fail_msg("%s", e.text);
  assert_int_equal(c.layers, LAYERS);
  assert_int_equal(c.embed, EMBED);
  assert_int_equal(c.heads, HEADS);
  assert_int_equal(c.kv_heads, KV_HEADS);
  assert_int_equal(c.head_dim, HEAD_DIM);
  assert_int_equal(c.ffn, FFN);
  assert_int_equal(c.vocab, VOCAB);
  assert_int_equal(c.context, 1000);
  assert_int_equal(c.rope_dim, HEAD_DIM);
  assert_true(c.rope_base == 5000.0f && c.norm_eps == 0.0001f);
  assert_false(c.tied);
}

/* Keys that may be missing, and values that change nothing. */
static void test_defaults(void **state) {
  (void)state;
  model_config c;
  err e;
  assert_int_equal(read_changed(&(change){.name = "output.weight"}, &c, &e), ERR_OK);
  assert_true(c.tied);
  assert_int_equal(read_changed(&(change){.name = "llama.rope.freq_base"}, &c, &e), ERR_OK);
  assert_true(c.rope_base == 10000.0f);
  assert_int_equal(read_changed(&(change){.name = "llama.rope.dimension_count"}, &c, &e), ERR_OK);
  assert_int_equal(c.rope_dim, HEAD_DIM);
  const change harmless[] = {
      TEXT("llama.rope.scaling.type", "none"),
      VALUE("llama.rope.scaling.factor", F32, 1),
      VALUE("llama.expert_count", U32, 0),
      VALUE("llama.vocab_size", U32, VOCAB),
      VALUE("llama.attention.value_length", U32, HEAD_DIM),
      VALUE("llama.attention.causal", BOOL, 1),
      VALUE("llama.unknown_key", U32, 7),
  };
  for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++)
    if (read_changed(&harmless[i], &c, &e)) fail_msg("%s: %s", harmless[i].name, e.text);
}

static void test_refuses(void **state) {
  (void)state;
  const struct {
    change c;
    int code;
    const char *part;
  } rows[] = {
      {DROP("general.architecture"), ERR_FORMAT, "general.architecture is missing"},
      {VALUE("general.architecture", U32, 1), ERR_FORMAT, "general.architecture is no text"},
      {TEXT("general.architecture", "gemma3"), ERR_UNSUPPORTED, "gemma3"},
      {TEXT("general.architecture", "mistral"), ERR_UNSUPPORTED, "mistral"},
      {TEXT("general.architecture", "llama4"), ERR_UNSUPPORTED, "llama4"},
      {VALUE("split.count", U32, 2), ERR_UNSUPPORTED, "split into 2 files"},
      {DROP("llama.block_count"), ERR_FORMAT, "llama.block_count is missing"},
      {VALUE("llama.block_count", U32, 0), ERR_FORMAT, "positive"},
      {VALUE("llama.block_count", U32, 257), ERR_LIMIT, "256"},
      {VALUE("llama.block_count", U32, 4294967295.0), ERR_LIMIT, "4294967295"},
      {VALUE("llama.block_count", U32, 3), ERR_FORMAT, "blk.2.attn_norm.weight"},
      {VALUE("llama.block_count", U32, 1), ERR_UNSUPPORTED, "blk.1."},
      {TEXT("llama.block_count", "2"), ERR_FORMAT, "positive"},
      {VALUE("llama.embedding_length", U32, 32), ERR_FORMAT, "token_embd.weight"},
      {DROP("llama.embedding_length"), ERR_FORMAT, "llama.embedding_length"},
      {VALUE("llama.feed_forward_length", U32, 64), ERR_FORMAT, "ffn_gate"},
      {VALUE("llama.feed_forward_length", ARRAY, 96), ERR_UNSUPPORTED, "each layer"},
      {VALUE("llama.attention.head_count", U32, 3), ERR_FORMAT, "multiple"},
      {VALUE("llama.attention.head_count", U32, 8), ERR_FORMAT, "attn_q"},
      {VALUE("llama.attention.head_count_kv", U32, 1), ERR_FORMAT, "attn_k"},
      {DROP("llama.attention.head_count_kv"), ERR_FORMAT, "attn_k"},
      {DROP("llama.attention.key_length"), ERR_FORMAT, "rope.dimension_count"},
      {VALUE("llama.attention.value_length", U32, 16), ERR_UNSUPPORTED, "differ in length"},
      {TEXT("llama.attention.value_length", "32"), ERR_FORMAT, "value_length is no number"},
      {VALUE("llama.rope.dimension_count", U32, 31), ERR_FORMAT, "odd"},
      {VALUE("llama.rope.dimension_count", U32, 64), ERR_FORMAT, "longer than a head"},
      {DROP("llama.context_length"), ERR_FORMAT, "llama.context_length"},
      {VALUE("llama.rope.freq_base", F32, 0), ERR_FORMAT, "freq_base"},
      {VALUE("llama.rope.freq_base", F32, INFINITY), ERR_FORMAT, "freq_base"},
      {DROP("llama.attention.layer_norm_rms_epsilon"), ERR_FORMAT, "epsilon"},
      {VALUE("llama.attention.layer_norm_rms_epsilon", F32, NAN), ERR_FORMAT, "epsilon"},
      {TEXT("llama.attention.layer_norm_rms_epsilon", "1"), ERR_FORMAT, "epsilon"},
      {TEXT("llama.rope.scaling.type", "longrope"), ERR_UNSUPPORTED, "rope.scaling.type"},
      {TEXT("llama.rope.scaling.type", "llama3"), ERR_FORMAT, "rope.scaling.factor is missing"},
      {VALUE("llama.rope.scaling.factor", F32, -4), ERR_FORMAT, "rope.scaling.factor"},
      {VALUE("llama.rope.scaling.yarn_log_multiplier", F32, 0.1f), ERR_UNSUPPORTED, "yarn_log_multiplier"},
      {VALUE("llama.rope.scale_linear", F32, 2), ERR_UNSUPPORTED, "scale_linear"},
      {VALUE("llama.expert_count", U32, 8), ERR_UNSUPPORTED, "expert_count"},
      {TEXT("llama.attention.sliding_window", "64"), ERR_FORMAT, "sliding_window"},
      {VALUE("llama.attention.sliding_window_pattern", U32, 6), ERR_UNSUPPORTED, "sliding_window_pattern"},
      {VALUE("llama.attention.causal", BOOL, 0), ERR_UNSUPPORTED, "causal"},
      {VALUE("llama.vocab_size", U32, 51), ERR_FORMAT, "vocab_size"},
      {VALUE("tokenizer.ggml.tokens", ARRAY, 1), ERR_FORMAT, "tokenizer.ggml.tokens"},
      {DROP("token_embd.weight"), ERR_FORMAT, "token_embd.weight"},
      {SHAPE("token_embd.weight", 32, VOCAB, GB_TYPE_F32), ERR_FORMAT, "32 x 50"},
      {SHAPE("token_embd.weight", EMBED, 0, GB_TYPE_F32), ERR_FORMAT, "output.weight"},
      {DROP("output_norm.weight"), ERR_FORMAT, "output_norm.weight"},
      {SHAPE("output_norm.weight", EMBED, 0, GB_TYPE_Q8_0), ERR_UNSUPPORTED, "Q8_0"},
      {SHAPE("output.weight", EMBED, 49, GB_TYPE_Q8_0), ERR_FORMAT, "64 x 49"},
      {DROP("blk.1.ffn_down.weight"), ERR_FORMAT, "blk.1.ffn_down.weight"},
      {SHAPE("blk.1.attn_v.weight", EMBED, 32, GB_TYPE_Q8_0), ERR_FORMAT, "blk.1.attn_v"},
      {SHAPE("blk.0.attn_q.bias", 128, 0, GB_TYPE_F32), ERR_FORMAT, "blk.0.attn_k.bias"},
      {SHAPE("blk.0.attn_v.bias", 64, 0, GB_TYPE_F32), ERR_UNSUPPORTED, "blk.0.attn_v.bias"},
      {SHAPE("blk.0.ffn_up.bias", 96, 0, GB_TYPE_F32), ERR_UNSUPPORTED, "blk.0.ffn_up.bias"},
      {SHAPE("blk.0.attn_q_norm.weight", 32, 0, GB_TYPE_F32), ERR_UNSUPPORTED, "attn_q_norm"},
      {SHAPE("rope_freqs.weight", 32, 0, GB_TYPE_F32), ERR_FORMAT, "rope_freqs.weight"},
      {SHAPE("blk.2.attn_q.weight", 64, 128, GB_TYPE_F32), ERR_UNSUPPORTED, "blk.2.attn_q"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    model_config c;
    err e;
    int rc = read_changed(&rows[i].c, &c, &e);
    if (rc != rows[i].code || !strstr(e.text, rows[i].part))
      fail_msg("%s: want %d '%s', got %d '%s'", rows[i].c.name, rows[i].code, rows[i].part, rc, e.text);
  }
}

/* As llama.cpp reads a GGUF. */
static void test_linear_scaling_without_a_factor_scales_by_one(void **state) {
  (void)state;
  const change linear = TEXT("llama.rope.scaling.type", "linear");
  model_config c;
  err e;
  assert_int_equal(read_changed(&linear, &c, &e), ERR_OK);
  assert_int_equal(c.scaling.kind, ROPE_LINEAR);
  assert_true(c.scaling.factor == 1);
}

/* A session's context is bounded, not what the model was made for. */
static void test_a_longer_context_counts_as_the_longest(void **state) {
  (void)state;
  const change longer[] = {VALUE("llama.context_length", U32, 1 << 21),
                           VALUE("llama.context_length", U32, UINT32_MAX)};
  for (size_t i = 0; i < sizeof longer / sizeof *longer; i++) {
    model_config c;
    err e;
    assert_int_equal(read_changed(&longer[i], &c, &e), ERR_OK);
    assert_int_equal(c.context, MODEL_CONTEXT_MAX);
  }
}

/* Figures of the PyPI package `gguf` 0.19.0 for the default model. */
static void test_default_model(void **state) {
  (void)state;
  model_file *f;
  err e;
  if (model_file_open(&f, MODEL, &e)) fail_msg("%s (run scripts/get_model.sh)", e.text);
  const model_config c = *model_file_config(f);
  const int32_t got[] = {c.layers, c.embed, c.heads,   c.kv_heads, c.head_dim,
                         c.ffn,    c.vocab, c.context, c.rope_dim};
  const int32_t want[] = {30, 576, 9, 3, 64, 1536, 49152, 8192, 64};
  assert_memory_equal(got, want, sizeof want);
  assert_true(c.tied && c.rope_base == 100000.0f && c.norm_eps == 9.999999747e-06f);
  model_file_close(f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_reads_the_tiny_model),
      cmocka_unit_test(test_defaults),
      cmocka_unit_test(test_linear_scaling_without_a_factor_scales_by_one),
      cmocka_unit_test(test_a_longer_context_counts_as_the_longest),
      cmocka_unit_test(test_refuses),
      cmocka_unit_test(test_default_model),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
