/* rank.h - the best tokens of rows of logits, after a sampler's filters and penalties, on the device: the
 * list and bits of sampler_rank (common/base/sampler.h). */
#pragma once

#include "kernels/cuda/cuda_kernels.h"

/* One row: a sampler's options and what belongs to the row, as plain numbers. */
typedef struct cuda_ranking {
  int32_t line;  /* of logits */
  int32_t count; /* [1, SAMPLER_RANKED_MAX]: tokens wanted */
  float scale;   /* 1 / temperature; 0: no noise and no filters */
  int32_t top_k; /* 0: off */
  float top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
  uint32_t choice, position; /* position: of the token being chosen */
  uint64_t seed;
  ops_slice history[2]; /* of the tokens */
  int32_t prompt_count; /* as in ops_ranking */
  ops_slice own;        /* outputs, as in ops_ranking */
  ops_slice bias;
  int32_t mask; /* its first word; < 0: all tokens are allowed */
} cuda_ranking;

/* In device memory. */
typedef struct cuda_rank_batch {
  const cuda_ranking *rankings; /* [count] */
  int32_t count;
  const int32_t *tokens; /* of histories */
  const int32_t *bias_tokens;
  const float *bias_values;
  const uint32_t *masks; /* bit (t % 32) of word t / 32 set: t is allowed */
} cuda_rank_batch;

/* Logits [..][columns] of the tokens that the columns are (device_ids); `of` NULL: token t is column t. */
typedef struct cuda_rank_logits {
  const float *logits;
  int32_t columns, vocabulary, common;
  const int32_t *of;
} cuda_rank_logits;

PORTABLE_C_BEGIN

/* Bytes of scratch that cuda_rank needs for a bucket of rankings. */
size_t cuda_rank_bytes(int32_t bucket, int32_t vocabulary);

/* lists [bucket]; they may be host memory that the device can write. */
void cuda_rank(cudaStream_t stream, const cuda_rank_batch *batch, int32_t bucket, cuda_rank_logits logits,
               ops_ranked *lists, void *scratch);

PORTABLE_C_END
