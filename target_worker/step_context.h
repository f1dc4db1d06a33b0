/* step_context.h - what every handler of an event needs: the sessions, the peers, the time, and a place for
 * the messages that it sends. */
#pragma once

#include "target_worker/session_store.h"
#include "wire/roster.h"

typedef struct step_context {
  session_store *store;
  roster *peers;
  uint64_t now;
  actions *out;
} step_context;
