/* ledger_batch.h - what one transaction of the ledger's writer takes from the backlog, and what the backlog
 * learns when it is written or not. All calls are made under the backlog's lock. */
#pragma once

#include "common/base/log.h"
#include "orchestrator/ledger/ledger_backlog.h"

typedef struct ledger_batch { /* all zero before the first */
  ledger_job *jobs;           /* [job_count] */
  int32_t job_count, job_capacity;
  int32_t *tokens; /* [token_count], of all jobs */
  size_t token_count, token_capacity;
} ledger_batch;

/* Everything that is new; a session for which there is no memory is left for the next one. */
void ledger_batch_take(ledger_batch *x, ledger_backlog *b);
/* It is in the file, but for jobs that have `lost` by now. log: may be NULL. */
void ledger_batch_written(const ledger_batch *x, ledger_backlog *b, const logger *log);
/* Nothing of it may be believed to be in the file. False: so it was with the one before. */
bool ledger_batch_failed(ledger_backlog *b);
void ledger_batch_fini(ledger_batch *x);
