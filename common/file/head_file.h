/* head_file.h - a draft head on disk: a folder with config.json and safetensors in the EAGLE layout
 * (midlayer.*) or the speculators layout (layers.0.*, transformer_layer_config), or a GGUF of architecture
 * eagle3 as llama.cpp writes it. Tensors are found by their role; names, shapes, types and values have been
 * checked at open, against the file's own configuration and against the target. */
#pragma once

#include "common/file/head_config.h"

/* X(role, in a GGUF, in safetensors, columns, rows (NONE: a vector), when it is there). A name in safetensors
 * that begins with "*." comes after "midlayer." or "layers.0.". */
#define HEAD_ROLES(X)                                                                                        \
  X(FC_NORM, "enc.output_norm.weight", "input_norm.weight", TAPS, NONE, NORM_BEFORE_FC)                      \
  X(FC, "fc.weight", "fc.weight", TAPS, EMBED, ALWAYS)                                                       \
  X(EMBED_NORM, "blk.0.attn_norm.weight", "*.input_layernorm.weight", EMBED, NONE, ALWAYS)                   \
  X(STATE_NORM, "blk.0.attn_norm_2.weight", "*.hidden_norm.weight", EMBED, NONE, ALWAYS)                     \
  X(Q, "blk.0.attn_q.weight", "*.self_attn.q_proj.weight", BOTH, Q, ALWAYS)                                  \
  X(K, "blk.0.attn_k.weight", "*.self_attn.k_proj.weight", BOTH, KV, ALWAYS)                                 \
  X(V, "blk.0.attn_v.weight", "*.self_attn.v_proj.weight", BOTH, KV, ALWAYS)                                 \
  X(ATTN_OUTPUT, "blk.0.attn_output.weight", "*.self_attn.o_proj.weight", Q, EMBED, ALWAYS)                  \
  X(FFN_NORM, "blk.0.ffn_norm.weight", "*.post_attention_layernorm.weight", EMBED, NONE, ALWAYS)             \
  X(GATE, "blk.0.ffn_gate.weight", "*.mlp.gate_proj.weight", EMBED, FFN, ALWAYS)                             \
  X(UP, "blk.0.ffn_up.weight", "*.mlp.up_proj.weight", EMBED, FFN, ALWAYS)                                   \
  X(DOWN, "blk.0.ffn_down.weight", "*.mlp.down_proj.weight", FFN, EMBED, ALWAYS)                             \
  X(OUTPUT_NORM, "output_norm.weight", "norm.weight", EMBED, NONE, ALWAYS)                                   \
  X(OUTPUT, "output.weight", "lm_head.weight", EMBED, DRAFT_VOCAB, SHARED)                                   \
  X(EMBED, "token_embd.weight", "embed_tokens.weight", EMBED, VOCAB, SHARED)                                 \
  X(ROPE_FACTORS, "rope_freqs.weight", NULL, ROPE, NONE, OPTIONAL)

typedef enum head_role {
#define HEAD_ROLE(role, gguf, safetensors, columns, rows, when) HEAD_##role,
  HEAD_ROLES(HEAD_ROLE)
#undef HEAD_ROLE
      HEAD_ROLE_COUNT
} head_role;

typedef struct head_file head_file;

/* Opens, maps and checks everything. ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED, ERR_LIMIT, ERR_NOMEM; ERR_MISMATCH:
 * a head for another target. *out NULL then. */
int head_file_open(head_file **out, const char *path, const model_config *target, err *e);
/* A GGUF's bytes in memory that outlive it (tests, fuzzing). */
int head_file_open_memory(head_file **out, const void *data, size_t size, const model_config *target, err *e);
void head_file_close(head_file *f); /* NULL is allowed */

const head_config *head_file_config(const head_file *f);
/* NULL where the head has none: FC_NORM, ROPE_FACTORS; EMBED and OUTPUT where the target's own serve, whose
 * rows are as wide as the head's then. Vectors are F32, F16 or BF16. Data may have any alignment, and the
 * rows of Q and K stand in the order that layer.half_split tells. */
const gguf_tensor *head_file_tensor(const head_file *f, head_role role);
/* int32 [draft_vocab], all different: which token of the target each row of OUTPUT is. NULL: row i is token
 * i, and draft_vocab is the target's vocabulary. */
const int32_t *head_file_ids(const head_file *f);
/* Identity of what was read from disk. */
hash16 head_file_fingerprint(const head_file *f);
