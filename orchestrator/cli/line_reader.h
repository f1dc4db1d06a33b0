/* line_reader.h - gives the lines of a stream as they come, and reads only as fast as lines are taken. On the
 * loop's thread. */
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
  bool begun;    /* the first line has been given */
  bool over;     /* no more is read: the stream has ended, or reading was stopped or failed */
  int failed;    /* the errno of a read, or ENOMEM; else 0 */
  bool skipping; /* the rest of a line that was too long */
  void (*on_more)(void *owner);
  void *owner;
} line_reader;

/* Like uv_poll_init, for a descriptor that other programs may hold too, such as the terminal: its blocking
 * mode is left as it was. So read it only when the poll says that there is something. */
int line_reader_watch(uv_loop_t *loop, uv_poll_t *poll, int fd);

/* Calls on_more when line_reader_next may have something new. A line that is longer than line_max is cut to
 * line_max + 1 bytes. */
void line_reader_open(line_reader *l, uv_loop_t *loop, int fd, size_t line_max, void (*on_more)(void *owner),
                      void *owner);
/* Stops reading. */
void line_reader_stop(line_reader *l);
/* To be called after line_reader_stop, once the loop has run again. */
void line_reader_fini(line_reader *l);

/* Gives the next line without its line end and, before the first one, a byte order mark; it is valid until
 * the next call. False: no line is there yet, or l->over. */
bool line_reader_next(line_reader *l, const char **line, size_t *size);
/* Every line of the stream has been given. */
bool line_reader_ended(const line_reader *l);
