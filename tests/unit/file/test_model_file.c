/* libs: file base */
/* A folder as a model: config.json in its old and new form, the tensors that it asks for, what ends an
 * answer. */
#include "common/file/model_file.h"
#include "common/file/json.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/support/folder_builder.h"

/* --- config.json alone --- */

static int read_text(const char *text, model_config *c, err *e) {
  json_t *object;
  config_source s;
  *e = (err){0};
  int rc = json_parse_object(&object, "config.json", text, strlen(text), e);
  if (rc) return rc;
  rc = config_source_json(&s, object, e);
  if (!rc) rc = model_config_read(c, &s, e);
  json_decref(object);
  return rc;
}

#define SIZES                                                                                                \
  "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "   \
  "\"max_position_embeddings\": 1000, \"rms_norm_eps\": 1e-05, \"vocab_size\": 50"
#define TYPE(name) "{\"model_type\": \"" name "\", " SIZES

static model_config read_right(const char *text) {
  model_config c;
  err e;
  if (read_text(text, &c, &e)) fail_msg("%s: %s", text, e.text);
  return c;
}

static void reads_config(void **state) {
  (void)state;
  model_config c = read_right(TYPE("llama") "}");
  const int32_t got[] = {c.layers, c.embed, c.heads,   c.kv_heads, c.head_dim,
                         c.ffn,    c.vocab, c.context, c.rope_dim};
  const int32_t want[] = {3, 64, 4, 4, 16, 96, 50, 1000, 16};
  assert_memory_equal(got, want, sizeof want);
  assert_true(c.rope_base == 10000.0f && c.norm_eps == 1e-5f && c.scaling.kind == ROPE_PLAIN &&
              c.scaling.times == 1);
  assert_true(c.half_split && !c.qkv_bias && !c.output_bias && !c.qk_norm && c.tied && !c.window[0]);
  assert_false(read_right(TYPE("llama") ", \"tie_word_embeddings\": false}").tied);
  c = read_right(
      TYPE("llama") ", \"num_key_value_heads\": 2, \"head_dim\": 32, \"attention_bias\": true, "
                    "\"tie_word_embeddings\": true, \"sliding_window\": 7, \"torch_dtype\": \"bfloat16\"}");
  assert_true(c.kv_heads == 2 && c.head_dim == 32 && c.qkv_bias && c.output_bias && c.tied && !c.window[0]);
  c = read_right(TYPE("llama") ", \"head_dim\": null, \"rope_scaling\": null, \"sliding_window\": null}");
  assert_int_equal(c.head_dim, 16);
  c = read_right(TYPE("qwen2") "}");
  assert_true(c.qkv_bias && !c.output_bias && !c.qk_norm);
  c = read_right(TYPE("qwen3") "}");
  assert_true(c.qk_norm && !c.qkv_bias && c.head_dim == 128);
  c = read_right(TYPE("qwen3") ", \"attention_bias\": true, \"head_dim\": 16}");
  assert_true(c.qk_norm && c.qkv_bias && c.output_bias && c.head_dim == 16);
}

/* What transformers 5.23's configuration classes say where the file is silent. */
static void means_by_silence(void **state) {
  (void)state;
#define FEW(name)                                                                                            \
  "{\"model_type\": \"" name                                                                                 \
  "\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 3, "                           \
  "\"num_attention_heads\": 4"
  const struct {
    const char *text;
    int32_t context, window;
  } rows[] = {{FEW("llama") "}", 2048, 0},
              {FEW("mistral") "}", 131072, 4096},
              {FEW("mistral") ", \"sliding_window\": null}", 131072, 0},
              {FEW("qwen2") "}", 32768, 0},
              {FEW("qwen2") ", \"use_sliding_window\": true, \"max_window_layers\": 0}", 32768, 4096},
              {FEW("qwen3") "}", 32768, 0}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    model_config c = read_right(rows[i].text);
    assert_int_equal(c.context, rows[i].context);
    assert_int_equal(c.window[0], rows[i].window);
    assert_true(c.norm_eps == 1e-6f && c.rope_base == 10000.0f);
  }
}

