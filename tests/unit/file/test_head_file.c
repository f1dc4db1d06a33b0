/* libs: file base */
#include "common/file/head_file.h"
#include "common/file/tensor_values.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/support/head_builder.h"

static float value_at(const gguf_tensor *t, size_t i) {
  float v;
  tensor_values(t->type, t->data, i, 1, &v);
  return v;
}

static void reads_a_head_in_the_eagle_layout(void **state) {
  (void)state;
  head_builder b = {0};
  model_config target = head_target(&HEAD_SMALL);
  folder f = head_folder(&b, &HEAD_SMALL, "");
  head_file *h;
  err e;
  if (head_file_open(&h, f.path, &target, &e)) fail_msg("%s", e.text);
  const head_config *c = head_file_config(h);
  assert_true(c->layer.embed == 32 && c->layer.heads == 2 && c->layer.kv_heads == 1 && c->layer.ffn == 64);
  assert_true(c->layer.head_dim == 16 && c->layer.rope_dim == 16 && c->layer.half_split);
  assert_true(c->layer.context == 2048 && c->layer.rope_base == 100000.0f && c->layer.norm_eps == 1e-5f);
  assert_true(c->target_embed == 32 && c->layer.vocab == 96 && c->draft_vocab == 24);
  assert_true(c->tap_count == 3 && c->taps[0] == 1 && c->taps[1] == 2 && c->taps[2] == 4);
  assert_false(c->norm_before_fc || c->norm_before_residual || c->norm_output);
  assert_true(c->horizon == 0 && head_file_horizon(h) == HEAD_FILE_HORIZON);
  const gguf_tensor *q = head_file_tensor(h, HEAD_Q), *fc = head_file_tensor(h, HEAD_FC);
  assert_true(q->shape[0] == 64 && q->shape[1] == 32 && fc->shape[0] == 96 && fc->shape[1] == 32);
  for (size_t i = 0; i < 64 * 32; i++)
    assert_true(value_at(q, i) == head_value(".self_attn.q_proj.weight", i));
  assert_true(value_at(head_file_tensor(h, HEAD_STATE_NORM), 5) == head_value(".hidden_norm.weight", 5));
  assert_null(head_file_tensor(h, HEAD_EMBED));
  assert_null(head_file_tensor(h, HEAD_FC_NORM));
  for (int i = 0; i < 24; i++) assert_int_equal(head_file_ids(h)[i], 2 * i + 1);
  head_file_close(h);
  folder_remove(&f);
}

static void takes_from_the_target_what_an_old_configuration_leaves_out(void **state) {
  (void)state;
  const char *text =
      "{\"architectures\":[\"LlamaForCausalLMEagle3\"],\"hidden_size\":32,\"num_attention_heads\":2,"
      "\"num_key_value_heads\":1,\"intermediate_size\":64,\"vocab_size\":96,"
      "\"draft_vocab_size\":24,\"num_hidden_layers\":1}";
  head_builder b = {0};
  model_config target = head_target(&HEAD_SMALL);
  target.layers = 30;
  folder f = head_folder(&b, &HEAD_SMALL, "");
  folder_put_text(&f, "config.json", text);
  head_file *h;
  err e;
  if (head_file_open(&h, f.path, &target, &e)) fail_msg("%s", e.text);
  const head_config *c = head_file_config(h);
  assert_true(c->tap_count == 3 && c->taps[0] == 2 && c->taps[1] == 15 && c->taps[2] == 27);
  assert_true(c->target_embed == 32 && c->layer.context == 2048 && c->layer.rope_base == 10000.0f);
  head_file_close(h);
  folder_remove(&f);
}

static void refuses_integers_as_weights(void **state) {
  (void)state;
  head_builder b = {.skip = "norm.weight"};
  model_config target = head_target(&HEAD_SMALL);
  const int32_t integers[32] = {0};
  head_put(&b, "norm.weight", "I32", 0, 32, integers, sizeof integers);
  folder f = head_folder(&b, &HEAD_SMALL, "");
  head_file *h;
  err e;
  assert_int_equal(head_file_open(&h, f.path, &target, &e), ERR_UNSUPPORTED);
  assert_null(h);
  assert_non_null(strstr(e.text, "I32"));
  folder_remove(&f);
}

