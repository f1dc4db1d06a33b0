/* libs: file base */
/* The name of a head's fc, which a target and a draft must give to the same weights. */
#include "common/file/head_fc.h"
#include "common/file/tensor_values.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/support/head_builder.h"

static const char with_norm[] =
    "{\"speculators_model_type\":\"eagle3\",\"architectures\":[\"Eagle3Speculator\"],\"draft_vocab_size\":24,"
    "\"norm_before_fc\":true,\"eagle_aux_hidden_state_layer_ids\":[1,2,4],\"target_hidden_size\":32,"
    "\"transformer_layer_config\":{\"model_type\":\"llama\",\"hidden_size\":32,\"num_attention_heads\":2,"
    "\"num_key_value_heads\":1,\"head_dim\":16,\"intermediate_size\":64,\"vocab_size\":96,"
    "\"num_hidden_layers\":1,\"rms_norm_eps\":%s,\"rope_theta\":100000.0,"
    "\"max_position_embeddings\":64,\"hidden_act\":\"silu\"}}";

static const gguf_type AS_IT_IS = GGUF_BF16;

/* eps NULL: the head has no norm before fc. */
static hash16 name_of(const char *eps, gguf_type type) {
  head_builder *b = calloc(1, sizeof *b);
  const model_config target = head_target(&HEAD_SMALL);
  char text[1024];
  head_file *h;
  err e;
  b->prefix = eps ? "layers.0" : "midlayer";
  if (eps) head_weights(b, "input_norm.weight", 0, 96);
  folder f = head_folder(b, &HEAD_SMALL, "");
  snprintf(text, sizeof text, with_norm, eps ? eps : "");
  if (eps) folder_put_text(&f, "config.json", text);
  if (head_file_open(&h, f.path, &target, &e)) fail_msg("%s", e.text);
  if (head_file_settle(h, type, &e)) fail_msg("%s", e.text);
  hash16 name = head_fc_hash(h);
  head_file_close(h);
  folder_remove(&f);
  free(b);
  return name;
}

static void the_name_is_that_of_the_values_as_floats(void **state) {
  (void)state;
  static float values[96 * 32];
  for (size_t i = 0; i < 96 * 32; i++) values[i] = head_value("fc.weight", i);
  hash16 expected = hash_bytes(values, sizeof values);
  assert_true(hash_equal(name_of(NULL, AS_IT_IS), expected));
}

static void what_is_quantised_has_another_name(void **state) {
  (void)state;
  hash16 plain = name_of(NULL, AS_IT_IS), small = name_of(NULL, GGUF_Q8_0);
  assert_false(hash_is_zero(small));
  assert_false(hash_equal(plain, small));
  assert_true(hash_equal(name_of(NULL, GGUF_F32), small)); /* what both programs do if nobody says */
}

static void the_norm_before_fc_is_part_of_the_name(void **state) {
  (void)state;
  hash16 none = name_of(NULL, AS_IT_IS), norm = name_of("1e-05", AS_IT_IS);
  assert_false(hash_equal(none, norm));
  assert_false(hash_equal(norm, name_of("1e-06", AS_IT_IS)));
  assert_true(hash_equal(norm, name_of("1e-05", AS_IT_IS)));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_name_is_that_of_the_values_as_floats),
      cmocka_unit_test(what_is_quantised_has_another_name),
      cmocka_unit_test(the_norm_before_fc_is_part_of_the_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
