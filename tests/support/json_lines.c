#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/json_lines.h"

int json_lines_each(const char *path, void (*each)(const json_t *row, void *context), void *context) {
  FILE *f = fopen(path, "r");
  if (!f) fail_msg("%s is missing", path);
  char *line = NULL;
  size_t capacity = 0;
  int count = 0;
  for (ssize_t size; (size = getline(&line, &capacity, f)) > 0; count++) {
    json_error_t error;
    json_t *row = json_loadb(line, (size_t)size, JSON_ALLOW_NUL, &error);
    if (!row) fail_msg("%s, line %d: %s", path, count + 1, error.text);
    each(row, context);
    json_decref(row);
  }
  free(line);
  fclose(f);
  return count;
}

const char *json_lines_text(const json_t *row, const char *key, size_t *size) {
  const json_t *value = json_object_get(row, key);
  if (!json_is_string(value)) fail_msg("a row has no text %s", key);
  *size = json_string_length(value);
  return json_string_value(value);
}

int32_t *json_lines_ids(const json_t *row, const char *key, size_t *count) {
  const json_t *value = json_object_get(row, key);
  if (!json_is_array(value)) fail_msg("a row has no array %s", key);
  *count = json_array_size(value);
  int32_t *ids = malloc((*count + 1) * sizeof *ids);
  for (size_t i = 0; i < *count; i++) ids[i] = (int32_t)json_integer_value(json_array_get(value, i));
  return ids;
}
