#include "common/file/model_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FFN_MAX = 1 << 20, HEADS_MAX = 1024, HEAD_DIM_MAX = 512, NAME_BYTES = 64, TEXT_BYTES = 64 };

#define ROPE_BASE_DEFAULT 10000.0 /* what the format says where the key is missing */

typedef struct integer_key {
  const char *key;
  size_t field; /* in model_config */
  int32_t max;
  bool needed;
} integer_key;

#define FIELD(name) offsetof(model_config, name)

static const integer_key INTEGERS[] = {
    {"llama.block_count", FIELD(layers), MODEL_LAYERS_MAX, true},
    {"llama.embedding_length", FIELD(embed), MODEL_EMBED_MAX, true},
    {"llama.feed_forward_length", FIELD(ffn), FFN_MAX, true},
    {"llama.attention.head_count", FIELD(heads), HEADS_MAX, true},
    {"llama.attention.head_count_kv", FIELD(kv_heads), HEADS_MAX, false},
    {"llama.attention.key_length", FIELD(head_dim), HEAD_DIM_MAX, false},
    {"llama.rope.dimension_count", FIELD(rope_dim), HEAD_DIM_MAX, false},
    {"llama.context_length", FIELD(context), MODEL_CONTEXT_MAX, true},
};

/* Keys that change the graph in ways that are not built: present (with another value than the harmless one)
 * means that the model would run and be wrong. */
typedef struct refused_key {
  const char *key;
  double harmless; /* as integer or float; NAN: none */
  const char *text_harmless;
} refused_key;

static const refused_key REFUSED[] = {
    {"llama.rope.scaling.type", NAN, "none"},
    {"llama.rope.scaling.factor", 1, NULL},
    {"llama.rope.scale_linear", 1, NULL},
    {"llama.rope.scaling.attn_factor", 1, NULL},
    {"llama.rope.scaling.original_context_length", 0, NULL},
    {"llama.rope.scaling.finetuned", 0, NULL},
    {"llama.expert_count", 0, NULL},
    {"llama.expert_used_count", 0, NULL},
    {"llama.attention.sliding_window", 0, NULL},
    {"llama.attention.max_alibi_bias", 0, NULL},
    {"llama.attention.clamp_kqv", 0, NULL},
    {"llama.attention.scale", 0, NULL},
    {"llama.attention.causal", 1, NULL},
    {"llama.logit_scale", 1, NULL},
    {"llama.embedding_scale", 1, NULL},
    {"llama.residual_scale", 1, NULL},
    {"llama.attn_logit_softcapping", 0, NULL},
    {"llama.final_logit_softcapping", 0, NULL},
    {"llama.use_parallel_residual", 0, NULL},
};

static int bad_value(err *e, const char *key, const char *why) {
  return err_set(e, ERR_FORMAT, "the model file's %s %s: convert the model again or use another file", key,
                 why);
}

/* ---- keys ---- */

static int check_architecture(const gguf *g, err *e) {
  gguf_string name;
  if (!gguf_get_string(g, "general.architecture", &name))
    return bad_value(e, "general.architecture", "is missing");
  if (name.size == 5 && memcmp(name.data, "llama", 5) == 0) return ERR_OK;
  char text[TEXT_BYTES];
  size_t n = name.size < sizeof text - 1 ? (size_t)name.size : sizeof text - 1;
  for (size_t i = 0; i < n; i++) text[i] = name.data[i] > ' ' && name.data[i] <= '~' ? name.data[i] : '?';
  text[n] = 0;
  return err_set(e, ERR_UNSUPPORTED, "the model's architecture is %s; only llama is built here", text);
}

static bool is_harmless(const gguf *g, const refused_key *k) {
  gguf_string text;
  uint64_t integer;
  double number;
  bool flag;
  if (gguf_get_string(g, k->key, &text))
    return k->text_harmless && text.size == strlen(k->text_harmless) &&
           memcmp(text.data, k->text_harmless, text.size) == 0;
  if (gguf_get_u64(g, k->key, &integer)) return (double)integer == k->harmless;
  if (gguf_get_f64(g, k->key, &number)) return number == k->harmless;
  if (gguf_get_bool(g, k->key, &flag)) return (double)flag == k->harmless;
  return false;
}

static int check_refused(const gguf *g, err *e) {
  for (size_t i = 0; i < sizeof REFUSED / sizeof REFUSED[0]; i++)
    if (gguf_has(g, REFUSED[i].key) && !is_harmless(g, &REFUSED[i]))
      return err_set(e, ERR_UNSUPPORTED, "the model asks for %s, which is not built here: use another model",
                     REFUSED[i].key);
  return ERR_OK;
}

