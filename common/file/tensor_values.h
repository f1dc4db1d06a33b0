/* tensor_values.h - the numbers of a tensor of a plain type: F32, F16 or BF16. */
#pragma once

#include "common/file/gguf.h"

bool tensor_is_plain(gguf_type type);
/* Elements [first, first + count); data may have any alignment. */
void tensor_values(gguf_type type, const void *data, size_t first, size_t count, float *out);
