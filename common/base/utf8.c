#include "common/base/utf8.h"

#include <string.h>

/* Continuation bytes that a lead byte asks for, and the range of the first of them. */
typedef struct lead_row {
  uint8_t last_lead;  /* the row is for leads up to this one */
  uint8_t more;       /* 0: no lead byte */
  uint8_t low, high;  /* of the first continuation byte */
  uint8_t value_mask; /* bits of the lead that belong to the code point */
} lead_row;

static const lead_row LEADS[] = {
    {0x7f, 0, 0, 0, 0x7f},       {0xc1, 0, 0, 0, 0},
    {0xdf, 1, 0x80, 0xbf, 0x1f}, {0xe0, 2, 0xa0, 0xbf, 0x0f}, /* else overlong */
    {0xec, 2, 0x80, 0xbf, 0x0f}, {0xed, 2, 0x80, 0x9f, 0x0f}, /* else a surrogate */
    {0xef, 2, 0x80, 0xbf, 0x0f}, {0xf0, 3, 0x90, 0xbf, 0x07}, /* else overlong */
    {0xf3, 3, 0x80, 0xbf, 0x07}, {0xf4, 3, 0x80, 0x8f, 0x07}, /* else above U+10FFFF */
    {0xff, 0, 0, 0, 0},
};

utf8_kind utf8_next(const uint8_t *p, size_t size, size_t *length, uint32_t *code) {
  *length = 1;
  *code = p[0];
  if (p[0] < 0x80) return UTF8_CHARACTER;
  const lead_row *row = LEADS;
  while (p[0] > row->last_lead) row++;
  if (row->more == 0) return UTF8_BAD;
  *code = p[0] & row->value_mask;
  for (size_t i = 1; i <= row->more; i++, (*length)++) {
    if (i == size) return UTF8_PARTIAL;
    uint8_t low = i == 1 ? row->low : 0x80, high = i == 1 ? row->high : 0xbf;
    if (p[i] < low || p[i] > high) return UTF8_BAD;
    *code = *code << 6 | (p[i] & 0x3f);
  }
  return UTF8_CHARACTER;
}

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
