/* ledger_transaction.h - what one transaction of the ledger's writer does: for every session with news, its
 * beginning, its new tokens or its end; and the row of this process. */
#pragma once

#include "orchestrator/ledger/ledger_database.h"
#include "orchestrator/ledger/process_identity.h"
#include "wire/message.h"

#define LEDGER_STATS_MAX 256

/* What the file knows of one session, and what it does not know yet. */
typedef struct ledger_track {
  uint64_t session, hash_seed;
  int64_t created;
  int32_t prompt_length;
  char *options, *about; /* the writer's, from begin on */
  char numerics[WIRE_STRING_MAX + 1], stats[LEDGER_STATS_MAX];
  bool resumed, numerics_news, ended, forgotten;
  wire_finish finish;
  uint32_t epoch; /* to be recorded */
  /* In the file: */
  bool begun, end_written, lost; /* lost: another process has taken the session over */
  int32_t written;
  uint32_t epoch_written;
} ledger_track;

typedef struct ledger_job { /* a track as it was when the writer looked, and its new tokens: all where it
                             * begins or, from the prompt on, where its pieces become one */
  ledger_track at;
  int32_t from, count;
  size_t offset; /* of the tokens in the writer's buffer */
} ledger_job;

typedef struct ledger_heartbeat {
  bool due;
  int32_t sessions;
  int64_t millitokens; /* a second */
  char *workers;       /* JSON or NULL */
} ledger_heartbeat;

typedef struct ledger_process { /* who writes; strings are owned by whoever made it */
  uint64_t id;                  /* in the file */
  process_identity self;
  int64_t since;
  const char *command, *model;
  hash16 fingerprint;
} ledger_process;

typedef struct ledger_transaction ledger_transaction;

int ledger_transaction_open(ledger_transaction **out, sqlite3 *db,
                            const ledger_process *who); /* ERR_NOMEM; db: borrowed */
void ledger_transaction_close(ledger_transaction *w);   /* before the database; NULL is allowed */

/* Everything or nothing: SQLITE_OK or SQLite's code (sqlite3_errmsg tells more until ledger_transaction_undo,
 * which must follow). tokens: the buffer of the jobs. Sets `lost` in jobs whose session has another owner
 * now. */
int ledger_transaction_commit(ledger_transaction *w, ledger_job *jobs, int32_t count, const int32_t *tokens,
                              const ledger_heartbeat *heartbeat);
void ledger_transaction_undo(ledger_transaction *w);
