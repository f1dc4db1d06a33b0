#include "common/text/unicode.h"

#include "common/base/utf8.h"
#include <assert.h>
#include <stdlib.h>
#include <utf8proc.h>

enum { DECOMPOSED_MAX = 8 }; /* code points of one character, rounded up */

static bool is_ascii(const char *text, size_t size) {
  for (size_t i = 0; i < size; i++)
    if ((uint8_t)text[i] >= 0x80) return false;
  return true;
}

static int compare_marks(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Marks of one character in canonical order: by class, then as they stood. utf8proc's own sort is quadratic.
 */
static int order_marks(utf8proc_int32_t *codes, size_t count) {
  uint64_t *keys = count > 1 ? malloc(2 * count * sizeof *keys) : NULL;
  if (count < 2) return ERR_OK;
  if (!keys) return ERR_NOMEM;
  for (size_t i = 0; i < count; i++)
    keys[i] = (uint64_t)utf8proc_get_property(codes[i])->combining_class << 32 | i;
  qsort(keys, count, sizeof *keys, compare_marks);
  for (size_t i = 0; i < count; i++) keys[count + i] = (uint64_t)codes[(uint32_t)keys[i]];
  for (size_t i = 0; i < count; i++) codes[i] = (utf8proc_int32_t)keys[count + i];
  free(keys);
  return ERR_OK;
}

static int order_all(utf8proc_int32_t *codes, size_t count) {
  size_t begin = 0; /* of a run of marks */
  for (size_t i = 0; i <= count; i++) {
    if (i < count && utf8proc_get_property(codes[i])->combining_class) continue;
    if (order_marks(codes + begin, i - begin)) return ERR_NOMEM;
    begin = i + 1;
  }
  return ERR_OK;
}

/* Code points of text, decomposed, into codes; returns how many. */
static size_t decompose(const char *text, size_t size, utf8proc_int32_t *codes, size_t capacity) {
  size_t count = 0, length;
  for (size_t i = 0; i < size; i += length) {
    uint32_t code;
    int boundary = 0;
    utf8_next((const uint8_t *)text + i, size - i, &length, &code);
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)code, codes + count, (utf8proc_ssize_t)(capacity - count),
                                UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
    if (n > 0) count += (size_t)n;
    assert(count <= capacity);
  }
  return count;
}

int unicode_nfc(const char *text, size_t size, char **out, size_t *out_size) {
  *out = NULL;
  *out_size = size;
  if (is_ascii(text, size)) return ERR_OK;
  size_t capacity = 2 * size + DECOMPOSED_MAX; /* characters of 1, 2, 3, 4 bytes become at most 1, 3, 4, 4 */
  utf8proc_int32_t *codes = malloc(capacity * sizeof *codes);
  if (!codes) return ERR_NOMEM;
  size_t count = decompose(text, size, codes, capacity);
  if (order_all(codes, count)) {
    free(codes);
    return ERR_NOMEM;
  }
  utf8proc_ssize_t bytes =
      utf8proc_reencode(codes, (utf8proc_ssize_t)count, UTF8PROC_COMPOSE | UTF8PROC_STABLE); /* in place */
  *out = (char *)codes;
  *out_size = (size_t)bytes;
  return ERR_OK;
}

bool unicode_is_space(uint32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 0x09 && code <= 0x0d);
  utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
  return code == 0x85 || c == UTF8PROC_CATEGORY_ZS || c == UTF8PROC_CATEGORY_ZL || c == UTF8PROC_CATEGORY_ZP;
}

bool unicode_is_word(uint32_t code) {
  switch (utf8proc_category((utf8proc_int32_t)code)) {
  case UTF8PROC_CATEGORY_LU:
  case UTF8PROC_CATEGORY_LL:
  case UTF8PROC_CATEGORY_LT:
  case UTF8PROC_CATEGORY_LM:
  case UTF8PROC_CATEGORY_LO:
  case UTF8PROC_CATEGORY_MN:
  case UTF8PROC_CATEGORY_MC:
  case UTF8PROC_CATEGORY_ME:
  case UTF8PROC_CATEGORY_ND:
  case UTF8PROC_CATEGORY_NL:
  case UTF8PROC_CATEGORY_PC:
    return true;
  default:
    return code == 0x200c || code == 0x200d ||
           (code >= 0x24b6 && code <= 0x24e9); /* joiners, letters in circles */
  }
}
