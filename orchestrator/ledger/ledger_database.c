#include "orchestrator/ledger/ledger_database.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HINT     "; name another with --ledger FILE, or go without: --ledger none"
#define RETRY_US 20000 /* for a change of journal mode, which does not wait by itself */

/* Tokens and prompts are int32_t in the machine's order. Times are microseconds since 1970. tokens: pieces of
 * the output by the position of their first token in the whole sequence; one piece once the answer has ended.
 */
static const char schema[] =
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

/* ---- errors ---- */

typedef struct failure {
  int sqlite, code;
  const char *text;
} failure;

static const failure failures[] = {
    {SQLITE_FULL, ERR_IO, "cannot be written: the disk is full" HINT},
    {SQLITE_READONLY, ERR_IO, "cannot be written: it or its folder is read-only" HINT},
    {SQLITE_CANTOPEN, ERR_IO, "cannot be opened: are its folder and its rights in order?" HINT},
    {SQLITE_PERM, ERR_IO, "may not be used: are its rights in order?" HINT},
    {SQLITE_AUTH, ERR_IO, "may not be used: are its rights in order?" HINT},
    {SQLITE_NOTADB, ERR_FORMAT, "is damaged, or no ledger: move it away" HINT},
    {SQLITE_CORRUPT, ERR_FORMAT,
     "is damaged: move it away (`sqlite3 FILE .recover' may save what is in it)" HINT},
    {SQLITE_BUSY, ERR_TIMEOUT, "is locked by another process: try again, or end what holds it" HINT},
    {SQLITE_LOCKED, ERR_TIMEOUT, "is locked by another process: try again, or end what holds it" HINT},
    {SQLITE_NOMEM, ERR_NOMEM, "cannot be used: out of memory"},
};

static int explain(int sqlite, const char *path, const char *why, err *e) {
  for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
    if (failures[i].sqlite == (sqlite & 0xff))
      return err_set(e, failures[i].code, "the ledger %.200s %s", path, failures[i].text);
  return err_set(e, ERR_IO, "the ledger %.160s failed: %.60s" HINT, path, why);
}

int ledger_database_error(sqlite3 *db, const char *path, err *e) {
  return explain(sqlite3_errcode(db), path, sqlite3_errmsg(db), e);
}

/* ---- statements ---- */

static int bind_all(sqlite3_stmt *s, const char *kinds, va_list args) {
  int rc = SQLITE_OK;
  for (int i = 1; kinds[i - 1] && rc == SQLITE_OK; i++) {
    if (kinds[i - 1] == 'i') {
      rc = sqlite3_bind_int64(s, i, va_arg(args, int64_t));
    } else if (kinds[i - 1] == 't') {
      rc = sqlite3_bind_text(s, i, va_arg(args, const char *), -1, SQLITE_STATIC);
    } else {
      const void *data = va_arg(args, const void *);
      rc = sqlite3_bind_blob64(s, i, data, va_arg(args, size_t), SQLITE_STATIC);
    }
  }
  return rc;
}

int ledger_database_prepare(sqlite3_stmt **out, sqlite3 *db, const char *path, const char *sql, err *e) {
  return sqlite3_prepare_v2(db, sql, -1, out, NULL) ? ledger_database_error(db, path, e) : ERR_OK;
}

int ledger_database_bind(sqlite3_stmt *s, const char *kinds, ...) {
  va_list args;
  va_start(args, kinds);
  int rc = bind_all(s, kinds, args);
  va_end(args);
  return rc;
}

int ledger_database_do(sqlite3 *db, const char *sql, const char *kinds, ...) {
  sqlite3_stmt *s = NULL;
  va_list args;
  int rc = sqlite3_prepare_v2(db, sql, -1, &s, NULL);
  va_start(args, kinds);
  if (rc == SQLITE_OK) rc = bind_all(s, kinds, args);
  va_end(args);
  while (rc == SQLITE_OK || rc == SQLITE_ROW) rc = sqlite3_step(s);
  int last = sqlite3_finalize(s);
  return rc == SQLITE_DONE ? SQLITE_OK : last ? last : rc;
}

/* ---- where it is ---- */

int ledger_database_default_path(char out[LEDGER_PATH_MAX], err *e) {
  const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
  bool given = state && state[0] == '/'; /* others are to be ignored: the XDG base directory specification */
  if (!given && !(home && home[0] == '/'))
    return err_set(e, ERR_ARG, "no place for the ledger: set HOME or XDG_STATE_HOME, or give --ledger FILE");
  int n = snprintf(out, LEDGER_PATH_MAX, "%s%s/tandem/ledger.sqlite", given ? state : home,
                   given ? "" : "/.local/state");
  return n < LEDGER_PATH_MAX ? ERR_OK
                             : err_set(e, ERR_ARG, "the path of the ledger is too long: give --ledger FILE");
}

