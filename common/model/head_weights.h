/* head_weights.h - the tensors of a draft head in a device's memory. */
#pragma once

#include "common/base/mem.h"
#include "common/file/head_file.h"
#include "common/file/model_file.h"
#include "common/model/head_rows.h"
#include "kernels/device.h"

#define HEAD_MEMORY_MAX 32

/* q, k and v read a token's normed embedding beside a normed state: [0] has the columns of the embedding, [1]
 * those of the state. */
typedef struct head_weights {
  device_vector fc_norm; /* [tap_count * target_embed], or none */
  device_vector embed_norm, state_norm, ffn_norm, output_norm;
  device_weight fc, fc_parts[HEAD_TAPS_MAX]; /* the columns of one tap each, or none */
  device_weight q[2], k[2], v[2], attn_output, gate, up, down, output, embed;
  device_rope rope;
  device_ids ids; /* the target's token of each row of `output` */
  head_rows *own; /* those of single sequences, behind the common ones; NULL: all rows are common */
  ops_slice rest; /* and all the others, behind those of single sequences */
  device_memory *output_memory, *id_memory;
  device_memory *memory[HEAD_MEMORY_MAX];
  int32_t memory_count;
  size_t bytes; /* of the head's own matrices */
} head_weights;

/* ERR_NOMEM, ERR_UNSUPPORTED, ERR_FORMAT, ERR_INTERNAL, ERR_DEVICE: nothing is kept. Both files may be closed
 * afterwards, unless the head has a map of rows (head_file_map) and sequences have rows of their own. */
int head_weights_load(head_weights *w, const head_file *f, const model_file *target, head_shares shares,
                      device *d, err *e);
/* fc and the norm before it alone: nothing else is set. parts: fc_parts too, if a tap is whole blocks of its
 * type. */
int head_weights_load_fc(head_weights *w, const head_file *f, bool parts, device *d, err *e);
void head_weights_free(head_weights *w, device *d);
