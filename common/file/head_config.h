/* head_config.h - the shape of a draft head of the EAGLE-3 kind: one layer that reads the embedding of a
 * token beside fused states of the target (taps), and an output matrix over a part of the target's
 * vocabulary. It is read from its file, compared with the target, and checked, so that memory may be
 * allocated by it. */
#pragma once

#include "common/file/head_calibration.h"
#include "common/file/model_config.h"

#define HEAD_TAPS_MAX    8
#define HEAD_HORIZON_MAX 4096

typedef struct head_config {
  /* The one layer, as a layer of a llama; Q, K and V have 2 * embed columns. vocab is the target's, context
   * what the head was trained for, window[0] as of a model; rope_dim, half_split and scaling hold for its
   * queries and keys. */
  model_config layer;
  int32_t target_embed; /* width of the target's states */
  int32_t draft_vocab;  /* rows of the output matrix, <= layer.vocab */
  /* Ascending: the states that enter these layers of the target, counted from 0; its number of layers is the
   * last state, before the final norm. */
  int32_t taps[HEAD_TAPS_MAX], tap_count;
  bool norm_before_fc;          /* the states are normed, all as one vector, before fc */
  bool norm_before_residual;    /* the residual is the normed state, not the state itself */
  head_calibration calibration; /* of a GGUF alone */
  bool norm_output; /* what a row hands to its children is normed (output norm), not the raw state */
  int32_t horizon;  /* as the file says: see head_file_horizon; 0: it does not say */
} head_config;

/* Reads the metadata of a GGUF of architecture eagle3, or a config.json in the EAGLE or the speculators
 * layout, which is changed. draft_vocab is 0 where the file does not give it. What a config.json leaves to
 * the target is taken from it. ERR_FORMAT, ERR_UNSUPPORTED, ERR_LIMIT; ERR_MISMATCH: made for another target.
 */
int head_config_read_gguf(head_config *c, const gguf *g, const model_config *target, err *e);
int head_config_read_json(head_config *c, json_t *object, const model_config *target, err *e);

/* How many positions a row sees, its own included: its window, and never more than it was trained for. */
int32_t head_config_window(const head_config *c);
