/* tandem session check: is all of the ledger in order? */
#include "orchestrator/cli/command_session.h"
#include "orchestrator/ledger/ledger_check.h"
#include <stdio.h>

static void print_damage(void *context, const ledger_damage *d) {
  command_session_work *w = context;
  if (!w->list) {
    printf("damaged: %s\n", d->text);
    return;
  }
  json_t *o = json_object();
  json_object_set_new(o, "part", json_string(d->part));
  json_object_set_new(o, "id", d->id ? command_session_id(d->id) : json_null());
  json_object_set_new(o, "text", command_session_text(d->text));
  json_array_append_new(w->list, o);
}

static int print_counts(command_session_work *w, const ledger_check_counts *c) {
  if (!w->list) {
    printf("%s: %lld sessions, %lld tokens in %lld pieces, %lld processes, %lld pages: %lld damage%s\n",
           w->path, (long long)c->sessions, (long long)c->tokens, (long long)c->pieces,
           (long long)c->processes, (long long)c->pages, (long long)c->damages, c->damages == 1 ? "" : "s");
    return fflush(stdout) == 0 ? STATUS_OK : command_error(STATUS_IO, "cannot write to stdout");
  }
  json_t *o = json_object();
  json_object_set_new(o, "ledger", command_session_text(w->path));
  json_object_set_new(o, "good", json_boolean(c->damages == 0));
  json_object_set_new(o, "sessions", json_integer(c->sessions));
  json_object_set_new(o, "tokens", json_integer(c->tokens));
  json_object_set_new(o, "pieces", json_integer(c->pieces));
  json_object_set_new(o, "processes", json_integer(c->processes));
  json_object_set_new(o, "pages", json_integer(c->pages));
  json_object_set(o, "damages", w->list);
  return command_session_print_json(o, JSON_INDENT(1));
}

/* A ledger that cannot even be opened is damaged, too. */
static int look(command_session_work *w, ledger_check_counts *c, err *e) {
  int rc = ledger_database_open(&w->db, w->path, false, e);
  if (rc == ERR_GONE && !w->flags.given.ledger)
    return ERR_OK; /* a default ledger that does not exist is empty */
  if (rc == ERR_OK) return ledger_check(w->db, w->path, print_damage, w, c, e);
  if (rc != ERR_FORMAT) return rc;
  c->damages = 1;
  print_damage(w, &(ledger_damage){.part = "file", .text = e->text});
  return ERR_OK;
}

int command_session_check(command_session_work *w) {
  ledger_check_counts c = {0};
  err e = {0};
  w->list = w->flags.given.json ? json_array() : NULL;
  int rc = look(w, &c, &e);
  if (rc) return command_error(rc == ERR_GONE ? STATUS_IO : command_serve_status(rc), "%s", e.text);
  int code = print_counts(w, &c);
  return code == STATUS_OK && c.damages > 0 ? STATUS_FAILED : code;
}
