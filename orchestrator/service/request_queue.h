/* request_queue.h - lines of requests that are answered at the same time: each becomes a completion, and that
 * one line of result. What `batch' and `serve-workers' share. One thread. */
#pragma once

#include "orchestrator/service/completion.h"
#include <jansson.h>

#define REQUEST_QUEUE_MAX SESSIONS_MAX

typedef struct request_queue request_queue;

typedef struct request_queue_entry {
  request_queue *queue;
  long line_number; /* from 1 */
  size_t tag;
  json_t *id;
  completion completion;
} request_queue_entry;

struct request_queue {
  const request *defaults; /* what a line does not say itself */
  const text_model *model;
  const logger *log;
  service *service;
  /* One line of result with its line end, which the receiver frees; NULL: out of memory. */
  void (*on_result)(void *owner, size_t tag, char *line);
  void *owner;

  request_queue_entry *running[REQUEST_QUEUE_MAX]; /* [running_count] */
  int32_t running_count;
  size_t completed, failed, cancelled, dropped_bytes;
  size_t plain; /* answers that ended without speculation, though a draft was wanted */
  char off_reason[WIRE_STRING_MAX + 1]; /* why the first of these did */
  int64_t tokens;
  uint64_t rounds, accepted, drafted;
  bool out_of_memory;
};

/* Begins a request (request_json.h); a bad line has its result at once. There must be room: running_count <
 * REQUEST_QUEUE_MAX. `tag` comes back with the result. */
void request_queue_begin(request_queue *q, const char *line, size_t size, long line_number, size_t tag);
/* The result of a line that will not be begun. */
void request_queue_refuse(request_queue *q, const char *line, size_t size, long line_number, size_t tag,
                          const err *why);
/* Gives the results of those that are over by now. */
void request_queue_update(request_queue *q);
/* All end early; request_queue_update gives their results. */
void request_queue_cancel(request_queue *q);
/* All end now, by an error that is none of theirs. */
void request_queue_fail(request_queue *q, const err *why);
