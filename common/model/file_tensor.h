/* file_tensor.h - the numbers of a model file's tensors, in the order in which the forward pass wants them.
 */
#pragma once

#include "common/file/model_file.h"

/* The tensor's data with each head's rows (of a vector: elements) in the order of interleaved rotary pairs,
 * where the file has it otherwise (half_split); else the file's own. *copy is to be freed. NULL: no memory.
 */
const void *file_tensor_ordered(const model_config *c, model_role role, const gguf_tensor *t, void **copy);

/* A vector of F32, F16 or BF16, in that order. False: no memory. */
bool file_tensor_floats(const model_config *c, model_role role, const gguf_tensor *t, float *out);
