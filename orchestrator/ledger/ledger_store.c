#include "orchestrator/ledger/ledger_store.h"

#include "orchestrator/ledger/ledger_options.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ID_DIGITS 16

#define WITH_OWNER    " FROM session s LEFT JOIN orchestrator o ON o.id = s.owner "
#define OWNER_COLUMNS "o.pid, o.start, o.machine, o.beat"
enum { OWNER_PID, OWNER_START, OWNER_MACHINE, OWNER_BEAT, OWNER_COUNT };

/* ---- small things ---- */

static const char *text_at(sqlite3_stmt *s, int column) {
  return (const char *)sqlite3_column_text(s, column);
}

static char *copy_at(sqlite3_stmt *s, int column) {
  const char *text = text_at(s, column);
  return text ? strdup(text) : NULL;
}

static int prepare(sqlite3 *db, const char *path, const char *sql, sqlite3_stmt **out, err *e) {
  return sqlite3_prepare_v2(db, sql, -1, out, NULL) ? ledger_file_error(db, path, e) : ERR_OK;
}

static process_identity_process owner_at(sqlite3_stmt *s, int first) {
  process_identity_process o = {.pid = sqlite3_column_int64(s, first + OWNER_PID),
                                .start = sqlite3_column_int64(s, first + OWNER_START)};
  const char *machine = text_at(s, first + OWNER_MACHINE);
  snprintf(o.machine, sizeof o.machine, "%s", machine ? machine : "");
  return o;
}

/* Is the process in these columns (all NULL: none) there? */
static bool is_served(sqlite3_stmt *s, int first) {
  if (sqlite3_column_type(s, first) == SQLITE_NULL) return false;
  process_identity_process o = owner_at(s, first);
  return process_identity_alive(&o, sqlite3_column_int64(s, first + OWNER_BEAT), wall_us());
}

static ledger_state state_of(int64_t state, bool served) {
  if (state == LEDGER_RUNNING && !served) return LEDGER_INTERRUPTED;
  return state == LEDGER_RUNNING || state == LEDGER_ENDED ? (ledger_state)state : LEDGER_INTERRUPTED;
}

/* ---- reading ---- */

int ledger_store_list(sqlite3 *db, const char *path, int32_t limit,
                      void (*each)(void *context, const ledger_line *l), void *context, int64_t *total,
                      err *e) {
  static const char sql[] =
      "SELECT s.id, s.state, s.finish, s.created, s.updated, length(s.prompt) / 4, s.model, s.about,"
      " (SELECT total(length(ids)) / 4 FROM tokens WHERE session = s.id), " OWNER_COLUMNS
      ", (SELECT count(*) FROM session)" WITH_OWNER "ORDER BY s.created DESC, s.id LIMIT ?";
  sqlite3_stmt *s = NULL;
  int code = prepare(db, path, sql, &s, e), rc = SQLITE_DONE;
  *total = 0;
  if (code == ERR_OK) ledger_file_bind(s, "i", limit ? (int64_t)limit : INT64_C(-1));
  while (code == ERR_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
    *total = sqlite3_column_int64(s, 9 + OWNER_COUNT);
    ledger_line line = {.id = (uint64_t)sqlite3_column_int64(s, 0),
                        .state = state_of(sqlite3_column_int64(s, 1), is_served(s, 9)),
                        .finish = (wire_finish)sqlite3_column_int(s, 2),
                        .created = sqlite3_column_int64(s, 3),
                        .updated = sqlite3_column_int64(s, 4),
                        .prompt_length = sqlite3_column_int64(s, 5),
                        .model = text_at(s, 6),
                        .about = text_at(s, 7),
                        .output_length = sqlite3_column_int64(s, 8)};
    each(context, &line);
  }
  if (code == ERR_OK && rc != SQLITE_DONE) code = ledger_file_error(db, path, e);
  sqlite3_finalize(s);
  return code;
}

