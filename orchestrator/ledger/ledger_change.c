#include "orchestrator/ledger/ledger_change.h"

#include "common/base/clock.h"
#include "orchestrator/ledger/ledger_error.h"
#include "orchestrator/ledger/ledger_owner.h"
#include "orchestrator/ledger/ledger_query.h"

/* Checks, in a transaction, that the session is there and nobody serves it. */
static int refuse_served(sqlite3_stmt *s, uint64_t id, err *e) {
  long long pid = (long long)sqlite3_column_int64(s, 1 + LEDGER_OWNER_PID);
  switch (ledger_owner_state(s, 1)) {
  case OWNER_DEAD:
    return ERR_OK;
  case OWNER_ALIVE:
    return err_set(e, ERR_STATE,
                   "session %016llx is being served by process %lld: wait for its end, or end it there",
                   (unsigned long long)id, pid);
  case OWNER_ELSEWHERE:
    break;
  }
  return err_set(
      e, ERR_STATE,
      "session %016llx is served by process %lld of another host, as far as can be known here: wait "
      "for its end, or, when that process is dead for certain, `tandem session release' it",
      (unsigned long long)id, pid);
}

static int check_free(sqlite3 *db, const char *path, uint64_t id, int64_t *updated, err *e) {
  sqlite3_stmt *s = NULL;
  int rc = SQLITE_DONE,
      code = ledger_database_prepare(
          &s, db, path, "SELECT s.updated, " LEDGER_OWNER_COLUMNS LEDGER_OWNER_JOIN "WHERE s.id = ?", e);
  if (code == ERR_OK) ledger_database_bind(s, "i", (int64_t)id);
  if (code == ERR_OK) rc = sqlite3_step(s);
  if (code == ERR_OK && rc == SQLITE_DONE)
    code = err_set(e, ERR_GONE, "session %016llx is not in the ledger any more", (unsigned long long)id);
  else if (code == ERR_OK && rc != SQLITE_ROW)
    code = ledger_error_last(db, path, e);
  else if (code == ERR_OK)
    code = refuse_served(s, id, e);
  if (code == ERR_OK) *updated = sqlite3_column_int64(s, 0);
  sqlite3_finalize(s);
  return code;
}

int ledger_change_begin(sqlite3 *db, const char *path, uint64_t id, int64_t *updated, err *e) {
  if (sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL)) return ledger_error_last(db, path, e);
  return check_free(db, path, id, updated, e);
}

int ledger_change_finish(sqlite3 *db, const char *path, int code, int sqlite, err *e) {
  if (code == ERR_OK && sqlite == SQLITE_OK) sqlite = sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
  if (code == ERR_OK && sqlite) code = ledger_error_last(db, path, e);
  if (!sqlite3_get_autocommit(db)) sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
  return code;
}

/* The piece that contains the new end is cut, those after it are deleted, and the empty one is put there. */
#define NEW_END "((SELECT length(prompt) / 4 FROM session WHERE id = ?1) + ?2)"
#define CUT_IDS "substr(ids, 1, 4 * (" NEW_END " - position))"
static const char *const rollback_steps[] = {
    "DELETE FROM tokens WHERE session = ?1 AND position >= " NEW_END,
    "UPDATE tokens SET ids = " CUT_IDS ", sum = ledger_sum(session, position, " CUT_IDS
    ") WHERE session = ?1 AND position + length(ids) / 4 > " NEW_END,
    "INSERT INTO tokens SELECT ?1, " NEW_END ", x'', ledger_sum(?1, " NEW_END ", x'')"};
enum { ROLLBACK_STEPS = sizeof rollback_steps / sizeof *rollback_steps };

