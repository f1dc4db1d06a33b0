#include "orchestrator/ledger/ledger_repair.h"

#include "common/base/clock.h"
#include "orchestrator/ledger/ledger_check.h"
#include "orchestrator/ledger/ledger_copy.h"
#include "orchestrator/ledger/ledger_error.h"
#include "orchestrator/ledger/ledger_import.h"
#include "orchestrator/ledger/ledger_recovery.h"
#include "orchestrator/ledger/ledger_sum.h"
#include "orchestrator/ledger/owner_lock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SUFFIX_MAX 48 /* bytes of what is put behind the ledger's name */

typedef struct repair {
  char path[LEDGER_PATH_MAX]; /* without links */
  char copy[LEDGER_PATH_MAX]; /* of the damaged file; it is read */
  char made[LEDGER_PATH_MAX]; /* the new one */
  sqlite3 *from, *to;
  int lock;
  void (*each)(void *context, const ledger_repaired *r);
  void *context;
  ledger_repair_result *out;
  err *e;
} repair;

/* ---- names ---- */

static int set_names(repair *r, const char *path) {
  char *whole = realpath(path, NULL);
  if (!whole) return err_set(r->e, ERR_GONE, "there is no ledger %.250s", path);
  bool fits = strlen(whole) + SUFFIX_MAX < LEDGER_PATH_MAX;
  if (fits) {
    snprintf(r->path, sizeof r->path, "%s", whole);
    snprintf(r->copy, sizeof r->copy, "%.*s.read-%d", LEDGER_PATH_MAX - SUFFIX_MAX, whole, (int)getpid());
    snprintf(r->made, sizeof r->made, "%.*s.made-%d", LEDGER_PATH_MAX - SUFFIX_MAX, whole, (int)getpid());
  }
  free(whole);
  return fits ? ERR_OK : err_set(r->e, ERR_ARG, "the path of the ledger is too long");
}

/* A name that is free: FILE.damaged-20261123T081500, perhaps with -1 and so on behind it. */
static void name_damaged(const repair *r, char out[LEDGER_PATH_MAX]) {
  time_t now = (time_t)(clock_wall_us() / 1000000);
  struct tm t;
  char when[20], more[16] = "";
  gmtime_r(&now, &t);
  strftime(when, sizeof when, "%Y%m%dT%H%M%S", &t);
  for (int i = 1; i < 1000; i++) {
    snprintf(out, LEDGER_PATH_MAX, "%.*s.damaged-%s%s", LEDGER_PATH_MAX - SUFFIX_MAX, r->path, when, more);
    if (access(out, F_OK) != 0) return;
    snprintf(more, sizeof more, "-%d", i);
  }
}

/* ---- what is damaged ---- */

static bool is_readable(sqlite3 *db) {
  bool same = false;
  return ledger_schema_compare(db, &same) == SQLITE_OK && same;
}