/* As printed: 16 lower-case hex digits, of which the first ones will do. */
int ledger_store_find(sqlite3 *db, const char *path, const char *digits, uint64_t *id, err *e) {
  char pattern[ID_DIGITS + 1];
  size_t n = strlen(digits);
  for (size_t i = 0; i < n && i < ID_DIGITS; i++) pattern[i] = (char)tolower((unsigned char)digits[i]);
  pattern[n < ID_DIGITS ? n : ID_DIGITS] = 0;
  if (n < 1 || n > ID_DIGITS || strspn(pattern, "0123456789abcdef") != n)
    return err_set(e, ERR_ARG,
                   "'%.40s' is no session: an id has up to %d hex digits; `tandem session list' tells them",
                   digits, ID_DIGITS);
  sqlite3_stmt *s = NULL;
  int found = 0, rc = SQLITE_DONE;
  int code = prepare(db, path, "SELECT id FROM session WHERE substr(printf('%016x', id), 1, ?2) = ?1", &s, e);
  if (code == ERR_OK) ledger_file_bind(s, "ti", pattern, (int64_t)n);
  while (code == ERR_OK && (rc = sqlite3_step(s)) == SQLITE_ROW && ++found == 1)
    *id = (uint64_t)sqlite3_column_int64(s, 0);
  if (code == ERR_OK && rc != SQLITE_DONE && rc != SQLITE_ROW) code = ledger_file_error(db, path, e);
  sqlite3_finalize(s);
  if (code) return code;
  if (found == 0)
    return err_set(e, ERR_ARG, "no session begins with '%s': `tandem session list' tells them", pattern);
  return found == 1 ? ERR_OK
                    : err_set(e, ERR_ARG, "several sessions begin with '%s': give more digits", pattern);
}

void ledger_session_fini(ledger_session *s) {
  free(s->tokens);
  free(s->model);
  free(s->numerics);
  free(s->about);
  free(s->stats);
  *s = (ledger_session){0};
}

static int damaged(uint64_t id, const char *what, err *e) {
  return err_set(e, ERR_FORMAT,
                 "session %016llx is damaged in the ledger (%s): `tandem session end --delete' forgets it",
                 (unsigned long long)id, what);
}

static int add_tokens(ledger_session *out, const void *data, int size, err *e) {
  int32_t count = size / (int)sizeof(int32_t);
  if (size % (int)sizeof(int32_t) != 0 || count > WIRE_CONTEXT_MAX - out->length)
    return damaged(out->id, "tokens", e);
  int32_t *more = realloc(out->tokens, (size_t)(out->length + count + 1) * sizeof *more);
  if (!more) return err_set(e, ERR_NOMEM, "out of memory");
  out->tokens = more;
  if (count > 0) memcpy(more + out->length, data, (size_t)count * sizeof *more);
  for (int32_t i = 0; i < count; i++)
    if (more[out->length + i] < 0) return damaged(out->id, "a token below 0", e);
  out->length += count;
  return ERR_OK;
}

static int load_row(sqlite3_stmt *s, ledger_session *out, err *e) {
  out->id = (uint64_t)sqlite3_column_int64(s, 0);
  out->hash_seed = (uint64_t)sqlite3_column_int64(s, 1);
  bool served = is_served(s, 14);
  out->state = state_of(sqlite3_column_int64(s, 2), served);
  out->pid = served ? sqlite3_column_int64(s, 14 + OWNER_PID) : 0;
  out->finish = (wire_finish)sqlite3_column_int(s, 3);
  out->epoch = (uint32_t)sqlite3_column_int64(s, 4);
  out->created = sqlite3_column_int64(s, 5);
  out->updated = sqlite3_column_int64(s, 6);
  out->model = copy_at(s, 7);
  out->numerics = copy_at(s, 8);
  out->about = copy_at(s, 9);
  out->stats = copy_at(s, 10);
  const void *fingerprint = sqlite3_column_blob(s, 11);
  if (sqlite3_column_bytes(s, 11) == sizeof out->fingerprint)
    memcpy(&out->fingerprint, fingerprint, sizeof out->fingerprint);
  err why = {0};
  if (ledger_options_read(text_at(s, 12), &out->options, out->stops, &why))
    return damaged(out->id, why.text, e);
  const void *prompt = sqlite3_column_blob(s, 13);
  int rc = add_tokens(out, prompt, sqlite3_column_bytes(s, 13), e);
  out->prompt_length = out->length;
  return rc == ERR_OK && out->length < 1 ? damaged(out->id, "no prompt", e) : rc;
}

