/* worker.h - the draft's logic, sans-IO: it attaches to sessions at targets, grows a tree for each, streams
 * the nodes as they come and re-roots on TOKENS. It never waits for an answer. */
#pragma once

#include "draft_worker/drafters/model_batch.h"
#include "wire/machine.h"

#define DRAFT_SESSIONS_MAX DRAFTER_SLOTS_MAX
#define DRAFT_TARGETS_MAX  16
#define DRAFT_DESYNC_TRIES 10     /* DESYNC is repeated so often until OPEN */
#define DRAFT_REPEAT_US    300000 /* ATTACH, DESYNC */
#define DRAFT_IDLE_US      200000 /* an empty NODES names the base again */

typedef struct draft_options {
  wire_id incarnation;
  drafter drafters[DRAFTERS_MAX]; /* borrowed; HELLO names the method of the first */
  int32_t drafter_count;
  int32_t context;        /* tokens of the longest C */
  bool shorter;           /* a session may be longer than `context`: this draft helps as long as C fits */
  int32_t session_max;    /* <= DRAFT_SESSIONS_MAX, which 0 stands for */
  bool colocated;         /* in free pace it computes only while the target waits for it (pacing.h) */
  hash16 host;            /* as HELLO tells it */
  hash16 vocabulary_hash; /* of the ids that travel */
  int32_t vocabulary_size;
  const char *numerics_id; /* borrowed */
  const char *device;      /* that it computes on; borrowed */
} draft_options;

typedef struct draft draft;

int draft_alloc(draft **out, const draft_options *o, err *e);
void draft_free(draft *d);
machine draft_machine(draft *d);
void draft_connect(draft *d, const char *endpoint, actions *out); /* to an orchestrator */
bool draft_drained(const draft *d);

/* The next batch of a drafter that computes batches; false: there is nothing to compute. At most one batch is
 * out at a time: call again after EVENT_RESULT, whose `result` is its draft_results. */
bool draft_next_batch(draft *d, draft_batch *b);

/* For the simulation's oracle: digest of the live nodes of a session that is attached in this epoch, and the
 * length of its C; false: it is not. */
bool draft_digest(const draft *d, uint64_t session, uint32_t epoch, uint64_t *digest, int32_t *length);
