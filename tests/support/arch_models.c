#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/arch_models.h"

typedef void arch_visit(gguf_builder *b, gguf *g, const arch_case *a, const model_config *c, model_role role,
                        const char *name, const gguf_tensor *t, uint32_t type);

static const char *const arch_names[] = {
#define ARCH_NAME(role, gguf, safetensors, columns, rows, when) [MODEL_##role] = gguf,
    MODEL_ROLES_OUTSIDE(ARCH_NAME) MODEL_ROLES_LAYER(ARCH_NAME)
#undef ARCH_NAME
};

model_file *arch_open(const arch_case *a) {
  char path[512];
  err e = {0};
  model_file *f;
  snprintf(path, sizeof path, "%s/" SUPPORT_GOLDEN "arch/%s", source_folder(), a->name);
  if (model_file_open(&f, path, &e) != ERR_OK) fail_msg("%s", e.text);
  return f;
}

/* --- a GGUF of it --- */

static void arch_u32(gguf_builder *b, const arch_case *a, const char *key, int32_t value) {
  char full[96];
  snprintf(full, sizeof full, "%s.%s", a->in_gguf, key);
  gb_key_u32(b, full, (uint32_t)value);
}

static void arch_f32(gguf_builder *b, const arch_case *a, const char *key, float value) {
  char full[96];
  snprintf(full, sizeof full, "%s.%s", a->in_gguf, key);
  gb_key_f32(b, full, value);
}

static void arch_keys(gguf_builder *b, const arch_case *a, const model_config *c) {
  gb_key_text(b, "general.architecture", a->in_gguf);
  arch_u32(b, a, "block_count", c->layers);
  arch_u32(b, a, "embedding_length", c->embed);
  arch_u32(b, a, "feed_forward_length", c->ffn);
  arch_u32(b, a, "attention.head_count", c->heads);
  arch_u32(b, a, "attention.head_count_kv", c->kv_heads);
  arch_u32(b, a, "attention.key_length", c->head_dim);
  arch_u32(b, a, "attention.value_length", c->head_dim);
  arch_u32(b, a, "context_length", c->context);
  arch_u32(b, a, "vocab_size", c->vocab);
  arch_f32(b, a, "attention.layer_norm_rms_epsilon", c->norm_eps);
  arch_f32(b, a, "rope.freq_base", c->rope_base);
  if (c->window[0]) arch_u32(b, a, "attention.sliding_window", c->window[0]);
  if (strcmp(a->name, "llama-yarn") != 0) return;
  gb_key_text(b, "llama.rope.scaling.type", "yarn");
  arch_f32(b, a, "rope.scaling.factor", 4);
  arch_u32(b, a, "rope.scaling.original_context_length", 256);
}

/* What llama.cpp's converter makes of llama3's scaling: what each plain frequency is divided by. */
static double arch_llama3_factor(const model_config *c, int32_t i) {
  const double pi = 3.14159265358979323846, factor = 8, low = 1, high = 4, trained = 256;
  double wave = 2 * pi * pow((double)c->rope_base, 2.0 * i / c->rope_dim);
  if (wave < trained / high) return 1;
  if (wave > trained / low) return factor;
  double smooth = (trained / wave - low) / (high - low);
  return 1 / ((1 - smooth) / factor + smooth);
}

static float arch_round_to_bf16(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16 << 16;
  memcpy(&f, &bits, 4);
  return f;
}

/* The tensor rope_freqs.weight, or, where it would hold ones alone, nothing: false. */
static bool arch_rope_factors(const arch_case *a, const model_config *c, arch_frequencies how, float *out) {
  bool llama3 = strcmp(a->name, "llama3-rope") == 0;
  rope r;
  assert_true(rope_init(&r, c, NULL));
  for (int32_t i = 0; i < c->rope_dim / 2; i++) {
    double rounding = (double)r.frequency[i] / (double)arch_round_to_bf16(r.frequency[i]);
    out[i] = (float)((llama3 ? arch_llama3_factor(c, i) : 1) * (how == ARCH_ROUNDED ? rounding : 1));
  }
  return llama3 || how == ARCH_ROUNDED;
}

static bool arch_is_split(const arch_case *a, model_role role) {
  return strcmp(a->in_gguf, "llama") == 0 && (role == MODEL_Q || role == MODEL_K);
}

static float arch_bf16(const gguf_tensor *t, size_t i) {
  uint16_t half;
  uint32_t bits;
  float f;
  assert_int_equal(t->type, GGUF_BF16);
  memcpy(&half, (const uint8_t *)t->data + 2 * i, 2);
  bits = (uint32_t)half << 16;
  memcpy(&f, &bits, 4);
  return f;
}