static int load_tokens(sqlite3 *db, const char *path, ledger_session *out, err *e) {
  sqlite3_stmt *s = NULL;
  int rc = SQLITE_DONE,
      code = prepare(db, path, "SELECT position, ids FROM tokens WHERE session = ? ORDER BY position", &s, e);
  if (code == ERR_OK) ledger_file_bind(s, "i", (int64_t)out->id);
  while (code == ERR_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
    const void *data = sqlite3_column_blob(s, 1);
    if (sqlite3_column_int64(s, 0) != out->length)
      code = damaged(out->id, "a gap", e);
    else
      code = add_tokens(out, data, sqlite3_column_bytes(s, 1), e);
  }
  if (code == ERR_OK && rc != SQLITE_DONE) code = ledger_file_error(db, path, e);
  sqlite3_finalize(s);
  return code;
}

static int load(sqlite3 *db, const char *path, uint64_t id, ledger_session *out, err *e) {
  static const char sql[] = "SELECT s.id, s.hash_seed, s.state, s.finish, s.epoch, s.created, s.updated, "
                            "s.model, s.numerics, s.about, s.stats,"
                            " s.fingerprint, s.options, s.prompt, " OWNER_COLUMNS WITH_OWNER "WHERE s.id = ?";
  sqlite3_stmt *s = NULL;
  int rc = SQLITE_DONE, code = prepare(db, path, sql, &s, e);
  if (code == ERR_OK) ledger_file_bind(s, "i", (int64_t)id);
  if (code == ERR_OK) rc = sqlite3_step(s);
  if (rc == SQLITE_ROW)
    code = load_row(s, out, e);
  else if (code == ERR_OK && rc == SQLITE_DONE)
    code = err_set(e, ERR_GONE, "session %016llx is not in the ledger any more", (unsigned long long)id);
  else if (code == ERR_OK)
    code = ledger_file_error(db, path, e);
  sqlite3_finalize(s);
  return code ? code : load_tokens(db, path, out, e);
}

/* Both tables as they are at one moment. */
int ledger_store_load(sqlite3 *db, const char *path, uint64_t id, ledger_session *out, err *e) {
  *out = (ledger_session){0};
  sqlite3_exec(db, "BEGIN", NULL, NULL, NULL);
  int code = load(db, path, id, out, e);
  sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
  if (code) ledger_session_fini(out);
  return code;
}

/* ---- changes ---- */

/* In a transaction: that the session is there and nobody serves it. */
static int check_free(sqlite3 *db, const char *path, uint64_t id, int64_t *updated, err *e) {
  sqlite3_stmt *s = NULL;
  int rc = SQLITE_DONE,
      code = prepare(db, path, "SELECT s.updated, " OWNER_COLUMNS WITH_OWNER "WHERE s.id = ?", &s, e);
  if (code == ERR_OK) ledger_file_bind(s, "i", (int64_t)id);
  if (code == ERR_OK) rc = sqlite3_step(s);
  if (code == ERR_OK && rc == SQLITE_DONE)
    code = err_set(e, ERR_GONE, "session %016llx is not in the ledger any more", (unsigned long long)id);
  else if (code == ERR_OK && rc != SQLITE_ROW)
    code = ledger_file_error(db, path, e);
  else if (code == ERR_OK && is_served(s, 1))
    code = err_set(e, ERR_STATE,
                   "session %016llx is being served by process %lld: wait for its end, or end it there",
                   (unsigned long long)id, (long long)sqlite3_column_int64(s, 1));
  if (code == ERR_OK) *updated = sqlite3_column_int64(s, 0);
  sqlite3_finalize(s);
  return code;
}

