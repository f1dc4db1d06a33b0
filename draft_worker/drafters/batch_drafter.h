/* batch_drafter.h - what drafters have in common whose queries an engine computes in batches: they gather the
 * queries of all sessions, with the tokens of C that the engine lacks, and turn the engine's values into
 * calibrated candidates. The functions are those of a drafter_kind; `self` begins with a batch_drafter. */
#pragma once

#include "draft_worker/drafters/calibration.h"
#include "draft_worker/drafters/draft_batch.h"

/* How such a drafter's replies are used (drafter_kind), if a node costs a row of a forward. */
#define BATCH_DRAFTER_AHEAD 1
#define BATCH_DRAFTER_HOPE  (-0.7f)
#define BATCH_DRAFTER_LEAST (-4.0f)

typedef struct batch_session {
  int32_t sent; /* tokens of C that batches have carried */
  int32_t job;  /* of batch number `batch` */
  uint64_t batch;
  bool lockstep;
  bool failed; /* until it is opened again */
  sampler_options sampling;
  int32_t prompt_length, bias_count;
} batch_session;

typedef struct batch_drafter {
  int32_t rows; /* queries of one batch at most, <= DRAFT_QUERIES_MAX */
  batch_session sessions[DRAFTER_SLOTS_MAX];
  msg_bias biases[DRAFTER_SLOTS_MAX];   /* of the sessions, */
  msg_bias job_biases[DRAFT_JOBS_MAX];  /* and as the last batch's jobs have them */
  calibration first, learnt;            /* as it began, for lockstep; as it is, from all sessions */
  int32_t positions[DRAFT_QUERIES_MAX]; /* of the tokens that the last batch's queries are about */
  draft_batch *batch;                   /* being gathered, or NULL */
  uint64_t batch_number;                /* of that one, or of the last one */
  const draft_results *results;         /* whose replies are being taken, or NULL */
  int32_t failures_taken, results_taken;
  bool lost;     /* the device: nothing is computed any more */
} batch_drafter; /* all zero but for `rows` and the calibrations at first */

/* measured: as in calibration_init. */
void batch_drafter_init(batch_drafter *d, int32_t rows, const float (*measured)[CALIBRATION_WEIGHTS]);

int batch_drafter_open(void *self, int32_t slot, const drafter_session *s);
void batch_drafter_close(void *self, int32_t slot);
void batch_drafter_observe(void *self, const draft_candidate *list, int32_t count, int32_t token);

void batch_drafter_begin(void *self, draft_batch *b);
bool batch_drafter_end(void *self);
/* The session's job in this batch; NULL: there is no room for one more. */
draft_job *batch_drafter_job(batch_drafter *d, int32_t slot);
/* Can nothing more be computed for the session? */
bool batch_drafter_failed(const batch_drafter *d, int32_t slot);
/* While a batch is gathered, sends as much of C as has not been sent and has room. */
int32_t batch_drafter_advance(void *self, int32_t slot, const prefix *committed);
/* While a batch is gathered, up to its rows; those of a session come one after the other. */
bool batch_drafter_submit(void *self, const draft_query *q);

uint64_t batch_drafter_done(void *self, const draft_results *r);
bool batch_drafter_take(void *self, draft_reply *out);
