/* async_output.h - writes to a stream that may be slow (a pager, a pipe) without holding up the loop. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

typedef struct async_output {
  uv_loop_t *loop;
  uv_fs_t request;
  int fd;
  char *queued, *writing; /* what waits to be written, and what is being written now */
  size_t queued_size, queued_capacity, writing_size, writing_capacity, written;
  bool busy;
  int failed; /* 0, or the negative uv code of the first failure: nothing more is written */
  void (*on_change)(void *context); /* all is written, or it has failed; may be NULL */
  void *context;
} async_output;

void async_output_init(async_output *o, uv_loop_t *loop, int fd, void (*on_change)(void *), void *context);
void async_output_fini(async_output *o); /* once it is idle */

int async_output_add(async_output *o, const char *data, size_t size); /* ERR_NOMEM */
bool async_output_idle(const async_output *o); /* everything is written, or it has failed */
