#include "orchestrator/ledger/ledger_schema.h"

#include "orchestrator/ledger/ledger_error.h"
#include <stdint.h>
#include <stdio.h>

/* Tokens and prompts are int32_t in the machine's byte order. Times are microseconds since 1970. The table
 * `tokens` holds the output in pieces; the key of a piece is the position of its first token in the whole
 * sequence. After the session's end there is one piece. */
static const char tables[] =
    "CREATE TABLE orchestrator(id INTEGER PRIMARY KEY, pid INTEGER NOT NULL, start INTEGER NOT NULL,"
    " machine TEXT NOT NULL, command TEXT NOT NULL, since INTEGER NOT NULL, beat INTEGER NOT NULL,"
    " sessions INTEGER NOT NULL DEFAULT 0, millitokens INTEGER NOT NULL DEFAULT 0, workers TEXT);"
    "CREATE TABLE session(id INTEGER PRIMARY KEY, owner INTEGER, state INTEGER NOT NULL, finish INTEGER,"
    " epoch INTEGER NOT NULL, hash_seed INTEGER NOT NULL, model TEXT, fingerprint BLOB, numerics TEXT,"
    " created INTEGER NOT NULL, updated INTEGER NOT NULL, options TEXT, about TEXT, stats TEXT, prompt BLOB "
    "NOT NULL);"
    "CREATE INDEX session_by_owner ON session(owner) WHERE owner IS NOT NULL;"
    "CREATE INDEX session_by_time ON session(created);"
    "CREATE TABLE tokens(session INTEGER NOT NULL, position INTEGER NOT NULL, ids BLOB NOT NULL,"
    " PRIMARY KEY(session, position)) WITHOUT ROWID;";

static int64_t number_of(sqlite3 *db, const char *sql, int *rc) {
  sqlite3_stmt *s = NULL;
  int64_t n = -1;
  *rc = sqlite3_prepare_v2(db, sql, -1, &s, NULL);
  if (*rc == SQLITE_OK && (*rc = sqlite3_step(s)) == SQLITE_ROW) {
    n = sqlite3_column_int64(s, 0);
    *rc = SQLITE_OK;
  }
  sqlite3_finalize(s);
  return n;
}

static int make_tables(sqlite3 *db) {
  char text[160];
  int rc = sqlite3_exec(db, tables, NULL, NULL, NULL);
  snprintf(text, sizeof text, "PRAGMA application_id = %d; PRAGMA user_version = %d; COMMIT",
           LEDGER_SCHEMA_APPLICATION, LEDGER_SCHEMA_VERSION);
  return rc ? rc : sqlite3_exec(db, text, NULL, NULL, NULL);
}

int ledger_schema_create(sqlite3 *db) {
  int rc;
  int64_t version = number_of(db, "PRAGMA user_version", &rc);
  if (rc || version != 0) return rc;
  /* Two processes may find the file empty at once: the second one waits here, and looks again. */
  rc = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
  int64_t count = rc ? -1 : number_of(db, "SELECT count(*) FROM sqlite_master", &rc);
  if (rc == SQLITE_OK && count == 0) rc = make_tables(db);
  if (!sqlite3_get_autocommit(db)) sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
  return rc;
}

int ledger_schema_check(sqlite3 *db, const char *path, err *e) {
  int rc;
  int64_t application = number_of(db, "PRAGMA application_id", &rc);
  int64_t version = rc ? -1 : number_of(db, "PRAGMA user_version", &rc);
  if (rc) return ledger_error_last(db, path, e);
  if (application != LEDGER_SCHEMA_APPLICATION) return ledger_error_set(SQLITE_NOTADB, path, "", e);
  if (version > LEDGER_SCHEMA_VERSION)
    return err_set(e, ERR_VERSION,
                   "the ledger %.200s is of a newer tandem (version %lld, this one knows %d): update this "
                   "one" LEDGER_ERROR_REMEDY,
                   path, (long long)version, LEDGER_SCHEMA_VERSION);
  return version == LEDGER_SCHEMA_VERSION ? ERR_OK : ledger_error_set(SQLITE_CORRUPT, path, "", e);
}
