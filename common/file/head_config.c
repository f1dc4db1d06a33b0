#include "common/file/head_config.h"
#include "common/file/printable.h"

#include <string.h>

enum { FIRST_TAP_DEFAULT = 2, LAST_TAP_DEFAULT = 3 /* layers before the end */ };

static const char taps_key[] = "eagle_aux_hidden_state_layer_ids", gguf_architecture[] = "eagle3";

static int bad_key(const char *key, const char *why, err *e) {
  return err_set(e, ERR_FORMAT, "the draft head's %s %s: convert the head again or use another one", key,
                 why);
}

static int not_built(const char *key, err *e) {
  return err_set(e, ERR_UNSUPPORTED, "the draft head asks for %s, which is not built here: use another head",
                 key);
}

/* A missing one leaves *out. */
static int read_flag(const char *key, config_value v, bool *out, err *e) {
  if (v.kind == CONFIG_MISSING) return ERR_OK;
  if (v.kind != CONFIG_FLAG) return bad_key(key, "is neither true nor false", e);
  *out = v.number != 0;
  return ERR_OK;
}

static int read_size(const char *key, config_value v, int32_t max, int32_t *out, err *e) {
  if (v.kind == CONFIG_MISSING) return ERR_OK;
  if (v.kind != CONFIG_NUMBER || !v.whole || v.number < 1) return bad_key(key, "is no positive number", e);
  if (v.number > max)
    return err_set(e, ERR_LIMIT, "the draft head's %s is %.0f; tandem takes at most %d", key, v.number, max);
  *out = (int32_t)v.number;
  return ERR_OK;
}

/* ---- taps ---- */

static int add_tap(head_config *c, int64_t tap, const model_config *target, err *e) {
  if (c->tap_count == HEAD_TAPS_MAX)
    return err_set(e, ERR_LIMIT,
                   "the draft head reads more than %d states of its target, the most that "
                   "tandem takes: use another head",
                   HEAD_TAPS_MAX);
  if (tap < 0 || tap > target->layers)
    return err_set(e, ERR_MISMATCH,
                   "the draft head reads the state that enters layer %lld, but the target has %d layers: use "
                   "a head that was trained for this target",
                   (long long)tap, target->layers);
  if (c->tap_count && tap <= c->taps[c->tap_count - 1])
    return bad_key("list of layers", "is not in rising order", e);
  c->taps[c->tap_count++] = (int32_t)tap;
  return ERR_OK;
}

/* What EAGLE's own programs take where the file names no layers. */
static int default_taps(head_config *c, const model_config *target, err *e) {
  const int32_t taps[] = {FIRST_TAP_DEFAULT, target->layers / 2, target->layers - LAST_TAP_DEFAULT};
  int rc = ERR_OK;
  for (size_t i = 0; !rc && i < sizeof taps / sizeof *taps; i++) rc = add_tap(c, taps[i], target, e);
  return rc;
}

static int read_taps_gguf(head_config *c, const gguf *g, const model_config *target, err *e) {
  static const char key[] = "eagle3.target_layers";
  uint64_t count;
  int rc = ERR_OK;
  if (!gguf_array_count(g, key, &count) || count == 0) return bad_key(key, "is missing", e);
  for (uint64_t i = 0; !rc && i < count; i++) {
    int64_t tap;
    if (!gguf_array_i64(g, key, i, &tap)) return bad_key(key, "is no list of whole numbers", e);
    rc = add_tap(c, tap, target, e);
  }
  return rc;
}

/* `after`: the list names layers whose output is read, which is the state that enters the next one. */
static int list_taps(head_config *c, const json_t *list, int64_t after, const model_config *target, err *e) {
  const json_t *tap;
  size_t i;
  int rc = ERR_OK;
  json_array_foreach((json_t *)list, i, tap) {
    if (rc) break;
    if (!json_is_integer(tap)) return bad_key(taps_key, "is no list of whole numbers", e);
    json_int_t layer = json_integer_value(tap);
    rc = add_tap(c, layer < 0 || layer > target->layers ? layer : layer + after, target, e);
  }
  return rc;
}

/* eagle_config is ModelOpt's; SGLang, which runs those heads, adds 1 to its list. */
static int read_taps_json(head_config *c, const json_t *object, const model_config *target, err *e) {
  const json_t *list = json_object_get(object, taps_key);
  const json_t *outputs = json_object_get(json_object_get(object, "eagle_config"), taps_key);
  if (json_array_size(list)) return list_taps(c, list, 0, target, e);
  if (json_array_size(outputs)) return list_taps(c, outputs, 1, target, e);
  return default_taps(c, target, e);
}

/* ---- all of it ---- */

static int check_target(const head_config *c, const model_config *target, err *e) {
  if (c->target_embed != target->embed)
    return err_set(e, ERR_MISMATCH,
                   "the draft head reads states of width %d, but the target's are %d wide: use a head that "
                   "was trained for this target",
                   c->target_embed, target->embed);
  if (c->layer.vocab != target->vocab)
    return err_set(e, ERR_MISMATCH,
                   "the draft head was trained for a vocabulary of %d tokens, but the target has %d: use a "
                   "head that was trained for this target",
                   c->layer.vocab, target->vocab);
  if (c->draft_vocab > target->vocab)
    return err_set(e, ERR_FORMAT,
                   "the draft head's vocabulary of %d tokens is larger than the target's of "
                   "%d: convert the head again or use another one",
                   c->draft_vocab, target->vocab);
  return ERR_OK;
}