static void reads_rotary_scaling(void **state) {
  (void)state;
  const char *forms[] = {
      TYPE("llama") ", \"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 500000.0, "
                    "\"factor\": 8.0, "
                    "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                    "\"original_max_position_embeddings\": 256}}",
      TYPE("llama") ", \"rope_theta\": 500000, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
                    "\"low_freq_factor\": 1, \"high_freq_factor\": 4, \"original_max_position_embeddings\": "
                    "256}}"};
  for (int i = 0; i < 2; i++) {
    model_config c = read_right(forms[i]);
    assert_true(c.scaling.kind == ROPE_LLAMA3 && c.rope_base == 500000.0f && c.scaling.factor == 8);
    assert_true(c.scaling.low == 1 && c.scaling.high == 4 && c.scaling.original == 256);
  }
  model_config c = read_right(TYPE("qwen2") ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, "
                                            "\"original_max_position_embeddings\": 250}}");
  assert_true(c.scaling.kind == ROPE_YARN && c.scaling.original == 250 && c.scaling.factor == 4);
  assert_true(c.scaling.beta_fast == 32 && c.scaling.beta_slow == 1 && c.scaling.attention == 0);
  c = read_right(TYPE(
      "llama") ", \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2, \"attention_factor\": 1.5, "
               "\"beta_fast\": 16, \"beta_slow\": 2}}");
  assert_true(c.scaling.original == 1000 && c.scaling.attention == 1.5f && c.scaling.beta_fast == 16);
  c = read_right(TYPE("llama") ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"mscale\": 0.7, "
                               "\"mscale_all_dim\": 0, \"beta_fast\": null}}");
  assert_true(c.scaling.mscale == 0.7f && c.scaling.mscale_all == 0 && c.scaling.beta_fast == 32);
  c = read_right(TYPE("llama") ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
                               "\"low_freq_factor\": 1, \"high_freq_factor\": 4}}");
  assert_true(c.scaling.original == 1000);
  c = read_right(TYPE("llama") ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}}");
  assert_true(c.scaling.kind == ROPE_LINEAR && c.scaling.factor == 2);
  c = read_right(TYPE("llama") ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 7}}");
  assert_true(c.scaling.kind == ROPE_PLAIN && c.rope_base == 7);
}

static void reads_windows(void **state) {
  (void)state;
  model_config c = read_right(TYPE("mistral") ", \"sliding_window\": 64}");
  assert_true(c.window[0] == 64 && c.window[2] == 64 && c.window[3] == 0);
  assert_int_equal(read_right(TYPE("mistral") ", \"sliding_window\": null}").window[0], 0);
  c = read_right(
      TYPE("qwen2") ", \"sliding_window\": 9, \"use_sliding_window\": false, \"max_window_layers\": 0}");
  assert_int_equal(c.window[0], 0);
  c = read_right(
      TYPE("qwen2") ", \"sliding_window\": 9, \"use_sliding_window\": true, \"max_window_layers\": 2}");
  assert_true(c.window[0] == 0 && c.window[1] == 0 && c.window[2] == 9);
  c = read_right(TYPE("qwen2") ", \"sliding_window\": 9, \"use_sliding_window\": true}");
  assert_int_equal(c.window[2], 0);
  c = read_right(
      TYPE("qwen3") ", \"sliding_window\": 9, \"use_sliding_window\": true, \"max_window_layers\": 0, "
                    "\"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\"]}");
  assert_true(c.window[0] == 9 && c.window[1] == 0 && c.window[2] == 9);
}

