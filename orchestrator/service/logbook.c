#include "orchestrator/service/logbook.h"

#include "orchestrator/ledger/ledger_database.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS_EVERY_MS 1000

struct logbook {
  ledger ledger;
  bool is_file, is_named;
  uv_async_t logged;
  uv_timer_t every;
  int handles; /* of uv, not yet closed */
  const sessions_machine *sessions;
  void (*on_logged)(void *context);
  void *context;
};

static void on_durable(void *context) {
  logbook *b = context;
  uv_async_send(&b->logged);
}

static void on_logged(uv_async_t *async) {
  logbook *b = async->data;
  b->on_logged(b->context);
}

/* ---- the workers ---- */

static json_t *text_of(wire_string s) {
  return json_stringn(s.data ? s.data : "", s.size);
}

static json_t *worker_json(const sessions_machine *o, wire_role role, int32_t index) {
  const msg_hello *h = sessions_worker(o, role, index);
  bool target = role == WIRE_ROLE_TARGET;
  json_t *worker = json_object();
  json_object_set_new(worker, "role", json_string(target ? "target" : "draft"));
  json_object_set_new(worker, target ? "numerics_id" : "method",
                      text_of(target ? h->numerics_id : h->method));
  if (target) json_object_set_new(worker, "endpoint", text_of(h->endpoint));
  json_object_set_new(worker, "load", json_integer(sessions_worker_load(o, role, index)));
  return worker;
}

static void on_time(uv_timer_t *timer) {
  static const wire_role roles[] = {WIRE_ROLE_TARGET, WIRE_ROLE_DRAFT};
  logbook *b = timer->data;
  if (!b->sessions) return;
  json_t *list = json_array();
  for (int r = 0; r < 2; r++)
    for (int32_t i = 0, n = sessions_worker_count(b->sessions, roles[r]); i < n; i++)
      json_array_append_new(list, worker_json(b->sessions, roles[r], i));
  char *text = json_dumps(list, JSON_COMPACT);
  if (text) ledger_writer_set_workers(&b->ledger, text);
  free(text);
  json_decref(list);
}

/* ---- open and close ---- */

/* Nobody has asked for it: who begins to use tandem is told, and never again. */
static void tell_place(const char *path) {
  fprintf(stderr,
          "tandem: prompts and answers are kept in %s, which only you can read; --ledger none keeps nothing, "
          "`tandem session "
          "end --older-than 0s --delete' forgets what is there (this is said once)\n",
          path);
}

static int open_file(logbook *b, const logbook_options *o, err *e) {
  char path[LEDGER_PATH_MAX];
  ledger_writer_options s = {.path = o->ledger,
                             .command = o->command,
                             .model = o->model,
                             .fingerprint = o->fingerprint,
                             .resume = o->resume,
                             .resume_updated = o->resume_updated,
                             .log = o->log,
                             .on_durable = on_durable,
                             .context = b};
  int rc = o->ledger ? ERR_OK : ledger_database_default_path(path, e);
  if (!o->ledger) s.path = path;
  if (rc == ERR_OK && uv_async_init(o->loop, &b->logged, on_logged) != 0)
    return err_set(e, ERR_IO, "cannot wait for the ledger: is the limit of open files (ulimit -n) too low?");
  if (rc != ERR_OK) return rc;
  b->handles = 1;
  uv_unref((uv_handle_t *)&b->logged);
  uv_timer_init(o->loop, &b->every);
  b->handles = 2;
  b->logged.data = b->every.data = b;
  bool is_new = !o->ledger && ledger_database_make(path);
  rc = ledger_writer_open(&b->ledger, &s, e);
  if (rc) return rc;
  if (is_new) tell_place(path);
  b->is_file = true;
  uv_timer_start(&b->every, on_time, WORKERS_EVERY_MS, WORKERS_EVERY_MS);
  uv_unref((uv_handle_t *)&b->every);
  return ERR_OK;
}

int logbook_open(logbook **out, const logbook_options *o, err *e) {
  logbook *b = *out = calloc(1, sizeof *b);
  err why = {0};
  if (!b) return err_set(e, ERR_NOMEM, "out of memory");
  b->on_logged = o->on_logged;
  b->context = o->context;
  b->is_named = o->ledger || o->resume;
  bool none = o->ledger && strcmp(o->ledger, "none") == 0;
  int rc = none ? ERR_OK : open_file(b, o, &why);
  if (rc && b->is_named) {
    if (e) *e = why;
    return rc;
  }
  if (rc) log_line(o->log, LOG_WARNING, "%s. This answer is not kept", why.text);
  if (b->is_file) return ERR_OK;
  return ledger_memory(&b->ledger) ? err_set(e, ERR_NOMEM, "out of memory for the ledger") : ERR_OK;
}

static void on_closed(uv_handle_t *handle) {
  logbook *b = handle->data;
  if (--b->handles == 0) free(b);
}

void logbook_close(logbook *b) {
  if (!b) return;
  if (b->ledger.close) b->ledger.close(b->ledger.self); /* the writer's thread is gone after it */
  if (b->handles == 0) {
    free(b);
    return;
  }
  uv_close((uv_handle_t *)&b->logged, on_closed);
  uv_close((uv_handle_t *)&b->every, on_closed);
}

ledger logbook_ledger(const logbook *b) {
  return b->ledger;
}

void logbook_watch(logbook *b, const sessions_machine *o) {
  b->sessions = o;
}

bool logbook_is_file(const logbook *b) {
  return b->is_file;
}

bool logbook_failed(const logbook *b) {
  return b->is_file && b->is_named && ledger_writer_failing(&b->ledger);
}
