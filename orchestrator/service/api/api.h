/* api.h - the OpenAI API over the service: requests by HTTP become completions, and their text goes back
 * whole or as server-sent events. Source: OpenAI's API reference (Chat Completions, Completions, Models) as
 * it was in 2025. One thread. */
#pragma once

#include "orchestrator/service/api/api_keys.h"
#include "orchestrator/service/completion.h"
#include "orchestrator/service/http/http_server.h"

typedef struct api api;

typedef struct api_options {
  service *service;
  const text_model *model;
  const request *defaults;    /* for everything that a body does not say itself */
  const char *model_name;     /* as /v1/models tells it; requests may name any */
  const char *model_path;     /* as /props tells it */
  int32_t sessions;           /* answers at a time, at most */
  int32_t waiting_max;        /* calls of one key that have not begun: more get 429 */
  const api_keys *keys;       /* of clients; none: everybody may ask */
  const api_keys *admin_keys; /* of who may drain workers; none: whoever may ask, where everybody may */
  const char *cors_origin;    /* web pages from there may ask; NULL: none may */
  const char *host;
  uint16_t port;       /* 0: any free one */
  const http_tls *tls; /* NULL: without TLS */
  const logger *log;
} api_options;

/* Listens. What the options point to must live until api_close. The errors of http_server_open. */
int api_open(api **out, const api_options *o, err *e);
uint16_t api_port(const api *a);
/* To be called whenever the service has news. */
void api_update(api *a);
/* No more calls are taken, and those that have not ended get an error. */
void api_stop(api *a, const char *why);
/* All calls have ended. */
bool api_is_idle(const api *a);
/* Closes the connections; the loop must turn once more. NULL is allowed. */
void api_close(api *a);
