/* model_file.h - a model on disk: a .gguf file, or a folder with config.json and safetensors; or one of
 * random weights, which is named instead (synthetic.h). Tensors are found by their role in the graph; their
 * names, shapes and types have been checked at open. */
#pragma once

#include "common/file/file_hash.h"
#include "common/file/model_config.h"

#define MODEL_STOPS_MAX 16

/* X(role, what it is called in a GGUF, in safetensors, columns, rows (NONE: a vector), when it is there).
 * Those of a layer come after "blk.N." and "model.layers.N.". */
#define MODEL_ROLES_OUTSIDE(X)                                                                               \
  X(EMBED, "token_embd.weight", "model.embed_tokens.weight", EMBED, VOCAB, ALWAYS)                           \
  X(OUTPUT_NORM, "output_norm.weight", "model.norm.weight", EMBED, NONE, ALWAYS)                             \
  X(OUTPUT, "output.weight", "lm_head.weight", EMBED, VOCAB, UNTIED)                                         \
  X(ROPE_FACTORS, "rope_freqs.weight", NULL, ROPE, NONE, OPTIONAL)
#define MODEL_ROLES_LAYER(X)                                                                                 \
  X(ATTN_NORM, "attn_norm.weight", "input_layernorm.weight", EMBED, NONE, ALWAYS)                            \
  X(Q, "attn_q.weight", "self_attn.q_proj.weight", EMBED, Q, ALWAYS)                                         \
  X(K, "attn_k.weight", "self_attn.k_proj.weight", EMBED, KV, ALWAYS)                                        \
  X(V, "attn_v.weight", "self_attn.v_proj.weight", EMBED, KV, ALWAYS)                                        \
  X(ATTN_OUTPUT, "attn_output.weight", "self_attn.o_proj.weight", Q, EMBED, ALWAYS)                          \
  X(FFN_NORM, "ffn_norm.weight", "post_attention_layernorm.weight", EMBED, NONE, ALWAYS)                     \
  X(GATE, "ffn_gate.weight", "mlp.gate_proj.weight", EMBED, FFN, ALWAYS)                                     \
  X(UP, "ffn_up.weight", "mlp.up_proj.weight", EMBED, FFN, ALWAYS)                                           \
  X(DOWN, "ffn_down.weight", "mlp.down_proj.weight", FFN, EMBED, ALWAYS)                                     \
  X(Q_BIAS, "attn_q.bias", "self_attn.q_proj.bias", Q, NONE, QKV_BIAS)                                       \
  X(K_BIAS, "attn_k.bias", "self_attn.k_proj.bias", KV, NONE, QKV_BIAS)                                      \
  X(V_BIAS, "attn_v.bias", "self_attn.v_proj.bias", KV, NONE, QKV_BIAS)                                      \
  X(OUTPUT_BIAS, "attn_output.bias", "self_attn.o_proj.bias", EMBED, NONE, OUTPUT_BIAS)                      \
  X(Q_NORM, "attn_q_norm.weight", "self_attn.q_norm.weight", HEAD, NONE, QK_NORM)                            \
  X(K_NORM, "attn_k_norm.weight", "self_attn.k_norm.weight", HEAD, NONE, QK_NORM)

typedef enum model_role {
#define MODEL_ROLE(role, gguf, safetensors, columns, rows, when) MODEL_##role,
  MODEL_ROLES_OUTSIDE(MODEL_ROLE) MODEL_ROLES_LAYER(MODEL_ROLE)
#undef MODEL_ROLE
      MODEL_ROLE_COUNT
} model_role;

typedef struct model_file model_file;

/* Opens, maps and checks everything: that each tensor which the graph needs is there with the right shape,
 * and none that it would leave out. ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED, ERR_LIMIT, ERR_NOMEM; *out NULL
 * then. */
int model_file_open(model_file **out, const char *path, err *e);
/* The same for programs that need no tensors, only the vocabulary. A GGUF with a vocabulary and no tensors is
 * accepted; of its configuration only `vocab` is set then. */
int model_file_open_text(model_file **out, const char *path, err *e);
/* A GGUF's bytes in memory that outlive it (tests). */
int model_file_open_memory(model_file **out, const void *data, size_t size, err *e);
void model_file_close(model_file *f); /* NULL is allowed */

const model_config *model_file_config(const model_file *f);
/* From now on the file is a model of its first `layers` layers, with the same norm and head behind them.
 * ERR_ARG: not in [1, layers]. */
int model_file_keep_layers(model_file *f, int32_t layers, err *e);
/* The tensor of a role, or NULL where the model has none (a bias, the output matrix of a tied model, ...).
 * `layer` counts only for the roles of a layer. Vectors are F32, F16 or BF16. Data may have any alignment. */
const gguf_tensor *model_file_tensor(const model_file *f, model_role role, int32_t layer);
/* A sample of the file, in no time. Two models with one fingerprint may answer differently. */
hash16 model_file_fingerprint(const model_file *f);
/* Which model it is, wherever two may differ: of a GGUF the hash of the file (file_hash.h); of a folder that
 * of its configuration and of the hashes of its tokenizer.json and of its tensors' files. False: programs do
 * not remember it, so that model_file_read_hash has to read the files. */
bool model_file_recall_hash(const model_file *f, hash16 *out);
/* The same at once, or in about two seconds for 10 GB that are in memory. False: *stop (NULL: none) was set
 * meanwhile. */
bool model_file_read_hash(const model_file *f, const atomic_bool *stop, hash16 *out);

/* Tokens that end a completion, at most MODEL_STOPS_MAX; returns how many. */
int32_t model_file_stops(const model_file *f, int32_t out[MODEL_STOPS_MAX]);
/* What a folder's JSON says of them that cannot be meant, a sentence for a warning; "": nothing. */
const char *model_file_doubt(const model_file *f);
/* Where the vocabulary is: a GGUF, or the path of a tokenizer.json. Both NULL: the model has none and takes
 * ids. */
const gguf *model_file_gguf(const model_file *f);
const char *model_file_tokenizer(const model_file *f);
/* Its vocabulary (vocabulary.h); count 0: it has none. For vocabulary_fini. */
struct vocabulary;
int model_file_read_vocabulary(const model_file *f, struct vocabulary *v, err *e);
/* Its vocabulary's hash (vocabulary.h); zero: no vocabulary. */
int model_file_vocabulary(const model_file *f, hash16 *out, err *e);
