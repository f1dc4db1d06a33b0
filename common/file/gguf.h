/* gguf.h - a GGUF v2/v3 file, mapped read-only. Every offset, count and size is checked at open, so that
 * later reads need no check. Source: ggml's docs/gguf.md. */
#pragma once

#include "common/base/err.h"
#include "common/base/hash.h"
#include "common/file/mapped_file.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gguf gguf;

/* Numbers are the file format's. */
typedef enum {
  GGUF_F32 = 0,
  GGUF_F16 = 1,
  GGUF_Q4_0 = 2,
  GGUF_Q4_1 = 3,
  GGUF_Q5_0 = 6,
  GGUF_Q5_1 = 7,
  GGUF_Q8_0 = 8,
  GGUF_Q2_K = 10,
  GGUF_Q3_K = 11,
  GGUF_Q4_K = 12,
  GGUF_Q5_K = 13,
  GGUF_Q6_K = 14,
  GGUF_IQ4_NL = 20,
  GGUF_I8 = 24, /* integers: maps of token ids, never weights */
  GGUF_I32 = 26,
  GGUF_I64 = 27,
  GGUF_BF16 = 30
} gguf_type;

typedef struct gguf_tensor {
  const char *name; /* 1 to 255 printable ASCII characters, NUL-terminated, until close */
  gguf_type type;
  int32_t dims;
  int64_t shape[4]; /* shape[0] is the row: contiguous columns; unused ones are 1 */
  const void *data; /* inside the mapping */
  size_t bytes;
} gguf_tensor;

typedef struct gguf_string {
  const char *data; /* not NUL-terminated; may hold any byte */
  uint64_t size;
} gguf_string;

/* ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED (a tensor type not built here: names it), ERR_LIMIT; *out NULL then. */
int gguf_open(gguf **out, const char *path, err *e);
/* The same over bytes in memory that outlive it (tests, fuzzing). */
int gguf_open_memory(gguf **out, const void *data, size_t size, err *e);
void gguf_close(gguf *g); /* NULL is allowed */

int32_t gguf_tensor_count(const gguf *g);
const gguf_tensor *gguf_tensor_at(const gguf *g, int32_t i);
const gguf_tensor *gguf_tensor_find(const gguf *g, const char *name); /* NULL: none */

const char *gguf_type_name(gguf_type type); /* "Q4_1"; a type of an open file */
int32_t gguf_type_block(gguf_type type);    /* weights in a block; 1 for plain types */
int32_t gguf_type_bytes(gguf_type type);    /* of a block */

/* columns x rows, or a vector (rows 0), whatever extents of 1 the file adds or leaves out behind them. */
bool gguf_has_shape(const gguf_tensor *t, int64_t columns, int64_t rows);

bool gguf_has(const gguf *g, const char *key); /* of any kind */

/* Metadata. False when the key is missing or of another kind; integers of any width are converted when in
 * range. What is asked for as a kind that it is not, and never as one that it is, gguf_check_read tells of.
 */
bool gguf_get_u64(const gguf *g, const char *key, uint64_t *out);
bool gguf_get_i64(const gguf *g, const char *key, int64_t *out); /* beyond its range: INT64_MAX */
bool gguf_get_f64(const gguf *g, const char *key, double *out);  /* any number */
bool gguf_get_bool(const gguf *g, const char *key, bool *out);   /* or an integer, 0 or 1 */
bool gguf_get_string(const gguf *g, const char *key, gguf_string *out);
/* ERR_FORMAT names a key that was asked for, but is of another kind: nothing that a file says is passed over.
 * To be called once everything has been read. */
int gguf_check_read(const gguf *g, err *e);
/* Arrays: count, then elements by index (strings: O(1) through an index built at open). */
bool gguf_array_count(const gguf *g, const char *key, uint64_t *out);
bool gguf_array_string(const gguf *g, const char *key, uint64_t i, gguf_string *out);
bool gguf_array_f64(const gguf *g, const char *key, uint64_t i, double *out);
bool gguf_array_i64(const gguf *g, const char *key, uint64_t i, int64_t *out);

/* All elements of an array of u16 numbers, as they stand in the file. */
bool gguf_array_u16(const gguf *g, const char *key, const void **data, uint64_t *count);

/* Every key in turn, with its value as it stands in the file: the number of its kind, then the value. False:
 * i is past the last one. */
bool gguf_key_at(const gguf *g, size_t i, gguf_string *key, gguf_string *value);

/* A sample: metadata and tensor table, file size, and the first 4 KiB of every tensor. */
hash16 gguf_fingerprint(const gguf *g);
mapped_file gguf_file(const gguf *g); /* all of it, until close; for file_hash.h */
