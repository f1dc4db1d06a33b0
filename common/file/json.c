#include "common/file/json.h"
#include "common/file/label.h"

#include <stdbool.h>
#include <string.h>

/* How deep it goes and how many values it may have, by its brackets and commas outside strings. */
static void measure(const char *p, size_t size, size_t *depth, size_t *values) {
  size_t open = 0;
  bool quoted = false;
  *depth = *values = 0;
  for (size_t i = 0; i < size; i++) {
    if (quoted) {
      i += p[i] == '\\';
      quoted = i >= size || p[i] != '"';
    } else if (p[i] == '{' || p[i] == '[') {
      *depth = ++open > *depth ? open : *depth;
      ++*values;
    } else if (p[i] == '}' || p[i] == ']') {
      open -= open > 0;
    } else {
      quoted = p[i] == '"';
      *values += p[i] == ',';
    }
  }
}

int json_parse_within(json_t **out, const char *label, const void *data, size_t size, const json_limits *l,
                      err *e) {
  size_t depth, values;
  char text[LABEL_TEXT_MAX];
  json_error_t why;
  *out = NULL;
  if (size > l->bytes)
    return err_set(e, ERR_LIMIT, "%s: %zu bytes of JSON; tandem takes at most %zu", label, size, l->bytes);
  measure(data, size, &depth, &values);
  if (depth > l->depth || values > l->values)
    return err_set(e, ERR_LIMIT,
                   "%s: JSON of %zu levels and about %zu values; tandem takes at most %zu and %zu", label,
                   depth, values, l->depth, l->values);
  json_t *object = json_loadb(data, size, l->flags | JSON_ALLOW_NUL, &why);
  if (!object && json_error_code(&why) == json_error_out_of_memory)
    return err_set(e, ERR_NOMEM, "%s: out of memory", label);
  if (!object)
    return err_set(e, ERR_FORMAT, "%s: no JSON (%s, line %d): download it again", label,
                   label_text(text, why.text, strlen(why.text)), why.line);
  if (!json_is_object(object)) {
    json_decref(object);
    return err_set(e, ERR_FORMAT, "%s: no JSON object: download it again", label);
  }
  *out = object;
  return ERR_OK;
}

int json_parse_object(json_t **out, const char *label, const void *data, size_t size, err *e) {
  const json_limits limits = {JSON_FILE_MAX, JSON_VALUES_MAX, JSON_DEPTH_MAX, JSON_REJECT_DUPLICATES};
  return json_parse_within(out, label, data, size, &limits, e);
}
