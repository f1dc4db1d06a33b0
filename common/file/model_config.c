#include "common/file/model_config.h"
#include "common/file/printable.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FFN_MAX = 1 << 20, HEADS_MAX = 1024 };

#define FLOAT_MAX 1e30 /* of any float of a configuration */
/* What transformers says where a config.json is silent (an older one often is). */
#define NORM_EPS_DEFAULT      1e-6
#define WINDOW_DEFAULT        4096 /* sliding_window; null is none */
#define WINDOW_LAYERS_DEFAULT 28   /* max_window_layers */

/* Which layers see a window of keys alone, where config.json does not list its layers. */
typedef enum {
  WINDOW_NEVER, /* the key means nothing */
  WINDOW_ALL,
  WINDOW_LATER /* if use_sliding_window, from layer max_window_layers on */
} window_rule;

typedef struct architecture {
  const char *name;
  bool in_gguf;
  bool half_split; /* in GGUF; config.json's models always have it */
  bool qkv_bias, qk_norm;
  window_rule window;
  int32_t head_dim, context; /* what config.json means where it does not say it; 0: embed / heads */
} architecture;

static const architecture ARCHITECTURES[] = {
    {"llama", true, false, false, false, WINDOW_NEVER, 0, 2048},
    {"mistral", false, true, false, false, WINDOW_ALL, 0, 131072},
    {"qwen2", true, true, true, false, WINDOW_LATER, 0, 32768},
    {"qwen3", true, true, false, true, WINDOW_LATER, 128, 32768},
};

#define FIELD(name) offsetof(model_config, name)

typedef struct integer_key {
  const char *gguf, *json; /* NULL: not there */
  size_t field;            /* in model_config */
  int32_t max;             /* 0: more counts as MODEL_CONTEXT_MAX, the most that a session may have */
  bool needed;
} integer_key;

static const integer_key INTEGERS[] = {
    {"block_count", "num_hidden_layers", FIELD(layers), MODEL_LAYERS_MAX, true},
    {"embedding_length", "hidden_size", FIELD(embed), MODEL_EMBED_MAX, true},
    {"feed_forward_length", "intermediate_size", FIELD(ffn), FFN_MAX, true},
    {"attention.head_count", "num_attention_heads", FIELD(heads), HEADS_MAX, true},
    {"attention.head_count_kv", "num_key_value_heads", FIELD(kv_heads), HEADS_MAX, false},
    {"attention.key_length", "head_dim", FIELD(head_dim), MODEL_HEAD_DIM_MAX, false},
    {"rope.dimension_count", NULL, FIELD(rope_dim), MODEL_HEAD_DIM_MAX, false},
    {"context_length", "max_position_embeddings", FIELD(context), 0, true},
    {"vocab_size", "vocab_size", FIELD(vocab), MODEL_VOCAB_MAX, false},
};

typedef struct float_key {
  const char *gguf, *json, *older; /* older: where json is missing */
  size_t field;
  double missing; /* NAN: a GGUF has to say it */
} float_key;

#define SCALING(name) offsetof(model_config, scaling.name)

static const float_key FLOATS[] = {
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", NULL, FIELD(norm_eps), NAN},
    {"rope.freq_base", "rope:rope_theta", "rope_theta", FIELD(rope_base), 10000},
    {"rope.scaling.factor", "rope:factor", NULL, SCALING(factor), 0},
    {"rope.scaling.original_context_length", "rope:original_max_position_embeddings",
     "original_max_position_embeddings", SCALING(original), 0},
    {NULL, "rope:low_freq_factor", NULL, SCALING(low), 0},
    {NULL, "rope:high_freq_factor", NULL, SCALING(high), 0},
    {"rope.scaling.yarn_beta_fast", "rope:beta_fast", NULL, SCALING(beta_fast), 32},
    {"rope.scaling.yarn_beta_slow", "rope:beta_slow", NULL, SCALING(beta_slow), 1},
    {NULL, "rope:attention_factor", NULL, SCALING(attention), 0},
    {"rope.scaling.attn_factor", NULL, NULL, SCALING(times), 1},
    {NULL, "rope:mscale", NULL, SCALING(mscale), 0},
    {NULL, "rope:mscale_all_dim", NULL, SCALING(mscale_all), 0},
};

/* Keys that change the graph in ways that are not built: present (with another value than the harmless one)
 * means that the model would run and be wrong. */
typedef struct refused_key {
  const char *key;
  double harmless; /* a number or a flag; NAN: none */
  const char *text_harmless;
} refused_key;

