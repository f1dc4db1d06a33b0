/* input.h - a whole file or stream in memory. */
#pragma once

#include "common/base/err.h"
#include <stddef.h>

typedef struct input {
  char *data; /* [size], then a NUL */
  size_t size;
} input;

/* path "-": stdin. ERR_IO; ERR_LIMIT beyond size_max; ERR_NOMEM. */
int input_read(input *in, const char *path, size_t size_max, err *e);
void input_fini(input *in);
