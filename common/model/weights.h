/* weights.h - the tensors of a model, packed for a device in the order in which a forward reads them. */
#pragma once

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/file/model_config.h"
#include "kernels/ops.h"

typedef struct layer_weights {
  const float *attn_norm, *ffn_norm; /* [embed] */
  ops_weight q, k, v;                /* [heads * head_dim][embed], [kv_heads * head_dim][embed] twice */
  ops_weight output;                 /* [embed][heads * head_dim] */
  ops_weight gate, up;               /* [ffn][embed] */
  ops_weight down;                   /* [embed][ffn] */
} layer_weights;

typedef struct weights {
  layer_weights *layers;
  const float *output_norm; /* [embed] */
  ops_weight head;          /* [vocab][embed] */
  ops_weight embed;         /* the same; the very same where the model is tied */
  void *data;               /* all packed tensors */
} weights;

typedef struct weights_progress {
  void (*call)(void *context, double done); /* [0, 1]; may be NULL */
  void *context;
} weights_progress;

/* ERR_NOMEM, ERR_UNSUPPORTED (a type that this device does not take); nothing is kept then. `c` was read from
 * `g`, which may be closed afterwards. */
int weights_load(weights *w, const gguf *g, const model_config *c, ops *device, weights_progress progress,
                 mem *m, err *e);
void weights_free(weights *w);
