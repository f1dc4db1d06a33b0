/* model_config.h - the shape of a Llama-family model, checked: whoever holds one may allocate by it. */
#pragma once

#include "common/file/gguf.h"

#define MODEL_LAYERS_MAX  256
#define MODEL_EMBED_MAX   65536
#define MODEL_VOCAB_MAX   1048576
#define MODEL_CONTEXT_MAX 1048576

typedef struct model_config {
  int32_t layers, embed, heads, kv_heads, head_dim, ffn, vocab, context;
  int32_t rope_dim;
  float rope_base, norm_eps;
  bool tied; /* no output.weight: token_embd.weight is the output matrix */
} model_config;

/* kv_heads divides heads, heads * head_dim <= MODEL_EMBED_MAX, head_dim <= 512, rope_dim is even and <=
 * head_dim; norms are F32, vectors; every other tensor is a matrix [rows][columns] of any readable type.
 * ERR_FORMAT (missing or impossible value, tensor of another shape than they say), ERR_UNSUPPORTED (another
 * architecture, rope scaling, a tensor the graph does not use), ERR_LIMIT. Also checks that every tensor the
 * graph needs is there with the right shape. */
int model_config_read(model_config *c, const gguf *g, err *e);
