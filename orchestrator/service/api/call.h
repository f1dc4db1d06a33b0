/* call.h - one request to the API for an answer: its choices wait, run as completions, and are written to its
 * exchange, whole or as server-sent events. */
#pragma once

#include "orchestrator/service/api/openai_json.h"
#include "orchestrator/service/api/call_options.h"
#include "orchestrator/service/api/metrics.h"
#include "orchestrator/service/api/request_id.h"
#include "orchestrator/service/api/stream_id.h"
#include "orchestrator/service/http/http_server.h"

#define CALL_UNSENT_MAX                                                                                      \
  (4u << 20) /* bytes of a stream that its reader has not taken: then he is given up                         \
              */

typedef struct call call;

typedef struct call_choice {
  call *owner;
  int32_t index;
  bool begun, over;
  char *echo;             /* the text of the prompt, where it is wanted before the answer; NULL: nothing */
  int32_t logprobs_given; /* tokens whose log-probabilities the stream has had */
  stream_offset from;     /* of a stream that goes on: what its client has, */
  bool same;              /* and the answer is known to begin like that */
  completion completion;
} call_choice;

struct call {
  call *next;
  http_exchange *exchange; /* NULL: the client is gone */
  call_options options;
  openai_head head;
  metrics *metrics; /* where its answers are counted */
  int32_t key;      /* index of its client's API key; 0 without keys; API_KEYS_MAX: an administrator's */
  uint64_t came_us;
  const logger *log;
  char id[48], request_id[REQUEST_ID_MAX + 1];
  int32_t count, begun, left; /* choices: `n` of the first prompt, then those of the next */
  bool streaming;             /* the response has begun; */
  stream_id at;               /* how far it has come; no offsets: its events have no ids */
  bool goes_on;               /* it is the rest of a stream that was cut */
  bool id_lines;              /* the client reads server-sent events' ids */
  call_choice choices[];
};

/* Takes the options, with their request, on success; the metrics are borrowed. Finds the ids of all prompts,
 * so that one that cannot be answered is refused at once, and needs the body no more. ERR_NOMEM and the
 * errors of completion_prepare.
 */
int call_new(call **out, call_options *options, const text_model *m, const char *model_name, metrics *counted,
             err *e);
/* Only what follows the event of that id is to be written. Before it begins. ERR_FORMAT, ERR_ARG: the id is
 * none, or of another request. */
int call_go_on(call *c, const char *last_event_id, err *e);
/* Its answer goes to the exchange, and its lines to the log. */
void call_attach(call *c, http_exchange *x, const logger *log);
/* The choices must be over, or never have begun. */
void call_free(call *c);

/* Begins the next choice; one that cannot begin ends the call with an error. */
void call_begin_next(call *c, service *s);
bool call_has_begun(const call *c); /* all of its choices */
int32_t call_running(const call *c);
void call_update(call *c, service *s);
/* The client is gone. */
void call_drop(call *c, service *s);
/* Ends it now with an error that is not its own. */
void call_fail(call *c, service *s, const err *why);
bool call_is_over(const call *c);

/* Replies with an error. The exchange is not the caller's any more. */
void call_refuse(http_exchange *x, const err *why, const char *param);
/* Replies with an object, which it takes. */
void call_reply(http_exchange *x, unsigned status, json_t *object);
