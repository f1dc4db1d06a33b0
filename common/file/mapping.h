/* mapping.h - a regular file, mapped read-only. */
#pragma once

#include "common/base/err.h"
#include <stddef.h>

typedef struct mapping {
  const void *data; /* NULL: nothing is mapped */
  size_t size;
} mapping;

/* ERR_IO (missing, not readable, not a regular file), ERR_FORMAT (empty); *m is nothing then. `what` stands
 * in the messages, e.g. "the model file". */
int mapping_open(mapping *m, const char *path, const char *what, err *e);
void mapping_close(mapping *m); /* nothing is allowed */
