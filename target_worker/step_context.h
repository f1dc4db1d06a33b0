/* step_context.h - what every handler of one event needs: the sessions, the peers, the time, and where to
 * write the messages that are to be sent. */
#pragma once

#include "target_worker/session_store.h"
#include "wire/roster.h"

typedef struct step_context {
  session_store *store;
  roster *peers;
  uint64_t now;
  actions *out;
} step_context;
