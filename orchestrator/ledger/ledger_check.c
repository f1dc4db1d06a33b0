#include "orchestrator/ledger/ledger_check.h"

#include "orchestrator/ledger/ledger_error.h"
#include "orchestrator/ledger/ledger_query.h"
#include <stdio.h>
#include <string.h>

#define TEXT_MAX     512
#define MESSAGES_MAX "20" /* of SQLite's own check */
#define REPAIR       "`tandem session repair' keeps what is whole"

typedef struct check {
  sqlite3 *db;
  const char *path;
  void (*each)(void *context, const ledger_damage *d);
  void *context;
  ledger_check_counts *counts;
  err *e;
} check;

static void tell(check *c, const char *part, uint64_t id, const char *text) {
  c->counts->damages++;
  c->each(c->context, &(ledger_damage){.part = part, .id = id, .text = text});
}

/* A file that cannot be read because of what is in it is damaged; any other failure ends the check. */
static int fail(check *c, const char *part) {
  err why = {0};
  int code = ledger_error_last(c->db, c->path, &why);
  if (code != ERR_FORMAT && sqlite3_errcode(c->db) != SQLITE_ERROR)
    return err_set(c->e, code, "%s", why.text);
  tell(c, part, 0, why.text);
  return ERR_OK;
}

/* Calls `row` for every row. */
static int rows(check *c, const char *part, const char *sql, void (*row)(check *c, sqlite3_stmt *s)) {
  sqlite3_stmt *s = NULL;
  int rc = sqlite3_prepare_v2(c->db, sql, -1, &s, NULL);
  while (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
    row(c, s);
    rc = SQLITE_OK;
  }
  int code = rc == SQLITE_DONE ? ERR_OK : fail(c, part);
  sqlite3_finalize(s);
  return code;
}

/* ---- the file ---- */

static void on_page_count(check *c, sqlite3_stmt *s) {
  c->counts->pages = sqlite3_column_int64(s, 0);
}

static void on_message(check *c, sqlite3_stmt *s) {
  const char *message = (const char *)sqlite3_column_text(s, 0);
  char text[TEXT_MAX];
  if (!message || strcmp(message, "ok") == 0) return;
  snprintf(text, sizeof text, "the file is damaged, says SQLite (%.300s): " REPAIR, message);
  tell(c, "file", 0, text);
}

static int check_tables(check *c) {
  bool same;
  if (ledger_schema_compare(c->db, &same)) return fail(c, "tables");
  if (!same)
    tell(c, "tables", 0, "its tables are not those of a ledger, or something else is among them: " REPAIR);
  return ERR_OK;
}

/* ---- its rows ---- */

static void on_session(check *c, sqlite3_stmt *s) {
  ledger_session session;
  err why = {0};
  uint64_t id = (uint64_t)sqlite3_column_int64(s, 0);
  c->counts->sessions++;
  if (ledger_query_load(c->db, c->path, id, &session, &why)) {
    tell(c, "session", id, why.text);
    return;
  }
  c->counts->tokens += session.length;
  ledger_session_fini(&session);
}

static void on_piece(check *c, sqlite3_stmt *s) {
  c->counts->pieces = sqlite3_column_int64(s, 0);
}

static void on_process_count(check *c, sqlite3_stmt *s) {
  c->counts->processes = sqlite3_column_int64(s, 0);
}

/* What must not be found; the first column is an id, the second says what is wrong with it. */
static const struct {
  const char *part, *sql;
} rules[] = {
    {"session", "SELECT id, 'has a state that there is not' FROM session WHERE state NOT IN (0, 1, 2)"},
    {"session", "SELECT id, 'has ended, and nothing says how' FROM session WHERE state = 1"
                " AND coalesce(finish, 0) NOT BETWEEN 1 AND 5"},
    {"session", "SELECT id, 'has not ended, and yet it says how' FROM session WHERE state <> 1"
                " AND finish IS NOT NULL"},
    {"session", "SELECT id, 'has an epoch bound that there is not' FROM session"
                " WHERE epoch NOT BETWEEN 1 AND 4294967295"},
    {"session",
     "SELECT id, 'is served by a process that is not in the ledger' FROM session WHERE owner IS NOT"
     " NULL AND owner NOT IN (SELECT id FROM orchestrator)"},
    {"session",
     "SELECT id, 'is served, but does not run' FROM session WHERE owner IS NOT NULL AND state <> 0"},
    {"session", "SELECT id, 'runs, but nobody serves it' FROM session WHERE owner IS NULL AND state = 0"},
    {"session", "SELECT DISTINCT session, 'has tokens, but its prompt is gone' FROM tokens"
                " WHERE session NOT IN (SELECT id FROM session)"},
    {"process", "SELECT id, 'has a wrong checksum' FROM orchestrator"
                " WHERE sum IS NOT ledger_sum(" LEDGER_SCHEMA_PROCESS ")"},
};
enum { RULES = sizeof rules / sizeof *rules };

static void on_breach(check *c, sqlite3_stmt *s, const char *part) {
  char text[TEXT_MAX];
  uint64_t id = (uint64_t)sqlite3_column_int64(s, 0);
  snprintf(text, sizeof text, "%s %016llx %s: " REPAIR, part, (unsigned long long)id,
           (const char *)sqlite3_column_text(s, 1));
  tell(c, part, id, text);
}

static void on_bad_session(check *c, sqlite3_stmt *s) {
  on_breach(c, s, "session");
}

static void on_bad_process(check *c, sqlite3_stmt *s) {
  on_breach(c, s, "process");
}

static int check_rules(check *c) {
  int code = ERR_OK;
  for (int i = 0; i < RULES && code == ERR_OK; i++)
    code = rows(c, rules[i].part, rules[i].sql, *rules[i].part == 's' ? on_bad_session : on_bad_process);
  return code;
}

/* All of it in one transaction, so that a ledger that is being written is seen as it is at one moment. */
int ledger_check(sqlite3 *db, const char *path, void (*each)(void *context, const ledger_damage *d),
                 void *context, ledger_check_counts *out, err *e) {
  check c = {.db = db, .path = path, .each = each, .context = context, .counts = out, .e = e};
  *out = (ledger_check_counts){0};
  int code = sqlite3_exec(db, "BEGIN", NULL, NULL, NULL) ? fail(&c, "file") : ERR_OK;
  if (code == ERR_OK) code = rows(&c, "file", "PRAGMA page_count", on_page_count);
  if (code == ERR_OK) code = rows(&c, "file", "PRAGMA integrity_check(" MESSAGES_MAX ")", on_message);
  if (code == ERR_OK) code = check_tables(&c);
  if (code == ERR_OK) code = rows(&c, "session", "SELECT id FROM session ORDER BY id", on_session);
  if (code == ERR_OK)
    code = rows(&c, "session", "SELECT count(*) FROM tokens WHERE length(ids) > 0", on_piece);
  if (code == ERR_OK) code = rows(&c, "process", "SELECT count(*) FROM orchestrator", on_process_count);
  if (code == ERR_OK) code = check_rules(&c);
  if (!sqlite3_get_autocommit(db)) sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
  return code;
}
