#include "common/file/json.h"
#include "common/base/plain_text.h"
#include "common/file/printable.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_BYTES (1 << 16)

enum { INTEGER_DIGITS = 19 /* as many as the largest integer has */ };

/* How deep it goes and how many values it may have, by its brackets and commas outside strings. */
static void measure(const char *p, size_t size, size_t *depth, size_t *values) {
  size_t open = 0;
  bool quoted = false;
  *depth = *values = 0;
  for (size_t i = 0; i < size; i++) {
    if (quoted) {
      quoted = p[i] != '"';
      i += p[i] == '\\';
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

/* Where a whole number without fraction or exponent ends that begins at p[i]; i: none does. */
static size_t whole_number(const char *p, size_t size, size_t i) {
  size_t end = i, before = i > 0 && p[i - 1] == '-' ? i - 1 : i;
  if (before > 0 && p[before - 1] && strchr("0123456789.eE+", p[before - 1])) return i;
  while (end < size && p[end] >= '0' && p[end] <= '9') end++;
  return end < size && p[end] && strchr(".eE", p[end]) ? i : end;
}

/* Many a tokenizer_config.json says 10^30 (model_max_length) where it means without end, which is JSON, but
 * too much for an integer of jansson's: such a number becomes a real one, in place. */
static void make_real(char *p, size_t size) {
  bool quoted = false;
  for (size_t i = 0; i < size; i++) {
    if (quoted) {
      quoted = p[i] != '"';
      i += p[i] == '\\';
      continue;
    }
    quoted = p[i] == '"';
    size_t end = whole_number(p, size, i);
    if (end - i >= INTEGER_DIGITS) memcpy(p + end - 2, "e2", 2);
    if (end > i) i = end - 1;
  }
}

static json_t *load(const void *data, size_t size, json_error_t *why) {
  const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
  json_t *value = json_loadb(data, size, flags, why);
  if (value || json_error_code(why) != json_error_numeric_overflow) return value;
  char *copy = malloc(size);
  if (!copy) return NULL; /* the error stays the first one */
  memcpy(copy, data, size);
  make_real(copy, size);
  value = json_loadb(copy, size, flags, why);
  free(copy);
  return value;
}

int json_parse_object(json_t **out, const char *label, const void *data, size_t size, err *e) {
  size_t depth, values;
  char text[PRINTABLE_TEXT_MAX];
  json_error_t why;
  size_t mark = plain_text_mark(data, size);
  *out = NULL;
  data = (const char *)data + mark;
  size -= mark;
  if (size > JSON_FILE_MAX)
    return err_set(e, ERR_LIMIT, "%s: %zu bytes of JSON; tandem takes at most %u", label, size,
                   JSON_FILE_MAX);
  measure(data, size, &depth, &values);
  if (depth > JSON_DEPTH_MAX || values > JSON_VALUES_MAX)
    return err_set(e, ERR_LIMIT,
                   "%s: JSON of %zu levels and about %zu values; tandem takes at most %d and %u", label,
                   depth, values, JSON_DEPTH_MAX, JSON_VALUES_MAX);
  json_t *object = load(data, size, &why);
  if (!object && json_error_code(&why) == json_error_out_of_memory)
    return err_set(e, ERR_NOMEM, "%s: out of memory", label);
  if (!object)
    return err_set(e, ERR_FORMAT, "%s: no JSON (%s, line %d): download it again", label,
                   printable_text(text, why.text, strlen(why.text)), why.line);
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
