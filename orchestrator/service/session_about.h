/* session_about.h - what the orchestrator alone knows of a session, as the JSON object that the ledger keeps
 * with it: title, draft, math, stop strings. With it a session can go on as it began. */
#pragma once

#include "orchestrator/service/request.h"
#include "orchestrator/service/worker_settings.h"
#include <jansson.h>

/* The object's text; to free(). NULL: out of memory. */
char *session_about_write(const request *r, const worker_settings *s);

typedef struct session_about {                    /* strings are the object's */
  json_t *object;                                 /* all that was kept; NULL: nothing, or no object */
  const char *title, *draft, *draft_model, *math; /* NULL: unknown */
  int32_t draft_layers;                           /* 0: all, or unknown */
  bool raw;
  const char *stops[DETOKENIZER_STOP_MAX];
  int32_t stop_count;
} session_about;

/* NULL, and a text that is no such object, tell nothing: what is unknown stays NULL or 0. */
void session_about_read(session_about *out, const char *text);
void session_about_fini(session_about *a);