/* Another process may have shortened it since its length was looked at. */
static int check_has(sqlite3 *db, const char *path, uint64_t id, int64_t output_length, err *e) {
  static const char sql[] =
      "SELECT 1 WHERE 4 * ?2 <= (SELECT total(length(ids)) FROM tokens WHERE session = ?1)";
  sqlite3_stmt *s = NULL;
  int rc = SQLITE_ROW, code = ledger_database_prepare(&s, db, path, sql, e);
  if (code == ERR_OK) ledger_database_bind(s, "ii", (int64_t)id, output_length);
  if (code == ERR_OK) rc = sqlite3_step(s);
  if (rc == SQLITE_DONE)
    code = err_set(e, ERR_STATE, "session %016llx was shortened by another process just now: try again",
                   (unsigned long long)id);
  else if (rc != SQLITE_ROW)
    code = ledger_error_last(db, path, e);
  sqlite3_finalize(s);
  return code;
}

int ledger_change_rollback(sqlite3 *db, const char *path, uint64_t id, int32_t output_length, err *e) {
  int64_t updated, key = (int64_t)id, keep = output_length;
  int sqlite = SQLITE_OK, code = ledger_change_begin(db, path, id, &updated, e);
  if (code == ERR_OK) code = check_has(db, path, id, keep, e);
  for (int i = 0; i < ROLLBACK_STEPS && code == ERR_OK && sqlite == SQLITE_OK; i++)
    sqlite = ledger_database_do(db, rollback_steps[i], "ii", key, keep);
  if (code == ERR_OK && sqlite == SQLITE_OK)
    sqlite = ledger_database_do(
        db,
        "UPDATE session SET state = ?, finish = NULL, stats = NULL, owner = NULL, updated = ? WHERE id = ?",
        "iii", (int64_t)LEDGER_INTERRUPTED, clock_wall_us(), key);
  return ledger_change_finish(db, path, code, sqlite, e);
}

#define RESUMABLE "finish NOT IN (1, 5)" /* of one that has ended: neither stopped nor ended by hand */

int ledger_change_end(sqlite3 *db, const char *path, uint64_t id, wire_finish finish, err *e) {
  int64_t updated;
  int sqlite = SQLITE_OK, code = ledger_change_begin(db, path, id, &updated, e);
  if (code == ERR_OK)
    sqlite = ledger_database_do(db,
                                "UPDATE session SET state = ?1, finish = ?2, owner = NULL, updated = ?3 "
                                "WHERE id = ?4 AND (state <> ?1 OR ?2 = 5 AND " RESUMABLE ")",
                                "iiii", (int64_t)LEDGER_ENDED, (int64_t)finish, clock_wall_us(), (int64_t)id);
  return ledger_change_finish(db, path, code, sqlite, e);
}

int ledger_change_delete(sqlite3 *db, const char *path, uint64_t id, err *e) {
  int64_t updated;
  int sqlite = SQLITE_OK, code = ledger_change_begin(db, path, id, &updated, e);
  if (code == ERR_OK)
    sqlite = ledger_database_do(db, "DELETE FROM tokens WHERE session = ?", "i", (int64_t)id);
  if (code == ERR_OK && sqlite == SQLITE_OK)
    sqlite = ledger_database_do(db, "DELETE FROM session WHERE id = ?", "i", (int64_t)id);
  return ledger_change_finish(db, path, code, sqlite, e);
}

#define OLD " WHERE updated < ?1 AND NOT EXISTS (SELECT 1 FROM orchestrator o WHERE o.id = session.owner)"

int ledger_change_end_old(sqlite3 *db, const char *path, int64_t before, bool forget, int64_t *count,
                          err *e) {
  int sqlite = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
  if (sqlite == SQLITE_OK && forget)
    sqlite = ledger_database_do(db, "DELETE FROM tokens WHERE session IN (SELECT id FROM session" OLD ")",
                                "i", before);
  if (sqlite == SQLITE_OK && forget)
    sqlite = ledger_database_do(db, "DELETE FROM session" OLD, "i", before);
  else if (sqlite == SQLITE_OK)
    sqlite =
        ledger_database_do(db,
                           "UPDATE session SET state = ?2, finish = ?3, owner = NULL, updated = ?4" OLD
                           " AND (state <> ?2 OR " RESUMABLE ")",
                           "iiii", before, (int64_t)LEDGER_ENDED, (int64_t)LEDGER_BY_HAND, clock_wall_us());
  *count = sqlite == SQLITE_OK ? sqlite3_changes(db) : 0;
  return ledger_change_finish(db, path, ERR_OK, sqlite, e);
}

