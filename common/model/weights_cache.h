/* weights_cache.h - keeps packed weights in a file, so that the next start maps them instead of packing
 * again, and several programs on a machine share their pages.
 *
 * The file is DIR/<hash of the model>-<layout>.packed: a page of header, then the data as it lies in memory.
 * The header, the file's length and a hash of the data are checked. A file that does not fit is never used.
 */
#pragma once

#include "common/base/err.h"
#include "common/base/hash.h"
#include "common/base/log.h"

#include <limits.h>
#include <stddef.h>

#define WEIGHTS_LAYOUT_MAX 31 /* characters */

/* A file of packed weights is used only if all of these are equal. */
typedef struct weights_key {
  hash16 model;       /* model_file_read_hash */
  const char *layout; /* of the packed form; [A-Za-z0-9.-], at most WEIGHTS_LAYOUT_MAX */
  size_t bytes;       /* of data */
} weights_key;

/* Maps the data, read-only and aligned to a page. NULL: there is no file, or it does not fit, and then a
 * warning says so. */
void *weights_cache_map(const char *dir, const weights_key *k, const logger *log);
void weights_cache_unmap(void *data, size_t bytes);

/* A file that is being written, beside the one that it will replace. */
typedef struct weights_file {
  int fd; /* -1: none */
  char path[PATH_MAX], temporary[PATH_MAX];
} weights_file;

/* ERR_ARG (a name too long), ERR_IO (the folder is not there or not writable; says what to do). */
int weights_cache_begin(weights_file *f, const char *dir, const weights_key *k, err *e);
/* Writes bytes [at, at + bytes) of the data; what is never written is zero. ERR_IO. */
int weights_cache_write(weights_file *f, size_t at, const void *data, size_t bytes, err *e);
/* Puts the file in place, whole or not at all, and ends f. ERR_IO: then f is cancelled. */
int weights_cache_end(weights_file *f, const weights_key *k, err *e);
void weights_cache_cancel(weights_file *f);
