/* ledger_transaction.h - one transaction of the ledger's writer. It writes the beginning, the new tokens or
 * the end of every session with news, and the row of this process, which is its heartbeat. */
#pragma once

#include "orchestrator/ledger/ledger_database.h"
#include "orchestrator/ledger/owner_lock.h"
#include "wire/message.h"

#define LEDGER_STATS_MAX 256

/* What the file holds of one session, and what it does not hold yet. */
typedef struct ledger_track {
  uint64_t session, hash_seed;
  int64_t created;
  int32_t prompt_length;
  char *options, *about; /* owned by the track */
  char numerics[WIRE_STRING_MAX + 1], stats[LEDGER_STATS_MAX];
  bool resumed, numerics_news, ended, forgotten;
  wire_finish finish;
  uint32_t epoch; /* to be recorded */
  /* What is in the file: */
  bool begun, end_written, lost; /* lost: another process has taken the session over */
  int32_t written;
  uint32_t epoch_written;
} ledger_track;

typedef struct ledger_job { /* a copy of a track with its new tokens: all tokens if the session begins, the
                               whole output if its pieces are merged into one */
  ledger_track at;
  int32_t from, count;
  size_t offset; /* of its tokens among those of all jobs */
} ledger_job;

typedef struct ledger_heartbeat {
  bool due;
  int32_t sessions;
  int64_t millitokens; /* a second */
  char *workers;       /* JSON or NULL */
} ledger_heartbeat;

typedef struct ledger_process { /* this process; its strings are borrowed */
  uint64_t id;                  /* in the file */
  int64_t pid;
  char host[OWNER_LOCK_HOST_MAX];
  int64_t since;
  const char *command, *model;
  hash16 fingerprint;
} ledger_process;

typedef struct ledger_transaction ledger_transaction;

int ledger_transaction_open(ledger_transaction **out, sqlite3 *db,
                            const ledger_process *who); /* ERR_NOMEM; db: borrowed */
void ledger_transaction_close(ledger_transaction *w);   /* before the database; NULL is allowed */

/* Writes everything or nothing. Returns SQLITE_OK or SQLite's code; ledger_transaction_undo must follow a
 * failure, and sqlite3_errmsg explains it until then. tokens: those of all jobs. Sets `lost` in jobs whose
 * session belongs to another process by now. */
int ledger_transaction_commit(ledger_transaction *w, ledger_job *jobs, int32_t count, const int32_t *tokens,
                              const ledger_heartbeat *heartbeat);
void ledger_transaction_undo(ledger_transaction *w);