static void refuses_config(void **state) {
  (void)state;
  const struct {
    const char *text;
    int code;
    const char *part;
  } rows[] = {
      {"", ERR_FORMAT, "JSON"},
      {"7", ERR_FORMAT, "JSON"},
      {"{}", ERR_FORMAT, "model_type"},
      {"{\"model_type\": 3}", ERR_FORMAT, "model_type"},
      {TYPE("gemma3") "}", ERR_UNSUPPORTED, "gemma3"},
      {TYPE("llama") ", \"hidden_size\": 5}", ERR_FORMAT, "duplicate"},
      {"{\"model_type\": \"llama\"}", ERR_FORMAT, "num_hidden_layers is missing"},
      {TYPE("llama") ", \"head_dim\": -1}", ERR_FORMAT, "head_dim"},
      {TYPE("llama") ", \"head_dim\": 16.5}", ERR_FORMAT, "head_dim"},
      {TYPE("llama") ", \"head_dim\": \"16\"}", ERR_FORMAT, "head_dim"},
      {TYPE("llama") ", \"head_dim\": 15}", ERR_FORMAT, "head_dim"},
      {TYPE("llama") ", \"head_dim\": 513}", ERR_LIMIT, "512"},
      {TYPE("llama") ", \"head_dim\": [16]}", ERR_UNSUPPORTED, "each layer"},
      {TYPE("llama") ", \"num_key_value_heads\": 3}", ERR_FORMAT, "multiple"},
      {TYPE("llama") ", \"num_key_value_heads\": 1e300}", ERR_FORMAT, "num_key_value_heads"},
      {TYPE("llama") ", \"rope_theta\": 0}", ERR_FORMAT, "rope_theta"},
      {TYPE("llama") ", \"rope_theta\": 1e35}", ERR_FORMAT, "rope_theta"},
      {TYPE("llama") ", \"rope_theta\": true}", ERR_FORMAT, "rope_theta"},
      {TYPE("llama") ", \"hidden_act\": \"gelu\"}", ERR_UNSUPPORTED, "hidden_act"},
      {TYPE("llama") ", \"mlp_bias\": true}", ERR_UNSUPPORTED, "mlp_bias"},
      {TYPE("llama") ", \"attention_bias\": 1}", ERR_FORMAT, "attention_bias"},
      {TYPE("llama") ", \"partial_rotary_factor\": 0.5}", ERR_UNSUPPORTED, "partial_rotary_factor"},
      {TYPE("llama") ", \"quantization_config\": {\"quant_method\": \"gptq\"}}", ERR_UNSUPPORTED,
       "quantization_config"},
      {TYPE("llama") ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}}", ERR_UNSUPPORTED,
       "dynamic"},
      {TYPE("llama") ", \"rope_scaling\": {\"type\": \"linear\"}}", ERR_FORMAT, "factor"},
      {TYPE("llama") ", \"rope_scaling\": {\"factor\": 2.0}}", ERR_FORMAT, "rope_type"},
      {TYPE("llama") ", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8}}", ERR_FORMAT, "llama3"},
      {TYPE("llama") ", \"rope_theta\": 0.5, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 8}}",
       ERR_FORMAT, "above 1"},
      {TYPE("llama") ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 7}}}", ERR_UNSUPPORTED,
       "full_attention"},
      {TYPE("mistral") ", \"sliding_window\": -3}", ERR_FORMAT, "sliding_window"},
      {TYPE("qwen2") ", \"use_sliding_window\": \"yes\"}", ERR_FORMAT, "use_sliding_window"},
      {TYPE("qwen2") ", \"layer_types\": [\"full_attention\"]}", ERR_FORMAT, "layer_types"},
      {TYPE("qwen2") ", \"layer_types\": [\"full_attention\", \"full_attention\", \"linear_attention\"]}",
       ERR_UNSUPPORTED, "layer_types"},
      {TYPE("qwen2") ", \"layer_types\": [\"full_attention\", \"full_attention\", \"sliding_attention\"]}",
       ERR_FORMAT, "sliding_window is missing"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    model_config c;
    err e;
    int rc = read_text(rows[i].text, &c, &e);
    if (rc != rows[i].code || !strstr(e.text, rows[i].part))
      fail_msg("%s: want %d '%s', got %d '%s'", rows[i].text, rows[i].code, rows[i].part, rc, e.text);
  }
}

/* --- a folder --- */

/* Appends a BF16 tensor of rows x columns (rows 0: a vector) to a header. */
static void add_tensor(char *header, size_t *data, const char *name, int rows, int columns) {
  size_t begin = *data, bytes = (size_t)(rows ? rows : 1) * (size_t)columns * 2;
  char shape[32];
  *data += bytes;
  snprintf(shape, sizeof shape, rows ? "[%d,%d]" : "[%.0d%d]", rows, columns);
  sprintf(header + strlen(header), "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
          begin ? "," : "{", name, shape, begin, *data);
}

/* The tensors of a llama of three layers, but `left_out`, and with `extra`, a vector of 4. */
static void put_model(folder *f, const char *left_out, const char *extra) {
  static const struct {
    const char *name;
    int rows, columns;
  } layer[] = {
      {"input_layernorm", 0, 64},   {"self_attn.q_proj", 64, 64}, {"self_attn.k_proj", 64, 64},
      {"self_attn.v_proj", 64, 64}, {"self_attn.o_proj", 64, 64}, {"post_attention_layernorm", 0, 64},
      {"mlp.gate_proj", 96, 64},    {"mlp.up_proj", 96, 64},      {"mlp.down_proj", 64, 96}};
  static char header[16384];
  char name[96];
  size_t data = 0, size;
  header[0] = 0;
  add_tensor(header, &data, "model.embed_tokens.weight", 50, 64);
  for (int i = 0; i < 3; i++) {
    for (size_t k = 0; k < sizeof layer / sizeof *layer; k++) {
      snprintf(name, sizeof name, "model.layers.%d.%s.weight", i, layer[k].name);
      if (!left_out || strcmp(left_out, name) != 0)
        add_tensor(header, &data, name, layer[k].rows, layer[k].columns);
    }
  }
  add_tensor(header, &data, "model.norm.weight", 0, 64);
  if (!left_out || strcmp(left_out, "lm_head.weight") != 0)
    add_tensor(header, &data, "lm_head.weight", 50, 64);
  if (extra) add_tensor(header, &data, extra, 0, 4);
  strcat(header, "}");
  uint8_t *bytes = safetensors_bytes(header, data, &size);
  folder_put(f, "model.safetensors", bytes, size);
  free(bytes);
}

