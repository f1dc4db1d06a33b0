#include "orchestrator/ledger/ledger_query.h"

#include "orchestrator/ledger/ledger_error.h"
#include "orchestrator/ledger/ledger_owner.h"
#include "orchestrator/ledger/options_json.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ID_DIGITS 16

/* ---- small things ---- */

static const char *text_at(sqlite3_stmt *s, int column) {
  return (const char *)sqlite3_column_text(s, column);
}

static char *copy_at(sqlite3_stmt *s, int column) {
  const char *text = text_at(s, column);
  return text ? strdup(text) : NULL;
}

static ledger_state state_of(int64_t state, bool served) {
  if (state == LEDGER_RUNNING && !served) return LEDGER_INTERRUPTED;
  return state == LEDGER_RUNNING || state == LEDGER_ENDED ? (ledger_state)state : LEDGER_INTERRUPTED;
}

/* ---- reading ---- */

#define BY_HAND "s.state = 1 AND s.finish = 5" /* LEDGER_ENDED, LEDGER_BY_HAND */

static int count_sessions(sqlite3 *db, const char *path, bool all, ledger_totals *out, err *e) {
  sqlite3_stmt *s = NULL;
  int code = ledger_database_prepare(&s, db, path, "SELECT count(*), total(" BY_HAND ") FROM session s", e);
  *out = (ledger_totals){0};
  if (code == ERR_OK && sqlite3_step(s) == SQLITE_ROW) {
    out->by_hand = sqlite3_column_int64(s, 1);
    out->listed = sqlite3_column_int64(s, 0) - (all ? 0 : out->by_hand);
  } else if (code == ERR_OK) {
    code = ledger_error_last(db, path, e);
  }
  sqlite3_finalize(s);
  return code;
}

static int list(sqlite3 *db, const char *path, int32_t limit, bool all,
                void (*each)(void *context, const ledger_line *l), void *context, err *e) {
  static const char sql[] =
      "SELECT s.id, s.state, s.finish, s.created, s.updated, length(s.prompt) / 4, s.model, s.about,"
      " (SELECT total(length(ids)) / 4 FROM tokens WHERE session = s.id), " LEDGER_OWNER_COLUMNS
          LEDGER_OWNER_JOIN "WHERE ?1 OR (" BY_HAND ") IS NOT TRUE ORDER BY s.created DESC, s.id LIMIT ?2";
  sqlite3_stmt *s = NULL;
  int rc = SQLITE_DONE, code = ledger_database_prepare(&s, db, path, sql, e);
  if (code == ERR_OK) ledger_database_bind(s, "ii", (int64_t)all, limit ? (int64_t)limit : INT64_C(-1));
  while (code == ERR_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
    ledger_line line = {.id = (uint64_t)sqlite3_column_int64(s, 0),
                        .state = state_of(sqlite3_column_int64(s, 1), ledger_owner_state(s, 9) != OWNER_DEAD),
                        .finish = (wire_finish)sqlite3_column_int(s, 2),
                        .created = sqlite3_column_int64(s, 3),
                        .updated = sqlite3_column_int64(s, 4),
                        .prompt_length = sqlite3_column_int64(s, 5),
                        .model = text_at(s, 6),
                        .about = text_at(s, 7),
                        .output_length = sqlite3_column_int64(s, 8)};
    each(context, &line);
  }
  if (code == ERR_OK && rc != SQLITE_DONE) code = ledger_error_last(db, path, e);
  sqlite3_finalize(s);
  return code;
}

/* The transaction shows the count and the lines as they are at one moment. */
int ledger_query_list(sqlite3 *db, const char *path, int32_t limit, bool all,
                      void (*each)(void *context, const ledger_line *l), void *context, ledger_totals *total,
                      err *e) {
  bool own = sqlite3_get_autocommit(db);
  if (own) sqlite3_exec(db, "BEGIN", NULL, NULL, NULL);
  int code = count_sessions(db, path, all, total, e);
  if (code == ERR_OK) code = list(db, path, limit, all, each, context, e);
  if (own) sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
  return code;
}

/* An id is printed as 16 lower-case hex digits; the first ones are enough. */
int ledger_query_find(sqlite3 *db, const char *path, const char *digits, uint64_t *id, err *e) {
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
  int code = ledger_database_prepare(
      &s, db, path, "SELECT id FROM session WHERE substr(printf('%016x', id), 1, ?2) = ?1", e);
  if (code == ERR_OK) ledger_database_bind(s, "ti", pattern, (int64_t)n);
  while (code == ERR_OK && (rc = sqlite3_step(s)) == SQLITE_ROW && ++found == 1)
    *id = (uint64_t)sqlite3_column_int64(s, 0);
  if (code == ERR_OK && rc != SQLITE_DONE && rc != SQLITE_ROW) code = ledger_error_last(db, path, e);
  sqlite3_finalize(s);
  if (code) return code;
  if (found == 0)
    return err_set(e, ERR_ARG, "no session begins with '%s': `tandem session list' tells them", pattern);
  return found == 1 ? ERR_OK
                    : err_set(e, ERR_ARG, "several sessions begin with '%s': give more digits", pattern);
}

