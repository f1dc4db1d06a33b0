/* utf8.h - UTF-8 one sequence at a time, by the table of well-formed sequences. Source: The Unicode Standard,
 * section 3.9, table 3-7, and its "maximal subpart" practice for what is ill-formed. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define UTF8_SEQUENCE_MAX 4 /* bytes of one character */

typedef enum {
  UTF8_CHARACTER, /* a whole character */
  UTF8_BAD,       /* a maximal ill-formed part: one U+FFFD stands for it */
  UTF8_PARTIAL    /* the beginning of a character: more bytes decide */
} utf8_kind;

/* Continuation bytes that a lead byte asks for, and the range of the first of them. */
typedef struct utf8_lead {
  uint8_t last_lead;  /* the row is for leads up to this one */
  uint8_t more;       /* 0: no lead byte */
  uint8_t low, high;  /* of the first continuation byte */
  uint8_t value_mask; /* bits of the lead that belong to the code point */
} utf8_lead;

static const utf8_lead utf8_leads[] = {
    {0x7f, 0, 0, 0, 0x7f},       {0xc1, 0, 0, 0, 0},
    {0xdf, 1, 0x80, 0xbf, 0x1f}, {0xe0, 2, 0xa0, 0xbf, 0x0f}, /* else overlong */
    {0xec, 2, 0x80, 0xbf, 0x0f}, {0xed, 2, 0x80, 0x9f, 0x0f}, /* else a surrogate */
    {0xef, 2, 0x80, 0xbf, 0x0f}, {0xf0, 3, 0x90, 0xbf, 0x07}, /* else overlong */
    {0xf3, 3, 0x80, 0xbf, 0x07}, {0xf4, 3, 0x80, 0x8f, 0x07}, /* else above U+10FFFF */
    {0xff, 0, 0, 0, 0},
};

/* Classifies what p[size], size >= 1, begins with. *length becomes its bytes (all of them for PARTIAL), and
 * *code the code point of a CHARACTER. */
static inline utf8_kind utf8_next(const uint8_t *p, size_t size, size_t *length, uint32_t *code) {
  *length = 1;
  *code = p[0];
  if (p[0] < 0x80) return UTF8_CHARACTER;
  const utf8_lead *row = utf8_leads;
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

/* How many bytes at the beginning are valid UTF-8; `size` if all are. */
size_t utf8_valid(const char *text, size_t size);
/* The characters of valid UTF-8. */
size_t utf8_characters(const char *text, size_t size);
