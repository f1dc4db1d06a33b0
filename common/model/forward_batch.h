/* forward_batch.h - segments become the batch of a forward: what a model and a draft head have in common. */
#pragma once

#include "common/model/kv_cache.h"
#include "common/model/model_segment.h"
#include "kernels/device.h"

typedef struct forward_batch {
  ops_row rows[MODEL_ROWS_MAX];
  ops_span spans[OPS_VIEWS_MAX][MODEL_ROWS_MAX]; /* one a row */
  int32_t span_first[MODEL_ROWS_MAX + 1];        /* 0, 1, 2, ... */
  int32_t head_rows[MODEL_ROWS_MAX]; /* rows with logits, then those that are ranked, then that choose */
  ops_sampling choices[MODEL_ROWS_MAX];
  ops_ranking rankings[MODEL_ROWS_MAX];
  int32_t capture_rows[MODEL_ROWS_MAX];
  int32_t *tokens;                 /* [token_room] of the rankings' histories; taken with the first penalty */
  int32_t *bias_tokens, bias_room; /* [bias_room]; taken with the first bias */
  float *bias_values;
  int32_t token_room;
  int32_t *paths; /* [MODEL_ROWS_MAX][KV_STAGE_MAX]; taken with the first tree */
  ops_batch plain;
  int32_t segment_count, segment_first[MODEL_ROWS_MAX + 1]; /* of each segment, its first row */
  int32_t head_line[MODEL_ROWS_MAX];                        /* where each row stands in head_rows, or -1 */
} forward_batch;

void forward_open(forward_batch *b); /* b is zeroed */
void forward_close(forward_batch *b);

/* Whether the segments may be computed, as model_forward says; tokens are in [0, vocab). */
int forward_check(const kv_cache *k, const model_segment *segments, int32_t count, int32_t vocab);
/* Room for paths and histories. ERR_NOMEM. */
int forward_reserve(forward_batch *b, const model_segment *segments, int32_t count, mem *m);
/* Everything but what is captured. View i shows a row the last windows[i] positions, or all of them. */
void forward_build(forward_batch *b, const kv_cache *k, const model_segment *segments, int32_t count,
                   const int32_t *windows, int32_t view_count);
/* begin, the ops, end and wait. ERR_NOMEM, ERR_INTERNAL, ERR_DEVICE. */
int forward_run(forward_batch *b, device *d, kv_cache *k, void (*ops)(void *context), void *context,
                ops_answer *answer);
/* The rows count from now on. */
void forward_done(forward_batch *b, kv_cache *k, const model_segment *segments, int32_t count);

/* The row of the batch, or -1: the last forward has no such row. */
int32_t forward_row(const forward_batch *b, int32_t segment, int32_t row);
/* As model_ranked and model_rank_all. */
const ops_ranked *forward_ranked(const forward_batch *b, device *d, int32_t segment, int32_t row);
void forward_rank_all(const forward_batch *b, device *d);
