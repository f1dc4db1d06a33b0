#include "common/base/json_text.h"

#include "common/base/controls.h"
#include "common/base/utf8.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ESCAPE_SIZE 6 /* bytes of "\u009B"; such a character has one at least */

/* Jansson has escaped those below U+0020; newlines between values are no text. */
static bool escapes(uint32_t code) {
  return code >= 0x7f && control_in_name(code);
}

static size_t escape(char *out, const char *text, size_t size) {
  size_t n = 0;
  for (size_t at = 0, length; at < size; at += length) {
    uint32_t code;
    utf8_next((const uint8_t *)text + at, size - at, &length, &code);
    bool escaped = escapes(code);
    if (out && escaped) snprintf(out + n, ESCAPE_SIZE + 1, "\\u%04X", (unsigned)code & 0xffff);
    if (out && !escaped) memcpy(out + n, text + at, length);
    n += escaped ? ESCAPE_SIZE : length;
  }
  return n;
}

char *json_text(const json_t *value, size_t flags) {
  char *plain = value ? json_dumps(value, flags) : NULL;
  size_t size = plain ? strlen(plain) : 0, whole = plain ? escape(NULL, plain, size) : 0;
  if (whole == size) return plain;
  char *text = malloc(whole + 1);
  if (text) text[escape(text, plain, size)] = 0;
  free(plain);
  return text;
}
