#include "orchestrator/ledger/ledger_transaction.h"

#include "common/base/clock.h"
#include "common/base/err.h"
#include "orchestrator/ledger/ledger_schema.h"
#include <stdlib.h>

/* Each may be repeated: a COMMIT may report an error after it has committed, and then all of it comes again.
 * A session that has ended has no owner; it is still ours as long as nobody has recorded another epoch. */
#define STATEMENTS(X)                                                                                        \
  X(BEGIN, "BEGIN IMMEDIATE")                                                                                \
  X(COMMIT, "COMMIT")                                                                                        \
  X(SESSION,                                                                                                 \
    "INSERT INTO session(id, owner, state, epoch, hash_seed, model, fingerprint, numerics, created,"         \
    " updated, options, about, prompt) VALUES(?1, ?2, 0, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9, ?10, ?11)"          \
    " ON CONFLICT(id) DO UPDATE SET epoch = excluded.epoch, numerics = excluded.numerics"                    \
    " WHERE hash_seed = excluded.hash_seed AND (owner = excluded.owner OR owner IS NULL AND epoch = "        \
    "excluded.epoch)")                                                                                       \
  /* The session was claimed before; or this comes again, with its end; or it has ended, nobody serves it,   \
   * its length is as expected, and the epoch is none that another process would have recorded. */           \
  X(RESUME, "UPDATE session SET owner = ?4, state = 0, finish = NULL, stats = NULL, epoch = ?1,"             \
            " options = coalesce(?2, options) WHERE id = ?3 AND (owner = ?4 OR owner IS NULL AND epoch = "   \
            "?1 AND ?6 OR owner IS NULL AND epoch < ?1 AND"                                                  \
            " length(prompt) + (SELECT total(length(ids)) FROM tokens WHERE session = ?3) = ?5)")            \
  X(NOTE, "UPDATE session SET epoch = ?, numerics = coalesce(nullif(?, ''), numerics)"                       \
          " WHERE id = ? AND owner = ?")                                                                     \
  X(TOKENS, "INSERT OR REPLACE INTO tokens SELECT ?1, ?2, ?3, ledger_sum(?1, ?2, ?3)"                        \
            " WHERE EXISTS (SELECT 1 FROM session WHERE id = ?1 AND owner = ?4)")                            \
  X(END, "UPDATE session SET state = 1, finish = ?1, stats = ?2, epoch = ?3, updated = ?4, owner = NULL,"    \
         " numerics = coalesce(nullif(?5, ''), numerics) WHERE id = ?6"                                      \
         " AND (owner = ?7 OR owner IS NULL AND state = 1 AND epoch = ?3)")                                  \
  X(CLEAR, "DELETE FROM tokens WHERE session = ?")                                                           \
  X(WHOLE, "INSERT INTO tokens VALUES(?1, ?2, ?3, ledger_sum(?1, ?2, ?3))")                                  \
  X(CUT, "DELETE FROM tokens WHERE session = ? AND position > ?")                                            \
  X(LAST, "INSERT OR REPLACE INTO tokens VALUES(?1, ?2, x'', ledger_sum(?1, ?2, x''))")                      \
  X(HEARTBEAT, "INSERT INTO orchestrator(" LEDGER_SCHEMA_PROCESS                                             \
               ") VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(id) DO UPDATE SET"                        \
               " beat = excluded.beat, sessions = excluded.sessions, millitokens = excluded.millitokens,"    \
               " workers = excluded.workers")
#define STATEMENT_ENUM(name, sql) DO_##name,
#define STATEMENT_TEXT(name, sql) sql,
enum { STATEMENTS(STATEMENT_ENUM) STATEMENT_COUNT };
static const char *const statement_texts[] = {STATEMENTS(STATEMENT_TEXT)};

#define SYNCHRONOUS_FULL 2 /* as PRAGMA synchronous tells it */

struct ledger_transaction {
  sqlite3 *db;
  ledger_process who;
  bool relax; /* this transaction is synced, and others are not */
  sqlite3_stmt *statements[STATEMENT_COUNT];
};

/* SQLITE_OK or SQLite's code. */
static int run(sqlite3_stmt *s) {
  int rc = sqlite3_step(s);
  sqlite3_reset(s);
  return rc == SQLITE_DONE || rc == SQLITE_ROW ? SQLITE_OK : rc;
}