static model_file *open_right(const folder *f) {
  model_file *m;
  err e = {0};
  if (model_file_open(&m, f->path, &e)) fail_msg("%s", e.text);
  return m;
}

static hash16 hash_of(const model_file *m) {
  hash16 h;
  assert_true(model_file_read_hash(m, NULL, &h));
  return h;
}

static void flip_last_byte(const folder *f, const char *name) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", f->path, name);
  FILE *file = fopen(path, "r+b");
  assert_non_null(file);
  assert_int_equal(fseek(file, -1, SEEK_END), 0);
  int byte = fgetc(file);
  assert_int_equal(fseek(file, -1, SEEK_END), 0);
  fputc(byte ^ 1, file);
  assert_int_equal(fclose(file), 0);
}

static void assert_refused(const folder *f, int code, const char *part) {
  model_file *m;
  err e = {0};
  int rc = model_file_open(&m, f->path, &e);
  if (rc != code || !strstr(e.text, part) || m) fail_msg("want %d '%s', got %d '%s'", code, part, rc, e.text);
}

static void reads_a_folder(void **state) {
  (void)state;
  folder f = folder_make();
  int32_t stops[MODEL_STOPS_MAX];
  hash16 h;
  err e = {0};
  folder_put_text(&f, "config.json", TYPE("llama") ", \"eos_token_id\": 2}");
  put_model(&f, NULL, "model.layers.0.self_attn.rotary_emb.inv_freq"); /* as old ones have it */
  model_file *m = open_right(&f);
  const gguf_tensor *t = model_file_tensor(m, MODEL_DOWN, 2);
  assert_string_equal(t->name, "model.layers.2.mlp.down_proj.weight");
  assert_string_equal(model_file_tensor(m, MODEL_OUTPUT, 0)->name, "lm_head.weight");
  assert_null(model_file_tensor(m, MODEL_Q_BIAS, 0));
  assert_null(model_file_tensor(m, MODEL_ROPE_FACTORS, 0));
  assert_null(model_file_gguf(m));
  assert_null(model_file_tokenizer(m));
  assert_int_equal(model_file_vocabulary(m, &h, &e), ERR_OK);
  assert_true(hash_is_zero(h));
  assert_int_equal(model_file_stops(m, stops), 1);
  assert_int_equal(stops[0], 2);
  assert_string_equal(model_file_doubt(m), "");
  hash16 before = model_file_fingerprint(m), whole = hash_of(m);
  model_file_close(m);
  /* transformers stops by generation_config.json first */
  folder_put_text(&f, "generation_config.json", "{\"eos_token_id\": [7, 9, 7, 50, -1]}");
  m = open_right(&f);
  assert_int_equal(model_file_stops(m, stops), 2);
  assert_true(stops[0] == 7 && stops[1] == 9);
  assert_string_equal(model_file_doubt(m), "the model's eos_token_id 50 is no token: it counts as none");
  assert_false(hash_equal(before, model_file_fingerprint(m)));
  assert_false(hash_equal(whole, hash_of(m)));
  model_file_close(m);
  folder_put_text(&f, "generation_config.json", "{\"eos_token_id\": [7, \"9\"]}");
  assert_refused(&f, ERR_FORMAT, "eos_token_id is neither");
  folder_put_text(&f, "generation_config.json", "{\"eos_token_id\": \"7\"}");
  assert_refused(&f, ERR_FORMAT, "eos_token_id is neither");
  folder_put_text(&f, "generation_config.json", "{}");
  /* an output matrix that is there is used; where there is none and nothing is said, the model is tied */
  folder_put_text(&f, "config.json", TYPE("llama") ", \"tie_word_embeddings\": true}");
  m = open_right(&f);
  assert_non_null(model_file_tensor(m, MODEL_OUTPUT, 0));
  assert_false(model_file_config(m)->tied);
  model_file_close(m);
  put_model(&f, "lm_head.weight", NULL);
  m = open_right(&f);
  assert_true(model_file_config(m)->tied);
  model_file_close(m);
  folder_put_text(&f, "config.json", TYPE("llama") "}");
  m = open_right(&f);
  assert_null(model_file_tensor(m, MODEL_OUTPUT, 0));
  assert_true(model_file_config(m)->tied);
  model_file_close(m);
  folder_put_text(&f, "tokenizer.json",
                  "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}}");
  m = open_right(&f);
  assert_non_null(model_file_tokenizer(m));
  assert_int_equal(model_file_vocabulary(m, &h, &e), ERR_OK);
  assert_false(hash_equal(h, (hash16){{0}}));
  model_file_close(m);
  folder_remove(&f);
}

