#include "common/base/json_text.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ESCAPE_BYTES 6 /* \u0085 */

/* What is to be escaped at `p`, or 0; *size: how many bytes it has. Such bytes stand in strings alone. */
static unsigned unsafe_at(const char *p, size_t *size) {
  const uint8_t *u = (const uint8_t *)p;
  *size = 1;
  if (u[0] == 0x7f) return 0x7f;
  if (u[0] == 0xc2 && u[1] >= 0x80 && u[1] <= 0x9f) {
    *size = 2;
    return u[1];
  }
  bool override = u[0] == 0xe2 && u[1] == 0x80 && u[2] >= 0xaa && u[2] <= 0xae; /* U+202A to U+202E */
  bool isolate = u[0] == 0xe2 && u[1] == 0x81 && u[2] >= 0xa6 && u[2] <= 0xa9;  /* U+2066 to U+2069 */
  if (!override && !isolate) return 0;
  *size = 3;
  return 0x2000u | (unsigned)(u[1] & 1) << 6 | (u[2] & 0x3f);
}

char *json_text(const json_t *value, size_t flags) {
  char *text = value ? json_dumps(value, flags) : NULL;
  size_t found = 0, size;
  for (const char *p = text; p && *p; p += size) found += unsafe_at(p, &size) != 0;
  if (!found) return text;
  char *safe = malloc(strlen(text) + found * ESCAPE_BYTES + 1), *to = safe;
  for (const char *p = text; safe && *p; p += size) {
    unsigned code = unsafe_at(p, &size);
    if (code)
      to += sprintf(to, "\\u%04X", code);
    else
      *to++ = *p;
  }
  if (safe) *to = 0;
  free(text);
  return safe;
}
