/* session_about.h - what only the orchestrator knows of a session (title, draft, math, stop strings), as the
 * JSON object that the ledger keeps with it, so that a session can go on as it began. */
#pragma once

#include "orchestrator/service/request.h"
#include "common/command_line/flag_list.h"
#include <jansson.h>

/* The object's text; to free(). NULL: out of memory. */
char *session_about_write(const request *r, const flag_values *s);

typedef struct session_about {                    /* strings are the object's */
  json_t *object;                                 /* all that was kept; NULL: nothing, or no object */
  const char *title, *draft, *draft_model, *math; /* NULL: unknown */
  int32_t draft_layers;                           /* 0: all, or unknown */
  bool raw;
  const char *stops[DETOKENIZER_STOP_MAX];
  int32_t stop_count;
} session_about;

/* Reads such an object. From NULL or any other text nothing is read, and what is unknown stays NULL or 0. */
void session_about_read(session_about *out, const char *text);
void session_about_fini(session_about *a);
