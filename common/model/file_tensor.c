#include "common/model/file_tensor.h"
#include "common/file/tensor_values.h"

#include <stdlib.h>
#include <string.h>

/* Where component i of a head stands in the file. */
static int32_t component_in_file(const model_config *c, int32_t i) {
  if (i >= c->rope_dim) return i;
  return i / 2 + (i % 2 ? c->rope_dim / 2 : 0);
}

/* Do the rows of this tensor, or its elements, become queries and keys whose pairs stand apart in the file?
 */
static bool is_out_of_order(const model_config *c, model_role role) {
  return c->half_split && (role == MODEL_Q || role == MODEL_K || role == MODEL_Q_BIAS ||
                           role == MODEL_K_BIAS || role == MODEL_Q_NORM || role == MODEL_K_NORM);
}

const void *file_tensor_ordered(const model_config *c, model_role role, const gguf_tensor *t, void **copy) {
  *copy = NULL;
  if (!is_out_of_order(c, role)) return t->data;
  size_t rows = t->dims == 1 ? (size_t)t->shape[0] : (size_t)t->shape[1], row_bytes = t->bytes / rows;
  uint8_t *ordered = malloc(t->bytes);
  for (size_t r = 0; ordered && r < rows; r++) {
    size_t i = r % (size_t)c->head_dim, from = r - i + (size_t)component_in_file(c, (int32_t)i);
    memcpy(ordered + r * row_bytes, (const uint8_t *)t->data + from * row_bytes, row_bytes);
  }
  return *copy = ordered;
}

bool file_tensor_floats(const model_config *c, model_role role, const gguf_tensor *t, float *out) {
  void *copy;
  const void *data = file_tensor_ordered(c, role, t, &copy);
  if (data) tensor_values(t->type, data, 0, (size_t)t->shape[0], out);
  free(copy);
  return data != NULL;
}
