#include "orchestrator/service/ledger_choice.h"

#include "orchestrator/ledger/ledger_database.h"
#include "orchestrator/service/worker_report.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define WORKERS_EVERY_MS 1000

struct ledger_choice {
  ledger ledger;
  bool is_file, is_named;
  const logger *log;
  char path[PATH_MAX]; /* of the file, which had these when it was opened; "": that is not known */
  dev_t device;
  ino_t number;
  uv_async_t logged;
  uv_timer_t second;
  int handles; /* of libuv that are not closed yet */
  const sessions_machine *sessions;
  void (*on_logged)(void *context);
  void *context;
};

static void on_durable(void *context) {
  ledger_choice *c = context;
  uv_async_send(&c->logged);
}

static void on_logged(uv_async_t *async) {
  ledger_choice *c = async->data;
  c->on_logged(c->context);
}

static void on_second(uv_timer_t *timer) {
  ledger_choice *c = timer->data;
  json_t *workers = c->sessions ? worker_report(c->sessions) : NULL;
  char *text = workers ? json_dumps(workers, JSON_COMPACT) : NULL;
  if (text) ledger_file_set_workers(&c->ledger, text);
  free(text);
  json_decref(workers);
}

/* ---- is the file still there? ---- */

static void note_file(ledger_choice *c, const char *path) {
  struct stat s;
  if (!realpath(path, c->path) || stat(c->path, &s) != 0) {
    c->path[0] = 0;
    return;
  }
  c->device = s.st_dev;
  c->number = s.st_ino;
}

/* Somebody has removed, replaced or emptied it, while we write to what nobody will find. */
static bool is_lost(const ledger_choice *c) {
  struct stat s;
  return c->path[0] &&
         (stat(c->path, &s) != 0 || s.st_dev != c->device || s.st_ino != c->number || !s.st_size);
}

/* ---- open and close ---- */

static int open_file(ledger_choice *c, const ledger_choice_options *o, err *e) {
  char path[LEDGER_PATH_MAX];
  ledger_file_options s = {.path = o->ledger,
                           .mode = o->mode,
                           .command = o->command,
                           .model = o->model,
                           .fingerprint = o->fingerprint,
                           .resume = o->resume,
                           .resume_updated = o->resume_updated,
                           .log = o->log,
                           .on_durable = on_durable,
                           .context = c};
  int rc = o->ledger ? ERR_OK : ledger_database_default_path(path, e);
  if (!o->ledger) s.path = path;
  if (rc == ERR_OK && uv_async_init(o->loop, &c->logged, on_logged) != 0)
    return err_set(e, ERR_IO, "cannot wait for the ledger: is the limit of open files (ulimit -n) too low?");
  if (rc != ERR_OK) return rc;
  c->handles = 1;
  uv_unref((uv_handle_t *)&c->logged);
  uv_timer_init(o->loop, &c->second);
  c->handles = 2;
  c->logged.data = c->second.data = c;
  bool is_new = !o->ledger && ledger_database_make(path);
  rc = ledger_file_open(&c->ledger, &s, e);
  if (rc) return rc;
  if (is_new && o->on_new_file) o->on_new_file(o->context, path);
  c->is_file = true;
  c->log = o->log;
  note_file(c, s.path);
  if (o->mode == LEDGER_FAST)
    log_line(o->log, LOG_WARNING,
             "--ledger-mode fast: text is shown before it is kept, so what was shown last is lost if this "
             "program dies");
  uv_timer_start(&c->second, on_second, WORKERS_EVERY_MS, WORKERS_EVERY_MS);
  uv_unref((uv_handle_t *)&c->second);
  return ERR_OK;
}

int ledger_choice_open(ledger_choice **out, const ledger_choice_options *o, err *e) {
  ledger_choice *c = *out = calloc(1, sizeof *c);
  err why = {0};
  if (!c) return err_set(e, ERR_NOMEM, "out of memory");
  c->on_logged = o->on_logged;
  c->context = o->context;
  c->is_named = o->ledger || o->resume;
  bool none = o->ledger && strcmp(o->ledger, "none") == 0;
  int rc = none ? ERR_OK : open_file(c, o, &why);
  if (rc && c->is_named) {
    if (e) *e = why;
    return rc;
  }
  if (rc) log_line(o->log, LOG_WARNING, "%s. This answer is not kept", why.text);
  if (c->is_file) return ERR_OK;
  return ledger_memory(&c->ledger) ? err_set(e, ERR_NOMEM, "out of memory for the ledger") : ERR_OK;
}

static void on_closed(uv_handle_t *handle) {
  ledger_choice *c = handle->data;
  if (--c->handles == 0) free(c);
}

void ledger_choice_close(ledger_choice *c) {
  if (!c) return;
  if (is_lost(c))
    log_line(c->log, LOG_WARNING, "%s was removed, replaced or emptied meanwhile: what came is not kept",
             c->path);
  if (c->ledger.close) c->ledger.close(c->ledger.self); /* which ends the writer's thread */
  if (c->handles == 0) {
    free(c);
    return;
  }
  uv_close((uv_handle_t *)&c->logged, on_closed);
  uv_close((uv_handle_t *)&c->second, on_closed);
}

ledger ledger_choice_ledger(const ledger_choice *c) {
  return c->ledger;
}

void ledger_choice_watch(ledger_choice *c, const sessions_machine *o) {
  c->sessions = o;
}

bool ledger_choice_keeps(const ledger_choice *c) {
  return c->is_file && !ledger_file_failing(&c->ledger) && !is_lost(c);
}

bool ledger_choice_failed(const ledger_choice *c) {
  return c->is_file && c->is_named && (ledger_file_failing(&c->ledger) || is_lost(c));
}
