/* model_segment.h - what a forward of a model is asked: rows of sequences, and what is wanted of them. */
#pragma once

#include "common/base/sampler.h"

#include <stdbool.h>
#include <stdint.h>

#define MODEL_ROWS_MAX 512 /* rows of one forward */

typedef enum {
  MODEL_APPEND, /* a chain behind the committed rows, where it is written and committed by the forward */
  MODEL_TREE    /* new staged rows, for which kv_stage or kv_grow was called with the same parents */
} model_kind;

/* How a row's token follows from its logits z. It is the id with the largest z * scale + noise, where the
 * noise is that of (seed, choice, position of the token, id) in common/base/noise.h; if scale is 0, it is the
 * id with the largest z. The lowest id wins ties. A NaN or -infinity is never chosen; if nothing else is
 * left, the token is 0. */
typedef struct model_sampling {
  float scale; /* 1 / temperature, or 0 */
  uint64_t seed;
  uint32_t choice;
} model_sampling;

typedef struct model_path {
  const int32_t *tokens;
  int32_t count;
} model_path;

/* How the best tokens of a segment's rows follow from their logits: as sampler_rank lists them
 * (common/base/sampler.h), for the position after each row's own. All tokens are those of model_set_ids. */
typedef struct model_ranking {
  sampler_options options;
  int32_t count;          /* tokens wanted, in [1, SAMPLER_RANKED_MAX] */
  const int32_t *history; /* [history_count] what a penalty looks at; NULL, 0: nothing */
  int32_t history_count;
  int32_t prompt_count;    /* so many of the history's first tokens are the prompt's */
  const model_path *paths; /* of each row with logits, in their order: what its history has after `history`;
                              NULL: nothing */
  const int32_t *bias_tokens; /* [bias_count] what is added to the logits of these */
  const float *bias_values;
  int32_t bias_count;
} model_ranking;

typedef struct model_segment { /* rows of one sequence */
  int32_t seq;
  model_kind kind;
  int32_t count;
  const int32_t *tokens;  /* [count] */
  const int32_t *parents; /* MODEL_TREE: [count], as for kv_stage or kv_grow; APPEND: NULL */
  bool all_logits; /* compute logits for every row; else for the last row only, as a prefill does, unless
                      no_logits */
  bool no_logits;
  /* At most one of them. Rows with logits do not keep them, but choose a token (model_sampled), or have their
   * best tokens ranked (model_ranked). */
  const model_sampling *sampling;
  const model_ranking *ranking;
  /* [tap_count] Taps: the states that enter these layers, [0, layers], the last of which is the state before
   * the final norm. They are kept for the rows from tap_first on (model_tapped). All segments of a forward
   * together have at most OPS_CAPTURES_MAX different ones. */
  const int32_t *taps;
  int32_t tap_count, tap_first;
  bool weighs;   /* what the blocks of its committed keys weigh for its first row (model_weigh, model_mass) */
  bool fused;    /* not the taps themselves, but the row that fc makes of them (model_fuse, model_fused) */
  int32_t shift; /* a row's token is at position `row of the sequence + shift` for choices and rankings */
  int32_t rope_shift; /* and at `row of the sequence + rope_shift` for its rotary position */
} model_segment;