static const refused_key REFUSED_GGUF[] = {
    {"rope.scale_linear", 1, NULL},
    {"rope.scaling.yarn_ext_factor", 1, NULL},
    {"rope.scaling.yarn_attn_factor", 1, NULL},
    {"rope.scaling.yarn_log_multiplier", 0, NULL},
    {"rope.dimension_sections", NAN, NULL},
    {"expert_count", 0, NULL},
    {"expert_used_count", 0, NULL},
    {"attention.sliding_window_pattern", NAN, NULL},
    {"attention.max_alibi_bias", 0, NULL},
    {"attention.clamp_kqv", 0, NULL},
    {"attention.scale", 0, NULL},
    {"attention.causal", 1, NULL},
    {"logit_scale", 1, NULL},
    {"embedding_scale", 1, NULL},
    {"residual_scale", 1, NULL},
    {"attn_logit_softcapping", 0, NULL},
    {"final_logit_softcapping", 0, NULL},
    {"use_parallel_residual", 0, NULL},
};

static const refused_key REFUSED_JSON[] = {
    {"hidden_act", NAN, "silu"},
    {"mlp_bias", 0, NULL},
    {"partial_rotary_factor", 1, NULL},
    {"rope:partial_rotary_factor", 1, NULL},
    {"rope:truncate", 1, NULL},
    {"rope:full_attention", NAN, NULL},
    {"rope:sliding_attention", NAN, NULL},
    {"quantization_config", NAN, NULL},
    {"num_local_experts", 0, NULL},
    {"num_experts", 0, NULL},
};

static int bad_value(const config_source *s, const char *key, const char *why, err *e) {
  char text[CONFIG_KEY_MAX];
  return err_set(e, ERR_FORMAT, "the model file's %s %s: convert the model again or use another file",
                 config_key(s, key, text), why);
}

static int not_built(const config_source *s, const char *key, err *e) {
  char text[CONFIG_KEY_MAX];
  return err_set(e, ERR_UNSUPPORTED, "the model asks for %s, which is not built here: use another model",
                 config_key(s, key, text));
}

static const char *pick(const config_source *s, const char *gguf_key, const char *json_key) {
  return s->file ? gguf_key : json_key;
}

/* ---- keys ---- */

static int find_architecture(const config_source *s, const architecture **out, err *e) {
  for (size_t i = 0; i < sizeof ARCHITECTURES / sizeof *ARCHITECTURES; i++) {
    *out = &ARCHITECTURES[i];
    if (strcmp(s->architecture, (*out)->name) == 0 && (s->json || (*out)->in_gguf)) return ERR_OK;
  }
  return err_set(e, ERR_UNSUPPORTED,
                 "the model's architecture is %s; llama, qwen2, qwen3 and mistral are built here",
                 s->architecture);
}

static bool is_harmless(config_value v, const refused_key *k) {
  if (v.kind == CONFIG_TEXT) return k->text_harmless && config_is(v, k->text_harmless);
  return v.kind == CONFIG_MISSING ||
         ((v.kind == CONFIG_NUMBER || v.kind == CONFIG_FLAG) && v.number == k->harmless);
}

static int check_refused(const config_source *s, err *e) {
  const refused_key *k = s->file ? REFUSED_GGUF : REFUSED_JSON;
  size_t count = s->file ? sizeof REFUSED_GGUF / sizeof *k : sizeof REFUSED_JSON / sizeof *k;
  for (size_t i = 0; i < count; i++)
    if (!is_harmless(config_find(s, k[i].key), &k[i])) return not_built(s, k[i].key, e);
  return ERR_OK;
}

/* A missing one leaves *out. */
static int read_integer(const config_source *s, const char *key, int32_t max, int32_t *out, err *e) {
  config_value v = config_find(s, key);
  char text[CONFIG_KEY_MAX];
  if (v.kind == CONFIG_MISSING) return ERR_OK;
  if (v.kind == CONFIG_LIST)
    return err_set(e, ERR_UNSUPPORTED, "the model gives %s for each layer, which is not built here",
                   config_key(s, key, text));
  if (v.kind != CONFIG_NUMBER || !v.whole || v.number < 1)
    return bad_value(s, key, "is no positive number", e);
  if (!max && v.number > MODEL_CONTEXT_MAX) v.number = max = MODEL_CONTEXT_MAX;
  if (max && v.number > max)
    return err_set(e, ERR_LIMIT, "the model's %s is %.0f; tandem takes at most %d", config_key(s, key, text),
                   v.number, max);
  *out = (int32_t)v.number;
  return ERR_OK;
}

static int read_integers(model_config *c, const config_source *s, err *e) {
  for (size_t i = 0; i < sizeof INTEGERS / sizeof INTEGERS[0]; i++) {
    const integer_key *k = &INTEGERS[i];
    const char *key = pick(s, k->gguf, k->json);
    int32_t *out = (int32_t *)((char *)c + k->field);
    int rc = read_integer(s, key, k->max, out, e);
    if (rc) return rc;
    if (!*out && k->needed) return bad_value(s, key, "is missing", e);
  }
  return ERR_OK;
}

