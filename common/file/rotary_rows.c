#include "common/file/rotary_rows.h"

#include <string.h>

/* Where component i of a head stands in the file. */
static int32_t component_in_file(const model_config *c, int32_t i) {
  if (i >= c->rope_dim) return i;
  return i / 2 + (i % 2 ? c->rope_dim / 2 : 0);
}

void rotary_rows_interleave(const model_config *c, const gguf_tensor *t, void *out) {
  size_t rows = t->shape[1] == 1 ? (size_t)t->shape[0] : (size_t)t->shape[1], row_bytes = t->bytes / rows;
  for (size_t r = 0; r < rows; r++) {
    size_t i = r % (size_t)c->head_dim, from = r - i + (size_t)component_in_file(c, (int32_t)i);
    memcpy((uint8_t *)out + r * row_bytes, (const uint8_t *)t->data + from * row_bytes, row_bytes);
  }
}