static int read_layer(head_config *c, const config_source *s, err *e) {
  int rc = model_config_read_head(&c->layer, s, e);
  if (rc || c->layer.layers == 1) return rc;
  return err_set(e, ERR_UNSUPPORTED,
                 "the draft head has %d layers; heads of one layer are built here: use "
                 "another head",
                 c->layer.layers);
}

static int finish(head_config *c, const model_config *target, err *e) {
  if (!c->target_embed) c->target_embed = target->embed;
  if (!c->layer.vocab) c->layer.vocab = target->vocab;
  return check_target(c, target, e);
}

int head_config_read_gguf(head_config *c, const gguf *g, const model_config *target, err *e) {
  config_source s;
  *c = (head_config){0};
  int rc = config_source_gguf(&s, g, e);
  if (rc) return rc;
  if (strcmp(s.architecture, gguf_architecture) != 0)
    return err_set(e, ERR_UNSUPPORTED,
                   "the file's architecture is %s, but a draft head's is %s: give a draft "
                   "head",
                   s.architecture, gguf_architecture);
  rc = read_layer(c, &s, e);
  if (!rc)
    rc = read_size("eagle3.target_hidden_size", config_find(&s, "target_hidden_size"), MODEL_EMBED_MAX,
                   &c->target_embed, e);
  if (!rc) rc = read_flag("eagle3.norm_before_fc", config_find(&s, "norm_before_fc"), &c->norm_before_fc, e);
  if (!rc)
    rc = read_flag("eagle3.norm_before_residual", config_find(&s, "norm_before_residual"),
                   &c->norm_before_residual, e);
  if (!rc) rc = read_flag("eagle3.norm_output", config_find(&s, "norm_output"), &c->norm_output, e);
  if (!rc) rc = read_size("eagle3.horizon", config_find(&s, "horizon"), HEAD_HORIZON_MAX, &c->horizon, e);
  if (!rc) rc = read_taps_gguf(c, g, target, e);
  if (!rc) rc = head_calibration_read_gguf(&c->calibration, g, e);
  return rc ? rc : finish(c, target, e);
}

/* The object, or one in it, as a source of the keys beside the layer's. */
static config_value find(const json_t *object, const char *key) {
  config_source s = {.json = object};
  return config_find(&s, key);
}

static int check_kind(const json_t *object, err *e) {
  char text[PRINTABLE_TEXT_MAX];
  config_value kind = find(object, "speculators_model_type");
  if (kind.kind == CONFIG_MISSING || config_is(kind, gguf_architecture)) return ERR_OK;
  if (kind.kind != CONFIG_TEXT) return bad_key("speculators_model_type", "is no text", e);
  return err_set(e, ERR_UNSUPPORTED,
                 "the draft head is of the kind %s; heads of the kind eagle3 are built "
                 "here: use another head",
                 printable_text(text, kind.text, kind.size));
}

static int read_extras(head_config *c, const json_t *object, err *e) {
  const json_t *nested = json_object_get(object, "eagle_config");
  bool norms_apart = false;
  int rc = read_flag("norm_before_fc", find(nested, "norm_before_fc"), &c->norm_before_fc, e);
  if (!rc) rc = read_flag("norm_before_fc", find(object, "norm_before_fc"), &c->norm_before_fc, e);
  if (!rc)
    rc = read_flag("norm_before_residual", find(object, "norm_before_residual"), &c->norm_before_residual, e);
  if (!rc) rc = read_flag("norm_output", find(object, "norm_output"), &c->norm_output, e);
  if (!rc) rc = read_size("horizon", find(object, "horizon"), HEAD_HORIZON_MAX, &c->horizon, e);
  if (!rc) rc = read_flag("fc_norm", find(object, "fc_norm"), &norms_apart, e);
  if (!rc && norms_apart) return not_built("fc_norm (a norm for each state)", e);
  if (!rc)
    rc = read_size("target_hidden_size", find(object, "target_hidden_size"), MODEL_EMBED_MAX,
                   &c->target_embed, e);
  return rc ? rc
            : read_size("draft_vocab_size", find(object, "draft_vocab_size"), MODEL_VOCAB_MAX,
                        &c->draft_vocab, e);
}

int head_config_read_json(head_config *c, json_t *object, const model_config *target, err *e) {
  json_t *layer = json_object_get(object, "transformer_layer_config");
  config_source s;
  *c = (head_config){0};
  if (!json_is_object(layer)) layer = object;
  if (!json_is_string(json_object_get(layer, "model_type")) &&
      json_object_set_new(layer, "model_type", json_string("llama")))
    return err_set(e, ERR_NOMEM, "out of memory for the draft head's config.json");
  int rc = check_kind(object, e);
  if (!rc) rc = config_source_json(&s, layer, e);
  if (!rc) rc = read_layer(c, &s, e);
  if (!rc) rc = read_extras(c, object, e);
  if (!rc) rc = read_taps_json(c, object, target, e);
  return rc ? rc : finish(c, target, e);
}

int32_t head_config_window(const head_config *c) {
  int32_t window = c->layer.window[0], context = c->layer.context;
  return window > 0 && window < context ? window : context;
}
