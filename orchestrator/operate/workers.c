/* tandem workers: lists the workers of a running server, drains and resumes them. */
#include "common/base/json_text.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/operate/operate.h"
#include "orchestrator/operate/server_link.h"
#include "orchestrator/operate/worker_lines.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int report(const err *e) {
  return command_error(e->code == ERR_NOMEM ? STATUS_FAILED : STATUS_IO, "%s", e->text);
}

static int print(const flags *f, const json_t *workers) {
  if (f->given.json) {
    char *text = json_text(workers, JSON_INDENT(1));
    if (!text) return command_error(STATUS_FAILED, "out of memory");
    puts(text);
    free(text);
  } else {
    worker_lines_print(stdout, workers);
  }
  return fflush(stdout) == 0 ? STATUS_OK : command_error(STATUS_IO, "cannot write to stdout");
}

/* *out becomes the list as it is after the change. */
static int change(server_link *l, const json_t *list, const char *verb, const char *digits, json_t **out) {
  err e = {0};
  char path[128];
  const char *id = worker_lines_find(list, digits, &e);
  if (!id) return command_error(STATUS_USAGE, "%s", e.text);
  snprintf(path, sizeof path, "/v1/workers/%.64s", id);
  bool drain = strcmp(verb, "drain") == 0;
  int rc = server_link_ask_json(l, path, drain ? "{\"drained\": true}" : "{\"drained\": false}", out, &e);
  return rc ? report(&e) : STATUS_OK;
}

static int run(const flags *f, server_link *l) {
  json_t *whole = NULL, *after = NULL;
  err e = {0};
  if (server_link_ask_json(l, "/v1/workers", NULL, &whole, &e)) return report(&e);
  int code = STATUS_OK;
  if (f->given.argument_count)
    code = change(l, json_object_get(whole, "data"), f->given.arguments[0], f->given.arguments[1], &after);
  if (code == STATUS_OK) code = print(f, json_object_get(after ? after : whole, "data"));
  json_decref(whole);
  json_decref(after);
  return code;
}

int operate_workers(const flags *f) {
  const char *verb = f->given.argument_count ? f->given.arguments[0] : "list";
  bool changes = strcmp(verb, "drain") == 0 || strcmp(verb, "resume") == 0;
  if (f->given.argument_count && !changes)
    return command_error(STATUS_USAGE, "there is no '%.40s' for workers, only drain and resume", verb);
  if (changes && f->given.argument_count < 2)
    return command_error(STATUS_USAGE,
                         "which worker? Give the first digits of its id: `tandem workers' tells them");
  server_link *l;
  err e = {0};
  int code = server_link_open(&l, f->given.url, f->given.api_keys, &e) ? report(&e) : run(f, l);
  server_link_close(l);
  return code;
}
