#include "orchestrator/ledger/ledger_file.h"

#include "common/base/clock.h"
#include "common/base/program.h"
#include "orchestrator/ledger/ledger_calls.h"
#include "orchestrator/ledger/ledger_change.h"
#include "orchestrator/ledger/ledger_database.h"
#include "orchestrator/ledger/ledger_writer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct file {
  ledger_backlog backlog; /* first: the self of every call */
  ledger_writer *writer;
  sqlite3 *db; /* the writer's, once its thread runs */
  char *path, *command, *model;
  uint64_t owner; /* this process in the file, */
  int lock;       /* and what shows that it lives; -1: none */
} file;

/* ---- open and close ---- */

static void file_free(file *f) {
  ledger_writer_close(f->writer);
  if (f->db) ledger_change_leave(f->db, f->owner); /* where it fails, others see that this process is gone */
  sqlite3_close(f->db);
  owner_lock_release(f->lock);
  ledger_backlog_fini(&f->backlog);
  free(f->path);
  free(f->command);
  free(f->model);
  free(f);
}

static void file_close(void *self) {
  file_free(self); /* its first member is the backlog */
}

static file *file_alloc(const ledger_file_options *o) {
  file *f = calloc(1, sizeof *f);
  if (!f) return NULL;
  f->lock = -1;
  int rc = ledger_backlog_init(&f->backlog);
  f->path = strdup(o->path);
  f->command = strdup(o->command);
  f->model = o->model ? strdup(o->model) : NULL;
  if (rc == ERR_OK && f->path && f->command && (f->model || !o->model)) return f;
  file_free(f);
  return NULL;
}

/* This process is in the file before anything that it owns. */
static int register_process(file *f, const ledger_file_options *o, err *e) {
  ledger_writer_options w = {.backlog = &f->backlog,
                             .db = f->db,
                             .path = f->path,
                             .who = {.pid = getpid(),
                                     .since = clock_wall_us(),
                                     .command = f->command,
                                     .model = f->model,
                                     .fingerprint = o->fingerprint},
                             .log = o->log,
                             .on_durable = o->on_durable,
                             .context = o->context};
  owner_lock_host(w.who.host);
  int rc = ledger_change_remove_dead(f->db, f->path, e);
  if (rc == ERR_OK) rc = program_random(&f->owner, sizeof f->owner, e);
  if (rc == ERR_OK) rc = owner_lock_take(&f->lock, sqlite3_db_filename(f->db, "main"), f->owner, e);
  w.who.id = f->owner;
  return rc ? rc : ledger_writer_open(&f->writer, &w, e);
}

static int open_file(file *f, const ledger_file_options *o, err *e) {
  int rc = ledger_database_open(&f->db, o->path, true, e);
  f->backlog.fast = o->mode == LEDGER_FAST;
  if (rc == ERR_OK) rc = ledger_database_keep_little(f->db, f->path, e);
  if (rc == ERR_OK && o->mode == LEDGER_DURABLE) rc = ledger_database_sync(f->db, f->path, e);
  if (rc == ERR_OK) rc = register_process(f, o, e);
  if (rc == ERR_OK && o->resume)
    rc = ledger_change_claim(f->db, f->path, o->resume, o->resume_updated, f->owner, e);
  return rc ? rc : ledger_writer_start(f->writer, e);
}

int ledger_file_open(ledger *out, const ledger_file_options *o, err *e) {
  *out = (ledger){0};
  file *f = file_alloc(o);
  if (!f) return err_set(e, ERR_NOMEM, "out of memory for the ledger");
  int rc = open_file(f, o, e);
  if (rc) {
    file_free(f);
    return rc;
  }
  ledger_calls(out, &f->backlog);
  out->close = file_close;
  return ERR_OK;
}

void ledger_file_set_workers(ledger *l, const char *json) {
  ledger_backlog *b = l->self;
  char *copy = json ? strdup(json) : NULL;
  pthread_mutex_lock(&b->lock);
  free(b->workers);
  b->workers = copy;
  pthread_mutex_unlock(&b->lock);
}

bool ledger_file_failing(const ledger *l) {
  ledger_backlog *b = l->self;
  pthread_mutex_lock(&b->lock);
  bool failing = b->failing;
  pthread_mutex_unlock(&b->lock);
  return failing;
}