static int open_copy(repair *r) {
  sqlite3_close(r->from);
  int rc = sqlite3_open_v2(r->copy, &r->from, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
  if (rc == SQLITE_OK) rc = ledger_sum_register(r->from);
  if (rc) return ledger_error_set(rc, r->path, "", r->e);
  sqlite3_exec(r->from, "PRAGMA cell_size_check = ON", NULL, NULL, NULL);
  ledger_schema_upgrade(r->from);
  return ERR_OK;
}

/* Where the first page cannot be read, the file's tables still lie where those of a new one do. */
static int read_copy(repair *r) {
  int code = open_copy(r);
  if (code || is_readable(r->from)) return code;
  sqlite3_close(r->from);
  r->from = NULL;
  code = ledger_copy_first_page(r->made, r->copy, r->e);
  return code ? code : open_copy(r);
}

/* A process of another host may serve it, as far as is known here. */
static int refuse_other_hosts(repair *r) {
  sqlite3_stmt *s = NULL;
  int code = ERR_OK;
  sqlite3_prepare_v2(r->from, "SELECT machine, pid FROM orchestrator", -1, &s, NULL);
  while (s && code == ERR_OK && sqlite3_step(s) == SQLITE_ROW) {
    const char *host = (const char *)sqlite3_column_text(s, 0);
    if (owner_lock_unlocked(r->path, host ? host : "") != OWNER_DEAD)
      code =
          err_set(r->e, ERR_STATE,
                  "process %lld of another host may be writing the ledger: end it, or, when it is dead for "
                  "certain, release one of its sessions with `tandem session release ID'",
                  (long long)sqlite3_column_int64(s, 1));
  }
  sqlite3_finalize(s);
  return code;
}

static void ignore(void *context, const ledger_damage *d) {
  (void)context;
  (void)d;
}

/* Whether all is well with a ledger; false also where that cannot be found out. */
static bool is_good(const char *path) {
  sqlite3 *db;
  ledger_check_counts counts;
  if (ledger_database_open(&db, path, false, NULL)) return false;
  bool good = ledger_check(db, path, ignore, NULL, &counts, NULL) == ERR_OK && counts.damages == 0;
  sqlite3_close(db);
  return good;
}

/* ---- what is made of it ---- */

static int make_ledger(repair *r) {
  int code = ledger_database_open(&r->to, r->made, true, r->e);
  if (code == ERR_OK && sqlite3_exec(r->to, "PRAGMA wal_checkpoint(TRUNCATE)", NULL, NULL, NULL))
    code = ledger_error_last(r->to, r->made, r->e);
  return code ? code : ledger_database_sync(r->to, r->made, r->e);
}

/* Tokens without a prompt are of no use, but somebody may want to know. */
static bool had_tokens(sqlite3 *db, uint64_t id) {
  sqlite3_stmt *s = NULL;
  sqlite3_prepare_v2(db,
                     "SELECT 1 FROM tokens WHERE session = ? AND sum IS ledger_sum(session, position, ids)",
                     -1, &s, NULL);
  sqlite3_bind_int64(s, 1, (int64_t)id);
  bool found = s && sqlite3_step(s) == SQLITE_ROW;
  sqlite3_finalize(s);
  return found;
}

static void count(repair *r, const ledger_repaired *one) {
  *(one->whole ? &r->out->whole : one->kept ? &r->out->cut : &r->out->lost) += 1;
  r->each(r->context, one);
}

static int take_session(repair *r, uint64_t id) {
  ledger_session s;
  ledger_repaired one = {.id = id};
  err why = {0};
  int code = ledger_query_salvage(r->from, id, &s, &one.whole, &why);
  if (code == ERR_NOMEM) return err_set(r->e, code, "out of memory");
  if (code == ERR_GONE && !had_tokens(r->from, id)) return ERR_OK; /* no session ever was there */
  if (code == ERR_OK) {
    int64_t now = clock_wall_us();
    if (s.created <= 0) s.created = s.updated = now;
    one.kept = true;
    one.output_length = s.length - s.prompt_length;
    int rc = ledger_import_write(r->to, &s);
    ledger_session_fini(&s);
    if (rc) return ledger_error_set(rc, r->made, sqlite3_errmsg(r->to), r->e);
  }
  count(r, &one);
  return ERR_OK;
}

static int take_sessions(repair *r) {
  ledger_recovery_ids found;
  int code = ledger_recovery_find(r->from, &found);
  if (code) err_set(r->e, code, "the ledger has too many sessions to repair it in memory");
  if (code == ERR_OK && sqlite3_exec(r->to, "BEGIN", NULL, NULL, NULL))
    code = ledger_error_last(r->to, r->made, r->e);
  for (size_t i = 0; i < found.count && code == ERR_OK; i++) code = take_session(r, found.ids[i]);
  if (code == ERR_OK && sqlite3_exec(r->to, "COMMIT", NULL, NULL, NULL))
    code = ledger_error_last(r->to, r->made, r->e);
  ledger_recovery_fini(&found);
  return code;
}

/* An empty ledger in the place of one in which nothing is readable would help nobody. */
static int take_name(repair *r) {
  sqlite3_close(r->to); /* which writes all of it into the file itself */
  r->to = NULL;
  if (r->out->whole + r->out->cut == 0)
    return err_set(r->e, ERR_FORMAT, "nothing in %.250s can be read: it stays as it is; move it away",
                   r->path);
  if (!is_good(r->made))
    return err_set(r->e, ERR_INTERNAL, "what was made of %.250s is not whole: it stays as it is", r->path);
  name_damaged(r, r->out->damaged);
  int code = ledger_copy_rename(r->path, r->out->damaged, r->e);
  return code ? code : ledger_copy_rename(r->made, r->path, r->e);
}

static int run(repair *r) {
  int code = owner_lock_take_all(&r->lock, r->path, r->e);
  if (code == ERR_OK) code = ledger_copy_make(r->path, r->copy, r->e);
  if (code == ERR_OK && is_good(r->copy)) {
    r->out->was_good = true;
    return ERR_OK;
  }
  if (code == ERR_OK) code = make_ledger(r);
  if (code == ERR_OK) code = read_copy(r);
  if (code == ERR_OK) code = refuse_other_hosts(r);
  if (code == ERR_OK) code = take_sessions(r);
  return code ? code : take_name(r);
}

int ledger_repair(const char *path, void (*each)(void *context, const ledger_repaired *r), void *context,
                  ledger_repair_result *out, err *e) {
  repair r = {.lock = -1, .each = each, .context = context, .out = out, .e = e};
  *out = (ledger_repair_result){0};
  int code = set_names(&r, path);
  if (code) return code;
  code = run(&r);
  sqlite3_close(r.from);
  sqlite3_close(r.to);
  ledger_copy_remove(r.copy);
  ledger_copy_remove(r.made);
  owner_lock_release(r.lock);
  return code;
}
