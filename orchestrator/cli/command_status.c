/* tandem status: what runs now on this machine, by the ledger. */
#include "common/base/json_text.h"
#include "common/base/log.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/ledger/ledger_change.h"
#include "orchestrator/ledger/ledger_query.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct report {
  bool json;
  json_t *list;
  int shown;
} report;

static const char *text_in(const json_t *o, const char *key) {
  const char *text = json_string_value(json_object_get(o, key));
  return text ? text : "";
}

static void print_one(report *r, const ledger_orchestrator *o, const json_t *workers) {
  static const char *const states[] = {[OWNER_DEAD] = " has died: its sessions are INTERRUPTED",
                                       [OWNER_ALIVE] = "",
                                       [OWNER_ELSEWHERE] =
                                           " (of another host: whether it lives cannot be known here)"};
  char since[32] = "?";
  time_t seconds = (time_t)(o->since / 1000000);
  struct tm local;
  if (localtime_r(&seconds, &local)) strftime(since, sizeof since, "%F %T", &local);
  r->shown++;
  printf("tandem %s  process %lld%s  since %s", o->command, (long long)o->pid, states[o->state], since);
  if (o->state != OWNER_DEAD)
    printf("  %lld session%s  %.1f tok/s", (long long)o->sessions, o->sessions == 1 ? "" : "s",
           (double)o->millitokens / 1000);
  printf("\n");
  size_t i;
  const json_t *w;
  if (o->state == OWNER_DEAD) return;
  json_array_foreach(workers, i, w) {
    const char *kind = text_in(w, "numerics_id");
    printf("  %-7s %s  load %lld  %s\n", text_in(w, "role"), *kind ? kind : text_in(w, "method"),
           (long long)json_integer_value(json_object_get(w, "load")), text_in(w, "endpoint"));
  }
}

static void add_one(report *r, const ledger_orchestrator *o, json_t *workers) {
  static const char *const states[] = {
      [OWNER_DEAD] = "interrupted", [OWNER_ALIVE] = "running", [OWNER_ELSEWHERE] = "elsewhere"};
  json_t *one = json_object();
  json_object_set_new(one, "pid", json_integer(o->pid));
  json_object_set_new(one, "command", json_string(o->command));
  json_object_set_new(one, "state", json_string(states[o->state]));
  json_object_set_new(one, "since", json_real((double)o->since / 1e6));
  json_object_set_new(one, "updated", json_real((double)o->heartbeat / 1e6));
  json_object_set_new(one, "sessions", json_integer(o->state != OWNER_DEAD ? o->sessions : 0));
  json_object_set_new(one, "tok_s", json_real(o->state != OWNER_DEAD ? (double)o->millitokens / 1000 : 0));
  json_object_set(one, "workers", workers);
  json_array_append_new(r->list, one);
}

static void each(void *context, const ledger_orchestrator *o) {
  report *r = context;
  json_t *workers = o->workers ? json_loads(o->workers, 0, NULL) : NULL;
  if (!workers) workers = json_array();
  if (r->json)
    add_one(r, o, workers);
  else
    print_one(r, o, workers);
  json_decref(workers);
}

static int print(report *r, const char *path) {
  const logger log = {"tandem", LOG_INFO};
  if (r->json) {
    char *text = json_text(r->list, JSON_INDENT(1) | JSON_REAL_PRECISION(16));
    if (!text) return command_error(STATUS_FAILED, "out of memory");
    puts(text);
    free(text);
  } else if (r->shown == 0) {
    log_line(&log, LOG_INFO, "nothing runs now, by the ledger %s", path);
  }
  return fflush(stdout) == 0 ? STATUS_OK : command_error(STATUS_IO, "cannot write to stdout");
}

int command_status(int argc, char **argv) {
  flags f;
  err e = {0};
  char path[LEDGER_PATH_MAX];
  sqlite3 *db = NULL;
  flags_parse(&f, COMMAND_STATUS, argc, argv);
  command_clean_stdout();
  report r = {.json = f.given.json, .list = json_array()};
  int rc = ERR_OK;
  if (f.given.ledger)
    snprintf(path, sizeof path, "%s", f.given.ledger);
  else
    rc = ledger_database_default_path(path, &e);
  if (rc == ERR_OK) rc = ledger_database_open(&db, path, false, &e);
  bool absent = rc == ERR_GONE && !f.given.ledger;
  if (rc == ERR_OK) rc = ledger_query_orchestrators(db, path, each, &r, &e);
  int code = rc && !absent
                 ? command_error(rc == ERR_GONE ? STATUS_IO : command_serve_status(rc), "%s", e.text)
                 : print(&r, path);
  if (db && !sqlite3_db_readonly(db, "main"))
    ledger_change_remove_dead(db, path, NULL); /* what has died was shown once */
  sqlite3_close(db);
  json_decref(r.list);
  return code;
}
