#include "common/file/json_text.h"
#include "common/file/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 1 << 16 };

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

int json_text_parse(json_t **out, const char *name, const char *text, size_t size, err *e) {
  const json_limits limits = {JSON_TEXT_MAX, JSON_TEXT_VALUES_MAX, JSON_DEPTH_MAX * 4, 0};
  return json_parse_within(out, name, text, size, &limits, e);
}
