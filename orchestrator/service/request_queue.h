/* request_queue.h - request lines under way at the same time: each becomes an answer, and that a line of
 * result. What `batch` and `serve-workers` share. One thread. */
#pragma once

#include "orchestrator/service/completion.h"
#include <jansson.h>

#define REQUEST_QUEUE_MAX SESSIONS_MAX

typedef struct request {
  long number; /* of its line, from 1 */
  size_t tag;
  json_t *id;
  completion answer;
} request;

typedef struct request_queue {
  const flags *flags; /* what a line does not say itself */
  const text_model *model;
  int32_t context;
  const logger *log;
  service *pair;
  /* A result: one line with its line end, the receiver's to free; NULL: out of memory. */
  void (*on_result)(void *owner, size_t tag, char *line);
  void *owner;

  request *list[REQUEST_QUEUE_MAX];
  int32_t running; /* list[0, running) */
  size_t answers, failed, cancelled, dropped_bytes;
  size_t off; /* that ended without speculation; off_reason: why the first of them did */
  char off_reason[WIRE_STRING_MAX + 1];
  int64_t tokens;
  uint64_t rounds, accepted, drafted;
  bool out_of_memory;
} request_queue;

/* Opens a session for a line (batch.h). A bad one has its result at once. There must be room: running <
 * REQUEST_QUEUE_MAX. */
void request_queue_begin(request_queue *r, const char *line, size_t size, long number, size_t tag);
/* A result for a line that will not be begun. */
void request_queue_refuse(request_queue *r, const char *line, size_t size, long number, size_t tag,
                          const err *why);
/* Looks at all of them: results of those that are over. */
void request_queue_look(request_queue *r);
/* All end early; request_queue_look tells when. */
void request_queue_cancel(request_queue *r);
/* All are over by an error that is none of theirs. */
void request_queue_fail(request_queue *r, const err *why);
/* The last line for people, on stderr, and an exit status of status.h. */
int request_queue_report(const request_queue *r);
