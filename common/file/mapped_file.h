/* mapped_file.h - a regular file, mapped read-only. */
#pragma once

#include "common/base/err.h"
#include <stddef.h>

typedef struct mapped_file {
  const void *data; /* NULL: nothing is mapped */
  size_t size;
} mapped_file;

/* ERR_IO (missing, not readable, not a regular file), ERR_FORMAT (empty); *m is empty then. `what` names the
 * file in messages, e.g. "the model file". */
int mapped_file_open(mapped_file *m, const char *path, const char *what, err *e);
void mapped_file_close(mapped_file *m); /* an empty one is allowed */
