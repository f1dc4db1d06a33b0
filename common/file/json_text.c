#include "common/file/json_text.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHY_PRINT_BYTES = 40, READ_BYTES = 1 << 16 };

int json_text_read(const char *path, const char *name, char **text, size_t *size, err *e) {
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
    if (*size > JSON_TEXT_MAX) rc = err_set(e, ERR_LIMIT, "%s: more than %u bytes", name, JSON_TEXT_MAX);
  }
  if (!rc && ferror(f)) rc = err_set(e, ERR_IO, "cannot read %s of the model: is it a file?", name);
  fclose(f);
  return rc;
}

/* Brackets and commas outside strings: what a parser would take memory for. */
static size_t count_values(const char *p, size_t size) {
  size_t values = 0;
  bool quoted = false;
  for (size_t i = 0; i < size; i++) {
    if (p[i] == '"')
      quoted = !quoted;
    else if (quoted)
      i += p[i] == '\\';
    else
      values += p[i] == ',' || p[i] == '[' || p[i] == '{';
  }
  return values;
}

static int no_json(const char *name, const json_error_t *why, err *e) {
  char text[WHY_PRINT_BYTES + 1] = "";
  for (size_t i = 0; why->text[i] && i < WHY_PRINT_BYTES; i++)
    text[i] = why->text[i] < ' ' || why->text[i] > '~' ? '?' : why->text[i];
  return err_set(e, ERR_FORMAT, "%s: no JSON (%s, line %d): download it again", name, text, why->line);
}

int json_text_parse(json_t **out, const char *name, const char *text, size_t size, err *e) {
  json_error_t why;
  *out = NULL;
  if (size > JSON_TEXT_MAX || count_values(text, size) > JSON_TEXT_VALUES_MAX)
    return err_set(e, ERR_LIMIT, "%s: more than %u bytes or about %u values", name, JSON_TEXT_MAX,
                   JSON_TEXT_VALUES_MAX);
  *out = json_loadb(text, size, JSON_ALLOW_NUL, &why);
  if (!*out && json_error_code(&why) == json_error_out_of_memory)
    return err_set(e, ERR_NOMEM, "%s: out of memory", name);
  if (!*out) return no_json(name, &why, e);
  if (json_is_object(*out)) return ERR_OK;
  json_decref(*out);
  *out = NULL;
  return err_set(e, ERR_FORMAT, "%s: no JSON object: download it again", name);
}