int ledger_change_claim(sqlite3 *db, const char *path, uint64_t id, int64_t seen, uint64_t owner_id, err *e) {
  int64_t updated;
  int sqlite = SQLITE_OK, code = ledger_change_begin(db, path, id, &updated, e);
  if (code == ERR_OK && updated != seen)
    code = err_set(e, ERR_STATE, "session %016llx was changed by another process just now: try again",
                   (unsigned long long)id);
  if (code == ERR_OK)
    sqlite = ledger_database_do(
        db, "UPDATE session SET owner = ?, state = ?, finish = NULL, stats = NULL, updated = ? WHERE id = ?",
        "iiii", (int64_t)owner_id, (int64_t)LEDGER_RUNNING, clock_wall_us(), (int64_t)id);
  return ledger_change_finish(db, path, code, sqlite, e);
}

/* ---- orchestrators ---- */

static int interrupt_all(sqlite3 *db, uint64_t id, int64_t when) {
  int rc = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
  if (rc == SQLITE_OK)
    rc = ledger_database_do(db, "UPDATE session SET state = ?, owner = NULL, updated = ? WHERE owner = ?",
                            "iii", (int64_t)LEDGER_INTERRUPTED, when, (int64_t)id);
  if (rc == SQLITE_OK) rc = ledger_database_do(db, "DELETE FROM orchestrator WHERE id = ?", "i", (int64_t)id);
  if (rc == SQLITE_OK) rc = sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
  if (!sqlite3_get_autocommit(db)) sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
  return rc;
}

int ledger_change_leave(sqlite3 *db, uint64_t owner_id) {
  return interrupt_all(db, owner_id, clock_wall_us());
}

#define DEAD_MAX 256 /* removed at a time */
typedef struct dead {
  uint64_t ids[DEAD_MAX];
  int64_t heartbeats[DEAD_MAX];
  int count;
} dead;

static void note_dead(void *context, const ledger_orchestrator *o) {
  dead *d = context;
  if (o->state != OWNER_DEAD || d->count == DEAD_MAX) return;
  d->ids[d->count] = o->id;
  d->heartbeats[d->count++] = o->heartbeat;
}

/* The process of another host that serves the session, or 0: it is served here, or by nobody. */
static int find_elsewhere(sqlite3 *db, const char *path, uint64_t id, uint64_t *owner, err *e) {
  static const char sql[] = "SELECT " LEDGER_OWNER_COLUMNS LEDGER_OWNER_JOIN "WHERE s.id = ?";
  sqlite3_stmt *s = NULL;
  int code = ledger_database_prepare(&s, db, path, sql, e);
  if (code == ERR_OK) ledger_database_bind(s, "i", (int64_t)id);
  bool found = code == ERR_OK && sqlite3_step(s) == SQLITE_ROW;
  bool elsewhere = found && ledger_owner_state(s, 0) == OWNER_ELSEWHERE;
  *owner = elsewhere ? (uint64_t)sqlite3_column_int64(s, LEDGER_OWNER_ID) : 0;
  sqlite3_finalize(s);
  return code;
}

int ledger_change_release(sqlite3 *db, const char *path, uint64_t id, err *e) {
  uint64_t owner;
  int64_t updated;
  int code = find_elsewhere(db, path, id, &owner, e);
  if (code == ERR_OK && owner && interrupt_all(db, owner, clock_wall_us()))
    code = ledger_error_last(db, path, e);
  if (code) return code;
  code = ledger_change_begin(db, path, id, &updated, e); /* says who else serves it */
  return ledger_change_finish(db, path, code, SQLITE_OK, e);
}

int ledger_change_remove_dead(sqlite3 *db, const char *path, err *e) {
  dead d = {.count = 0};
  int code = ledger_query_orchestrators(db, path, note_dead, &d, e);
  for (int i = 0; i < d.count && code == ERR_OK; i++)
    if (interrupt_all(db, d.ids[i], d.heartbeats[i])) code = ledger_error_last(db, path, e);
  return code;
}
