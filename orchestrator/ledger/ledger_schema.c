#include "orchestrator/ledger/ledger_schema.h"

#include "orchestrator/ledger/ledger_error.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define OLD_VERSION 1 /* without checksums */

/* Tokens and prompts are int32_t in the machine's byte order. Times are microseconds since 1970. The table
 * `tokens` holds the output in pieces; the key of a piece is the position of its first token in the whole
 * sequence. After the session's end there is one piece. Behind the last piece is an empty one, so that no
 * piece can be missing unseen. `machine` is the host (owner_lock.h); `start` is not used any more.
 *
 * Every row has a checksum of its values (ledger_sum.h). Triggers keep those of rows that change in part. */
#define SESSION_SUMS(which) "UPDATE session SET " which " WHERE id = NEW.id; END"
#define CONTENT_SUM         "content_sum = ledger_sum(" LEDGER_SCHEMA_CONTENT ")"
#define STATE_SUM           "state_sum = ledger_sum(" LEDGER_SCHEMA_STATE ")"
#define PROCESS_SUM                                                                                          \
  "UPDATE orchestrator SET sum = ledger_sum(" LEDGER_SCHEMA_PROCESS ") WHERE id = NEW.id; END"

static const char *const tables[] = {
    "CREATE TABLE orchestrator(id INTEGER PRIMARY KEY, pid INTEGER NOT NULL, start INTEGER NOT NULL,"
    " machine TEXT NOT NULL, command TEXT NOT NULL, since INTEGER NOT NULL, beat INTEGER NOT NULL,"
    " sessions INTEGER NOT NULL DEFAULT 0, millitokens INTEGER NOT NULL DEFAULT 0, workers TEXT, sum BLOB)",
    "CREATE TABLE session(id INTEGER PRIMARY KEY, owner INTEGER, state INTEGER NOT NULL, finish INTEGER,"
    " epoch INTEGER NOT NULL, hash_seed INTEGER NOT NULL, model TEXT, fingerprint BLOB, numerics TEXT,"
    " created INTEGER NOT NULL, updated INTEGER NOT NULL, options TEXT, about TEXT, stats TEXT,"
    " content_sum BLOB, state_sum BLOB, prompt BLOB NOT NULL)",
    "CREATE INDEX session_by_owner ON session(owner) WHERE owner IS NOT NULL",
    "CREATE INDEX session_by_time ON session(created)",
    "CREATE TABLE tokens(session INTEGER NOT NULL, position INTEGER NOT NULL, ids BLOB NOT NULL, sum BLOB,"
    " PRIMARY KEY(session, position)) WITHOUT ROWID",
    "CREATE TRIGGER session_begins AFTER INSERT ON session BEGIN " SESSION_SUMS(CONTENT_SUM ", " STATE_SUM),
    "CREATE TRIGGER session_content AFTER UPDATE OF " LEDGER_SCHEMA_CONTENT
    " ON session BEGIN " SESSION_SUMS(CONTENT_SUM),
    "CREATE TRIGGER session_state AFTER UPDATE OF " LEDGER_SCHEMA_STATE
    " ON session BEGIN " SESSION_SUMS(STATE_SUM),
    "CREATE TRIGGER orchestrator_begins AFTER INSERT ON orchestrator BEGIN " PROCESS_SUM,
    "CREATE TRIGGER orchestrator_beats AFTER UPDATE OF " LEDGER_SCHEMA_PROCESS
    " ON orchestrator BEGIN " PROCESS_SUM,
};
enum { TABLE_COUNT = sizeof tables / sizeof *tables };

/* A ledger without checksums. Its rows get those that they have now. */
#define OLD_TABLE(name)                                                                                      \
  "CREATE TEMP TABLE old_" name " AS SELECT * FROM main." name "; DROP TABLE main." name ";"
#define SESSION_COLUMNS                                                                                      \
  "id, owner, state, finish, epoch, hash_seed, model, fingerprint, numerics, created, updated, options,"     \
  " about, stats, prompt"
