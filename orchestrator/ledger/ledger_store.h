/* ledger_store.h - what is in the ledger's file, for commands: sessions and orchestrators of any process, and
 * changes of sessions that nobody serves. Every call is one short transaction. */
#pragma once

#include "orchestrator/ledger/ledger_file.h"
#include "orchestrator/ledger/process_identity.h"
#include "wire/message.h"

typedef struct ledger_session { /* one session as it is in the file; not to be copied: options point into it
                                 */
  uint64_t id, hash_seed;
  ledger_state state; /* LEDGER_INTERRUPTED also where its orchestrator has died without a word */
  wire_finish finish; /* when it has ended */
  int64_t pid;        /* of the orchestrator, while it runs */
  uint32_t epoch;
  int64_t created, updated; /* wall clock, microseconds */
  int32_t *tokens;          /* [length]: prompt and output */
  int32_t length, prompt_length;
  msg_options options; /* stops: the array below */
  int32_t stops[WIRE_STOPS_MAX];
  char *model, *numerics, *about, *stats; /* NULL: unknown. about, stats: JSON */
  hash16 fingerprint;
} ledger_session;

void ledger_session_fini(ledger_session *s);

typedef struct ledger_line { /* of a list; strings until the next one */
  uint64_t id;
  ledger_state state;
  wire_finish finish;
  int64_t created, updated, prompt_length, output_length;
  const char *model, *about; /* NULL: unknown */
} ledger_line;

/* Newest first, at most `limit` (0: all); *total: how many there are. ERR_ codes with their remedy. */
int ledger_store_list(sqlite3 *db, const char *path, int32_t limit,
                      void (*each)(void *context, const ledger_line *l), void *context, int64_t *total,
                      err *e);
/* The session whose id begins with these hex digits. ERR_ARG: no digits, none or several. */
int ledger_store_find(sqlite3 *db, const char *path, const char *digits, uint64_t *id, err *e);
/* Everything of one session, checked. ERR_GONE, ERR_FORMAT, ERR_NOMEM, ... */
int ledger_store_load(sqlite3 *db, const char *path, uint64_t id, ledger_session *out, err *e);

/* These refuse a session that is being served (ERR_STATE: by whom). */
int ledger_store_rollback(sqlite3 *db, const char *path, uint64_t id, int32_t output_length, err *e);
int ledger_store_end(sqlite3 *db, const char *path, uint64_t id, wire_finish finish, err *e);
int ledger_store_delete(sqlite3 *db, const char *path, uint64_t id, err *e);
/* Ends what nobody serves and nothing has changed since `before` (wall clock), or forgets it, with those that
 * had ended; *count: how many. Once the dead are taken out (ledger_store_tidy). */
int ledger_store_end_old(sqlite3 *db, const char *path, int64_t before, bool forget, int64_t *count, err *e);
/* The orchestrator `owner` serves it from now on. ERR_STATE also when it was changed after `updated`. */
int ledger_store_claim(sqlite3 *db, const char *path, uint64_t id, int64_t updated, uint64_t owner, err *e);

typedef struct ledger_orchestrator { /* strings until the next one */
  uint64_t id;
  process_identity_process process;
  bool alive;
  int64_t since, beat, sessions, millitokens;
  const char *command, *workers; /* workers: JSON or NULL */
} ledger_orchestrator;

int ledger_store_orchestrators(sqlite3 *db, const char *path,
                               void (*each)(void *context, const ledger_orchestrator *o), void *context,
                               err *e);
/* Takes out the dead; what they served is interrupted. */
int ledger_store_tidy(sqlite3 *db, const char *path, err *e);
/* An orchestrator goes: what it has not ended is interrupted. Returns SQLite's code. */
int ledger_store_leave(sqlite3 *db, uint64_t owner);
