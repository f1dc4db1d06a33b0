/* ledger_error.h - failures of the ledger's database as sentences that say what to do. */
#pragma once

#include "common/base/err.h"
#include <sqlite3.h>

#define LEDGER_ERROR_REMEDY "; name another with --ledger FILE, or go without: --ledger none"

/* sqlite: SQLite's code; why: its own words, which are used where no sentence of ours fits. Returns our code.
 */
int ledger_error_set(int sqlite, const char *path, const char *why, err *e);
/* The last failure of this connection. */
int ledger_error_last(sqlite3 *db, const char *path, err *e);
