/* request_queue.h - answers many request lines at the same time: each line becomes a completion, and each
 * completion one line of result. `batch' and `serve-workers' share it. One thread. */
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
  const request *defaults; /* for everything that a line does not say itself */
  const text_model *model;
  const logger *log;
  service *service;
  /* Gets one line of result, with its line end; the receiver frees it. NULL: out of memory. */
  void (*on_result)(void *owner, size_t tag, char *line);
  void *owner;

  request_queue_entry *running[REQUEST_QUEUE_MAX]; /* [running_count] */
  int32_t running_count;
  size_t completed, failed, cancelled, dropped_bytes;
  size_t plain; /* answers that ended without speculation, though a draft was wanted */
  char off_reason[WIRE_STRING_MAX + 1]; /* why speculation was off for the first of these */
  int64_t tokens;
  /* Tokens that no target has reported figures of, because it died; of them, with accepted_wanted, those that
   * were accepted ones. */
  int64_t lost, lost_accepted;
  bool accepted_wanted;        /* its owner's: ask for what `lost_accepted' needs */
  uint64_t busy_us, busy_from; /* time with an answer under way, without the present one; and since when */
  uint64_t rounds, accepted, drafted;
  bool out_of_memory;
};

/* Begins a request (request_json.h); a bad line gets its error result at once. There must be room:
 * running_count < REQUEST_QUEUE_MAX. `tag` comes back with the result. */
void request_queue_begin(request_queue *q, const char *line, size_t size, long line_number, size_t tag);
/* Gives an error result for a line that will not be begun. */
void request_queue_refuse(request_queue *q, const char *line, size_t size, long line_number, size_t tag,
                          const err *why);
/* Gives the results of all requests that are over by now. */
void request_queue_update(request_queue *q);
/* Tokens a second of all answers together, while one was under way; 0: too few to say. */
double request_queue_speed(const request_queue *q);
/* Ends all requests early; request_queue_update gives their results. */
void request_queue_cancel(request_queue *q);
/* Ends all requests now with an error that is not their own. */
void request_queue_fail(request_queue *q, const err *why);
