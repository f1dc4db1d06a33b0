/* tensor_values.h - the numbers of a tensor: those of a plain type (F32, F16, BF16) one by one, those of any
 * type as far as it takes to see whether they are numbers. */
#pragma once

#include "common/file/gguf.h"

bool tensor_is_plain(gguf_type type);
/* Elements [first, first + count); data may have any alignment. */
void tensor_values(gguf_type type, const void *data, size_t first, size_t count, float *out);
/* A row of a matrix. False: its type is not read here (F32, F16, BF16, Q4_0, Q4_1, Q8_0 and Q6_K are). */
bool tensor_row(const gguf_tensor *t, int64_t row, float *out);
/* Is every value, or in blocks every scale, finite? Integers are. */
bool tensor_is_finite(const gguf_tensor *t);
/* The same of a part of its data, in whole blocks. */
bool tensor_part_is_finite(gguf_type type, const void *data, size_t bytes);
