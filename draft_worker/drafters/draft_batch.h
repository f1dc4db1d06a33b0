/* draft_batch.h - what a draft model computes in one forward: the tokens of C that it lacks, and then the
 * queries of several sessions. model_drafter.h fills a draft_batch and reads draft_results; the engine
 * (model_engine.h) computes them on a thread of its own, and tests put a toy in its place. */
#pragma once

#include "common/base/limit.h"
#include "common/base/sampler.h"
#include "draft_worker/drafters/drafter.h"

#define DRAFT_QUERIES_MAX LIMIT(32, 3) /* queries of a batch */
#define DRAFT_JOBS_MAX    LIMIT(16, 2) /* sessions of a batch */
#define DRAFT_CHUNK       128          /* tokens of C in a batch */

/* The part of one session: how C has changed, then the queries. */
typedef struct draft_job {
  int32_t slot; /* of the session, and of its sequence in the cache */
  /* C consists of its first `base` tokens, which were sent before, and the batch's tokens[first..first +
   * count) */
  int32_t base;
  int32_t first, count;
  int32_t first_query, query_count; /* query_count is 0 until all of C has been sent */
  bool whole;                       /* C ends with these tokens */
  sampler_options sampling;
  int32_t prompt_length;      /* of C: what is beyond it is output */
  const int32_t *bias_tokens; /* [bias_count] the drafter's until its next batch */
  const float *bias_values;
  int32_t bias_count;
  /* For a head: the features of positions [feature_base, feature_base + feature_count) of C, whose next
   * tokens have all been sent. Those before feature_base were sent, or are lost. */
  const float *features; /* [feature_count][feature_width], the drafter's until its next batch */
  int32_t feature_base, feature_count, feature_width;
  bool fused; /* as in drafter_features */
} draft_job;

typedef struct draft_batch {
  int32_t job_count, query_count, token_count, feature_count; /* of features at most DRAFT_CHUNK */
  draft_job jobs[DRAFT_JOBS_MAX];                             /* each of another slot */
  draft_query queries[DRAFT_QUERIES_MAX];                     /* those of a job stand together */
  int32_t tokens[DRAFT_CHUNK + DRAFT_JOBS_MAX];
} draft_batch;

/* The reply to one query. */
typedef struct draft_result {
  int32_t slot;
  uint64_t handle;
  int32_t count;                            /* 0: nothing may follow, or the path is not known */
  ranking_token list[DRAFT_CANDIDATES_MAX]; /* the best first, ranked as the target would choose */
} draft_result;

typedef struct draft_failure {
  int32_t slot;
  int code; /* as in a draft_reply */
} draft_failure;

typedef struct draft_results {
  int32_t result_count, failure_count;
  draft_result results[DRAFT_QUERIES_MAX];
  draft_failure failures[DRAFT_JOBS_MAX];
  uint64_t us; /* time of a forward of at most DRAFT_QUERIES_MAX rows; else 0 */
} draft_results;
