/* call_turns.h - which call gets the next free place: the API keys whose calls wait take turns, and the calls
 * of one key keep the order in which they came. */
#pragma once

#include "orchestrator/service/api/api_keys.h"
#include "orchestrator/service/api/call.h"

typedef struct call_turns {
  uint64_t turn, last[API_KEYS_MAX + 1]; /* last: the turn in which each key got a place last; 0: never */
} call_turns;

/* The call of which the caller begins a choice now; NULL: none waits. */
call *call_turns_next(call_turns *t, call *calls);
