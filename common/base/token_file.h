/* token_file.h - texts as token ids in a file, by which one program hands them to another on the same
 * machine: a mark, and then ids as int32_t in the machine's byte order. A -1 stands between texts. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TOKEN_FILE_TEXT_END (-1)

/* Is this the beginning of one? */
bool token_file_is(const void *data, size_t size);
/* The ids behind the mark, *count of them, with the ends of texts; they lie in `data`. ERR_FORMAT: it is cut
 * in the middle of one. */
int token_file_ids(const void *data, size_t size, const char *path, const int32_t **out, size_t *count,
                   err *e);

/* Writes the mark, ids, and the end of a text. False: it could not. */
bool token_file_begin(FILE *f);
bool token_file_add(FILE *f, const int32_t *ids, size_t count);
bool token_file_end_text(FILE *f);
