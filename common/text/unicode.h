/* nfc.h - Unicode normalisation form C. Source: Unicode Standard Annex #15; the tables are utf8proc's. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* text[size], valid UTF-8, to *out[*out_size], malloc'd; O(n log n). *out NULL: the text is normalised
 * already (all of it ASCII). ERR_NOMEM. */
int unicode_nfc(const char *text, size_t size, char **out, size_t *out_size);

/* The Unicode property, and a letter, mark, digit or connector, as regular expressions mean \s and \w. */
bool unicode_is_space(uint32_t code);
bool unicode_is_word(uint32_t code);
