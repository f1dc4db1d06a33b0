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

/* Classifies what p[size], size >= 1, begins with. *length becomes its bytes (all of them for PARTIAL), and
 * *code the code point of a CHARACTER. */
utf8_kind utf8_next(const uint8_t *p, size_t size, size_t *length, uint32_t *code);

/* How many bytes at the beginning are valid UTF-8; `size` if all are. */
size_t utf8_valid(const char *text, size_t size);
/* The characters of valid UTF-8. */
size_t utf8_characters(const char *text, size_t size);
