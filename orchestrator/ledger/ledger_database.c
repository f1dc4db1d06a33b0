#include "orchestrator/ledger/ledger_database.h"

#include "common/base/output_file.h"
#include "common/base/user_folder.h"
#include "orchestrator/ledger/ledger_error.h"
#include "orchestrator/ledger/ledger_schema.h"
#include "orchestrator/ledger/ledger_sum.h"
#include "orchestrator/ledger/owner_lock.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RETRY_US 20000 /* a change of the journal mode does not wait for locks by itself */

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
  return sqlite3_prepare_v2(db, sql, -1, out, NULL) ? ledger_error_last(db, path, e) : ERR_OK;
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
  int rc = user_folder_path(USER_FOLDER_STATE, "ledger.sqlite", out);
  if (rc == ERR_ARG)
    return err_set(e, ERR_ARG, "no place for the ledger: set HOME or XDG_STATE_HOME, or give --ledger FILE");
  return rc ? err_set(e, ERR_ARG, "the path of the ledger is too long: give --ledger FILE") : ERR_OK;
}

void ledger_database_spare(const char *path) {
  static const char *const beside[] = {"", "-wal", "-shm", "-journal", OWNER_LOCK_BESIDE};
  char real[PATH_MAX], name[PATH_MAX + 16];
  bool is_link = realpath(path, real) != NULL; /* SQLite's files lie beside what a link leads to */
  for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
    snprintf(name, sizeof name, "%s%s", path, beside[i]);
    output_file_spare(name);
    snprintf(name, sizeof name, "%s%s", real, beside[i]);
    if (is_link) output_file_spare(name);
  }
}

bool ledger_database_make(const char *path) {
  user_folder_make_parents(path);
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

/* SQLite would make the file with the rights of the umask, and would wait on a pipe. A file that is there is
 * not opened: closing it would take away all locks that this process holds on it (fcntl(2)). */
static int check_file(const char *path, bool create, err *e) {
  struct stat info;
  if (create) user_folder_make_parents(path);
  if (stat(path, &info) == 0)
    return S_ISREG(info.st_mode)
               ? ERR_OK
               : err_set(e, ERR_FORMAT, "the ledger %.200s is no regular file" LEDGER_ERROR_REMEDY, path);
  if (errno == ENOENT && !create) return err_set(e, ERR_GONE, "there is no ledger %.200s yet", path);
  int fd = errno == ENOENT ? open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
  if (fd < 0 && errno != EEXIST)
    return err_set(e, ERR_IO, "the ledger %.200s cannot be opened: %s" LEDGER_ERROR_REMEDY, path,
                   strerror(errno));
  if (fd >= 0) close(fd);
  return ERR_OK;
}

/* ---- opening ---- */

#define URI_MAX (3 * LEDGER_PATH_MAX + 64)

/* A file system without shared memory keeps its journal as it is, which is slower but as safe. */
static int use_wal(sqlite3 *db) {
  int rc, tries = LEDGER_BUSY_MS * 1000 / RETRY_US;
  while ((rc = sqlite3_exec(db, "PRAGMA journal_mode = WAL", NULL, NULL, NULL)) == SQLITE_BUSY && tries-- > 0)
    usleep(RETRY_US);
  return rc ? rc : sqlite3_exec(db, "PRAGMA synchronous = NORMAL", NULL, NULL, NULL);
}

int ledger_database_keep_little(sqlite3 *db, const char *path, err *e) {
  char text[64];
  snprintf(text, sizeof text, "PRAGMA cache_size = -%d", LEDGER_CACHE_KIB); /* negative: KiB */
  return sqlite3_exec(db, text, NULL, NULL, NULL) ? ledger_error_last(db, path, e) : ERR_OK;
}

int ledger_database_sync(sqlite3 *db, const char *path, err *e) {
  return sqlite3_exec(db, "PRAGMA synchronous = FULL", NULL, NULL, NULL) ? ledger_error_last(db, path, e)
                                                                         : ERR_OK;
}

static int prepare(sqlite3 *db, const char *path, bool create, err *e) {
  sqlite3_busy_timeout(db, LEDGER_BUSY_MS);
  if (ledger_sum_register(db)) return ledger_error_last(db, path, e);
  if (!sqlite3_db_readonly(db, "main") && ledger_schema_upgrade(db)) return ledger_error_last(db, path, e);
  if (create && ledger_schema_create(db)) return ledger_error_last(db, path, e);
  int code = ledger_schema_check(db, path, e);
  if (code || !create) return code;
  return use_wal(db) ? ledger_error_last(db, path, e) : ERR_OK;
}

static int open_as(sqlite3 **out, const char *path, int flags, bool create, err *e) {
  int rc = sqlite3_open_v2(path, out, flags | SQLITE_OPEN_NOMUTEX, NULL);
  int code =
      rc ? ledger_error_set(rc, path, *out ? sqlite3_errmsg(*out) : "", e) : prepare(*out, path, create, e);
  if (code == ERR_OK) return ERR_OK;
  sqlite3_close(*out);
  *out = NULL;
  return code;
}

/* "file:PATH?immutable=1"; what a URI gives a meaning to stands as its number. */
static void write_uri(char out[URI_MAX], const char *path) {
  size_t n = (size_t)snprintf(out, URI_MAX, "file:");
  for (; *path && n + 32 < URI_MAX; path++) {
    bool plain = !strchr("?#%", *path);
    n +=
        (size_t)snprintf(out + n, URI_MAX - n, plain ? "%c" : "%%%02x", plain ? *path : (unsigned char)*path);
  }
  snprintf(out + n, URI_MAX - n, "?immutable=1");
}

/* A journal lies beside the file itself, wherever a link to it is. */
static int check_journals(const char *path, err *e) {
  static const char *const journals[] = {"-wal", "-journal"};
  char real[PATH_MAX], name[PATH_MAX + 16];
  struct stat info;
  if (!realpath(path, real))
    return err_set(e, ERR_IO, "the ledger %.200s cannot be read: %s", path, strerror(errno));
  for (size_t i = 0; i < sizeof journals / sizeof *journals; i++) {
    snprintf(name, sizeof name, "%s%s", real, journals[i]);
    if (stat(name, &info) != 0 || info.st_size == 0) continue;
    return err_set(
        e, ERR_IO,
        "the ledger %.200s cannot be read where nothing can be written, because its last entries are in "
        "%.200s: copy both to another folder",
        path, name);
  }
  return ERR_OK;
}

/* Where nothing can be written, not even the memory that readers of a journal share, the file is read as it
 * lies there: nobody changes it. What the journal has beyond it cannot be read so. */
static int open_unchanging(sqlite3 **out, const char *path, err *e) {
  char uri[URI_MAX];
  if (check_journals(path, e)) return e ? e->code : ERR_IO;
  write_uri(uri, path);
  return open_as(out, uri, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, false, e);
}

int ledger_database_open(sqlite3 **out, const char *path, bool create, err *e) {
  err why = {0};
  *out = NULL;
  int code = check_file(path, create, e);
  if (code == ERR_OK) code = open_as(out, path, SQLITE_OPEN_READWRITE, create, e);
  if (code == ERR_IO && !create) code = open_as(out, path, SQLITE_OPEN_READONLY, false, e);
  if (code != ERR_IO || create || access(path, R_OK) != 0) return code;
  code = open_unchanging(out, path, &why);
  if (code && e) *e = why;
  return code;
}
