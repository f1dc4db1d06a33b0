/* safetensors.h - the tensors of a folder in Hugging Face's form, mapped read-only: model.safetensors, or the
 * shards that model.safetensors.index.json names. Every offset, count and size is checked at open, so that
 * later reads need no check. Source: the format's description in the repository huggingface/safetensors
 * (README, "Format"). */
#pragma once

#include "common/file/gguf.h"

typedef struct safetensors safetensors;

/* ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED (a tensor type not built here: names it), ERR_LIMIT, ERR_NOMEM; *out
 * NULL then. */
int safetensors_open(safetensors **out, const char *folder, err *e);
/* One file's bytes in memory that outlive it (tests, fuzzing). */
int safetensors_open_memory(safetensors **out, const void *data, size_t size, err *e);
void safetensors_close(safetensors *s); /* NULL is allowed */

/* By name, as a GGUF's: shape[0] is the row, which this format names last; a number without a shape is a
 * vector of 1. */
int32_t safetensors_count(const safetensors *s);
const gguf_tensor *safetensors_at(const safetensors *s, int32_t i);
const gguf_tensor *safetensors_find(const safetensors *s, const char *name); /* NULL: none */

/* A sample: headers, sizes, and the first 4 KiB of every tensor. */
hash16 safetensors_fingerprint(const safetensors *s);
/* All bytes of each file, by name, until close; for file_hash.h. */
int32_t safetensors_file_count(const safetensors *s);
mapped_file safetensors_file(const safetensors *s, int32_t file);
