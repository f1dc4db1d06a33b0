/* ledger_database.h - the file of the ledger: where it is, how it is made and opened, and how statements run.
 * It is an SQLite database in WAL mode, which several processes use at once. Source: sqlite.org/wal.html. */
#pragma once

#include "common/base/err.h"
#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

#define LEDGER_BUSY_MS   2000 /* after so long a lock of another process counts as busy */
#define LEDGER_PATH_MAX  4096
#define LEDGER_CACHE_KIB 256

/* $XDG_STATE_HOME/tandem/ledger.sqlite, or in ~/.local/state. ERR_ARG: neither variable is set. */
int ledger_database_default_path(char out[LEDGER_PATH_MAX], err *e);
/* Nothing that this program writes where a user says is written over it, or over a file that lies beside it
 * (output_file.h). */
void ledger_database_spare(const char *path);

/* Makes the file (0600) and its folders where there is none. True if this call made it, and not another
 * process. */
bool ledger_database_make(const char *path);

/* Opens the file; `create` makes it and its folders where there is none. *out is NULL on failure: ERR_GONE
 * (it does not exist), ERR_IO, ERR_FORMAT (it is damaged, or no ledger), ERR_VERSION (it is of a newer
 * tandem), ERR_TIMEOUT (it is locked), ERR_NOMEM. */
int ledger_database_open(sqlite3 **out, const char *path, bool create, err *e);

/* Keeps no more than LEDGER_CACHE_KIB of the file in memory: enough for who only adds to it. SQLite would
 * keep 2 MiB. */
int ledger_database_keep_little(sqlite3 *db, const char *path, err *e);

/* Every transaction is synced to the disk from now on. Otherwise a power cut may cost the last ones. */
int ledger_database_sync(sqlite3 *db, const char *path, err *e);

/* *out is for sqlite3_finalize, and NULL on failure; the errors are those of ledger_error_last. */
int ledger_database_prepare(sqlite3_stmt **out, sqlite3 *db, const char *path, const char *sql, err *e);
/* Binds by kind: i int64_t, t text (NULL: NULL), b blob (const void *, size_t). Values are borrowed until the
 * statement is reset. Returns SQLite's code. */
int ledger_database_bind(sqlite3_stmt *s, const char *kinds, ...);
/* Prepares, binds and runs to the end. Returns SQLITE_OK or SQLite's code. */
int ledger_database_do(sqlite3 *db, const char *sql, const char *kinds, ...);