void ledger_database_make_folders(const char *path) {
  char folder[LEDGER_PATH_MAX];
  snprintf(folder, sizeof folder, "%s", path);
  for (char *at = strchr(folder + 1, '/'); at; at = strchr(at + 1, '/')) {
    *at = 0;
    mkdir(folder, 0700); /* where it fails, opening the file will say so */
    *at = '/';
  }
}

bool ledger_database_make(const char *path) {
  ledger_database_make_folders(path);
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

/* SQLite would make it with the rights of the umask, and would wait on a pipe. */
static int check_file(const char *path, bool create, err *e) {
  struct stat info;
  if (create) ledger_database_make_folders(path);
  int fd = open(path, (create ? O_RDWR | O_CREAT : O_RDONLY) | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0 && errno == ENOENT && !create)
    return err_set(e, ERR_GONE, "there is no ledger %.200s yet", path);
  if (fd < 0) return err_set(e, ERR_IO, "the ledger %.200s cannot be opened: %s" HINT, path, strerror(errno));
  bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  close(fd);
  return regular ? ERR_OK : err_set(e, ERR_FORMAT, "the ledger %.200s is no regular file" HINT, path);
}

/* ---- opening ---- */

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
  int rc = sqlite3_exec(db, schema, NULL, NULL, NULL);
  snprintf(text, sizeof text, "PRAGMA application_id = %d; PRAGMA user_version = %d; COMMIT",
           LEDGER_APPLICATION, LEDGER_SCHEMA);
  return rc ? rc : sqlite3_exec(db, text, NULL, NULL, NULL);
}

/* Two that find an empty file at once: the second waits, and looks again. */
static int make_if_empty(sqlite3 *db) {
  int rc = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
  int64_t tables = rc ? -1 : number_of(db, "SELECT count(*) FROM sqlite_master", &rc);
  if (rc == SQLITE_OK && tables == 0) rc = make_tables(db);
  if (!sqlite3_get_autocommit(db)) sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
  return rc;
}

/* A file system without shared memory keeps its journal as it is: slower, and as safe. */
static int use_wal(sqlite3 *db) {
  int rc, tries = LEDGER_BUSY_MS * 1000 / RETRY_US;
  while ((rc = sqlite3_exec(db, "PRAGMA journal_mode = WAL", NULL, NULL, NULL)) == SQLITE_BUSY && tries-- > 0)
    usleep(RETRY_US);
  return rc ? rc : sqlite3_exec(db, "PRAGMA synchronous = NORMAL", NULL, NULL, NULL);
}

static int check_kind(sqlite3 *db, const char *path, err *e) {
  int rc;
  int64_t application = number_of(db, "PRAGMA application_id", &rc);
  int64_t version = rc ? -1 : number_of(db, "PRAGMA user_version", &rc);
  if (rc) return ledger_database_error(db, path, e);
  if (application != LEDGER_APPLICATION) return explain(SQLITE_NOTADB, path, "", e);
  if (version > LEDGER_SCHEMA)
    return err_set(
        e, ERR_VERSION,
        "the ledger %.200s is of a newer tandem (version %lld, this one knows %d): update this one" HINT,
        path, (long long)version, LEDGER_SCHEMA);
  return version == LEDGER_SCHEMA ? ERR_OK : explain(SQLITE_CORRUPT, path, "", e);
}

static int prepare(sqlite3 *db, const char *path, bool create, err *e) {
  int rc;
  sqlite3_busy_timeout(db, LEDGER_BUSY_MS);
  int64_t version = number_of(db, "PRAGMA user_version", &rc);
  if (rc == SQLITE_OK && create && version == 0) rc = make_if_empty(db);
  if (rc) return ledger_database_error(db, path, e);
  int code = check_kind(db, path, e);
  if (code || !create) return code;
  return use_wal(db) ? ledger_database_error(db, path, e) : ERR_OK;
}

static int open_as(sqlite3 **out, const char *path, int flags, bool create, err *e) {
  int rc = sqlite3_open_v2(path, out, flags | SQLITE_OPEN_NOMUTEX, NULL);
  int code = rc ? explain(rc, path, *out ? sqlite3_errmsg(*out) : "", e) : prepare(*out, path, create, e);
  if (code == ERR_OK) return ERR_OK;
  sqlite3_close(*out);
  *out = NULL;
  return code;
}

int ledger_database_open(sqlite3 **out, const char *path, bool create, err *e) {
  *out = NULL;
  int code = check_file(path, create, e);
  if (code == ERR_OK) code = open_as(out, path, SQLITE_OPEN_READWRITE, create, e);
  if (code == ERR_IO && !create) code = open_as(out, path, SQLITE_OPEN_READONLY, false, e);
  return code;
}