/* Missing keys that may be missing leave 0. */
static int read_integers(model_config *c, const gguf *g, err *e) {
  for (size_t i = 0; i < sizeof INTEGERS / sizeof INTEGERS[0]; i++) {
    const integer_key *k = &INTEGERS[i];
    uint64_t value = 0, count;
    if (gguf_array_count(g, k->key, &count))
      return err_set(e, ERR_UNSUPPORTED, "the model gives %s for each layer, which is not built here",
                     k->key);
    if (!gguf_has(g, k->key)) {
      if (k->needed) return bad_value(e, k->key, "is missing");
      continue;
    }
    if (!gguf_get_u64(g, k->key, &value) || value == 0) return bad_value(e, k->key, "is no positive number");
    if (value > (uint64_t)k->max)
      return err_set(e, ERR_LIMIT, "the model's %s is %llu; tandem takes at most %d", k->key,
                     (unsigned long long)value, k->max);
    *(int32_t *)((char *)c + k->field) = (int32_t)value;
  }
  return ERR_OK;
}

static int read_float(const gguf *g, const char *key, float *out, double missing, err *e) {
  double value = missing;
  if (gguf_has(g, key) ? !gguf_get_f64(g, key, &value) : isnan(missing))
    return bad_value(e, key, "is missing or no float");
  *out = (float)value;
  return isfinite(*out) && *out > 0 ? ERR_OK : bad_value(e, key, "is not above 0");
}

static int read_floats(model_config *c, const gguf *g, err *e) {
  int rc = read_float(g, "llama.attention.layer_norm_rms_epsilon", &c->norm_eps, NAN, e);
  return rc ? rc : read_float(g, "llama.rope.freq_base", &c->rope_base, ROPE_BASE_DEFAULT, e);
}

/* What follows from other values, and whether they fit together. */
static int derive(model_config *c, const gguf *g, err *e) {
  uint64_t value_length;
  if (!c->kv_heads) c->kv_heads = c->heads;
  if (c->heads % c->kv_heads)
    return bad_value(e, "llama.attention.head_count", "is no multiple of llama.attention.head_count_kv");
  if (!c->head_dim) {
    if (c->embed % c->heads || c->embed / c->heads > HEAD_DIM_MAX)
      return bad_value(e, "llama.embedding_length", "does not split into llama.attention.head_count heads");
    c->head_dim = c->embed / c->heads;
  }
  if (gguf_get_u64(g, "llama.attention.value_length", &value_length) && value_length != (uint64_t)c->head_dim)
    return err_set(e, ERR_UNSUPPORTED,
                   "the model's keys and values differ in length, which is not built here");
  if (!c->rope_dim) c->rope_dim = c->head_dim;
  if (c->rope_dim > c->head_dim || c->rope_dim % 2)
    return bad_value(e, "llama.rope.dimension_count", "is odd or longer than a head");
  if ((int64_t)c->heads * c->head_dim > MODEL_EMBED_MAX)
    return err_set(e, ERR_LIMIT, "the model's heads are %d times %d wide; tandem takes at most %d in all",
                   c->heads, c->head_dim, MODEL_EMBED_MAX);
  return ERR_OK;
}

/* ---- tensors ---- */

typedef enum { EXTENT_NONE, EXTENT_EMBED, EXTENT_Q, EXTENT_KV, EXTENT_FFN, EXTENT_COUNT } extent;

typedef struct tensor_row {
  const char *suffix; /* after blk.N. */
  extent columns, rows;
} tensor_row;

static const tensor_row LAYER[] = {
    {"attn_norm.weight", EXTENT_EMBED, EXTENT_NONE}, {"attn_q.weight", EXTENT_EMBED, EXTENT_Q},
    {"attn_k.weight", EXTENT_EMBED, EXTENT_KV},      {"attn_v.weight", EXTENT_EMBED, EXTENT_KV},
    {"attn_output.weight", EXTENT_Q, EXTENT_EMBED},  {"ffn_norm.weight", EXTENT_EMBED, EXTENT_NONE},
    {"ffn_gate.weight", EXTENT_EMBED, EXTENT_FFN},   {"ffn_up.weight", EXTENT_EMBED, EXTENT_FFN},
    {"ffn_down.weight", EXTENT_FFN, EXTENT_EMBED},
};
enum { LAYER_TENSORS = sizeof LAYER / sizeof LAYER[0] };

static const char *const OUTSIDE[] = {"token_embd.weight", "output_norm.weight", "output.weight"};
enum { OUTSIDE_TENSORS = sizeof OUTSIDE / sizeof OUTSIDE[0] };