static int begin_change(sqlite3 *db, const char *path, uint64_t id, int64_t *updated, err *e) {
  if (sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL)) return ledger_file_error(db, path, e);
  return check_free(db, path, id, updated, e);
}

/* code: of what was done so far; sqlite: of the last statement. */
static int end_change(sqlite3 *db, const char *path, int code, int sqlite, err *e) {
  if (code == ERR_OK && sqlite == SQLITE_OK) sqlite = sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
  if (code == ERR_OK && sqlite) code = ledger_file_error(db, path, e);
  if (!sqlite3_get_autocommit(db)) sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
  return code;
}

/* The piece that reaches over the end is cut, those behind it go. */
int ledger_store_rollback(sqlite3 *db, const char *path, uint64_t id, int32_t output_length, err *e) {
  int64_t updated, key = (int64_t)id, keep = output_length;
  int sqlite = SQLITE_OK, code = begin_change(db, path, id, &updated, e);
  static const char *const steps[] = {"DELETE FROM tokens WHERE session = ?1 AND position >= (SELECT "
                                      "length(prompt) / 4 FROM session WHERE id = ?1) + ?2",
                                      "UPDATE tokens SET ids = substr(ids, 1, 4 * ((SELECT length(prompt) / "
                                      "4 FROM session WHERE id = ?1) + ?2 - position))"
                                      " WHERE session = ?1 AND position + length(ids) / 4 > (SELECT "
                                      "length(prompt) / 4 FROM session WHERE id = ?1) + ?2"};
  for (int i = 0; i < 2 && code == ERR_OK && sqlite == SQLITE_OK; i++)
    sqlite = ledger_file_do(db, steps[i], "ii", key, keep);
  if (code == ERR_OK && sqlite == SQLITE_OK)
    sqlite = ledger_file_do(
        db,
        "UPDATE session SET state = ?, finish = NULL, stats = NULL, owner = NULL, updated = ? WHERE id = ?",
        "iii", (int64_t)LEDGER_INTERRUPTED, wall_us(), key);
  return end_change(db, path, code, sqlite, e);
}

int ledger_store_end(sqlite3 *db, const char *path, uint64_t id, wire_finish finish, err *e) {
  int64_t updated;
  int sqlite = SQLITE_OK, code = begin_change(db, path, id, &updated, e);
  if (code == ERR_OK)
    sqlite =
        ledger_file_do(db, "UPDATE session SET state = ?, finish = ?, owner = NULL, updated = ? WHERE id = ?",
                       "iiii", (int64_t)LEDGER_ENDED, (int64_t)finish, wall_us(), (int64_t)id);
  return end_change(db, path, code, sqlite, e);
}

int ledger_store_delete(sqlite3 *db, const char *path, uint64_t id, err *e) {
  int64_t updated;
  int sqlite = SQLITE_OK, code = begin_change(db, path, id, &updated, e);
  if (code == ERR_OK) sqlite = ledger_file_do(db, "DELETE FROM tokens WHERE session = ?", "i", (int64_t)id);
  if (code == ERR_OK && sqlite == SQLITE_OK)
    sqlite = ledger_file_do(db, "DELETE FROM session WHERE id = ?", "i", (int64_t)id);
  return end_change(db, path, code, sqlite, e);
}

#define OLD " WHERE updated < ?1 AND NOT EXISTS (SELECT 1 FROM orchestrator o WHERE o.id = session.owner)"

int ledger_store_end_old(sqlite3 *db, const char *path, int64_t before, bool forget, int64_t *count, err *e) {
  int sqlite = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
  if (sqlite == SQLITE_OK && forget)
    sqlite = ledger_file_do(db, "DELETE FROM tokens WHERE session IN (SELECT id FROM session" OLD ")", "i",
                            before);
  if (sqlite == SQLITE_OK && forget)
    sqlite = ledger_file_do(db, "DELETE FROM session" OLD, "i", before);
  else if (sqlite == SQLITE_OK)
    sqlite = ledger_file_do(
        db, "UPDATE session SET state = ?2, finish = ?3, owner = NULL, updated = ?4" OLD " AND state <> ?2",
        "iiii", before, (int64_t)LEDGER_ENDED, (int64_t)WIRE_FINISH_CANCELLED, wall_us());
  *count = sqlite == SQLITE_OK ? sqlite3_changes(db) : 0;
  return end_change(db, path, ERR_OK, sqlite, e);
}