static int prepare(ledger_transaction *w, int which) {
  if (w->statements[which]) return SQLITE_OK;
  return sqlite3_prepare_v3(w->db, statement_texts[which], -1, SQLITE_PREPARE_PERSISTENT,
                            &w->statements[which], NULL);
}

#define EXECUTE(w, which, kinds, ...)                                                                        \
  (prepare(w, DO_##which) || ledger_database_bind((w)->statements[DO_##which], kinds, __VA_ARGS__)           \
       ? sqlite3_errcode((w)->db)                                                                            \
       : run((w)->statements[DO_##which]))

/* A statement that names the owner but changed no row shows that another process owns the session by now. */
static int note_owner(ledger_transaction *w, ledger_job *j, int rc) {
  if (rc == SQLITE_OK && sqlite3_changes(w->db) == 0) j->at.lost = true;
  return rc;
}

static int write_beginning(ledger_transaction *w, ledger_job *j, const int32_t *tokens) {
  const ledger_track *t = &j->at;
  if (t->resumed)
    return note_owner(w, j,
                      EXECUTE(w, RESUME, "itiiii", (int64_t)t->epoch, t->options, (int64_t)t->session,
                              (int64_t)w->who.id, (int64_t)t->written * (int64_t)sizeof *tokens,
                              (int64_t)t->ended));
  return note_owner(w, j,
                    EXECUTE(w, SESSION, "iiiitbtittb", (int64_t)t->session, (int64_t)w->who.id,
                            (int64_t)t->epoch, (int64_t)t->hash_seed, w->who.model, w->who.fingerprint.bytes,
                            sizeof w->who.fingerprint.bytes, t->numerics, t->created, t->options, t->about,
                            tokens, (size_t)t->prompt_length * sizeof *tokens));
}

/* The empty piece behind the last one, which may be at this position. */
static int write_last(ledger_transaction *w, uint64_t session, int32_t position, size_t size) {
  int64_t end = (int64_t)position + (int64_t)(size / sizeof(int32_t));
  return EXECUTE(w, LAST, "ii", (int64_t)session, end);
}

/* The pieces of the output become one. */
static int write_end(ledger_transaction *w, ledger_job *j, const int32_t *output, size_t size) {
  const ledger_track *t = &j->at;
  int64_t id = (int64_t)t->session;
  int rc = EXECUTE(w, END, "itiitii", (int64_t)t->finish, t->stats[0] ? t->stats : NULL, (int64_t)t->epoch,
                   clock_wall_us(), t->numerics, id, (int64_t)w->who.id);
  if (note_owner(w, j, rc) || j->at.lost) return rc;
  rc = EXECUTE(w, CLEAR, "i", id);
  if (rc == SQLITE_OK && size > 0) rc = EXECUTE(w, WHOLE, "iib", id, (int64_t)t->prompt_length, output, size);
  return rc ? rc : write_last(w, t->session, t->prompt_length, size);
}

/* A piece goes where the empty one was. What a transaction has left that failed only in name is cut. */
static int write_tokens(ledger_transaction *w, ledger_job *j, int32_t position, const int32_t *tokens,
                        size_t size) {
  int64_t id = (int64_t)j->at.session;
  bool begins = !j->at.begun && !j->at.resumed;
  if (size == 0) return begins && !j->at.lost ? write_last(w, j->at.session, position, 0) : SQLITE_OK;
  int rc =
      note_owner(w, j, EXECUTE(w, TOKENS, "iibi", id, (int64_t)position, tokens, size, (int64_t)w->who.id));
  if (rc || j->at.lost) return rc;
  rc = EXECUTE(w, CUT, "ii", id, (int64_t)position);
  return rc ? rc : write_last(w, j->at.session, position, size);
}

static int write_job(ledger_transaction *w, ledger_job *j, const int32_t *tokens) {
  const ledger_track *t = &j->at;
  int32_t skip = j->from < t->prompt_length ? t->prompt_length - j->from : 0;
  size_t size = (size_t)(j->count - skip) * sizeof *tokens;
  int rc = t->begun ? SQLITE_OK : write_beginning(w, j, tokens);
  bool in_file = t->begun || t->resumed;
  if (rc == SQLITE_OK && t->ended) return write_end(w, j, tokens + skip, size);
  if (rc == SQLITE_OK && in_file && (t->epoch > t->epoch_written || t->numerics_news))
    rc = note_owner(
        w, j,
        EXECUTE(w, NOTE, "itii", (int64_t)t->epoch, t->numerics, (int64_t)t->session, (int64_t)w->who.id));
  return rc || t->lost ? rc : write_tokens(w, j, j->from + skip, tokens + skip, size);
}

static int write_heartbeat(ledger_transaction *w, const ledger_heartbeat *heartbeat) {
  const ledger_process *p = &w->who;
  return EXECUTE(w, HEARTBEAT, "iiittiiiit", (int64_t)p->id, p->pid, INT64_C(0), p->host, p->command,
                 p->since, clock_wall_us(), (int64_t)heartbeat->sessions, heartbeat->millitokens,
                 heartbeat->workers);
}

/* ---- synced or not ---- */

/* A power cut must not take back that an epoch was recorded, because a target on another host may hold it by
 * then. A session that is new needs no sync: if its beginning is gone, nobody resumes it. */
static bool raises_epochs(const ledger_job *jobs, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    const ledger_track *t = &jobs[i].at;
    if ((t->begun || t->resumed) && !t->ended && t->epoch > t->epoch_written) return true;
  }
  return false;
}

static int synchronous_of(sqlite3 *db) {
  sqlite3_stmt *s = NULL;
  int level = SYNCHRONOUS_FULL;
  if (sqlite3_prepare_v2(db, "PRAGMA synchronous", -1, &s, NULL) == SQLITE_OK &&
      sqlite3_step(s) == SQLITE_ROW)
    level = sqlite3_column_int(s, 0);
  sqlite3_finalize(s);
  return level;
}

/* As it was before a transaction that had to be synced; not within one. */
static void relax(ledger_transaction *w) {
  if (w->relax) sqlite3_exec(w->db, "PRAGMA synchronous = NORMAL", NULL, NULL, NULL);
  w->relax = false;
}

static int commit_all(ledger_transaction *w, ledger_job *jobs, int32_t count, const int32_t *tokens,
                      const ledger_heartbeat *heartbeat) {
  int rc = prepare(w, DO_BEGIN) ? sqlite3_errcode(w->db) : run(w->statements[DO_BEGIN]);
  for (int32_t i = 0; i < count && rc == SQLITE_OK; i++) rc = write_job(w, &jobs[i], tokens + jobs[i].offset);
  if (rc == SQLITE_OK && heartbeat->due) rc = write_heartbeat(w, heartbeat);
  if (rc == SQLITE_OK) rc = prepare(w, DO_COMMIT) ? sqlite3_errcode(w->db) : run(w->statements[DO_COMMIT]);
  return rc;
}

int ledger_transaction_commit(ledger_transaction *w, ledger_job *jobs, int32_t count, const int32_t *tokens,
                              const ledger_heartbeat *heartbeat) {
  w->relax = raises_epochs(jobs, count) && synchronous_of(w->db) < SYNCHRONOUS_FULL;
  if (w->relax) sqlite3_exec(w->db, "PRAGMA synchronous = FULL", NULL, NULL, NULL);
  int rc = commit_all(w, jobs, count, tokens, heartbeat);
  if (rc == SQLITE_OK) relax(w);
  return rc;
}

void ledger_transaction_undo(ledger_transaction *w) {
  if (!sqlite3_get_autocommit(w->db)) sqlite3_exec(w->db, "ROLLBACK", NULL, NULL, NULL);
  relax(w);
}

int ledger_transaction_open(ledger_transaction **out, sqlite3 *db, const ledger_process *who) {
  ledger_transaction *w = *out = calloc(1, sizeof *w);
  if (!w) return ERR_NOMEM;
  w->db = db;
  w->who = *who;
  return ERR_OK;
}

void ledger_transaction_close(ledger_transaction *w) {
  if (!w) return;
  for (int i = 0; i < STATEMENT_COUNT; i++) sqlite3_finalize(w->statements[i]);
  free(w);
}
