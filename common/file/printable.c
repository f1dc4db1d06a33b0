#include "common/file/printable.h"

#include <stdio.h>
#include <string.h>

static const char cut[] = "...";

void printable_path(char out[PRINTABLE_PATH_MAX], const char *path) {
  size_t size = strlen(path), most = PRINTABLE_PATH_MAX - sizeof cut;
  snprintf(out, PRINTABLE_PATH_MAX, "%s%s", size > most ? cut : "", path + (size > most ? size - most : 0));
}

const char *printable_text(char out[PRINTABLE_TEXT_MAX], const void *data, uint64_t size) {
  const uint8_t *p = data;
  size_t most = PRINTABLE_TEXT_MAX - sizeof cut, n = size > most ? most : (size_t)size;
  for (size_t i = 0; i < n; i++) out[i] = p[i] >= 0x20 && p[i] < 0x7f ? (char)p[i] : '?';
  memcpy(out + n, size > most ? cut : "", size > most ? sizeof cut : 1);
  return out;
}
