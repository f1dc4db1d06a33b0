#include "orchestrator/cli/async_output.h"

#include <stdlib.h>
#include <string.h>

static void write_some(async_output *o);

static void on_written(uv_fs_t *request) {
  async_output *o = request->data;
  ssize_t n = request->result;
  uv_fs_req_cleanup(request);
  o->busy = false;
  if (n == UV_EINTR || n == UV_EAGAIN) n = 0;
  if (n < 0)
    o->failed = (int)n;
  else
    o->written += (size_t)n;
  write_some(o);
  if (async_output_idle(o) && o->on_change) o->on_change(o->context);
}

static void swap_buffers(async_output *o) {
  char *empty = o->writing;
  size_t capacity = o->writing_capacity;
  o->writing = o->queued;
  o->writing_size = o->queued_size;
  o->writing_capacity = o->queued_capacity;
  o->written = 0;
  o->queued = empty;
  o->queued_size = 0;
  o->queued_capacity = capacity;
}

static void write_some(async_output *o) {
  if (o->busy || o->failed) return;
  if (o->written == o->writing_size) swap_buffers(o);
  if (o->written == o->writing_size) return;
  uv_buf_t buffer = uv_buf_init(o->writing + o->written, (unsigned)(o->writing_size - o->written));
  o->request.data = o;
  int rc = uv_fs_write(o->loop, &o->request, o->fd, &buffer, 1, -1, on_written);
  if (rc < 0)
    o->failed = rc;
  else
    o->busy = true;
}

void async_output_init(async_output *o, uv_loop_t *loop, int fd, void (*on_change)(void *), void *context) {
  *o = (async_output){.loop = loop, .fd = fd, .on_change = on_change, .context = context};
}

void async_output_fini(async_output *o) {
  free(o->queued);
  free(o->writing);
  *o = (async_output){0};
}

int async_output_add(async_output *o, const char *data, size_t size) {
  if (o->failed || size == 0) return ERR_OK;
  if (o->queued_size + size > o->queued_capacity) {
    size_t wanted = 2 * (o->queued_size + size);
    char *p = realloc(o->queued, wanted);
    if (!p) return ERR_NOMEM;
    o->queued = p;
    o->queued_capacity = wanted;
  }
  memcpy(o->queued + o->queued_size, data, size);
  o->queued_size += size;
  write_some(o);
  return ERR_OK;
}

bool async_output_idle(const async_output *o) {
  return !o->busy && (o->failed || (o->queued_size == 0 && o->written == o->writing_size));
}