/* A row of `columns` as Q8_0 at out; the reference quantisation of ggml. */
static void arch_quantise(const gguf_tensor *t, size_t row, uint8_t *out) {
  for (int64_t at = 0; at < t->shape[0]; at += 32, out += 34) {
    float x[32], largest = 0;
    for (int i = 0; i < 32; i++) {
      x[i] = arch_bf16(t, row * (size_t)t->shape[0] + (size_t)at + (size_t)i);
      largest = fmaxf(largest, fabsf(x[i]));
    }
    float d = largest / 127, inverse = d > 0 ? 1 / d : 0;
    uint16_t half = cpu_to_f16(d);
    memcpy(out, &half, 2);
    for (int i = 0; i < 32; i++) out[2 + i] = (uint8_t)(int8_t)roundf(x[i] * inverse);
  }
}

static void arch_fill(const arch_case *a, const model_config *c, model_role role, const gguf_tensor *from,
                      const gguf_tensor *to) {
  size_t rows = (size_t)from->shape[1], columns = (size_t)from->shape[0], d = (size_t)c->head_dim;
  for (size_t r = 0; r < rows; r++) {
    size_t i = r % d, row = arch_is_split(a, role) ? r - i + i / 2 + (i % 2) * d / 2 : r;
    uint8_t *out = (uint8_t *)(uintptr_t)to->data + r * (to->bytes / rows); /* the builder's own bytes */
    if (to->type == GGUF_Q8_0) {
      arch_quantise(from, row, out);
      continue;
    }
    for (size_t k = 0; k < columns; k++) {
      float f = arch_bf16(from, row * columns + k);
      if (to->type == GGUF_F32)
        memcpy(out + 4 * k, &f, 4);
      else
        memcpy(out + 2 * k, (const uint8_t *)from->data + 2 * (row * columns + k), 2);
    }
  }
}

static void arch_declare(gguf_builder *b, gguf *g, const arch_case *a, const model_config *c, model_role role,
                         const char *name, const gguf_tensor *t, uint32_t type) {
  (void)g, (void)a, (void)c, (void)role;
  gb_tensor(b, name, (uint64_t)t->shape[0], t->dims == 1 ? 0 : (uint64_t)t->shape[1],
            t->dims == 1 ? GGUF_F32 : type);
}

static void arch_put(gguf_builder *b, gguf *g, const arch_case *a, const model_config *c, model_role role,
                     const char *name, const gguf_tensor *t, uint32_t type) {
  (void)b, (void)type;
  arch_fill(a, c, role, t, gguf_tensor_find(g, name));
}

static void arch_each(gguf_builder *b, gguf *g, const arch_case *a, const model_file *f, uint32_t type,
                      arch_visit *visit) {
  const model_config *c = model_file_config(f);
  char name[96];
  for (int32_t role = 0; role < MODEL_ROLE_COUNT; role++) {
    for (int32_t layer = 0; layer < (role < MODEL_ATTN_NORM ? 1 : c->layers); layer++) {
      const gguf_tensor *t = model_file_tensor(f, (model_role)role, layer);
      snprintf(name, sizeof name, role < MODEL_ATTN_NORM ? "%.0d%s" : "blk.%d.%s",
               role < MODEL_ATTN_NORM ? 0 : layer, arch_names[role]);
      if (t) visit(b, g, a, c, (model_role)role, name, t, type);
    }
  }
}

model_file *arch_open_gguf(const arch_case *a, uint32_t type, arch_frequencies how, gguf_builder *b) {
  model_file *folder = arch_open(a), *f;
  const model_config *c = model_file_config(folder);
  float factors[MODEL_HEAD_DIM_MAX / 2];
  bool has_factors = arch_rope_factors(a, c, how, factors);
  gguf *g;
  err e = {0};
  *b = gb_begin(3);
  arch_keys(b, a, c);
  arch_each(b, NULL, a, folder, type, arch_declare);
  if (has_factors) gb_tensor(b, "rope_freqs.weight", (uint64_t)c->rope_dim / 2, 0, GGUF_F32);
  gb_end(b);
  if (gguf_open_memory(&g, b->bytes, b->size, &e) != ERR_OK) fail_msg("%s", e.text);
  arch_each(b, g, a, folder, type, arch_put);
  if (has_factors)
    memcpy((float *)(uintptr_t)gguf_tensor_find(g, "rope_freqs.weight")->data, factors,
           (size_t)c->rope_dim / 2 * sizeof *factors);
  gguf_close(g);
  model_file_close(folder);
  if (model_file_open_memory(&f, b->bytes, b->size, &e) != ERR_OK) fail_msg("%s", e.text);
  return f;
}
