/* libs: file base */
/* fuzz_config - a config.json of any bytes: refused with one error, or a shape within its limits, whose
 * rotary frequencies are numbers. The first byte chooses the architecture of a right beginning that the rest
 * follows; 0 takes it as it is. */
#include "common/file/json.h"
#include "common/file/model_config.h"
#include "common/model/rope.c" /* alone: its library brings kernels, which take clang minutes */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const model_config *c) {
  static float row[2 * MODEL_HEAD_DIM_MAX];
  rope r;
  if (c->layers < 1 || c->layers > MODEL_LAYERS_MAX || c->heads < 1 || c->kv_heads < 1 ||
      c->heads % c->kv_heads)
    abort();
  if (c->head_dim < 1 || c->head_dim > MODEL_HEAD_DIM_MAX || c->rope_dim > c->head_dim || c->rope_dim % 2)
    abort();
  if ((int64_t)c->heads * c->head_dim > MODEL_EMBED_MAX || c->embed > MODEL_EMBED_MAX || c->ffn < 1) abort();
  if (c->vocab < 0 || c->vocab > MODEL_VOCAB_MAX || c->context < 1 || c->context > MODEL_CONTEXT_MAX) abort();
  for (int32_t i = 0; i < c->layers; i++)
    if (c->window[i] < 0) abort();
  if (!rope_init(&r, c, NULL)) return;
  for (int32_t i = 0; i < r.dim / 2; i++)
    if (!(r.frequency[i] >= 0)) abort();
  rope_row(&r, MODEL_CONTEXT_MAX, row);
}

static void read_config(const char *text, size_t size) {
  model_config c;
  config_source s;
  json_t *object;
  err e = {0};
  int rc = json_parse_object(&object, "config.json", text, size, &e);
  if (!rc) rc = config_source_json(&s, object, &e);
  if (!rc) rc = model_config_read(&c, &s, &e);
  if (!rc) check(&c);
  if (rc && (rc != e.code || !e.text[0])) abort();
  json_decref(object);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const types[] = {"llama", "mistral", "qwen2", "qwen3"};
  static char text[1 << 16];
  if (size < 1 || size > sizeof text / 2) return 0;
  if (data[0] == 0) {
    read_config((const char *)data + 1, size - 1);
    return 0;
  }
  int n =
      snprintf(text, sizeof text,
               "{\"model_type\":\"%s\",\"num_hidden_layers\":2,\"hidden_size\":64,\"intermediate_size\":96,"
               "\"num_attention_heads\":4,\"max_position_embeddings\":100,\"rms_norm_eps\":1e-5",
               types[data[0] % 4]);
  if (data[0] & 4)
    n += snprintf(text + n, sizeof text - (size_t)n, ",\"rope_scaling\":{\"rope_type\":\"%s\"",
                  (data[0] & 8) ? "yarn" : "llama3");
  memcpy(text + n, data + 1, size - 1);
  read_config(text, (size_t)n + size - 1);
  return 0;
}
