/* tandem session export: sessions as lines of JSON, while others may write the ledger. */
#include "common/base/output_file.h"
#include "orchestrator/cli/command_session.h"
#include "orchestrator/service/session_line.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct export {
  command_session_work *w;
  FILE *to;
  uint64_t *ids; /* [count] of --all, the oldest first */
  size_t count, capacity;
  int32_t failed;
}
export;

static int out_of_memory(void) {
  return command_error(STATUS_FAILED, "out of memory");
}

static int print_line(export *x, const ledger_session *s) {
  json_t *object = command_session_object(x->w, s);
  char *text = session_line_write(object, s);
  json_decref(object);
  if (!text) return out_of_memory();
  bool ok = fputs(text, x->to) >= 0 && fputc('\n', x->to) >= 0;
  free(text);
  return ok ? STATUS_OK : command_error(STATUS_IO, "cannot write the sessions: %s", strerror(errno));
}

/* ---- all of them ---- */

static void note_id(void *context, const ledger_line *l) {
  export *x = context;
  if (x->count == x->capacity) {
    size_t capacity = x->capacity ? 2 * x->capacity : 64;
    uint64_t *more = realloc(x->ids, capacity * sizeof *more);
    if (!more) return; /* which the count tells */
    x->ids = more;
    x->capacity = capacity;
  }
  x->ids[x->count++] = l->id;
}

/* A damaged one does not keep the others here; one that was forgotten meanwhile is none. */
static int print_one(export *x, uint64_t id) {
  ledger_session s;
  err e = {0};
  int rc = ledger_query_load(x->w->db, x->w->path, id, &s, &e);
  if (rc == ERR_GONE) return STATUS_OK;
  if (rc == ERR_FORMAT) {
    command_session_error(&e);
    x->failed++;
    return STATUS_OK;
  }
  if (rc) return command_session_error(&e);
  int code = print_line(x, &s);
  ledger_session_fini(&s);
  return code;
}

static int print_all(export *x) {
  err e = {0};
  ledger_totals total = {0};
  if (!x->w->db) return STATUS_OK;
  int rc = ledger_query_list(x->w->db, x->w->path, 0, true, note_id, x, &total, &e);
  if (rc) return command_session_error(&e);
  if (x->count != (size_t)total.listed) return out_of_memory();
  int code = STATUS_OK;
  while (x->count > 0 && code == STATUS_OK) code = print_one(x, x->ids[--x->count]);
  return code == STATUS_OK && x->failed ? STATUS_FAILED : code;
}

/* ---- where to ---- */

static int print_sessions(export *x) {
  if (x->w->flags.given.all) return print_all(x);
  ledger_session s;
  int code = command_session_load(x->w, &s);
  if (code) return code;
  code = print_line(x, &s);
  ledger_session_fini(&s);
  return code;
}

/* A file gets its name once all is in it. */
static int print_to_file(export *x, const char *path) {
  char part[LEDGER_PATH_MAX];
  int n = snprintf(part, sizeof part, "%s.part", path);
  err e = {0};
  if (n >= (int)sizeof part) err_set(&e, ERR_ARG, "the path %.200s is too long", path);
  if (!e.code && output_file_check(path, &e) == ERR_OK) x->to = output_file_open(part, "w", &e);
  if (e.code) return command_error(e.code == ERR_ARG ? STATUS_USAGE : STATUS_IO, "%s", e.text);
  int code = print_sessions(x);
  bool ok = fflush(x->to) == 0 && fsync(fileno(x->to)) == 0;
  ok = fclose(x->to) == 0 && ok;
  if ((code == STATUS_OK || code == STATUS_FAILED) && !(ok && rename(part, path) == 0))
    code = command_error(STATUS_IO, "cannot write %.200s: %s", path, strerror(errno));
  if (code != STATUS_OK && code != STATUS_FAILED) unlink(part);
  return code;
}

int command_session_export(command_session_work *w) {
  export x = {.w = w, .to = stdout};
  int code = w->flags.given.output ? print_to_file(&x, w->flags.given.output) : print_sessions(&x);
  if (fflush(stdout) != 0) code = command_error(STATUS_IO, "cannot write to stdout");
  free(x.ids);
  return code;
}
