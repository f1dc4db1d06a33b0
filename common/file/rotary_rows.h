/* rotary_rows.h - puts the rows that become queries and keys from the order of half-split rotary pairs (i and
 * i + rope_dim / 2) into that of interleaved ones (2 i and 2 i + 1). */
#pragma once

#include "common/file/model_config.h"

/* The rows of a matrix, or the elements of a vector, head by head; out has room for t->bytes. */
void rotary_rows_interleave(const model_config *c, const gguf_tensor *t, void *out);
