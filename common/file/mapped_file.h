/* mapped_file.h - a regular file, mapped read-only.
 *
 * A mapped file may be cut, or its disk may fail, while it is used: the kernel then sends SIGBUS. The first
 * file that is mapped installs a handler, which names the file in one sentence and ends the program with the
 * exit status of a bad file. A SIGBUS anywhere else takes the way that it took before. */
#pragma once

#include "common/base/err.h"
#include <stddef.h>
#include <stdint.h>

/* Which file it is, and in which state: whoever changes it changes these. All zero: only memory, or a
 * file of a system that does not tell of writes through a mapping (tmpfs, ramfs). */
typedef struct mapped_stamp {
  uint64_t device, number, size;   /* number: of the inode */
  int64_t modified_ns, changed_ns; /* its content, and anything about it; since 1970 */
} mapped_stamp;

typedef struct mapped_file {
  const void *data; /* NULL: nothing is mapped */
  size_t size;
  mapped_stamp stamp; /* when it was opened */
} mapped_file;

/* ERR_IO (missing, not readable, not a regular file), ERR_FORMAT (empty); *m is empty then. `what` names the
 * file in messages, e.g. "the model file". */
int mapped_file_open(mapped_file *m, const char *path, const char *what, err *e);
void mapped_file_close(mapped_file *m); /* an empty one is allowed */

/* For memory that somebody else has mapped from a file: the handler knows it, until it is forgotten. At most
 * MAPPED_FILE_WATCH_MAX files are known; of further ones SIGBUS says nothing. */
#define MAPPED_FILE_WATCH_MAX 64
void mapped_file_watch(const void *data, size_t size, const char *path);
void mapped_file_forget(const void *data); /* NULL is allowed */
