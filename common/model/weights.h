/* weights.h - the tensors of a model in a device's memory, packed in the order in which a forward reads them.
 */
#pragma once

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/file/model_file.h"
#include "common/model/memory_needs.h"
#include "kernels/device.h"

typedef struct weights_layer {
  device_vector attn_norm, ffn_norm;                 /* [embed] */
  device_vector q_bias, k_bias, v_bias, output_bias; /* as long as the outputs; or none */
  device_vector q_norm, k_norm;                      /* [head_dim], or none */
  device_weight q, k, v;  /* [heads * head_dim][embed], [kv_heads * head_dim][embed] twice */
  device_weight output;   /* [embed][heads * head_dim] */
  device_weight gate, up; /* [ffn][embed] */
  device_weight down;     /* [embed][ffn] */
} weights_layer;

typedef struct weights {
  weights_layer *layers;
  device_vector output_norm; /* [embed] */
  device_weight head;        /* [vocab][embed] */
  device_weight embed;       /* [vocab][embed]; the same data as `head` if the model ties them */
  device_rope rope;
  device_memory *memory;      /* of all packed tensors */
  device_memory *frequencies; /* of rope */
  void *mapped;               /* a file's data from which the device serves, or NULL */
  size_t bytes;
} weights;

typedef struct weights_options {
  void (*progress)(void *context, double done); /* [0, 1]; may be NULL */
  void *progress_context;
  /* Folder where packed weights are kept from one start to the next (weights_cache.h), or NULL */
  const char *cache;
  const logger *log;  /* of the cache; may be NULL */
  memory_needs needs; /* of the device beside the weights, which are not loaded if there is no room for all */
} weights_options;

/* ERR_NOMEM, ERR_UNSUPPORTED (a type that this device does not take), ERR_FORMAT (rotary frequencies that no
 * model has), ERR_IO (the cache can be neither used nor written), ERR_INTERNAL and ERR_DEVICE (the device);
 * nothing is kept then. `f` may be closed afterwards. If the file's rotary pairs are halves of a head
 * (half_split), every tensor that makes queries and keys or is applied to them is put into interleaved order.
 */
int weights_load(weights *w, const model_file *f, device *d, const weights_options *o, mem *m, err *e);
void weights_free(weights *w, device *d);
/* The device's name of a file's type; false: it has none. */
bool weights_type(gguf_type type, ops_type *out);
