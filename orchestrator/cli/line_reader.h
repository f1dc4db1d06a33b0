/* line_reader.h - the lines of a stream as they come, read only as fast as they are taken. On the loop's
 * thread. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

typedef struct line_reader {
  int fd;
  uv_poll_t poll;
  bool watched; /* a pipe, socket or terminal; what cannot be watched (a file) is always ready */
  char *data;   /* [size] */
  size_t size, capacity, taken, line_max;
  bool over;     /* no more is read: the stream has ended, or reading was stopped or failed */
  int failed;    /* the errno of a read, or ENOMEM; else 0 */
  bool skipping; /* the rest of a line that was too long */
  void (*on_more)(void *owner);
  void *owner;
} line_reader;

/* uv_poll_init for what other programs may hold too, such as the terminal: it stays as blocking as it was.
 * Read it only when there is something. */
int line_reader_watch(uv_loop_t *loop, uv_poll_t *poll, int fd);

/* Calls on_more when line_reader_next may have something new. A line longer than line_max is given cut to
 * line_max
 * + 1 bytes. */
void line_reader_open(line_reader *l, uv_loop_t *loop, int fd, size_t line_max, void (*on_more)(void *owner),
                      void *owner);
/* Stops reading. */
void line_reader_stop(line_reader *l);
/* To be called after line_reader_stop, once the loop has run again. */
void line_reader_fini(line_reader *l);

/* The next line without its end, until the next call; false: none is there yet, or l->over. */
bool line_reader_next(line_reader *l, const char **line, size_t *size);
/* Every line of the stream has been given. */
bool line_reader_ended(const line_reader *l);
