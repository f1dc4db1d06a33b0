/* ledger_check.h - looks at all of a ledger's file: SQLite's own integrity check, the tables, and what must
 * hold of every session, piece of tokens and process. It changes nothing. */
#pragma once

#include "orchestrator/ledger/ledger_database.h"

typedef struct ledger_damage {
  const char *part; /* "file", "tables", "session", "process" */
  uint64_t id;      /* of the session or the process; 0: none */
  const char *text; /* a sentence: what is wrong, and what to do; valid for the call */
} ledger_damage;

typedef struct ledger_check_counts { /* of what was looked at */
  int64_t pages, sessions, pieces, tokens, processes, damages;
} ledger_check_counts;

/* Calls `each` for every damage. ERR_OK also where there is damage; ERR_TIMEOUT, ERR_IO, ERR_NOMEM: it could
 * not look. */
int ledger_check(sqlite3 *db, const char *path, void (*each)(void *context, const ledger_damage *d),
                 void *context, ledger_check_counts *out, err *e);