/* config.json of the speculators layout around the layer's own keys. */
#define SPECULATORS(flags, layer)                                                                            \
  "{\"speculators_model_type\":\"eagle3\",\"architectures\":[\"Eagle3Speculator\"],\"draft_vocab_size\":"    \
  "24," flags                                                                                                \
  "\"eagle_aux_hidden_state_layer_ids\":[1,2,4],\"target_hidden_size\":null,\"transformer_layer_config\":{"  \
  "\"model_type\":\"llama\",\"hidden_size\":32,\"num_attention_heads\":2,\"num_key_value_heads\":1,"         \
  "\"intermediate_size\":64,\"vocab_size\":96,\"num_hidden_layers\":1,\"rms_norm_eps\":1e-05," layer         \
  "\"max_position_embeddings\":4096,\"hidden_act\":\"silu\"}}"

static void reads_a_head_in_the_speculators_layout(void **state) {
  (void)state;
  head_builder b = {.prefix = "layers.0"};
  model_config target = head_target(&HEAD_SMALL);
  head_weights(&b, "embed_tokens.weight", 96, 32);
  head_weights(&b, "input_norm.weight", 0, 96);
  head_weights(&b, "verifier_norm.weight", 0, 32);
  folder f = head_folder(&b, &HEAD_SMALL, "");
  folder_put_text(
      &f, "config.json",
      SPECULATORS("\"norm_before_residual\":true,\"norm_before_fc\":true,\"norm_output\":true,\"horizon\":3,",
                  "\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
                  "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                  "\"original_max_position_embeddings\":8192},"));
  head_file *h;
  err e;
  if (head_file_open(&h, f.path, &target, &e)) fail_msg("%s", e.text);
  const head_config *c = head_file_config(h);
  assert_true(c->norm_before_residual && c->norm_before_fc && c->norm_output);
  assert_int_equal(head_file_horizon(h), 3);
  assert_true(c->layer.context == 4096 && c->layer.rope_base == 500000.0f);
  assert_true(c->layer.scaling.kind == ROPE_LLAMA3 && c->layer.scaling.factor == 8.0f);
  assert_true(c->target_embed == 32 && c->draft_vocab == 24 && c->tap_count == 3 && c->taps[2] == 4);
  assert_true(value_at(head_file_tensor(h, HEAD_FC_NORM), 95) == head_value("input_norm.weight", 95));
  assert_true(value_at(head_file_tensor(h, HEAD_EMBED), 77) == head_value("embed_tokens.weight", 77));
  assert_true(value_at(head_file_tensor(h, HEAD_DOWN), 9) == head_value(".mlp.down_proj.weight", 9));
  head_file_close(h);
  folder_remove(&f);
}

static void reads_layers_named_by_their_output(void **state) {
  (void)state;
  head_builder b = {0};
  model_config target = head_target(&HEAD_SMALL);
  folder f = head_folder(&b, &HEAD_SMALL, "");
  folder_put_text(
      &f, "config.json",
      "{\"hidden_size\":32,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
      "\"intermediate_size\":64,\"vocab_size\":96,\"draft_vocab_size\":24,\"num_hidden_layers\":1,"
      "\"eagle_config\":{\"eagle_aux_hidden_state_layer_ids\":[0,1,3]}}");
  head_file *h;
  err e;
  if (head_file_open(&h, f.path, &target, &e)) fail_msg("%s", e.text);
  const head_config *c = head_file_config(h);
  assert_true(c->tap_count == 3 && c->taps[0] == 1 && c->taps[1] == 2 && c->taps[2] == 4);
  head_file_close(h);
  folder_remove(&f);
}

static void reads_a_full_vocabulary(void **state) {
  (void)state;
  head_shape shape = HEAD_SMALL;
  head_builder b = {.skip = "lm_head.weight"};
  model_config target = head_target(&shape);
  shape.draft_vocab = shape.vocab;
  folder f = head_folder(&b, &shape, "");
  head_file *h;
  err e;
  if (head_file_open(&h, f.path, &target, &e)) fail_msg("%s", e.text);
  assert_int_equal(head_file_config(h)->draft_vocab, 96);
  assert_null(head_file_ids(h));
  assert_null(head_file_tensor(h, HEAD_OUTPUT));
  assert_int_equal(head_file_keep_rows(h, 8, &e), ERR_UNSUPPORTED);
  head_file_close(h);
  folder_remove(&f);
}

