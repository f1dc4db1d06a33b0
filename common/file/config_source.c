#include "common/file/config_source.h"
#include "common/file/printable.h"

#include <stdio.h>
#include <string.h>

static const char rope_prefix[] = "rope:";

static bool is_rope(const char *key) {
  return strncmp(key, rope_prefix, sizeof rope_prefix - 1) == 0;
}

static int set_architecture(config_source *s, const char *key, config_value v, err *e) {
  char text[PRINTABLE_TEXT_MAX];
  if (v.kind != CONFIG_TEXT)
    return err_set(e, ERR_FORMAT, "the model file's %s is %s: convert the model again or use another file",
                   key, v.kind == CONFIG_MISSING ? "missing" : "no text");
  snprintf(s->architecture, sizeof s->architecture, "%s", printable_text(text, v.text, v.size));
  return ERR_OK;
}

static config_value from_gguf(const gguf *g, const char *key) {
  gguf_string text;
  uint64_t count;
  bool flag;
  config_value v = {.kind = CONFIG_OTHER};
  if (gguf_get_string(g, key, &text))
    v = (config_value){.kind = CONFIG_TEXT, .text = text.data, .size = (size_t)text.size};
  else if (gguf_get_u64(g, key, &count))
    v = (config_value){.kind = CONFIG_NUMBER, .whole = true, .number = (double)count};
  else if (gguf_get_f64(g, key, &v.number))
    v.kind = CONFIG_NUMBER;
  else if (gguf_get_bool(g, key, &flag))
    v = (config_value){.kind = CONFIG_FLAG, .number = flag};
  else if (gguf_array_count(g, key, &count))
    v.kind = CONFIG_LIST;
  else if (!gguf_has(g, key))
    v.kind = CONFIG_MISSING;
  return v;
}

static config_value from_json(const json_t *j) {
  config_value v = {.kind = CONFIG_OTHER};
  if (!j || json_is_null(j))
    v.kind = CONFIG_MISSING;
  else if (json_is_string(j))
    v = (config_value){.kind = CONFIG_TEXT, .text = json_string_value(j), .size = json_string_length(j)};
  else if (json_is_number(j))
    v = (config_value){.kind = CONFIG_NUMBER, .whole = json_is_integer(j), .number = json_number_value(j)};
  else if (json_is_boolean(j))
    v = (config_value){.kind = CONFIG_FLAG, .number = json_is_true(j)};
  else if (json_is_array(j))
    v.kind = CONFIG_LIST;
  return v;
}

int config_source_gguf(config_source *s, const gguf *g, err *e) {
  static const char key[] = "general.architecture";
  *s = (config_source){.file = g};
  return set_architecture(s, key, from_gguf(g, key), e);
}

int config_source_json(config_source *s, const json_t *object, err *e) {
  static const char key[] = "model_type";
  *s = (config_source){.json = object, .rope = json_object_get(object, "rope_parameters")};
  if (!json_is_object(s->rope)) s->rope = json_object_get(object, "rope_scaling");
  return set_architecture(s, key, from_json(json_object_get(object, key)), e);
}

config_value config_find(const config_source *s, const char *key) {
  char full[CONFIG_KEY_MAX];
  if (!key) return (config_value){.kind = CONFIG_MISSING};
  if (s->file) return from_gguf(s->file, config_key(s, key, full));
  if (is_rope(key)) return from_json(json_object_get(s->rope, key + sizeof rope_prefix - 1));
  return from_json(json_object_get(s->json, key));
}

bool config_is(config_value v, const char *text) {
  return v.kind == CONFIG_TEXT && v.size == strlen(text) && memcmp(v.text, text, v.size) == 0;
}

const char *config_key(const config_source *s, const char *key, char out[CONFIG_KEY_MAX]) {
  if (s->file)
    snprintf(out, CONFIG_KEY_MAX, "%s.%s", s->architecture, key);
  else if (is_rope(key))
    snprintf(out, CONFIG_KEY_MAX, "%s of its rotary embedding", key + sizeof rope_prefix - 1);
  else
    snprintf(out, CONFIG_KEY_MAX, "%s", key);
  return out;
}
