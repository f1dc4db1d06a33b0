/* ledger_database.h - the ledger's database: where it is, how it is opened, what is in it, and its errors as
 * sentences that say what to do. SQLite in WAL mode; several processes use one file at once. Source:
 * sqlite.org/wal.html. */
#pragma once

#include "common/base/err.h"
#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

#define LEDGER_SCHEMA      1          /* user_version of the file */
#define LEDGER_APPLICATION 0x746e646d /* application_id: "tndm" */
#define LEDGER_BUSY_MS     2000       /* until a lock of another process counts as busy */
#define LEDGER_PATH_MAX    4096

typedef enum { LEDGER_RUNNING, LEDGER_ENDED, LEDGER_INTERRUPTED } ledger_state; /* session.state */

/* $XDG_STATE_HOME/tandem/ledger.sqlite, or in ~/.local/state. ERR_ARG: neither variable is set. */
int ledger_database_default_path(char out[LEDGER_PATH_MAX], err *e);

/* The folders (0700) that are missing on the way to a file. */
void ledger_database_make_folders(const char *path);

/* Makes the file and its folders where there is none, as below: true if this call did, and not another
 * process. */
bool ledger_database_make(const char *path);

/* Opens the file, `create`: makes it (0600) and its folders (0700). *out NULL on failure: ERR_GONE (it does
 * not exist), ERR_IO, ERR_FORMAT (damaged, or no ledger), ERR_VERSION (of a newer tandem), ERR_TIMEOUT
 * (locked), ERR_NOMEM. */
int ledger_database_open(sqlite3 **out, const char *path, bool create, err *e);
/* The last failure of this connection, with its remedy. */
int ledger_database_error(sqlite3 *db, const char *path, err *e);

/* *out is sqlite3_finalize's, NULL on failure; the errors are ledger_database_error's. */
int ledger_database_prepare(sqlite3_stmt **out, sqlite3 *db, const char *path, const char *sql, err *e);
/* Binds by kind: i int64_t, t text (NULL: NULL), b blob (const void *, size_t). Returns SQLite's code.
 * Borrowed until the statement is reset. */
int ledger_database_bind(sqlite3_stmt *s, const char *kinds, ...);
/* Prepares, binds, runs to the end: SQLITE_OK or SQLite's code. */
int ledger_database_do(sqlite3 *db, const char *sql, const char *kinds, ...);
