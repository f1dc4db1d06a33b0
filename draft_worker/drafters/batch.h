/* batch.h - questions to a drafter that answers many at once: what may follow these paths, of several
 * sessions. The worker fills a draft_batch and gets draft_results; a model answers on a thread of its own
 * (engine.h), tests put a toy in its place. */
#pragma once

#include "common/base/err.h"
#include "common/speculative/sampler.h"
#include "common/speculative/tree.h"
#include "draft_worker/drafters/drafter.h"

#define DRAFT_PLACES_MAX 32  /* questions of a batch */
#define DRAFT_JOBS_MAX   16  /* sessions of a batch */
#define DRAFT_CHUNK      128 /* tokens of C that a batch tells */

/* What may follow C and the path? */
typedef struct draft_place {
  uint64_t serial; /* returned in the answer */
  int32_t depth;   /* of the path; 0: what follows C itself */
  int32_t path[TREE_DEPTH_MAX];
} draft_place;

/* Of one session: how C has changed, then the questions. */
typedef struct draft_job {
  int32_t slot; /* of the session's cache */
  int32_t
      base; /* C is its first `base` tokens as they were told, and the batch's tokens[first..first + count) */
  int32_t first, count;
  int32_t first_place, place_count; /* 0 as long as C has not been told whole */
  bool whole;                       /* C ends with these tokens */
  sampler_options sampling;
} draft_job;

typedef struct draft_batch {
  int32_t job_count, place_count, token_count;
  draft_job jobs[DRAFT_JOBS_MAX];       /* each of another slot */
  draft_place places[DRAFT_PLACES_MAX]; /* those of a job stand together */
  int32_t tokens[DRAFT_CHUNK + DRAFT_JOBS_MAX];
} draft_batch;

typedef struct draft_answer {
  int32_t slot;
  uint64_t serial;
  int32_t count;                               /* 0: nothing may follow, or the place is not known */
  sampler_ranked list[DRAFTER_CANDIDATES_MAX]; /* the best first, by what the target would choose by */
} draft_answer;

typedef struct draft_failure {
  int32_t slot;
  int code; /* ERR_MISMATCH: a token of C is none of the draft's; else: the model could not be run */
} draft_failure;

typedef struct draft_results {
  int32_t answer_count, failure_count;
  draft_answer answers[DRAFT_PLACES_MAX];
  draft_failure failures[DRAFT_JOBS_MAX];
  uint64_t us; /* of a forward without long texts; else 0 */
} draft_results;
