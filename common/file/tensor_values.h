/* tensor_values.h - the numbers of a tensor: those of a plain type (F32, F16, BF16) one by one, those of any
 * type as far as it takes to see whether they are numbers. */
#pragma once

#include "common/file/gguf.h"

bool tensor_is_plain(gguf_type type);
/* Elements [first, first + count); data may have any alignment. */
void tensor_values(gguf_type type, const void *data, size_t first, size_t count, float *out);
/* Is every value, or in blocks every scale, finite? Integers are. */
bool tensor_is_finite(const gguf_tensor *t);
