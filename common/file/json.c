#include "common/file/json.h"
#include "common/file/label.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_BYTES (1 << 16)

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

int json_parse_object(json_t **out, const char *label, const void *data, size_t size, err *e) {
  size_t depth, values;
  char text[LABEL_TEXT_MAX];
  json_error_t why;
  *out = NULL;
  if (size > JSON_FILE_MAX)
    return err_set(e, ERR_LIMIT, "%s: %zu bytes of JSON; tandem takes at most %u", label, size,
                   JSON_FILE_MAX);
  measure(data, size, &depth, &values);
  if (depth > JSON_DEPTH_MAX || values > JSON_VALUES_MAX)
    return err_set(e, ERR_LIMIT,
                   "%s: JSON of %zu levels and about %zu values; tandem takes at most %d and %u", label,
                   depth, values, JSON_DEPTH_MAX, JSON_VALUES_MAX);
  json_t *object = json_loadb(data, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
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

int json_read(const char *path, const char *name, char **text, size_t *size, err *e) {
  *text = NULL;
  *size = 0;
  FILE *f = fopen(path, "rb");
  if (!f && (errno == ENOENT || errno == ENOTDIR)) return ERR_OK;
  if (!f) return err_set(e, ERR_IO, "cannot read %s of the model: %s", name, strerror(errno));
  int rc = ERR_OK;
  for (size_t capacity = READ_BYTES; !rc; capacity *= 2) {
    char *bigger = realloc(*text, capacity);
    if (!bigger) {
      rc = err_set(e, ERR_NOMEM, "%s: out of memory", name);
      break;
    }
    *text = bigger;
    *size += fread(*text + *size, 1, capacity - *size, f);
    if (*size < capacity) break;
    if (*size > JSON_FILE_MAX) rc = err_set(e, ERR_LIMIT, "%s: more than %u bytes", name, JSON_FILE_MAX);
  }
  if (!rc && ferror(f)) rc = err_set(e, ERR_IO, "cannot read %s of the model: is it a file?", name);
  fclose(f);
  return rc;
}
