/* vocabulary.h - the identity of a GGUF's vocabulary: two programs agree on what a token id means when their
 * hashes are equal. */
#pragma once

#include "common/file/gguf.h"

/* XXH3_128 over every token in order: size of its spelling (u32, little-endian), its kind (one byte; 1, a
 * normal token, when the file names no kinds), its spelling. *out is zero when the file has no vocabulary.
 * ERR_FORMAT, ERR_NOMEM. */
int gguf_vocabulary_hash(const gguf *g, hash16 *out, err *e);
