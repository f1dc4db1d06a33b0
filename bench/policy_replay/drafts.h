/* drafts.h - drafts that know the recorded answer and are right as often as one asks for. */
#pragma once

#include "bench/policy_replay/recording.h"
#include "draft_worker/drafters/immediate.h"
#include "draft_worker/drafters/draft_batch.h"

typedef enum { RECORDED_NGRAM, RECORDED_REPLAY, RECORDED_MODEL, RECORDED_STEPS } recorded_kind;

typedef struct recorded_draft {
  recorded_kind kind;
  double right, later; /* how often it is right: at first, and after `change` tokens of the answer */
  int32_t change;
  double claims;  /* the probability that it names; below 0: as often as it is right at first */
  double forward; /* MODEL: of one row, in plain steps of the target */
  bool colocated; /* MODEL: on the target's processors: each slows the other */
} recorded_draft;

/* What the drafters share: whose answers are under way. */
typedef struct draft_context {
  const recorded_draft *draft;
  const recording *list; /* [count] */
  int32_t count;
  int32_t lengths[64];      /* MODEL: tokens of C that batches have brought for each slot */
  const recording *current; /* MODEL: the one that is under way */
} draft_context;

extern const immediate_kind recorded_replay; /* shared: draft_context */

/* What a forward of the model says. */
void recorded_compute(draft_context *x, const draft_batch *b, draft_results *r);
