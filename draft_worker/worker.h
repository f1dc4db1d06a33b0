/* worker.h - the draft's machine, sans-IO: it hands events to the files that handle them. The draft attaches
 * to sessions at targets, grows a tree for each, streams the nodes as they come and re-roots on TOKENS. It
 * never waits for anybody. */
#pragma once

#include "draft_worker/draft_options.h"
#include "draft_worker/draft_times.h"
#include "draft_worker/drafters/draft_batch.h"
#include "wire/machine.h"

typedef struct draft draft;

int draft_alloc(draft **out, const draft_options *o, err *e);
void draft_free(draft *d);
machine draft_machine(draft *d);
void draft_connect(draft *d, const char *endpoint, actions *out); /* to an orchestrator */
bool draft_drained(const draft *d);

/* The next batch of a drafter that computes batches; false: there is nothing to compute. At most one batch is
 * out at a time: call again after EVENT_RESULT, whose `result` is its draft_results. */
bool draft_next_batch(draft *d, draft_batch *b);

const draft_times *draft_count_times(const draft *d); /* for --counters */

/* For the simulation's oracle: digest of the live nodes of a session that is attached in this epoch, and the
 * length of its C; false: it is not. */
bool draft_digest(const draft *d, uint64_t session, uint32_t epoch, uint64_t *digest, int32_t *length);
