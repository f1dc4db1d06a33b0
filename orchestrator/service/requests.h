/* requests.h - request lines under way at the same time: each becomes an answer, and that a line of result.
 * What `batch` and `serve-workers` share. One thread. */
#pragma once

#include "orchestrator/service/answer.h"
#include <jansson.h>

#define REQUESTS_MAX ORCH_SESSIONS_MAX

typedef struct request {
  long number; /* of its line, from 1 */
  size_t tag;
  json_t *id;
  answer answer;
} request;

typedef struct requests {
  const flags *flags; /* what a line does not say itself */
  const text_model *model;
  int32_t context;
  const logger *log;
  pair *pair;
  /* A result: one line with its line end, the receiver's to free; NULL: out of memory. */
  void (*on_result)(void *owner, size_t tag, char *line);
  void *owner;

  request *list[REQUESTS_MAX];
  int32_t running; /* list[0, running) */
  size_t answers, failed, cancelled, dropped_bytes;
  size_t off; /* that ended without speculation; off_reason: why the first of them did */
  char off_reason[WIRE_STRING_MAX + 1];
  int64_t tokens;
  uint64_t rounds, accepted, drafted;
  bool out_of_memory;
} requests;

/* Opens a session for a line (batch.h). A bad one has its result at once. There must be room: running <
 * REQUESTS_MAX. */
void requests_begin(requests *r, const char *line, size_t size, long number, size_t tag);
/* A result for a line that will not be begun. */
void requests_refuse(requests *r, const char *line, size_t size, long number, size_t tag, const err *why);
/* Looks at all of them: results of those that are over. */
void requests_look(requests *r);
/* All end early; requests_look tells when. */
void requests_cancel(requests *r);
/* All are over by an error that is none of theirs. */
void requests_fail(requests *r, const err *why);
/* The last line for people, on stderr, and an exit status of status.h. */
int requests_report(const requests *r);
