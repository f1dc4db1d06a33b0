#include "common/file/label.h"

#include <stdio.h>
#include <string.h>

static const char cut[] = "...";

void label_path(char out[LABEL_MAX], const char *path) {
  size_t size = strlen(path), most = LABEL_MAX - sizeof cut;
  snprintf(out, LABEL_MAX, "%s%s", size > most ? cut : "", path + (size > most ? size - most : 0));
}

const char *label_text(char out[LABEL_TEXT_MAX], const void *data, uint64_t size) {
  const uint8_t *p = data;
  size_t most = LABEL_TEXT_MAX - sizeof cut, n = size > most ? most : (size_t)size;
  for (size_t i = 0; i < n; i++) out[i] = p[i] >= 0x20 && p[i] < 0x7f ? (char)p[i] : '?';
  memcpy(out + n, size > most ? cut : "", size > most ? sizeof cut : 1);
  return out;
}
