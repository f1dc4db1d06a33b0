/* libs: file base */
#include "common/file/head_file.h"
#include "common/file/tensor_values.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/head_builder.h"

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
      cmocka_unit_test(refuses_integers_as_weights),
      cmocka_unit_test(reads_a_given_head),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
