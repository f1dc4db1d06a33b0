#include "common/base/utf8.h"

#include <string.h>

size_t utf8_valid(const char *text, size_t size) {
  static const uint64_t high_bits = 0x8080808080808080u;
  const uint8_t *p = (const uint8_t *)text;
  size_t i = 0;
  while (i < size) {
    uint64_t eight;
    if (size - i >= sizeof eight) { /* most text is ASCII */
      memcpy(&eight, p + i, sizeof eight);
      if (!(eight & high_bits)) {
        i += sizeof eight;
        continue;
      }
    }
    size_t length;
    uint32_t code;
    if (utf8_next(p + i, size - i, &length, &code) != UTF8_CHARACTER) return i;
    i += length;
  }
  return i;
}

size_t utf8_characters(const char *text, size_t size) {
  size_t n = 0;
  for (size_t i = 0; i < size; i++) n += (text[i] & 0xC0) != 0x80;
  return n;
}
