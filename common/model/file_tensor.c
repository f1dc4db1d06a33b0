#include "common/model/file_tensor.h"
#include "common/file/rotary_rows.h"
#include "common/file/tensor_values.h"

#include <stdlib.h>

/* Do the rows of this tensor, or its elements, become queries and keys whose pairs stand apart in the file?
 */
static bool is_out_of_order(const model_config *c, model_role role) {
  return c->half_split && (role == MODEL_Q || role == MODEL_K || role == MODEL_Q_BIAS ||
                           role == MODEL_K_BIAS || role == MODEL_Q_NORM || role == MODEL_K_NORM);
}

const void *file_tensor_ordered(const model_config *c, model_role role, const gguf_tensor *t, void **copy) {
  *copy = NULL;
  if (!is_out_of_order(c, role)) return t->data;
  void *ordered = malloc(t->bytes);
  if (ordered) rotary_rows_interleave(c, t, ordered);
  return *copy = ordered;
}

bool file_tensor_floats(const model_config *c, model_role role, const gguf_tensor *t, float *out) {
  void *copy;
  const void *data = file_tensor_ordered(c, role, t, &copy);
  if (data) tensor_values(t->type, data, 0, (size_t)t->shape[0], out);
  free(copy);
  return data != NULL;
}
