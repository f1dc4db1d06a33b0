/* server_json.h - what the server tells of itself, in the shapes of llama-server's /props and /slots. */
#pragma once

#include "orchestrator/service/api/call.h"

typedef struct server_about {
  const text_model *model;
  const char *model_path;
  const request *defaults;
  int32_t slots; /* answers at a time */
} server_about;

/* New objects; NULL: out of memory. */
json_t *server_json_props(const server_about *about);
/* One object for each slot: the choices that run come first, in the order of their calls. */
json_t *server_json_slots(const server_about *about, const call *calls);