/* rows 0: a vector of f32 (a norm). */
static int check_tensor(const gguf *g, const char *name, int64_t columns, int64_t rows, err *e) {
  const gguf_tensor *t = gguf_tensor_find(g, name);
  if (!t)
    return err_set(e, ERR_FORMAT, "the model file has no tensor %s: download or convert it again", name);
  int32_t dims = rows ? 2 : 1;
  if (t->dims != dims || t->shape[0] != columns || t->shape[1] != (rows ? rows : 1))
    return err_set(
        e, ERR_FORMAT,
        "tensor %s has the shape %lld x %lld, but the model's keys ask for %lld x %lld: convert the "
        "model again",
        name, (long long)t->shape[0], (long long)(t->shape[1] * t->shape[2] * t->shape[3]),
        (long long)columns, (long long)(rows ? rows : 1));
  if (!rows && t->type != GGUF_F32)
    return err_set(e, ERR_UNSUPPORTED,
                   "tensor %s has type %s; norms are read as F32 alone: convert the model again", name,
                   gguf_type_name(t->type));
  return ERR_OK;
}

static int check_layer(const model_config *c, const gguf *g, int32_t layer, err *e) {
  const int64_t extents[EXTENT_COUNT] = {
      [EXTENT_EMBED] = c->embed,
      [EXTENT_Q] = (int64_t)c->heads * c->head_dim,
      [EXTENT_KV] = (int64_t)c->kv_heads * c->head_dim,
      [EXTENT_FFN] = c->ffn,
  };
  char name[NAME_BYTES];
  for (int i = 0; i < LAYER_TENSORS; i++) {
    snprintf(name, sizeof name, "blk.%d.%s", layer, LAYER[i].suffix);
    int rc = check_tensor(g, name, extents[LAYER[i].columns], extents[LAYER[i].rows], e);
    if (rc) return rc;
  }
  return ERR_OK;
}

static int read_vocab(model_config *c, const gguf *g, err *e) {
  const gguf_tensor *t = gguf_tensor_find(g, "token_embd.weight");
  uint64_t said;
  if (!t) return err_set(e, ERR_FORMAT, "the model file has no tensor token_embd.weight: download it again");
  if (t->shape[1] > MODEL_VOCAB_MAX)
    return err_set(e, ERR_LIMIT, "the model has %lld tokens; tandem takes at most %d", (long long)t->shape[1],
                   MODEL_VOCAB_MAX);
  c->vocab = (int32_t)t->shape[1];
  if (gguf_get_u64(g, "llama.vocab_size", &said) && said != (uint64_t)c->vocab)
    return bad_value(e, "llama.vocab_size", "differs from the rows of token_embd.weight");
  if (gguf_array_count(g, "tokenizer.ggml.tokens", &said) && said != (uint64_t)c->vocab)
    return bad_value(e, "tokenizer.ggml.tokens", "differs in number from the rows of token_embd.weight");
  return check_tensor(g, "token_embd.weight", c->embed, c->vocab, e);
}

static bool is_known(const model_config *c, const char *name) {
  char expected[NAME_BYTES];
  for (int i = 0; i < OUTSIDE_TENSORS; i++)
    if (strcmp(name, OUTSIDE[i]) == 0) return true;
  for (int32_t layer = 0; layer < c->layers; layer++) {
    for (int i = 0; i < LAYER_TENSORS; i++) {
      snprintf(expected, sizeof expected, "blk.%d.%s", layer, LAYER[i].suffix);
      if (strcmp(name, expected) == 0) return true;
    }
  }
  return false;
}

/* A tensor that the graph would silently leave out (a bias, rope factors, experts) makes the answers wrong.
 * The expected ones have been found, and names are unique: a count tells whether there is another. */
static int refuse_extra(const model_config *c, const gguf *g, err *e) {
  if (gguf_tensor_count(g) == c->layers * LAYER_TENSORS + OUTSIDE_TENSORS - (c->tied ? 1 : 0)) return ERR_OK;
  int32_t i = 0;
  while (is_known(c, gguf_tensor_at(g, i)->name)) i++;
  return err_set(e, ERR_UNSUPPORTED,
                 "the model has a tensor %.64s, which the llama graph built here does not use",
                 gguf_tensor_at(g, i)->name);
}

static int check_tensors(model_config *c, const gguf *g, err *e) {
  int rc = read_vocab(c, g, e);
  for (int32_t layer = 0; !rc && layer < c->layers; layer++) rc = check_layer(c, g, layer, e);
  if (!rc) rc = check_tensor(g, "output_norm.weight", c->embed, 0, e);
  c->tied = gguf_tensor_find(g, "output.weight") == NULL;
  if (!rc && !c->tied) rc = check_tensor(g, "output.weight", c->embed, c->vocab, e);
  return rc ? rc : refuse_extra(c, g, e);
}

int model_config_read(model_config *c, const gguf *g, err *e) {
  *c = (model_config){0};
  int rc = check_architecture(g, e);
  if (!rc) rc = check_refused(g, e);
  if (!rc) rc = read_integers(c, g, e);
  if (!rc) rc = read_floats(c, g, e);
  if (!rc) rc = derive(c, g, e);
  return rc ? rc : check_tensors(c, g, e);
}
