/* ledger_query.h - reads the ledger's file for commands: the sessions and the orchestrators of every process.
 * Each call is one short transaction. */
#pragma once

#include "orchestrator/ledger/ledger_database.h"
#include "orchestrator/ledger/ledger_schema.h"
#include "orchestrator/ledger/owner_lock.h"
#include "wire/message.h"

typedef struct ledger_session { /* one session of the file; not to be copied, because options point into it */
  uint64_t id, hash_seed;
  ledger_state state; /* LEDGER_INTERRUPTED also where its orchestrator has died silently */
  wire_finish finish; /* when it has ended */
  int64_t pid;        /* of the orchestrator, unless it is dead for certain */
  uint32_t epoch;
  int64_t created, updated; /* wall clock, microseconds */
  int32_t *tokens;          /* [length]: prompt and output */
  int32_t length, prompt_length;
  msg_options options; /* stops, bias and grammar: those below */
  int32_t stops[WIRE_STOPS_MAX];
  msg_bias bias;
  char *grammar;                          /* NULL: none */
  char *model, *numerics, *about, *stats; /* NULL: unknown. about, stats: JSON */
  hash16 fingerprint;
} ledger_session;

void ledger_session_fini(ledger_session *s);

typedef struct ledger_line { /* of a list; its strings are valid until the next one */
  uint64_t id;
  ledger_state state;
  wire_finish finish;
  int64_t created, updated, prompt_length, output_length;
  const char *model, *about; /* NULL: unknown */
} ledger_line;

typedef struct ledger_totals {
  int64_t listed;  /* if there were no limit */
  int64_t by_hand; /* those that a person has ended */
} ledger_totals;

/* Lists sessions, the newest first, at most `limit` (0: all); those that a person has ended only if `all`. */
int ledger_query_list(sqlite3 *db, const char *path, int32_t limit, bool all,
                      void (*each)(void *context, const ledger_line *l), void *context, ledger_totals *total,
                      err *e);
/* Finds the session whose id begins with these hex digits. ERR_ARG: no digits, no such session, or several.
 */
int ledger_query_find(sqlite3 *db, const char *path, const char *digits, uint64_t *id, err *e);
/* Reads and checks all of one session. ERR_GONE, ERR_FORMAT, ERR_NOMEM, ... */
int ledger_query_load(sqlite3 *db, const char *path, uint64_t id, ledger_session *out, err *e);
/* Reads a session of a damaged file: its prompt and as much of its output as checksums prove, from the
 * beginning. *whole: nothing is lost; else it is interrupted. ERR_GONE: there is no row of it; ERR_FORMAT:
 * its prompt or its options cannot be proven or read; ERR_NOMEM. */
int ledger_query_salvage(sqlite3 *db, uint64_t id, ledger_session *out, bool *whole, err *e);

typedef struct ledger_orchestrator { /* its strings are valid until the next one */
  uint64_t id;
  owner_state state;
  int64_t pid, since, heartbeat, sessions, millitokens;
  const char *command, *workers; /* workers: JSON or NULL */
} ledger_orchestrator;

int ledger_query_orchestrators(sqlite3 *db, const char *path,
                               void (*each)(void *context, const ledger_orchestrator *o), void *context,
                               err *e);
