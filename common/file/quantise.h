/* quantise.h - numbers into the form of a file's tensor type: rounded to the nearest, bit by bit as ggml's
 * reference quantises (ggml-quants.c), so that another program makes the same file. */
#pragma once

#include "common/file/gguf.h"

/* Can tensors be turned into this type: F32, F16, BF16, Q8_0, Q4_1? */
bool quantise_knows(gguf_type type);
/* Values in a block (1 for plain types), and bytes of `count` values, which are whole blocks. */
int32_t quantise_block(gguf_type type);
size_t quantise_bytes(gguf_type type, size_t count);
/* Turns finite values, whole blocks of them. False: a value, or a block's scale, is too large for an f16. */
bool quantise(gguf_type type, const float *values, size_t count, void *out);