static int read_float(const config_source *s, const float_key *k, float *out, err *e) {
  const char *key = pick(s, k->gguf, k->json);
  config_value v = config_find(s, key);
  if (v.kind == CONFIG_MISSING && s->json) v = config_find(s, k->older);
  if (v.kind == CONFIG_MISSING || (v.kind == CONFIG_NUMBER && v.number == 0 && k->missing == 0)) {
    *out = (float)(isnan(k->missing) ? NORM_EPS_DEFAULT : k->missing);
    return isnan(k->missing) && s->file ? bad_value(s, key, "is missing", e) : ERR_OK;
  }
  if (v.kind != CONFIG_NUMBER) return bad_value(s, key, "is no number", e);
  *out = (float)v.number;
  return *out > 0 && *out < (float)FLOAT_MAX ? ERR_OK : bad_value(s, key, "is not above 0, or too large", e);
}

static int read_floats(model_config *c, const config_source *s, err *e) {
  int rc = ERR_OK;
  for (size_t i = 0; !rc && i < sizeof FLOATS / sizeof FLOATS[0]; i++)
    rc = read_float(s, &FLOATS[i], (float *)(void *)((char *)c + FLOATS[i].field), e);
  return rc;
}

static int read_flag(const config_source *s, const char *key, bool *out, err *e) {
  config_value v = config_find(s, key);
  if (v.kind != CONFIG_MISSING && v.kind != CONFIG_FLAG)
    return bad_value(s, key, "is neither true nor false", e);
  *out = v.kind == CONFIG_FLAG && v.number != 0;
  return ERR_OK;
}

/* ---- what follows from other values, and whether they fit together ---- */

static int derive_heads(model_config *c, const config_source *s, const architecture *a, err *e) {
  const char *heads = pick(s, "attention.head_count", "num_attention_heads");
  config_value value_length = config_find(s, s->file ? "attention.value_length" : NULL);
  if (!c->kv_heads) c->kv_heads = c->heads;
  if (c->heads % c->kv_heads)
    return bad_value(s, heads, "is no multiple of the number of key-value heads", e);
  if (!c->head_dim && s->json) c->head_dim = a->head_dim;
  if (!c->head_dim) {
    if (c->embed % c->heads || c->embed / c->heads > MODEL_HEAD_DIM_MAX)
      return bad_value(s, pick(s, "embedding_length", "hidden_size"), "does not split into that many heads",
                       e);
    c->head_dim = c->embed / c->heads;
  }
  if (value_length.kind != CONFIG_MISSING && value_length.kind != CONFIG_NUMBER)
    return bad_value(s, "attention.value_length", "is no number", e);
  if (value_length.kind == CONFIG_NUMBER && value_length.number != c->head_dim)
    return err_set(e, ERR_UNSUPPORTED,
                   "the model's keys and values differ in length, which is not built here");
  if (!c->rope_dim) c->rope_dim = c->head_dim;
  if (c->rope_dim > c->head_dim || c->rope_dim % 2)
    return bad_value(s, pick(s, "rope.dimension_count", "head_dim"), "is odd or longer than a head", e);
  if ((int64_t)c->heads * c->head_dim > MODEL_EMBED_MAX)
    return err_set(e, ERR_LIMIT, "the model's heads are %d times %d wide; tandem takes at most %d in all",
                   c->heads, c->head_dim, MODEL_EMBED_MAX);
  return ERR_OK;
}

static int unknown_scaling(const config_source *s, const char *key, config_value type, err *e) {
  char text[CONFIG_KEY_MAX], value[PRINTABLE_TEXT_MAX];
  if (type.kind != CONFIG_TEXT) return bad_value(s, key, "is no name", e);
  return err_set(e, ERR_UNSUPPORTED,
                 "the model's %s is %s; default, linear, llama3 and yarn are built here: use another model",
                 config_key(s, key, text), printable_text(value, type.text, type.size));
}