static void keeps_the_first_rows(void **state) {
  (void)state;
  for (int full = 0; full < 2; full++) {
    head_shape shape = HEAD_SMALL;
    head_builder b = {0};
    if (full) shape.draft_vocab = shape.vocab;
    model_config target = head_target(&shape);
    folder f = head_folder(&b, &shape, "");
    head_file *h;
    err e;
    if (head_file_open(&h, f.path, &target, &e)) fail_msg("%s", e.text);
    assert_int_equal(head_file_keep_rows(h, 0, &e), ERR_ARG);
    assert_int_equal(head_file_keep_rows(h, shape.draft_vocab + 1, &e), ERR_ARG);
    assert_int_equal(head_file_keep_rows(h, 10, &e), ERR_OK);
    const gguf_tensor *t = head_file_tensor(h, HEAD_OUTPUT);
    assert_true(head_file_config(h)->draft_vocab == 10 && t->shape[1] == 10 && t->bytes == 10 * 32 * 2);
    for (int i = 0; i < 10; i++) assert_int_equal(head_file_ids(h)[i], full ? i : 2 * i + 1);
    head_file_close(h);
    folder_remove(&f);
  }
}

static void a_window_only_narrows(void **state) {
  (void)state;
  head_builder b = {0};
  model_config target = head_target(&HEAD_SMALL);
  folder f = head_folder(&b, &HEAD_SMALL, "");
  head_file *h;
  err e;
  if (head_file_open(&h, f.path, &target, &e)) fail_msg("%s", e.text);
  int32_t trained = head_file_config(h)->layer.context;
  assert_int_equal(head_config_window(head_file_config(h)), trained);
  assert_int_equal(head_file_narrow(h, 0, &e), ERR_ARG);
  assert_int_equal(head_file_narrow(h, trained + 1, &e), ERR_ARG);
  assert_int_equal(head_file_narrow(h, 9, &e), ERR_OK);
  assert_int_equal(head_config_window(head_file_config(h)), 9);
  assert_int_equal(head_file_narrow(h, 10, &e), ERR_ARG);
  head_file_close(h);
  folder_remove(&f);
}

static void quantises_matrices(void **state) {
  (void)state;
  head_builder b = {0};
  model_config target = head_target(&HEAD_SMALL);
  folder f = head_folder(&b, &HEAD_SMALL, "");
  head_file *h;
  err e;
  if (head_file_open(&h, f.path, &target, &e)) fail_msg("%s", e.text);
  if (head_file_quantise(h, GGUF_Q8_0, GGUF_Q4_1, &e)) fail_msg("%s", e.text);
  const gguf_tensor *q = head_file_tensor(h, HEAD_Q), *output = head_file_tensor(h, HEAD_OUTPUT);
  assert_true(q->type == GGUF_Q8_0 && q->bytes == 32 * 64 / 32 * 34);
  assert_true(output->type == GGUF_Q4_1 && output->bytes == 24 * 20);
  assert_true(head_file_tensor(h, HEAD_FFN_NORM)->type == GGUF_BF16);
  const uint8_t *block = (const uint8_t *)q->data + 5 * 2 * 34; /* row 5, the first 32 columns */
  float d;
  tensor_values(GGUF_F16, block, 0, 1, &d);
  for (size_t i = 0; i < 32; i++) {
    float v = head_value(".self_attn.q_proj.weight", 5 * 64 + i), off = d * (int8_t)block[2 + i] - v;
    assert_true(off > -d * 0.51f && off < d * 0.51f);
  }
  assert_int_equal(head_file_quantise(h, GGUF_BF16, GGUF_BF16, &e), ERR_UNSUPPORTED);
  assert_non_null(strstr(e.text, "Q8_0 already"));
  head_file_close(h);
  folder_remove(&f);
}

/* ---- refusals ---- */

