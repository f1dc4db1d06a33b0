/* head_rows.h - the rows of a draft head's output matrix that only one sequence is ranked by.
 *
 * The output matrix is half of what a forward of a head reads, and a draft vocabulary that is ordered by
 * falling frequency has few tokens that are often right. So all sequences share its first rows, and each has
 * a few more: those of the rare tokens of its own text, which are the rare tokens that are likely to come
 * again. On the device they lie behind the common rows, a piece for each sequence, and are written there
 * between forwards. A token that the head's file lacks has a row, too, where the file has a map that makes
 * one of the target's row (head_file_map). */
#pragma once

#include "common/file/head_file.h"
#include "kernels/device.h"

#define HEAD_ROWS_OWN 256 /* of a sequence at most; then the oldest one gives way */

/* How many rows of the output matrix all sequences share: 0, or not less than it has: all. */
typedef struct head_shares {
  int32_t common, sequences;
} head_shares;

typedef struct head_rows head_rows;

/* For the head's output matrix, of which all sequences share the first `common` rows, a multiple of
 * OPS_GROUP up to its number of rows. target: the target's output matrix, which has to stay open as `f` does
 * then; NULL: no row is made, and what is needed of the file is copied. NULL: no memory. */
head_rows *head_rows_open(const head_file *f, const gguf_tensor *target, ops_type type, int32_t common,
                          int32_t sequences, device *d);
void head_rows_close(head_rows *r); /* NULL is allowed */

/* The sequence has seen no token. */
void head_rows_clear(head_rows *r, int32_t sequence);
/* The sequence has seen these tokens, too, which may be any. */
void head_rows_add(head_rows *r, int32_t sequence, const int32_t *tokens, int32_t count);
/* The outputs that the sequence has for itself. */
ops_slice head_rows_own(const head_rows *r, int32_t sequence);
/* Writes what is new into the device's memory, of `common` + sequences * HEAD_ROWS_OWN rows and their tokens.
 * ERR_NOMEM, ERR_INTERNAL, ERR_DEVICE. */
int head_rows_flush(head_rows *r, device_memory *matrix, device_memory *tokens);
