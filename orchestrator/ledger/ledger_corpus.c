#include "orchestrator/ledger/ledger_corpus.h"

#include "common/base/token_file.h"
#include "orchestrator/ledger/ledger_database.h"
#include "orchestrator/ledger/ledger_error.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

typedef struct corpus_work {
  sqlite3 *db;
  const char *ledger, *model;
  FILE *file;
  int64_t tokens;
} corpus_work;

static bool add_blob(corpus_work *w, sqlite3_stmt *s, int column) {
  const void *ids = sqlite3_column_blob(s, column);
  size_t count = (size_t)sqlite3_column_bytes(s, column) / sizeof(int32_t);
  w->tokens += (int64_t)count;
  return count == 0 || token_file_add(w->file, ids, count);
}

/* When the oldest of the newest sessions was made that together have as many tokens. */
static int find_oldest(const corpus_work *w, int64_t tokens_max, int64_t *created, err *e) {
  static const char sql[] =
      "SELECT created, length(prompt) / 4 + (SELECT total(length(ids)) / 4 FROM tokens WHERE session = id)"
      " FROM session WHERE model = ?1 ORDER BY created DESC";
  sqlite3_stmt *s = NULL;
  int64_t sum = 0;
  int rc = SQLITE_DONE, code = ledger_database_prepare(&s, w->db, w->ledger, sql, e);
  *created = INT64_MAX;
  if (code == ERR_OK) ledger_database_bind(s, "t", w->model);
  while (code == ERR_OK && (rc = sqlite3_step(s)) == SQLITE_ROW &&
         (sum += sqlite3_column_int64(s, 1)) <= tokens_max)
    *created = sqlite3_column_int64(s, 0);
  if (code == ERR_OK && rc != SQLITE_DONE && rc != SQLITE_ROW) code = ledger_error_last(w->db, w->ledger, e);
  sqlite3_finalize(s);
  return code;
}

/* A row for each piece of an answer; the prompt comes with the first one. */
static int write_since(corpus_work *w, int64_t created, err *e) {
  static const char sql[] =
      "SELECT s.id, s.prompt, t.ids FROM session s LEFT JOIN tokens t ON t.session = s.id"
      " WHERE s.model = ?1 AND s.created >= ?2 ORDER BY s.created, s.id, t.position";
  sqlite3_stmt *s = NULL;
  int64_t last = 0;
  bool ok = true, begun = false;
  int rc = SQLITE_DONE, code = ledger_database_prepare(&s, w->db, w->ledger, sql, e);
  if (code == ERR_OK) ledger_database_bind(s, "ti", w->model, created);
  while (code == ERR_OK && ok && (rc = sqlite3_step(s)) == SQLITE_ROW) {
    bool first = !begun || sqlite3_column_int64(s, 0) != last;
    last = sqlite3_column_int64(s, 0);
    if (first && begun) ok = token_file_end_text(w->file);
    if (first) ok = ok && add_blob(w, s, 1);
    ok = ok && add_blob(w, s, 2);
    begun = true;
  }
  int why = errno;
  if (code == ERR_OK && ok && rc != SQLITE_DONE) code = ledger_error_last(w->db, w->ledger, e);
  sqlite3_finalize(s);
  return ok ? code : err_set(e, ERR_IO, "cannot write the corpus: %s", strerror(why));
}

static FILE *make(const char *path) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
  if (!f && fd >= 0) close(fd);
  return f;
}

int ledger_corpus_write(const char *ledger, const char *model, int64_t tokens_max, const char *to,
                        int64_t *tokens, err *e) {
  corpus_work w = {.ledger = ledger, .model = model};
  int64_t created;
  *tokens = 0;
  int rc = ledger_database_open(&w.db, ledger, false, e);
  if (rc != ERR_OK) return rc;
  rc = find_oldest(&w, tokens_max, &created, e);
  w.file = rc == ERR_OK ? make(to) : NULL;
  if (rc == ERR_OK && (!w.file || !token_file_begin(w.file)))
    rc = err_set(e, ERR_IO, "cannot write the corpus %.200s: %s", to, strerror(errno));
  if (rc == ERR_OK) rc = write_since(&w, created, e);
  if (w.file && fclose(w.file) != 0 && rc == ERR_OK)
    rc = err_set(e, ERR_IO, "cannot write the corpus %.200s: %s", to, strerror(errno));
  sqlite3_close(w.db);
  *tokens = w.tokens;
  return rc;
}
