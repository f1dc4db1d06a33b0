/* input_file.h - a whole file or stream in memory. */
#pragma once

#include "common/base/err.h"
#include <stddef.h>

typedef struct input_file {
  char *data; /* [size], then a NUL */
  size_t size;
} input_file;

/* Its text made plain (plain_text.h). path "-": stdin. ERR_IO; ERR_FORMAT: another encoding; ERR_LIMIT beyond
 * size_max; ERR_NOMEM. */
int input_file_read(input_file *in, const char *path, size_t size_max, err *e);
void input_file_fini(input_file *in);