static int derive_scaling(model_config *c, const config_source *s, err *e) {
  static const char *const names[] = {
      [ROPE_PLAIN] = "default", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3", [ROPE_YARN] = "yarn"};
  model_rope_scaling *r = &c->scaling;
  const char *key = pick(s, "rope.scaling.type", "rope:rope_type"),
             *factor = pick(s, "rope.scaling.factor", "rope:factor");
  config_value type = config_find(s, key);
  if (type.kind == CONFIG_MISSING && s->json) type = config_find(s, "rope:type");
  bool plain = type.kind == CONFIG_MISSING || config_is(type, "none");
  if (type.kind == CONFIG_MISSING && r->factor > 0 && r->factor != 1) { /* llama.cpp's reading of a GGUF */
    if (s->json) return bad_value(s, key, "is missing", e);
    r->kind = ROPE_LINEAR;
    return ERR_OK;
  }
  while (!plain && !config_is(type, names[r->kind]))
    if (++r->kind > ROPE_YARN) return unknown_scaling(s, key, type, e);
  if (r->kind != ROPE_PLAIN && !r->original) r->original = (float)c->context;
  if (r->kind == ROPE_YARN && !r->factor) r->factor = (float)c->context / r->original;
  if (r->kind == ROPE_LINEAR && !r->factor && s->file) r->factor = 1; /* llama.cpp's reading of a GGUF */
  if (r->kind != ROPE_PLAIN && !r->factor) return bad_value(s, factor, "is missing or 0", e);
  if (r->kind == ROPE_LLAMA3 && !(r->low > 0 && r->high > r->low))
    return err_set(e, ERR_FORMAT,
                   "the model's llama3 rotary scaling needs low_freq_factor below high_freq_factor: convert "
                   "the model again");
  if (r->kind == ROPE_YARN && c->rope_base <= 1)
    return bad_value(s, pick(s, "rope.freq_base", "rope_theta"), "is not above 1", e);
  return ERR_OK;
}

/* ---- which layers see a window of keys ---- */

static int list_windows(model_config *c, const config_source *s, const json_t *types, int32_t window,
                        err *e) {
  if (json_array_size(types) != (size_t)c->layers)
    return bad_value(s, "layer_types", "has not one entry for each layer", e);
  for (int32_t i = 0; i < c->layers; i++) {
    const char *type = json_string_value(json_array_get(types, (size_t)i));
    bool slides = type && strcmp(type, "sliding_attention") == 0;
    if (!slides && (!type || strcmp(type, "full_attention") != 0)) return not_built(s, "layer_types", e);
    if (slides && !window)
      return bad_value(s, "sliding_window", "is missing, but layer_types asks for it", e);
    c->window[i] = slides ? window : 0;
  }
  return ERR_OK;
}

/* 0 where it is missing or 0. */
static int read_count(const config_source *s, const char *key, int32_t *out, err *e) {
  config_value v = config_find(s, key);
  bool zero = v.kind == CONFIG_NUMBER && v.number == 0;
  if (zero) *out = 0;
  return zero ? ERR_OK : read_integer(s, key, INT32_MAX, out, e);
}

static int read_windows(model_config *c, const config_source *s, const architecture *a, err *e) {
  const json_t *types = json_object_get(s->json, "layer_types");
  window_rule rule = s->json ? a->window : WINDOW_ALL;
  int32_t window = 0, first = rule == WINDOW_LATER ? WINDOW_LAYERS_DEFAULT : 0;
  bool used = true;
  if (rule == WINDOW_NEVER) return ERR_OK;
  if (s->json && !json_object_get(s->json, "sliding_window")) window = WINDOW_DEFAULT;
  int rc = read_count(s, pick(s, "attention.sliding_window", "sliding_window"), &window, e);
  if (!rc && rule == WINDOW_LATER) rc = read_flag(s, "use_sliding_window", &used, e);
  if (!used) window = 0;
  if (!rc && rule == WINDOW_LATER) rc = read_count(s, "max_window_layers", &first, e);
  if (rc || json_is_array(types)) return rc ? rc : list_windows(c, s, types, window, e);
  for (int32_t i = first; i < c->layers; i++) c->window[i] = window;
  return ERR_OK;
}

static int read_variant(model_config *c, const config_source *s, const architecture *a, err *e) {
  const char *tie = pick(s, NULL, "tie_word_embeddings");
  bool bias = false;
  int rc = read_flag(s, pick(s, NULL, "attention_bias"), &bias, e);
  if (!rc) rc = read_flag(s, tie, &c->tied, e);
  if (config_find(s, tie).kind == CONFIG_MISSING) c->tied = true;
  c->half_split = s->json || a->half_split;
  c->qk_norm = a->qk_norm;
  c->qkv_bias = a->qkv_bias || bias;
  c->output_bias = bias && !a->qkv_bias;
  return rc;
}

static int read_as(model_config *c, const config_source *s, const architecture *a, err *e) {
  *c = (model_config){0};
  int rc = check_refused(s, e);
  if (!rc && s->json) c->context = a->context;
  if (!rc) rc = read_integers(c, s, e);
  if (!rc) rc = read_floats(c, s, e);
  if (!rc) rc = derive_heads(c, s, a, e);
  if (!rc) rc = derive_scaling(c, s, e);
  if (!rc) rc = read_windows(c, s, a, e);
  return rc ? rc : read_variant(c, s, a, e);
}

int model_config_read(model_config *c, const config_source *s, err *e) {
  const architecture *a;
  *c = (model_config){0};
  int rc = find_architecture(s, &a, e);
  return rc ? rc : read_as(c, s, a, e);
}

int model_config_read_head(model_config *c, const config_source *s, err *e) {
  return read_as(c, s, &ARCHITECTURES[0], e);
}