void ledger_session_fini(ledger_session *s) {
  free(s->tokens);
  free(s->grammar);
  free(s->model);
  free(s->numerics);
  free(s->about);
  free(s->stats);
  *s = (ledger_session){0};
}

static int damaged(uint64_t id, const char *what, err *e) {
  return err_set(e, ERR_FORMAT,
                 "session %016llx is damaged in the ledger (%s): `tandem session repair' keeps what is whole "
                 "of it, `tandem session end --delete' forgets it",
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

/* The columns of a session, as load_content and load_state expect them; those of its owner follow. */
#define COLUMNS                                                                                              \
  "s.id, s.hash_seed, s.epoch, s.model, s.about, s.fingerprint, s.options, s.prompt, s.state, s.finish,"     \
  " s.created, s.updated, s.numerics, s.stats,"                                                              \
  " (SELECT content_sum IS ledger_sum(" LEDGER_SCHEMA_CONTENT ") FROM session WHERE id = s.id),"             \
  " (SELECT state_sum IS ledger_sum(" LEDGER_SCHEMA_STATE ") FROM session WHERE id = s.id), "
enum {
  AT_ID,
  AT_SEED,
  AT_EPOCH,
  AT_MODEL,
  AT_ABOUT,
  AT_FINGERPRINT,
  AT_OPTIONS,
  AT_PROMPT,
  AT_STATE,
  AT_FINISH,
  AT_CREATED,
  AT_UPDATED,
  AT_NUMERICS,
  AT_STATS,
  AT_CONTENT_RIGHT,
  AT_STATE_RIGHT,
  AT_OWNER
};

/* What the tokens follow from. */
static int load_content(sqlite3_stmt *s, ledger_session *out, err *e) {
  out->id = (uint64_t)sqlite3_column_int64(s, AT_ID);
  if (!sqlite3_column_int(s, AT_CONTENT_RIGHT)) return damaged(out->id, "a checksum", e);
  out->hash_seed = (uint64_t)sqlite3_column_int64(s, AT_SEED);
  out->epoch = (uint32_t)sqlite3_column_int64(s, AT_EPOCH);
  out->model = copy_at(s, AT_MODEL);
  out->about = copy_at(s, AT_ABOUT);
  const void *fingerprint = sqlite3_column_blob(s, AT_FINGERPRINT);
  if (sqlite3_column_bytes(s, AT_FINGERPRINT) == sizeof out->fingerprint)
    memcpy(&out->fingerprint, fingerprint, sizeof out->fingerprint);
  err why = {0};
  if (options_json_read(text_at(s, AT_OPTIONS), &out->options, out->stops, &out->bias, &out->grammar, &why))
    return damaged(out->id, why.text, e);
  const void *prompt = sqlite3_column_blob(s, AT_PROMPT);
  int rc = add_tokens(out, prompt, sqlite3_column_bytes(s, AT_PROMPT), e);
  out->prompt_length = out->length;
  return rc == ERR_OK && out->length < 1 ? damaged(out->id, "no prompt", e) : rc;
}

static int load_state(sqlite3_stmt *s, ledger_session *out, err *e) {
  if (!sqlite3_column_int(s, AT_STATE_RIGHT)) return damaged(out->id, "a checksum of its state", e);
  bool served = ledger_owner_state(s, AT_OWNER) != OWNER_DEAD;
  out->state = state_of(sqlite3_column_int64(s, AT_STATE), served);
  out->pid = served ? sqlite3_column_int64(s, AT_OWNER + LEDGER_OWNER_PID) : 0;
  out->finish = (wire_finish)sqlite3_column_int(s, AT_FINISH);
  out->created = sqlite3_column_int64(s, AT_CREATED);
  out->updated = sqlite3_column_int64(s, AT_UPDATED);
  out->numerics = copy_at(s, AT_NUMERICS);
  out->stats = copy_at(s, AT_STATS);
  return ERR_OK;
}

/* *end: it is the empty piece behind the last one. */
static int load_piece(sqlite3_stmt *s, ledger_session *out, bool *end, err *e) {
  const void *data = sqlite3_column_blob(s, 1);
  if (sqlite3_column_int64(s, 0) != out->length) return damaged(out->id, "a gap", e);
  if (!sqlite3_column_int(s, 2)) return damaged(out->id, "a checksum of its tokens", e);
  *end = sqlite3_column_bytes(s, 1) == 0;
  return add_tokens(out, data, sqlite3_column_bytes(s, 1), e);
}

static int load_tokens(sqlite3 *db, const char *path, ledger_session *out, err *e) {
  static const char sql[] = "SELECT position, ids, sum IS ledger_sum(session, position, ids) FROM tokens"
                            " WHERE session = ? ORDER BY position";
  sqlite3_stmt *s = NULL;
  bool end = false;
  int rc = SQLITE_DONE, code = ledger_database_prepare(&s, db, path, sql, e);
  if (code == ERR_OK) ledger_database_bind(s, "i", (int64_t)out->id);
  while (code == ERR_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) code = load_piece(s, out, &end, e);
  if (code == ERR_OK && rc != SQLITE_DONE) code = ledger_error_last(db, path, e);
  if (code == ERR_OK && !end) code = damaged(out->id, "the end of its tokens is missing", e);
  sqlite3_finalize(s);
  return code;
}

static int load(sqlite3 *db, const char *path, uint64_t id, ledger_session *out, err *e) {
  static const char sql[] = "SELECT " COLUMNS LEDGER_OWNER_COLUMNS LEDGER_OWNER_JOIN "WHERE s.id = ?";
  sqlite3_stmt *s = NULL;
  int rc = SQLITE_DONE, code = ledger_database_prepare(&s, db, path, sql, e);
  if (code == ERR_OK) ledger_database_bind(s, "i", (int64_t)id);
  if (code == ERR_OK) rc = sqlite3_step(s);
  if (rc == SQLITE_ROW)
    code = load_content(s, out, e);
  else if (code == ERR_OK && rc == SQLITE_DONE)
    code = err_set(e, ERR_GONE, "session %016llx is not in the ledger any more", (unsigned long long)id);
  else if (code == ERR_OK)
    code = ledger_error_last(db, path, e);
  if (code == ERR_OK) code = load_state(s, out, e);
  sqlite3_finalize(s);
  return code ? code : load_tokens(db, path, out, e);
}

/* The transaction shows both tables as they are at one moment. */
int ledger_query_load(sqlite3 *db, const char *path, uint64_t id, ledger_session *out, err *e) {
  *out = (ledger_session){0};
  bool own = sqlite3_get_autocommit(db);
  if (own) sqlite3_exec(db, "BEGIN", NULL, NULL, NULL);
  int code = load(db, path, id, out, e);
  if (own) sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
  if (code) ledger_session_fini(out);
  return code;
}

/* ---- what is whole of a damaged one ---- */

static int salvage_row(sqlite3 *db, uint64_t id, ledger_session *out, bool *whole, err *e) {
  static const char sql[] = "SELECT " COLUMNS "NULL, NULL, NULL, NULL FROM session s WHERE s.id = ?";
  sqlite3_stmt *s = NULL;
  int code = ledger_database_prepare(&s, db, "", sql, e);
  if (code == ERR_OK) ledger_database_bind(s, "i", (int64_t)id);
  int rc = code ? SQLITE_DONE : sqlite3_step(s);
  if (rc == SQLITE_ROW)
    code = load_content(s, out, e);
  else if (code == ERR_OK)
    code = rc == SQLITE_DONE ? ERR_GONE : ERR_FORMAT;
  if (code == ERR_OK) *whole = load_state(s, out, e) == ERR_OK;
  if (code == ERR_OK && !*whole) out->state = LEDGER_INTERRUPTED;
  sqlite3_finalize(s);
  return code;
}

/* What the end of an answer is like is known with its last token alone. */
static void reopen(ledger_session *s) {
  s->state = LEDGER_INTERRUPTED;
  s->finish = 0;
  free(s->stats);
  s->stats = NULL;
}

int ledger_query_salvage(sqlite3 *db, uint64_t id, ledger_session *out, bool *whole, err *e) {
  *out = (ledger_session){.id = id};
  *whole = false;
  int code = salvage_row(db, id, out, whole, e);
  if (code == ERR_OK && (code = load_tokens(db, "", out, e)) != ERR_OK) {
    *whole = false;
    reopen(out);
    if (code != ERR_NOMEM) code = ERR_OK;
  }
  if (code) ledger_session_fini(out);
  return code;
}

/* ---- orchestrators ---- */

int ledger_query_orchestrators(sqlite3 *db, const char *path,
                               void (*each)(void *context, const ledger_orchestrator *o), void *context,
                               err *e) {
  sqlite3_stmt *s = NULL;
  int rc = SQLITE_DONE, code = ledger_database_prepare(&s, db, path,
                                                       "SELECT " LEDGER_OWNER_COLUMNS
                                                       ", since, sessions, millitokens, command, workers"
                                                       " FROM orchestrator o ORDER BY since",
                                                       e);
  while (code == ERR_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
    ledger_orchestrator o = {.state = ledger_owner_state(s, 0),
                             .pid = sqlite3_column_int64(s, LEDGER_OWNER_PID),
                             .heartbeat = sqlite3_column_int64(s, LEDGER_OWNER_HEARTBEAT),
                             .id = (uint64_t)sqlite3_column_int64(s, LEDGER_OWNER_ID),
                             .since = sqlite3_column_int64(s, LEDGER_OWNER_COUNT),
                             .sessions = sqlite3_column_int64(s, LEDGER_OWNER_COUNT + 1),
                             .millitokens = sqlite3_column_int64(s, LEDGER_OWNER_COUNT + 2),
                             .command = text_at(s, LEDGER_OWNER_COUNT + 3),
                             .workers = text_at(s, LEDGER_OWNER_COUNT + 4)};
    each(context, &o);
  }
  if (code == ERR_OK && rc != SQLITE_DONE) code = ledger_error_last(db, path, e);
  sqlite3_finalize(s);
  return code;
}
