#include "orchestrator/ledger/ledger_file.h"

#include "common/base/clock.h"
#include "common/base/program.h"
#include "orchestrator/ledger/ledger_change.h"
#include "orchestrator/ledger/ledger_database.h"
#include "orchestrator/ledger/ledger_epochs.h"
#include "orchestrator/ledger/ledger_writer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct file {
  ledger_backlog backlog; /* first: the self of every call */
  ledger_writer *writer;
  sqlite3 *db; /* the writer's, once its thread runs */
  char *path, *command, *model;
  uint64_t owner; /* this process in the file */
} file;

/* ---- the calls: each changes memory first, and then what the writer has to do ---- */

static bool is_being_forgotten(const ledger_backlog *b, uint64_t session) {
  for (int32_t i = 0; i < b->count; i++)
    if (b->tracks[i].session == session && b->tracks[i].forgotten) return true;
  return false;
}

/* A session may go on right after its end: that end is written first. */
static void wait_for_end(ledger_backlog *b, uint64_t session) {
  uint64_t until = clock_us() + LEDGER_STALL_US;
  while (is_being_forgotten(b, session) && !b->failing)
    if (!ledger_backlog_wait(b, until)) return;
}

/* The writer is not woken yet: the epoch that is recorded with the beginning follows. */
static int file_begin(void *self, const ledger_record *r) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  wait_for_end(b, r->session);
  int rc = b->memory.begin(b->memory.self, r);
  if (rc == ERR_OK && (rc = ledger_backlog_add(b, r)) != ERR_OK) b->memory.forget(b->memory.self, r->session);
  pthread_mutex_unlock(&b->lock);
  return rc;
}

static int file_epoch(void *self, uint64_t session, uint32_t epoch) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  int rc = b->memory.epoch(b->memory.self, session, epoch);
  ledger_track *t = rc == ERR_OK ? ledger_backlog_find(b, session) : NULL;
  if (t) rc = t->lost ? ERR_GONE : ledger_epochs_record(b, t, epoch);
  pthread_mutex_unlock(&b->lock);
  return rc;
}

static int file_append(void *self, uint64_t session, int32_t position, const int32_t *tokens, int32_t count) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  int rc = b->memory.append(b->memory.self, session, position, tokens, count);
  if (rc == ERR_OK && count > 0) {
    b->tokens_new += (uint64_t)count;
    if (!b->dirty) ledger_backlog_wake(b, false);
  }
  pthread_mutex_unlock(&b->lock);
  return rc;
}

static int file_numerics(void *self, uint64_t session, const char *id) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  ledger_track *t = ledger_backlog_find(b, session);
  if (t) {
    snprintf(t->numerics, sizeof t->numerics, "%s", id);
    t->numerics_news = true;
    ledger_backlog_wake(b, false);
  }
  pthread_mutex_unlock(&b->lock);
  return t ? ERR_OK : ERR_GONE;
}

static void stats_json(char out[LEDGER_STATS_MAX], const msg_stats *s) {
  out[0] = 0;
  if (!s || s->forwards == 0) return; /* of a session that was cut or cancelled they are not known yet */
  snprintf(out, LEDGER_STATS_MAX,
           "{\"forwards\":%llu,\"rounds\":%llu,\"draft_tokens\":%llu,\"accepted_tokens\":%llu}",
           (unsigned long long)s->forwards, (unsigned long long)s->rounds, (unsigned long long)s->rows,
           (unsigned long long)s->accepted);
}

static int file_end(void *self, uint64_t session, int32_t length, wire_finish finish,
                    const msg_stats *stats) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  int rc = b->memory.end(b->memory.self, session, length, finish, stats);
  ledger_track *t = rc == ERR_OK ? ledger_backlog_find(b, session) : NULL;
  if (t) {
    t->ended = true;
    t->finish = finish;
    if (t->written > length) t->written = length;
    stats_json(t->stats, stats);
    ledger_backlog_wake(b, true);
  }
  pthread_mutex_unlock(&b->lock);
  return rc;
}

static int32_t file_durable(void *self, uint64_t session) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  const ledger_track *t = ledger_backlog_find(b, session);
  int32_t length = 0;
  if (t && (b->failing || t->lost))
    length = ledger_backlog_length(b, session);
  else if (t && t->begun)
    length = t->written;
  pthread_mutex_unlock(&b->lock);
  return length;
}

static bool file_read(void *self, uint64_t session, ledger_entry *out) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  bool found = b->memory.read(b->memory.self, session, out);
  pthread_mutex_unlock(&b->lock);
  return found;
}

/* Where something is not written yet, the writer removes the track once it is. */
static void file_forget(void *self, uint64_t session) {
  ledger_backlog *b = self;
  pthread_mutex_lock(&b->lock);
  ledger_track *t = ledger_backlog_find(b, session);
  if (t && (t->lost || !ledger_backlog_has_news(b, t)))
    ledger_backlog_remove(b, t);
  else if (t)
    t->forgotten = true;
  pthread_mutex_unlock(&b->lock);
}

/* ---- open and close ---- */

static void file_free(file *f) {
  ledger_writer_close(f->writer);
  if (f->db) ledger_change_leave(f->db, f->owner); /* where it fails, others see that this process is gone */
  sqlite3_close(f->db);
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
                             .who = {.since = clock_wall_us(),
                                     .command = f->command,
                                     .model = f->model,
                                     .fingerprint = o->fingerprint},
                             .log = o->log,
                             .on_durable = o->on_durable,
                             .context = o->context};
  process_identity_self(&w.who.self);
  int rc = ledger_change_remove_dead(f->db, f->path, e);
  if (rc == ERR_OK) rc = program_random(&f->owner, sizeof f->owner, e);
  w.who.id = f->owner;
  return rc ? rc : ledger_writer_open(&f->writer, &w, e);
}

static int open_file(file *f, const ledger_file_options *o, err *e) {
  int rc = ledger_database_open(&f->db, o->path, true, e);
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
  *out = (ledger){.self = &f->backlog,
                  .begin = file_begin,
                  .epoch = file_epoch,
                  .append = file_append,
                  .numerics = file_numerics,
                  .end = file_end,
                  .durable = file_durable,
                  .read = file_read,
                  .forget = file_forget,
                  .close = file_close};
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
