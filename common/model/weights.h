/* weights.h - the tensors of a model, packed for a device in the order in which a forward reads them. */
#pragma once

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/file/model_file.h"
#include "kernels/ops.h"

typedef struct weights_layer {
  const float *attn_norm, *ffn_norm;                   /* [embed] */
  const float *q_bias, *k_bias, *v_bias, *output_bias; /* as long as the outputs; or NULL */
  const float *q_norm, *k_norm;                        /* [head_dim], or NULL */
  ops_weight q, k, v;  /* [heads * head_dim][embed], [kv_heads * head_dim][embed] twice */
  ops_weight output;   /* [embed][heads * head_dim] */
  ops_weight gate, up; /* [ffn][embed] */
  ops_weight down;     /* [embed][ffn] */
} weights_layer;

typedef struct weights {
  weights_layer *layers;
  const float *output_norm;  /* [embed] */
  const float *rope_factors; /* [rope_dim / 2], or NULL */
  ops_weight head;           /* [vocab][embed] */
  ops_weight embed;          /* [vocab][embed]; the same data as `head` if the model ties them */
  void *data;                /* all packed tensors */
  size_t bytes;
  bool mapped; /* data is a file's, and read only */
} weights;

typedef struct weights_options {
  void (*progress)(void *context, double done); /* [0, 1]; may be NULL */
  void *progress_context;
  /* Folder where packed weights are kept from one start to the next (weights_cache.h), or NULL */
  const char *cache;
  const logger *log; /* of the cache; may be NULL */
} weights_options;

/* ERR_NOMEM, ERR_UNSUPPORTED (a type that this device does not take), ERR_IO (the cache can be neither used
 * nor written); nothing is kept then. `f` may be closed afterwards. If the file's rotary pairs are halves of
 * a head (half_split), every tensor that makes queries and keys or is applied to them is put into interleaved
 * order. */
int weights_load(weights *w, const model_file *f, ops *device, const weights_options *o, mem *m, err *e);
void weights_free(weights *w);