static const char put_old_aside[] = OLD_TABLE("orchestrator") OLD_TABLE("session") OLD_TABLE("tokens");
static const char take_old_back[] =
    "INSERT INTO orchestrator(" LEDGER_SCHEMA_PROCESS ") SELECT " LEDGER_SCHEMA_PROCESS
    " FROM old_orchestrator;"
    "INSERT INTO session(" SESSION_COLUMNS ") SELECT " SESSION_COLUMNS " FROM old_session;"
    "INSERT INTO tokens SELECT session, position, ids, ledger_sum(session, position, ids) FROM old_tokens"
    " WHERE length(ids) > 0;"
    "INSERT INTO tokens SELECT id, at, x'', ledger_sum(id, at, x'') FROM"
    " (SELECT id, (length(prompt) + coalesce(bytes, 0)) / 4 AS at FROM old_session LEFT JOIN"
    " (SELECT session, sum(length(ids)) AS bytes FROM old_tokens GROUP BY session) ON session = id);"
    "DROP TABLE old_orchestrator; DROP TABLE old_session; DROP TABLE old_tokens;";

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
  int rc = SQLITE_OK;
  for (int i = 0; i < TABLE_COUNT && rc == SQLITE_OK; i++) rc = sqlite3_exec(db, tables[i], NULL, NULL, NULL);
  snprintf(text, sizeof text, "PRAGMA application_id = %d; PRAGMA user_version = %d",
           LEDGER_SCHEMA_APPLICATION, LEDGER_SCHEMA_VERSION);
  return rc ? rc : sqlite3_exec(db, text, NULL, NULL, NULL);
}

/* Two processes may come at once: the second one waits here, and looks again. */
static int begin_if(sqlite3 *db, const char *what, int64_t wanted, bool *begun) {
  int rc = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
  *begun = rc == SQLITE_OK && number_of(db, what, &rc) == wanted;
  return rc;
}

static int finish(sqlite3 *db, int rc) {
  if (rc == SQLITE_OK && !sqlite3_get_autocommit(db)) rc = sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
  if (!sqlite3_get_autocommit(db)) sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
  return rc;
}

int ledger_schema_create(sqlite3 *db) {
  int rc;
  bool begun;
  int64_t version = number_of(db, "PRAGMA user_version", &rc);
  if (rc || version != 0) return rc;
  rc = begin_if(db, "SELECT count(*) FROM sqlite_master", 0, &begun);
  if (begun) rc = make_tables(db);
  return finish(db, rc);
}

int ledger_schema_upgrade(sqlite3 *db) {
  int rc;
  bool begun;
  int64_t version = number_of(db, "PRAGMA user_version", &rc);
  if (rc || version != OLD_VERSION) return rc;
  if (number_of(db, "PRAGMA application_id", &rc) != LEDGER_SCHEMA_APPLICATION) return rc;
  rc = begin_if(db, "PRAGMA user_version", OLD_VERSION, &begun);
  if (begun) rc = sqlite3_exec(db, put_old_aside, NULL, NULL, NULL);
  if (begun && rc == SQLITE_OK) rc = make_tables(db);
  if (begun && rc == SQLITE_OK) rc = sqlite3_exec(db, take_old_back, NULL, NULL, NULL);
  return finish(db, rc);
}

static bool is_known(const char *sql) {
  for (int i = 0; i < TABLE_COUNT; i++)
    if (sql && strcmp(sql, tables[i]) == 0) return true;
  return false;
}

int ledger_schema_compare(sqlite3 *db, bool *same) {
  sqlite3_stmt *s = NULL;
  int known = 0, others = 0;
  int rc = sqlite3_prepare_v2(db, "SELECT sql FROM main.sqlite_master", -1, &s, NULL);
  while (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
    rc = SQLITE_OK;
    if (is_known((const char *)sqlite3_column_text(s, 0)))
      known++;
    else
      others++;
  }
  sqlite3_finalize(s);
  *same = rc == SQLITE_DONE && known == TABLE_COUNT && others == 0;
  return rc == SQLITE_DONE ? SQLITE_OK : rc;
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
  if (version == OLD_VERSION)
    return err_set(
        e, ERR_VERSION,
        "the ledger %.200s is of an older tandem and cannot be brought up to date: make it and its "
        "folder writable" LEDGER_ERROR_REMEDY,
        path);
  return version == LEDGER_SCHEMA_VERSION ? ERR_OK : ledger_error_set(SQLITE_CORRUPT, path, "", e);
}
