#include "orchestrator/cli/line_reader.h"

#include "common/base/plain_text.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_BYTES (1 << 16)

static void on_readable(uv_poll_t *poll, int status, int events) {
  line_reader *l = poll->data;
  (void)status, (void)events; /* the read will show it */
  uv_poll_stop(poll);         /* until line_reader_next wants more */
  l->on_more(l->owner);
}

int line_reader_watch(uv_loop_t *loop, uv_poll_t *poll, int fd) {
  int mode = fcntl(fd, F_GETFL), rc = uv_poll_init(loop, poll, fd);
  if (rc == 0 && mode >= 0) fcntl(fd, F_SETFL, mode);
  return rc;
}

void line_reader_open(line_reader *l, uv_loop_t *loop, int fd, size_t line_max, void (*on_more)(void *owner),
                      void *owner) {
  *l = (line_reader){.fd = fd, .line_max = line_max, .on_more = on_more, .owner = owner};
  l->watched = line_reader_watch(loop, &l->poll, fd) == 0;
  l->poll.data = l;
}

void line_reader_stop(line_reader *l) {
  l->over = true;
  if (l->watched) uv_close((uv_handle_t *)&l->poll, NULL);
  l->watched = false;
}

void line_reader_fini(line_reader *l) {
  free(l->data);
  *l = (line_reader){0};
}

static bool make_room(line_reader *l) {
  if (l->taken) memmove(l->data, l->data + l->taken, l->size -= l->taken);
  l->taken = 0;
  if (l->capacity - l->size >= READ_BYTES) return true;
  size_t wanted = 2 * l->capacity + READ_BYTES;
  char *p = realloc(l->data, wanted);
  if (!p) return false;
  l->data = p;
  l->capacity = wanted;
  return true;
}

static bool readable(int fd) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  return poll(&p, 1, 0) != 0;
}

/* False: nothing came. */
static bool read_more(line_reader *l) {
  ssize_t n = -1;
  if (l->over) return false;
  if (!make_room(l)) {
    l->failed = ENOMEM;
    line_reader_stop(l);
    return false;
  }
  bool empty = l->watched && !readable(l->fd);
  if (!empty) do
      n = read(l->fd, l->data + l->size, READ_BYTES);
    while (n < 0 && errno == EINTR);
  if (empty || (n < 0 && errno == EAGAIN && l->watched)) {
    uv_poll_start(&l->poll, UV_READABLE, on_readable);
    return false;
  }
  if (n <= 0) {
    l->failed = n < 0 ? errno : 0;
    line_reader_stop(l);
    return false;
  }
  l->size += (size_t)n;
  return true;
}

/* Takes a line that is complete or too long, or the last one, which may have no line end. */
static bool take(line_reader *l, const char **line, size_t *size) {
  size_t left = l->size - l->taken;
  const char *start = l->data + l->taken, *end = left ? memchr(start, '\n', left) : NULL;
  size_t whole = end ? (size_t)(end - start) : left;
  if (l->skipping) {
    l->taken += end ? whole + 1 : left;
    l->skipping = !end;
    return end ? take(l, line, size) : false;
  }
  if (!end && left <= l->line_max && !(l->over && left)) return false;
  l->skipping = !end && !l->over;
  l->taken += end ? whole + 1 : left;
  size_t mark = l->begun ? 0 : plain_text_mark(start, whole);
  l->begun = true;
  whole -= mark;
  *line = start + mark;
  *size = whole > l->line_max ? l->line_max + 1 : whole;
  return true;
}

bool line_reader_ended(const line_reader *l) {
  return l->over && l->taken == l->size;
}

bool line_reader_next(line_reader *l, const char **line, size_t *size) {
  do
    if (l->data && take(l, line, size)) return true;
  while (read_more(l));
  return l->data && take(l, line, size); /* what the end of the stream has left */
}
