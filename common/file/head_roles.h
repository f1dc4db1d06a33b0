/* head_roles.h - the tensors of a draft head, and what they are called in each kind of file. */
#pragma once

#define HEAD_IDS_NAME "d2t" /* in all of them: the map from draft ids to the target's */
#define HEAD_MAP_NAME                                                                                        \
  "tandem.row_map" /* a key of a GGUF, because llama.cpp refuses tensors that it does not know */

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
