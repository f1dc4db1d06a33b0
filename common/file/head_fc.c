#include "common/file/head_fc.h"
#include "common/file/tensor_values.h"

#include <stdlib.h>

static void add_norm(const head_file *f, float *values, hash_stream *s) {
  const gguf_tensor *t = head_file_tensor(f, HEAD_FC_NORM);
  float eps = head_file_config(f)->layer.norm_eps;
  if (!t) return;
  tensor_values(t->type, t->data, 0, (size_t)t->shape[0], values);
  hash_stream_add(s, values, (size_t)t->shape[0] * sizeof *values);
  hash_stream_add(s, &eps, sizeof eps);
}

hash16 head_fc_hash(const head_file *f) {
  const gguf_tensor *fc = head_file_tensor(f, HEAD_FC);
  size_t columns = (size_t)fc->shape[0];
  float *values = malloc(columns * sizeof *values);
  hash_stream *s = values ? hash_stream_alloc() : NULL;
  bool read = s != NULL;
  for (int64_t row = 0; read && row < fc->shape[1]; row++) {
    read = tensor_row(fc, row, values);
    if (read) hash_stream_add(s, values, columns * sizeof *values);
  }
  if (read) add_norm(f, values, s);
  hash16 name = s ? hash_stream_end(s) : (hash16){{0}};
  free(values);
  return read ? name : (hash16){{0}};
}
