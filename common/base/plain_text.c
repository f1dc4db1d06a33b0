#include "common/base/plain_text.h"

#include <string.h>

size_t plain_text_mark(const char *text, size_t size) {
  return size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

size_t plain_text_clean(char *text, size_t size) {
  size_t kept = 0;
  for (size_t i = plain_text_mark(text, size); i < size; i++)
    if (text[i] != '\r' || i + 1 == size || text[i + 1] != '\n') text[kept++] = text[i];
  return kept;
}

int plain_text_check(const char *text, size_t size, const char *name, err *e) {
  if (size < 2 || (memcmp(text, "\xff\xfe", 2) != 0 && memcmp(text, "\xfe\xff", 2) != 0)) return ERR_OK;
  return err_set(e, ERR_FORMAT, "%s is UTF-16 or UTF-32: save it as UTF-8", name);
}
