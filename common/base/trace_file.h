/* trace_file.h - what a program did when, in the Trace Event Format that Chrome's about:tracing and Perfetto
 * show: a JSON array of spans, each on a lane of its program. Times are those of clock_us, which all programs
 * of one machine share, so the events of several files may be put into one.
 *
 * Source: "Trace Event Format" by Google (the Chromium project's document), the phases X and M.
 * Spans may come from any thread, the rest from one. */
#pragma once

#include "common/base/err.h"
#include <jansson.h>
#include <stdint.h>

typedef struct trace_file trace_file;

/* Replaces what is at `path`. ERR_IO with the path; ERR_NOMEM. */
int trace_file_open(trace_file **out, const char *path, const char *program, err *e);
/* ERR_IO: not all could be written. NULL is allowed. */
int trace_file_close(trace_file *t, err *e);

/* A new lane of this name. */
int64_t trace_file_lane(trace_file *t, const char *name);
/* Spans of one lane lie within each other or apart. Takes `args`, an object or NULL, which is shown with the
 * span. */
void trace_file_span(trace_file *t, int64_t lane, const char *name, uint64_t from_us, uint64_t to_us,
                     json_t *args);
