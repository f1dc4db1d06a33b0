#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/head_builder.h"

model_config head_target(const head_shape *s) {
  return (model_config){.layers = 4, .embed = s->target_embed, .vocab = s->vocab};
}

float head_value(const char *name, size_t i) {
  unsigned mix = 0;
  for (; *name; name++) mix = mix * 31 + (unsigned char)*name;
  return (float)((int)((mix + i * 7 + i / 13) % 61) - 30) / 64;
}

void head_put(head_builder *b, const char *name, const char *dtype, int rows, int columns, const void *data,
              size_t bytes) {
  size_t at = strlen(b->header);
  char shape[48];
  snprintf(shape, sizeof shape, rows ? "%d,%d" : "%.0d%d", rows, columns);
  snprintf(b->header + at, sizeof b->header - at,
           "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", at ? "," : "{", name,
           dtype, shape, b->used, b->used + bytes);
  assert_true(b->used + bytes <= sizeof b->data);
  memcpy(b->data + b->used, data, bytes);
  b->used += bytes;
}

void head_weights(head_builder *b, const char *name, int rows, int columns) {
  char full[96];
  if (b->skip && strcmp(b->skip, name) == 0) return;
  if (b->odd && strcmp(b->odd, name) == 0) *(rows ? &rows : &columns) += 1;
  size_t count = (size_t)(rows ? rows : 1) * (size_t)columns;
  uint16_t *values = malloc(count * sizeof *values);
  for (size_t i = 0; i < count; i++) {
    uint32_t bits;
    float v = head_value(name, i);
    memcpy(&bits, &v, 4);
    values[i] = (uint16_t)(bits >> 16);
  }
  if (b->spoilt && strcmp(b->spoilt, name) == 0) values[1] = 0x7fc0;
  snprintf(full, sizeof full, "%s%s", name[0] == '.' ? b->prefix : "", name);
  head_put(b, full, "BF16", rows, columns, values, count * sizeof *values);
  free(values);
}

static void head_ids(head_builder *b, const head_shape *s) {
  int64_t ids[512];
  uint8_t used[512] = {0};
  for (int i = 0; i < s->draft_vocab; i++) {
    ids[i] = b->ids ? b->ids[i] : i + 1;
    uint64_t id = (uint64_t)ids[i] + (uint64_t)i;
    if (id < (uint64_t)s->vocab) used[id] = 1;
  }
  head_put(b, "d2t", "I64", 0, s->draft_vocab, ids, (size_t)s->draft_vocab * sizeof *ids);
  head_put(b, "t2d", "BOOL", 0, s->vocab, used, (size_t)s->vocab);
}

static void head_tensors(head_builder *b, const head_shape *s) {
  int q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
  head_weights(b, "fc.weight", s->embed, s->tap_count * s->target_embed);
  head_weights(b, ".input_layernorm.weight", 0, s->embed);
  head_weights(b, ".hidden_norm.weight", 0, s->embed);
  head_weights(b, ".self_attn.q_proj.weight", q, 2 * s->embed);
  head_weights(b, ".self_attn.k_proj.weight", kv, 2 * s->embed);
  head_weights(b, ".self_attn.v_proj.weight", kv, 2 * s->embed);
  head_weights(b, ".self_attn.o_proj.weight", s->embed, q);
  head_weights(b, ".post_attention_layernorm.weight", 0, s->embed);
  head_weights(b, ".mlp.gate_proj.weight", s->ffn, s->embed);
  head_weights(b, ".mlp.up_proj.weight", s->ffn, s->embed);
  head_weights(b, ".mlp.down_proj.weight", s->embed, s->ffn);
  head_weights(b, "norm.weight", 0, s->embed);
  head_weights(b, "lm_head.weight", s->draft_vocab, s->embed);
  if (b->extra) head_weights(b, b->extra, 0, s->head_dim);
  if (s->draft_vocab < s->vocab && !(b->skip && strcmp(b->skip, "d2t") == 0)) head_ids(b, s);
}

static void head_write(head_builder *b, folder *f) {
  size_t size;
  snprintf(b->header + strlen(b->header), 2, "}");
  uint8_t *bytes = safetensors_bytes(b->header, b->used, &size);
  memcpy(bytes + size - b->used, b->data, b->used);
  folder_put(f, "model.safetensors", bytes, size);
  free(bytes);
}

static void head_taps(const head_shape *s, char *out, size_t size) {
  size_t at = 0;
  out[0] = 0;
  for (int i = 0; i < s->tap_count; i++)
    at += (size_t)snprintf(out + at, size - at, "%s%d", i ? "," : "", s->taps[i]);
}

folder head_folder(head_builder *b, const head_shape *s, const char *keys) {
  char text[1024], taps[64];
  folder f = folder_make();
  if (!b->prefix) b->prefix = "midlayer";
  head_taps(s, taps, sizeof taps);
  snprintf(
      text, sizeof text,
      "{%s\"hidden_size\":%d,\"target_hidden_size\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":"
      "%d,\"head_dim\":%d,\"intermediate_size\":%d,\"vocab_size\":%d,\"draft_vocab_size\":%d,"
      "\"eagle_aux_hidden_state_layer_ids\":[%s],\"num_hidden_layers\":1,\"rms_norm_eps\":1e-05,"
      "\"rope_theta\":100000.0,\"max_position_embeddings\":2048,\"hidden_act\":\"silu\"}",
      keys, s->embed, s->target_embed, s->heads, s->kv_heads, s->head_dim, s->ffn, s->vocab, s->draft_vocab,
      taps);
  folder_put_text(&f, "config.json", text);
  head_tensors(b, s);
  head_write(b, &f);
  return f;
}
