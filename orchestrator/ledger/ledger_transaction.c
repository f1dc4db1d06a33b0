#include "orchestrator/ledger/ledger_transaction.h"

#include "common/base/clock.h"
#include "common/base/err.h"
#include <stdlib.h>

#define STATEMENTS(X)                                                                                        \
  X(BEGIN, "BEGIN IMMEDIATE")                                                                                \
  X(COMMIT, "COMMIT")                                                                                        \
  X(SESSION,                                                                                                 \
    "INSERT INTO session(id, owner, state, epoch, hash_seed, model, fingerprint, numerics, created,"         \
    " updated, options, about, prompt) VALUES(?1, ?2, 0, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9, ?10, ?11)")         \
  /* The session was claimed before; or it has ended, nobody serves it, and its length is as expected. */    \
  X(RESUME, "UPDATE session SET owner = ?4, state = 0, finish = NULL, stats = NULL, epoch = ?1,"             \
            " options = coalesce(?2, options) WHERE id = ?3 AND (owner = ?4 OR owner IS NULL AND"            \
            " length(prompt) + (SELECT total(length(ids)) FROM tokens WHERE session = ?3) = ?5)")            \
  X(NOTE, "UPDATE session SET epoch = ?, numerics = coalesce(nullif(?, ''), numerics)"                       \
          " WHERE id = ? AND owner = ?")                                                                     \
  X(TOKENS, "INSERT INTO tokens SELECT ?1, ?2, ?3"                                                           \
            " WHERE EXISTS (SELECT 1 FROM session WHERE id = ?1 AND owner = ?4)")                            \
  X(END, "UPDATE session SET state = 1, finish = ?, stats = ?, epoch = ?, updated = ?, owner = NULL,"        \
         " numerics = coalesce(nullif(?, ''), numerics) WHERE id = ? AND owner = ?")                         \
  X(CLEAR, "DELETE FROM tokens WHERE session = ?")                                                           \
  X(WHOLE, "INSERT INTO tokens VALUES(?, ?, ?)")                                                             \
  X(HEARTBEAT, "INSERT INTO orchestrator VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(id) DO UPDATE SET" \
               " beat = excluded.beat, sessions = excluded.sessions, millitokens = excluded.millitokens,"    \
               " workers = excluded.workers")
#define STATEMENT_ENUM(name, sql) DO_##name,
#define STATEMENT_TEXT(name, sql) sql,
enum { STATEMENTS(STATEMENT_ENUM) STATEMENT_COUNT };
static const char *const statement_texts[] = {STATEMENTS(STATEMENT_TEXT)};

struct ledger_transaction {
  sqlite3 *db;
  ledger_process who;
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
                      EXECUTE(w, RESUME, "itiii", (int64_t)t->epoch, t->options, (int64_t)t->session,
                              (int64_t)w->who.id, (int64_t)t->written * (int64_t)sizeof *tokens));
  return EXECUTE(w, SESSION, "iiiitbtittb", (int64_t)t->session, (int64_t)w->who.id, (int64_t)t->epoch,
                 (int64_t)t->hash_seed, w->who.model, w->who.fingerprint.bytes,
                 sizeof w->who.fingerprint.bytes, t->numerics, t->created, t->options, t->about, tokens,
                 (size_t)t->prompt_length * sizeof *tokens);
}

/* The pieces of the output become one. */
static int write_end(ledger_transaction *w, ledger_job *j, const int32_t *output, size_t size) {
  const ledger_track *t = &j->at;
  int64_t id = (int64_t)t->session;
  int rc = EXECUTE(w, END, "itiitii", (int64_t)t->finish, t->stats[0] ? t->stats : NULL, (int64_t)t->epoch,
                   clock_wall_us(), t->numerics, id, (int64_t)w->who.id);
  if (note_owner(w, j, rc) || j->at.lost) return rc;
  rc = EXECUTE(w, CLEAR, "i", id);
  return rc || size == 0 ? rc : EXECUTE(w, WHOLE, "iib", id, (int64_t)t->prompt_length, output, size);
}

static int write_tokens(ledger_transaction *w, ledger_job *j, int32_t position, const int32_t *tokens,
                        size_t size) {
  int64_t id = (int64_t)j->at.session;
  if (size == 0) return SQLITE_OK;
  return note_owner(w, j,
                    EXECUTE(w, TOKENS, "iibi", id, (int64_t)position, tokens, size, (int64_t)w->who.id));
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
  return EXECUTE(w, HEARTBEAT, "iiittiiiit", (int64_t)p->id, p->self.pid, p->self.start, p->self.machine,
                 p->command, p->since, clock_wall_us(), (int64_t)heartbeat->sessions, heartbeat->millitokens,
                 heartbeat->workers);
}

int ledger_transaction_commit(ledger_transaction *w, ledger_job *jobs, int32_t count, const int32_t *tokens,
                              const ledger_heartbeat *heartbeat) {
  int rc = prepare(w, DO_BEGIN) ? sqlite3_errcode(w->db) : run(w->statements[DO_BEGIN]);
  for (int32_t i = 0; i < count && rc == SQLITE_OK; i++) rc = write_job(w, &jobs[i], tokens + jobs[i].offset);
  if (rc == SQLITE_OK && heartbeat->due) rc = write_heartbeat(w, heartbeat);
  if (rc == SQLITE_OK) rc = prepare(w, DO_COMMIT) ? sqlite3_errcode(w->db) : run(w->statements[DO_COMMIT]);
  return rc;
}

void ledger_transaction_undo(ledger_transaction *w) {
  if (!sqlite3_get_autocommit(w->db)) sqlite3_exec(w->db, "ROLLBACK", NULL, NULL, NULL);
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