static void expect_refusal(head_builder *b, const head_shape *s, const char *config,
                           const model_config *target, int code, const char *part) {
  head_file *h;
  err e = {0};
  folder f = head_folder(b, s, "");
  if (config) folder_put_text(&f, "config.json", config);
  int rc = head_file_open(&h, f.path, target, &e);
  if (rc != code || !strstr(e.text, part) || h) fail_msg("%s: %d, %s", part, rc, e.text);
  folder_remove(&f);
}

static void refuses_wrong_tensors(void **state) {
  (void)state;
  static const int64_t same[24] = {5, 4}, high[24] = {95 + 1}, low[24] = {-1}, huge[24] = {0, INT64_MAX};
  const struct {
    head_builder b;
    int code;
    const char *part;
  } rows[] = {
      {{.skip = "fc.weight"}, ERR_FORMAT, "no tensor fc.weight"},
      {{.skip = ".mlp.up_proj.weight"}, ERR_FORMAT, "mlp.up_proj.weight"},
      {{.skip = "lm_head.weight"}, ERR_FORMAT, "does not fit it (32 x 24 against 32 x 96)"},
      {{.skip = "d2t"}, ERR_FORMAT, "24 tokens, but its map (d2t) is of 96"},
      {{.odd = "fc.weight"}, ERR_FORMAT, "96 x 33, but its configuration asks for 96 x 32"},
      {{.odd = "lm_head.weight"}, ERR_FORMAT, "32 x 25"},
      {{.odd = ".hidden_norm.weight"}, ERR_FORMAT, "33 x 1"},
      {{.spoilt = ".self_attn.k_proj.weight"}, ERR_FORMAT, "k_proj.weight has a value that is infinite"},
      {{.spoilt = "norm.weight"}, ERR_FORMAT, "norm.weight has a value that is infinite"},
      {{.ids = same}, ERR_MISMATCH, "row 1 of the draft head's d2t is token 5, which another row is"},
      {{.ids = high}, ERR_MISMATCH, "token 96, which is none of the target's (the target has 96"},
      {{.ids = low}, ERR_MISMATCH, "token -1"},
      {{.ids = huge}, ERR_MISMATCH, "row 1"},
      {{.extra = ".self_attn.q_norm.weight"}, ERR_UNSUPPORTED, "self_attn.q_norm.weight, which the graph"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    static head_builder b;
    model_config target = head_target(&HEAD_SMALL);
    b = rows[i].b;
    expect_refusal(&b, &HEAD_SMALL, NULL, &target, rows[i].code, rows[i].part);
  }
}

static void refuses_another_target(void **state) {
  (void)state;
  const model_config right = head_target(&HEAD_SMALL);
  model_config wide = right, few = right, other = right;
  wide.embed = 64;
  few.layers = 3;
  other.vocab = 100;
  const struct {
    const model_config *target;
    const char *part;
  } rows[] = {
      {&wide, "states of width 32, but the target's are 64 wide"},
      {&few, "enters layer 4, but the target has 3 layers"},
      {&other, "vocabulary of 96 tokens, but the target has 100"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    static head_builder b;
    b = (head_builder){0};
    expect_refusal(&b, &HEAD_SMALL, NULL, rows[i].target, ERR_MISMATCH, rows[i].part);
  }
}

#define EAGLE(keys)                                                                                          \
  "{\"hidden_size\":32,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"intermediate_size\":64,"        \
  "\"vocab_size\":96" keys "}"

static void refuses_wrong_configurations(void **state) {
  (void)state;
  const struct {
    const char *config;
    int code;
    const char *part;
  } rows[] = {
      {EAGLE(",\"num_hidden_layers\":2"), ERR_UNSUPPORTED, "2 layers"},
      {EAGLE(",\"num_hidden_layers\":1,\"draft_vocab_size\":0"), ERR_FORMAT, "draft_vocab_size"},
      {EAGLE(",\"num_hidden_layers\":1,\"draft_vocab_size\":1e9"), ERR_FORMAT, "draft_vocab_size"},
      {EAGLE(",\"num_hidden_layers\":1,\"draft_vocab_size\":2000000"), ERR_LIMIT, "2000000"},
      {EAGLE(",\"num_hidden_layers\":1,\"draft_vocab_size\":97,\"eagle_aux_hidden_state_layer_ids\":[1,2]"),
       ERR_FORMAT, "97"},
      {EAGLE(",\"num_hidden_layers\":1,\"norm_before_residual\":7"), ERR_FORMAT, "norm_before_residual"},
      {EAGLE(",\"num_hidden_layers\":1,\"horizon\":0"), ERR_FORMAT, "horizon"},
      {EAGLE(",\"num_hidden_layers\":1,\"horizon\":4097"), ERR_LIMIT, "4097"},
      {EAGLE(",\"num_hidden_layers\":1,\"fc_norm\":true"), ERR_UNSUPPORTED, "fc_norm"},
      {EAGLE(",\"num_hidden_layers\":1,\"quantization_config\":{}"), ERR_UNSUPPORTED, "quantization_config"},
      {EAGLE(",\"num_hidden_layers\":1,\"eagle_aux_hidden_state_layer_ids\":[1,\"2\"]"), ERR_FORMAT,
       "whole numbers"},
      {EAGLE(",\"num_hidden_layers\":1,\"eagle_aux_hidden_state_layer_ids\":[2,1,3]"), ERR_FORMAT,
       "rising order"},
      {EAGLE(",\"num_hidden_layers\":1,\"eagle_aux_hidden_state_layer_ids\":[0,1,2,3,4,4,4,4,4]"), ERR_FORMAT,
       "rising order"},
      {EAGLE(",\"num_hidden_layers\":1,\"eagle_aux_hidden_state_layer_ids\":[9223372036854775807]"),
       ERR_MISMATCH, "target has 4 layers"},
      {"{\"speculators_model_type\":\"mlp\"}", ERR_UNSUPPORTED, "mlp"},
      {"[]", ERR_FORMAT, "object"},
  };
  model_config target = head_target(&HEAD_SMALL);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    static head_builder b;
    b = (head_builder){0};
    expect_refusal(&b, &HEAD_SMALL, rows[i].config, &target, rows[i].code, rows[i].part);
  }
}

static void refuses_a_pickled_head_and_says_what_to_do(void **state) {
  (void)state;
  head_builder b = {0};
  model_config target = head_target(&HEAD_SMALL);
  folder f = head_folder(&b, &HEAD_SMALL, "");
  head_file *h;
  err e;
  char path[160];
  snprintf(path, sizeof path, "%s/model.safetensors", f.path);
  unlink(path);
  folder_put_text(&f, "pytorch_model.bin", "PK");
  assert_int_equal(head_file_open(&h, f.path, &target, &e), ERR_UNSUPPORTED);
  assert_non_null(strstr(e.text, "model.safetensors"));
  snprintf(path, sizeof path, "%s/none/head", f.path);
  assert_int_equal(head_file_open(&h, path, &target, &e), ERR_IO);
  folder_remove(&f);
}

/* A head for a path of the environment's, where there is one. */
static void reads_a_given_head(void **state) {
  (void)state;
  const char *path = getenv("TANDEM_TEST_HEAD");
  model_config target = {.layers = 30, .embed = 576, .vocab = 49152};
  head_file *h;
  err e;
  if (!path) skip();
  if (head_file_open(&h, path, &target, &e)) fail_msg("%s", e.text);
  assert_int_equal(head_file_config(h)->tap_count, 3);
  head_file_close(h);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_a_head_in_the_eagle_layout),
      cmocka_unit_test(takes_from_the_target_what_an_old_configuration_leaves_out),
      cmocka_unit_test(reads_a_head_in_the_speculators_layout),
      cmocka_unit_test(reads_layers_named_by_their_output),
      cmocka_unit_test(reads_a_full_vocabulary),
      cmocka_unit_test(keeps_the_first_rows),
      cmocka_unit_test(a_window_only_narrows),
      cmocka_unit_test(quantises_matrices),
      cmocka_unit_test(refuses_wrong_tensors),
      cmocka_unit_test(refuses_another_target),
      cmocka_unit_test(refuses_wrong_configurations),
      cmocka_unit_test(refuses_a_pickled_head_and_says_what_to_do),
      cmocka_unit_test(refuses_integers_as_weights),
      cmocka_unit_test(reads_a_given_head),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
