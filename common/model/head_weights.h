/* head_weights.h - the tensors of a draft head in a device's memory. */
#pragma once

#include "common/base/mem.h"
#include "common/file/head_file.h"
#include "common/file/model_file.h"
#include "kernels/device.h"

#define HEAD_MEMORY_MAX 32

/* q, k and v read a token's normed embedding beside a normed state: [0] has the columns of the embedding, [1]
 * those of the state. */
typedef struct head_weights {
  device_vector fc_norm; /* [tap_count * target_embed], or none */
  device_vector embed_norm, state_norm, ffn_norm, output_norm;
  device_weight fc, q[2], k[2], v[2], attn_output, gate, up, down, output, embed;
  device_rope rope;
  device_ids ids; /* token -> row of `output`, -1: it has none */
  device_memory *memory[HEAD_MEMORY_MAX];
  int32_t memory_count;
  size_t bytes; /* of the head's own matrices */
} head_weights;

/* ERR_NOMEM, ERR_UNSUPPORTED, ERR_FORMAT, ERR_INTERNAL, ERR_DEVICE: nothing is kept. Both files may be closed
 * afterwards. */
int head_weights_load(head_weights *w, const head_file *f, const model_file *target, device *d, err *e);
void head_weights_free(head_weights *w, device *d);
