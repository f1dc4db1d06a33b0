/* ledger_import.h - puts a whole session into the ledger's file: one that came as text from another ledger,
 * or one that was saved from a damaged file. */
#pragma once

#include "orchestrator/ledger/ledger_query.h"

typedef enum ledger_imported {
  LEDGER_IMPORT_NEW,
  LEDGER_IMPORT_SAME,
  LEDGER_IMPORT_REPLACED
} ledger_imported;

/* All or nothing, in one transaction. What is there already stays as it is if it is the same
 * (LEDGER_IMPORT_SAME). ERR_STATE: it differs, and `replace` is false; or it is being served. Others: as
 * ledger_change.h has them. */
int ledger_import(sqlite3 *db, const char *path, const ledger_session *s, bool replace, ledger_imported *how,
                  err *e);

/* Writes the rows of a session that is not there. Nobody serves it: one that runs is interrupted. Within the
 * caller's transaction. Returns SQLite's code. */
int ledger_import_write(sqlite3 *db, const ledger_session *s);
