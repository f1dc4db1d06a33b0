/* head_gguf.h - writes a draft head as the GGUF that llama.cpp reads (architecture eagle3). */
#pragma once

#include "common/file/head_file.h"

/* Tensors are written in the types that they have (vectors as F32), queries and keys in interleaved order,
 * and the target's tokenizer is copied, as llama.cpp needs it. ERR_UNSUPPORTED (a rotary scaling that the
 * format has no keys for), ERR_IO, ERR_NOMEM. */
int head_gguf_write(const head_file *h, const gguf *target, const char *path, err *e);
