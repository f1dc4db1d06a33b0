/* output.h - writes to a stream that may be slow (a pager, a pipe) without holding up the loop. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

typedef struct output {
  uv_loop_t *loop;
  uv_fs_t request;
  int fd;
  char *queued, *writing; /* what waits, and what is being written */
  size_t queued_size, queued_capacity, writing_size, writing_capacity, written;
  bool busy;
  int failed; /* 0, or the negative uv code of the first failure: nothing more is written */
  void (*on_change)(void *context); /* all is written, or it has failed; may be NULL */
  void *context;
} output;

void output_init(output *o, uv_loop_t *loop, int fd, void (*on_change)(void *), void *context);
void output_fini(output *o); /* only when idle */

int output_add(output *o, const char *data, size_t size); /* ERR_NOMEM */
bool output_idle(const output *o);                        /* everything is written, or it has failed */
