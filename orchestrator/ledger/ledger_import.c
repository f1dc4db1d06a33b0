#include "orchestrator/ledger/ledger_import.h"

#include "orchestrator/ledger/ledger_change.h"
#include "orchestrator/ledger/options_json.h"
#include <stdlib.h>
#include <string.h>

/* ---- the same? ---- */

static bool same_text(const char *a, const char *b) {
  return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool same_options(const msg_options *a, const msg_options *b) {
  char *one = options_json_text(a), *other = options_json_text(b);
  bool same = one && other && strcmp(one, other) == 0;
  free(one);
  free(other);
  return same;
}

static ledger_state state_at_rest(const ledger_session *s) {
  return s->state == LEDGER_ENDED ? LEDGER_ENDED : LEDGER_INTERRUPTED;
}

/* All that a resumed session follows from, and where it stands. */
static bool same_session(const ledger_session *a, const ledger_session *b) {
  bool ended = state_at_rest(a) == LEDGER_ENDED;
  return a->hash_seed == b->hash_seed && a->epoch == b->epoch && a->length == b->length &&
         a->prompt_length == b->prompt_length && state_at_rest(a) == state_at_rest(b) &&
         (!ended || a->finish == b->finish) && hash_equal(a->fingerprint, b->fingerprint) &&
         memcmp(a->tokens, b->tokens, (size_t)a->length * sizeof *a->tokens) == 0 &&
         same_text(a->about, b->about) && same_options(&a->options, &b->options);
}

/* ---- writing ---- */

static int write_tokens(sqlite3 *db, const ledger_session *s) {
  static const char piece[] = "INSERT INTO tokens VALUES(?1, ?2, ?3, ledger_sum(?1, ?2, ?3))",
                    last[] = "INSERT INTO tokens VALUES(?1, ?2, x'', ledger_sum(?1, ?2, x''))";
  int32_t output = s->length - s->prompt_length;
  int rc = output == 0 ? SQLITE_OK
                       : ledger_database_do(db, piece, "iib", (int64_t)s->id, (int64_t)s->prompt_length,
                                            s->tokens + s->prompt_length, (size_t)output * sizeof *s->tokens);
  return rc ? rc : ledger_database_do(db, last, "ii", (int64_t)s->id, (int64_t)s->length);
}

int ledger_import_write(sqlite3 *db, const ledger_session *s) {
  static const char sql[] =
      "INSERT INTO session(id, state, finish, epoch, hash_seed, model, fingerprint, numerics, created,"
      " updated, options, about, stats, prompt) VALUES(?, ?, nullif(?, 0), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
  char *options = options_json_text(&s->options);
  if (!options) return SQLITE_NOMEM;
  bool ended = state_at_rest(s) == LEDGER_ENDED;
  int rc = ledger_database_do(db, sql, "iiiiitbtiitttb", (int64_t)s->id, (int64_t)state_at_rest(s),
                              (int64_t)(ended ? s->finish : 0), (int64_t)s->epoch, (int64_t)s->hash_seed,
                              s->model, s->fingerprint.bytes, sizeof s->fingerprint.bytes, s->numerics,
                              s->created, s->updated, options, s->about, ended ? s->stats : NULL, s->tokens,
                              (size_t)s->prompt_length * sizeof *s->tokens);
  free(options);
  return rc ? rc : write_tokens(db, s);
}

/* ---- importing ---- */

static int delete_session(sqlite3 *db, uint64_t id) {
  int rc = ledger_database_do(db, "DELETE FROM tokens WHERE session = ?", "i", (int64_t)id);
  return rc ? rc : ledger_database_do(db, "DELETE FROM session WHERE id = ?", "i", (int64_t)id);
}

/* There is one of this id. */
static int compare(sqlite3 *db, const char *path, const ledger_session *s, bool replace, ledger_imported *how,
                   err *e) {
  ledger_session there;
  err why = {0};
  int code = ledger_query_load(db, path, s->id, &there, &why);
  if (code && !(replace && code == ERR_FORMAT)) return err_set(e, code, "%s", why.text);
  *how = code == ERR_OK && same_session(s, &there) ? LEDGER_IMPORT_SAME : LEDGER_IMPORT_REPLACED;
  int32_t output = there.length - there.prompt_length;
  ledger_session_fini(&there);
  if (*how == LEDGER_IMPORT_SAME || replace) return ERR_OK;
  return err_set(
      e, ERR_STATE,
      "session %016llx is in the ledger already and differs: it has %d tokens of answer there, and %d "
      "here; --replace puts this one in its place",
      (unsigned long long)s->id, output, s->length - s->prompt_length);
}

int ledger_import(sqlite3 *db, const char *path, const ledger_session *s, bool replace, ledger_imported *how,
                  err *e) {
  int64_t updated;
  int sqlite = SQLITE_OK, code = ledger_change_begin(db, path, s->id, &updated, e);
  *how = LEDGER_IMPORT_NEW;
  if (code == ERR_GONE)
    code = ERR_OK;
  else if (code == ERR_OK)
    code = compare(db, path, s, replace, how, e);
  if (code == ERR_OK && *how == LEDGER_IMPORT_REPLACED) sqlite = delete_session(db, s->id);
  if (code == ERR_OK && sqlite == SQLITE_OK && *how != LEDGER_IMPORT_SAME)
    sqlite = ledger_import_write(db, s);
  return ledger_change_finish(db, path, code, sqlite, e);
}
