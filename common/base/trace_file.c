#include "common/base/trace_file.h"

#include "common/base/json_text.h"
#include "common/base/output_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct trace_file {
  FILE *file;
  char *path;
  json_int_t process;
  int64_t lanes; /* so far; the first is 1 */
};

/* The first event of the file has no comma before it. One call of stdio, so that threads do not mix. */
static void write_event(trace_file *t, const char *before, json_t *event) {
  char *text = json_text(event, JSON_COMPACT);
  json_decref(event);
  if (text) fprintf(t->file, "%s%s", before, text); /* an error is told by trace_file_close */
  free(text);
}

static json_t *name_event(const trace_file *t, const char *what, int64_t lane, const char *name) {
  return json_pack("{s:s, s:s, s:I, s:I, s:{s:s}}", "name", what, "ph", "M", "pid", t->process, "tid",
                   (json_int_t)lane, "args", "name", name);
}

int trace_file_open(trace_file **out, const char *path, const char *program, err *e) {
  trace_file *t = *out = calloc(1, sizeof *t);
  if (t) t->path = strdup(path);
  if (!t || !t->path) return err_set(e, ERR_NOMEM, "out of memory");
  t->process = getpid();
  t->file = output_file_open(path, "w", e);
  if (!t->file) return e->code;
  write_event(t, "[\n", name_event(t, "process_name", 0, program));
  return ERR_OK;
}

int trace_file_close(trace_file *t, err *e) {
  int rc = ERR_OK;
  if (t && t->file) {
    fputs("\n]\n", t->file);
    bool failed = ferror(t->file);
    if (fclose(t->file) != 0 || failed) rc = err_set(e, ERR_IO, "the trace %s is not whole", t->path);
  }
  if (t) free(t->path);
  free(t);
  return rc;
}

int64_t trace_file_lane(trace_file *t, const char *name) {
  write_event(t, ",\n", name_event(t, "thread_name", ++t->lanes, name));
  return t->lanes;
}

void trace_file_span(trace_file *t, int64_t lane, const char *name, uint64_t from_us, uint64_t to_us,
                     json_t *args) {
  json_t *o = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "name", name, "ph", "X", "ts", (json_int_t)from_us,
                        "dur", (json_int_t)(to_us - from_us), "pid", t->process, "tid", (json_int_t)lane);
  if (args) json_object_set_new(o, "args", args);
  write_event(t, ",\n", o);
}
