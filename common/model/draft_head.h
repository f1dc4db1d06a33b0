/* draft_head.h - a draft head of the EAGLE-3 kind on a device: one layer that reads the embedding of a token
 * beside a state, and guesses the token that follows.
 *
 * A row of the head is a pair: a token, and the state that produced it. For a committed token at position p
 * that state is made of the target's features of position p - 1 (its taps there, side by side, or what fc
 * made of them at the target); for a guessed token it is the head's own output state of the row that guessed
 * it. The row's ranked tokens are guesses for position p + 1, in the target's ids, and its output state is
 * the input state of the rows of these guesses.
 *
 * Rows lie in a cache of one layer (kv_open with head_config.layer), and are appended, staged, grown,
 * committed and rolled back as a model's. A session may start cold at any position: the first row of its
 * sequence then is the token at position `shift`, and positions count from there (model_segment.shift). A row
 * sees the last `context` rows that the head was trained for. */
#pragma once

#include "common/file/head_file.h"
#include "common/model/head_rows.h"
#include "common/model/model.h"

typedef enum {
  DRAFT_HEAD_TAPS,  /* the target's states at head_config.taps, side by side: [tap_count * target_embed] */
  DRAFT_HEAD_STATES /* [embed]: taps to which the target has applied fc, or output states of the head */
} draft_head_input;

typedef struct draft_head_segment {
  /* seq, kind, count, tokens, parents, shift, ranking; all_logits or no_logits: which rows are ranked. No
   * sampling, no taps. */
  model_segment rows;
  draft_head_input input;
  const float *values; /* [rows.count] of the input's width */
} draft_head_segment;

typedef struct draft_head draft_head;

/* Packs the weights into the device's memory, in the types that `f` has them in (head_file_quantise). Both
 * files may be closed afterwards, but have to stay open where the head has a map of rows (head_file_map) and
 * `shares` names sequences; the device stays the caller's. `target` gives what the head lacks: the
 * tokens' embedding, the output matrix. `shares` says which rows of the output matrix a forward reads.
 * ERR_UNSUPPORTED, ERR_NOMEM, ERR_INTERNAL, ERR_DEVICE. */
int draft_head_open(draft_head **out, const head_file *f, const model_file *target, head_shares shares,
                    device *d, mem *m, err *e);
void draft_head_close(draft_head *h); /* NULL is allowed */
const head_config *draft_head_shape(const draft_head *h);
/* Bytes of its weights on the device, without the tokens' embedding. */
size_t draft_head_bytes(const draft_head *h);

/* Where sequences have rows of their own (head_rows.h): the tokens of the sequence's text, from the first one
 * on. Elsewhere it does nothing. */
void draft_head_clear_text(draft_head *h, int32_t seq);
void draft_head_add_text(draft_head *h, int32_t seq, const int32_t *tokens, int32_t count);

/* As model_forward, over a cache of the head's layer. */
int draft_head_forward(draft_head *h, kv_cache *k, const draft_head_segment *segments, int32_t count);
uint64_t draft_head_device_us(const draft_head *h); /* of the last forward */
bool draft_head_prepared(const draft_head *h);      /* as model_prepared */

/* Of a ranked row of the last forward, valid until the next one: its tokens, ids of the target, ... NULL: the
 * row was not ranked, or the device is lost. */
const ops_ranked *draft_head_ranked(const draft_head *h, int32_t segment, int32_t row);
void draft_head_rank_all(const draft_head *h); /* all of them at once, which takes less time */
/* ... and its output state, f32 [embed]. */
const float *draft_head_state(const draft_head *h, int32_t segment, int32_t row);