int ledger_store_claim(sqlite3 *db, const char *path, uint64_t id, int64_t seen, uint64_t owner_id, err *e) {
  int64_t updated;
  int sqlite = SQLITE_OK, code = begin_change(db, path, id, &updated, e);
  if (code == ERR_OK && updated != seen)
    code = err_set(e, ERR_STATE, "session %016llx was changed by another process just now: try again",
                   (unsigned long long)id);
  if (code == ERR_OK)
    sqlite = ledger_file_do(
        db, "UPDATE session SET owner = ?, state = ?, finish = NULL, stats = NULL, updated = ? WHERE id = ?",
        "iiii", (int64_t)owner_id, (int64_t)LEDGER_RUNNING, wall_us(), (int64_t)id);
  return end_change(db, path, code, sqlite, e);
}

/* ---- orchestrators ---- */

int ledger_store_orchestrators(sqlite3 *db, const char *path,
                               void (*each)(void *context, const ledger_orchestrator *o), void *context,
                               err *e) {
  sqlite3_stmt *s = NULL;
  int rc = SQLITE_DONE,
      code = prepare(db, path,
                     "SELECT " OWNER_COLUMNS ", o.id, since, sessions, millitokens, command, workers"
                     " FROM orchestrator o ORDER BY since",
                     &s, e);
  while (code == ERR_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
    ledger_orchestrator o = {.process = owner_at(s, 0),
                             .alive = is_served(s, 0),
                             .beat = sqlite3_column_int64(s, OWNER_BEAT),
                             .id = (uint64_t)sqlite3_column_int64(s, OWNER_COUNT),
                             .since = sqlite3_column_int64(s, OWNER_COUNT + 1),
                             .sessions = sqlite3_column_int64(s, OWNER_COUNT + 2),
                             .millitokens = sqlite3_column_int64(s, OWNER_COUNT + 3),
                             .command = text_at(s, OWNER_COUNT + 4),
                             .workers = text_at(s, OWNER_COUNT + 5)};
    each(context, &o);
  }
  if (code == ERR_OK && rc != SQLITE_DONE) code = ledger_file_error(db, path, e);
  sqlite3_finalize(s);
  return code;
}

static int interrupt_all(sqlite3 *db, uint64_t id, int64_t when) {
  int rc = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
  if (rc == SQLITE_OK)
    rc = ledger_file_do(db, "UPDATE session SET state = ?, owner = NULL, updated = ? WHERE owner = ?", "iii",
                        (int64_t)LEDGER_INTERRUPTED, when, (int64_t)id);
  if (rc == SQLITE_OK) rc = ledger_file_do(db, "DELETE FROM orchestrator WHERE id = ?", "i", (int64_t)id);
  if (rc == SQLITE_OK) rc = sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
  if (!sqlite3_get_autocommit(db)) sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
  return rc;
}

int ledger_store_leave(sqlite3 *db, uint64_t owner_id) {
  return interrupt_all(db, owner_id, wall_us());
}

#define DEAD_MAX 256 /* taken out at a time */
typedef struct dead {
  uint64_t ids[DEAD_MAX];
  int64_t beats[DEAD_MAX];
  int count;
} dead;

static void note_dead(void *context, const ledger_orchestrator *o) {
  dead *d = context;
  if (o->alive || d->count == DEAD_MAX) return;
  d->ids[d->count] = o->id;
  d->beats[d->count++] = o->beat;
}

int ledger_store_tidy(sqlite3 *db, const char *path, err *e) {
  dead d = {.count = 0};
  int code = ledger_store_orchestrators(db, path, note_dead, &d, e);
  for (int i = 0; i < d.count && code == ERR_OK; i++)
    if (interrupt_all(db, d.ids[i], d.beats[i])) code = ledger_file_error(db, path, e);
  return code;
}
