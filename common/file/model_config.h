/* model_config.h - the shape of a model of the Llama family, read from its file and checked, so that memory
 * may be allocated by it. One graph serves every architecture; this struct holds all their differences.
 *
 * From a GGUF: llama (Llama 1 to 3, Mistral), qwen2, qwen3. From config.json: llama, mistral, qwen2, qwen3,
 * as transformers writes it from version 5 on (rope_parameters) and before (rope_theta, rope_scaling). */
#pragma once

#include "common/file/config_source.h"

#define MODEL_LAYERS_MAX   256
#define MODEL_EMBED_MAX    65536
#define MODEL_HEAD_DIM_MAX 512
#define MODEL_VOCAB_MAX    1048576
#define MODEL_CONTEXT_MAX  1048576 /* of a session; a model that was made for more runs with so much */

typedef enum { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN } model_rope_kind;

/* How a longer context than the trained one changes the rotary frequencies (rope.h); nothing depends on the
 * present length. */
typedef struct model_rope_scaling {
  model_rope_kind kind;
  float factor;               /* but for PLAIN */
  float original;             /* LLAMA3, YARN: the trained context */
  float low, high;            /* LLAMA3: low_freq_factor < high_freq_factor */
  float beta_fast, beta_slow; /* YARN: turns within the trained context */
  float attention;            /* YARN: sines and cosines times this; 0: times what factor and mscale give */
  float mscale, mscale_all;   /* YARN, where attention is 0; 0: not given */
  float times;                /* of any kind: sines and cosines times this as well */
} model_rope_scaling;

typedef struct model_config {
  int32_t layers, embed, heads, kv_heads, head_dim, ffn, vocab, context;
  int32_t rope_dim;
  float rope_base, norm_eps;
  model_rope_scaling scaling;
  bool half_split; /* the file's rotary pairs are (i, i + rope_dim / 2), not (2 i, 2 i + 1) */
  bool qkv_bias, output_bias;
  bool qk_norm;                     /* queries and keys are normed, head by head, before they are rotated */
  bool tied;                        /* the embedding is the output matrix, where the file has no other */
  int32_t window[MODEL_LAYERS_MAX]; /* how many keys a query of the layer attends to, its own included; 0: all
                                       before it */
} model_config;

/* Reads and checks the configuration: kv_heads divides heads, heads * head_dim <= MODEL_EMBED_MAX, head_dim
 * <= MODEL_HEAD_DIM_MAX, rope_dim is even and <= head_dim. vocab is 0 where the keys do not give it. `tied`,
 * and for a GGUF qkv_bias and output_bias, follow from the tensors, so model_file.h sets them. ERR_FORMAT
 * (missing or impossible value), ERR_UNSUPPORTED (another architecture, a rotary scaling or another variation
 * that is not built here), ERR_LIMIT. */
int model_config_read(model_config *c, const config_source *s, err *e);
/* The same for the one layer of a draft head, which is a llama's whatever its architecture says. */
int model_config_read_head(model_config *c, const config_source *s, err *e);