static void refuses_a_folder(void **state) {
  (void)state;
  folder f = folder_make();
  assert_refused(&f, ERR_IO, "without config.json");
  folder_put_text(&f, "config.json", TYPE("llama") "}");
  assert_refused(&f, ERR_IO, "model.safetensors");
  put_model(&f, "model.layers.1.mlp.up_proj.weight", NULL);
  assert_refused(&f, ERR_FORMAT, "model.layers.1.mlp.up_proj.weight");
  put_model(&f, "lm_head.weight", NULL);
  folder_put_text(&f, "config.json", TYPE("llama") ", \"tie_word_embeddings\": false}");
  assert_refused(&f, ERR_FORMAT, "lm_head.weight");
  put_model(&f, NULL, "model.layers.0.self_attn.q_proj.bias");
  assert_refused(&f, ERR_UNSUPPORTED, "q_proj.bias");
  put_model(&f, NULL, NULL);
  folder_put_text(&f, "config.json", TYPE("qwen2") "}");
  assert_refused(&f, ERR_FORMAT, "q_proj.bias");
  folder_put_text(&f, "config.json",
                  "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 96, "
                  "\"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"rms_norm_eps\": 1e-5, "
                  "\"max_position_embeddings\": 10, \"vocab_size\": 51}");
  assert_refused(&f, ERR_FORMAT, "vocab_size");
  folder_put_text(&f, "config.json", TYPE("llama") ", \"num_key_value_heads\": 2}");
  assert_refused(&f, ERR_FORMAT, "k_proj");
  folder_put_text(&f, "config.json", TYPE("llama") "}");
  folder_put_text(&f, "generation_config.json", "{");
  assert_refused(&f, ERR_FORMAT, "generation_config.json");
  folder_put_text(&f, "generation_config.json", "{}");
  folder_put_text(&f, "model.safetensors", "GGUF");
  assert_refused(&f, ERR_FORMAT, "safetensors");
  folder_remove(&f);
}

/* Wherever in a folder two models differ. */
static void a_folder_has_the_hash_of_all_its_files(void **state) {
  (void)state;
  folder f = folder_make();
  folder_put_text(&f, "config.json", TYPE("llama") "}");
  put_model(&f, NULL, NULL);
  model_file *m = open_right(&f);
  hash16 plain = hash_of(m), sample = model_file_fingerprint(m);
  assert_true(hash_equal(plain, hash_of(m)));
  model_file_close(m);
  flip_last_byte(&f, "model.safetensors");
  m = open_right(&f);
  assert_true(hash_equal(sample, model_file_fingerprint(m))); /* which is why there is another hash */
  assert_false(hash_equal(plain, hash_of(m)));
  model_file_close(m);
  flip_last_byte(&f, "model.safetensors");
  folder_put_text(&f, "tokenizer.json", "{}");
  m = open_right(&f);
  hash16 vocabulary = hash_of(m);
  assert_false(hash_equal(plain, vocabulary));
  model_file_close(m);
  folder_put_text(&f, "tokenizer.json", "{ }");
  m = open_right(&f);
  assert_false(hash_equal(vocabulary, hash_of(m)));
  model_file_close(m);
  folder_remove(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_config),         cmocka_unit_test(means_by_silence),
      cmocka_unit_test(reads_rotary_scaling), cmocka_unit_test(reads_windows),
      cmocka_unit_test(refuses_config),       cmocka_unit_test(reads_a_folder),
      cmocka_unit_test(refuses_a_folder),     cmocka_unit_test(a_folder_has_the_hash_of_all_its_files),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
