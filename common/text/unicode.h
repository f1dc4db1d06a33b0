/* unicode.h - Unicode normalisation form C, and classes of characters. Source: Unicode Standard Annex #15;
 * the tables are utf8proc's. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Normalises text[size], which must be valid UTF-8, into *out[*out_size], which is malloc'd; O(n log n). *out
 * is NULL where the text needs no change (all of it is ASCII). ERR_NOMEM. */
int unicode_nfc(const char *text, size_t size, char **out, size_t *out_size);

/* What regular expressions mean by \s and \w. */
bool unicode_is_space(uint32_t code);
bool unicode_is_word(uint32_t code);
