#include "common/base/token_file.h"

#include <string.h>

static const char mark[16] = "tandem tokens 1\n";

bool token_file_is(const void *data, size_t size) {
  return size >= sizeof mark && memcmp(data, mark, sizeof mark) == 0;
}

int token_file_ids(const void *data, size_t size, const char *path, const int32_t **out, size_t *count,
                   err *e) {
  size_t bytes = size - sizeof mark;
  *out = (const int32_t *)((const char *)data + sizeof mark);
  *count = bytes / sizeof **out;
  return bytes % sizeof **out == 0
             ? ERR_OK
             : err_set(e, ERR_FORMAT, "%.200s ends in the middle of a token: it was cut, make it again",
                       path);
}

bool token_file_begin(FILE *f) {
  return fwrite(mark, sizeof mark, 1, f) == 1;
}

bool token_file_add(FILE *f, const int32_t *ids, size_t count) {
  return fwrite(ids, sizeof *ids, count, f) == count;
}

bool token_file_end_text(FILE *f) {
  return token_file_add(f, &(const int32_t){TOKEN_FILE_TEXT_END}, 1);
}
