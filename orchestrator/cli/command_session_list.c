/* tandem session list: a line, or a JSON object, a session. */
#include "common/base/log.h"
#include "common/base/utf8.h"
#include "orchestrator/cli/command_session.h"
#include "orchestrator/service/session_about.h"
#include <stdio.h>
#include <string.h>

#define TITLE_BYTES 48

static const char *base_name(const char *path) {
  const char *slash = path ? strrchr(path, '/') : NULL;
  return slash ? slash + 1 : path ? path : "?";
}

static void list_json(command_session_work *w, const ledger_line *l, const char *title) {
  json_t *o = json_object();
  json_object_set_new(o, "session", command_session_id(l->id));
  json_object_set_new(o, "state", json_string(command_session_state(l->state, l->finish)));
  json_object_set_new(o, "prompt_tokens", json_integer(l->prompt_length));
  json_object_set_new(o, "tokens", json_integer(l->output_length));
  json_object_set_new(o, "model", command_session_text(l->model));
  json_object_set_new(o, "created", command_session_seconds(l->created));
  json_object_set_new(o, "updated", command_session_seconds(l->updated));
  json_object_set_new(o, "title", command_session_text(title));
  json_array_append_new(w->list, o);
}

static int title_size(const char *title) {
  size_t size = title ? strlen(title) : 1;
  return (int)utf8_valid(title ? title : "-",
                         size < TITLE_BYTES ? size : TITLE_BYTES); /* no half character */
}

static void list_line(void *context, const ledger_line *l) {
  command_session_work *w = context;
  char old[COMMAND_SESSION_AGE_MAX];
  session_about about;
  session_about_read(&about, l->about);
  const char *title = about.title;
  if (w->list)
    list_json(w, l, title);
  else {
    if (w->shown++ == 0)
      printf("%-16s  %-11s  %6s  %4s  %-24s  %s\n", "ID", "STATE", "TOKENS", "AGE", "MODEL", "PROMPT");
    printf("%016llx  %-11s  %6lld  %4s  %-24.24s  %.*s\n", (unsigned long long)l->id,
           command_session_state(l->state, l->finish), (long long)l->output_length,
           command_session_age(w->now - l->created, old), base_name(l->model), title_size(title),
           title ? title : "-");
  }
  session_about_fini(&about);
}

int command_session_list(command_session_work *w) {
  const logger log = {"tandem", LOG_INFO};
  err e = {0};
  w->list = w->flags.given.json ? json_array() : NULL;
  ledger_totals total = {0};
  const flags *f = &w->flags;
  int rc = w->db ? ledger_query_list(w->db, w->path, f->given.limit, f->given.all, list_line, w, &total, &e)
                 : ERR_OK;
  if (rc) return command_session_error(&e);
  if (f->given.limit && total.listed > f->given.limit)
    fprintf(stderr, "tandem: %lld older ones are not shown: --limit N shows N, --limit 0 all\n",
            (long long)(total.listed - f->given.limit));
  if (total.by_hand && !f->given.all)
    fprintf(stderr, "tandem: %lld that were ended are not shown: --all shows them\n",
            (long long)total.by_hand);
  if (w->list)
    return command_session_print_json(json_incref(w->list), JSON_INDENT(1) | JSON_REAL_PRECISION(16));
  if (w->shown == 0 && !total.by_hand) log_line(&log, LOG_INFO, "no sessions in %s", w->path);
  return fflush(stdout) == 0 ? STATUS_OK : command_error(STATUS_IO, "cannot write to stdout");
}
