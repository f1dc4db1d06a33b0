/* event.h - what can happen to a machine (machine.h). */
#pragma once

#include "wire/message.h"
#include "wire/peer_id.h"

typedef enum {
  EVENT_MESSAGE,      /* peer, message */
  EVENT_CONNECTED,    /* peer: the connection that an ACTION_CONNECT with this tag asked for; 0: refused */
  EVENT_DISCONNECTED, /* peer: its connection to our listener ended. It may have died, or it may connect again
                       */
  EVENT_TICK,         /* the deadline passed, or any other moment */
  EVENT_DRAIN,        /* SIGTERM: finish what is open, take nothing new */
  EVENT_RESULT        /* the engine is done; `result` is the machine's own type */
} event_kind;

typedef struct event {
  event_kind kind;
  peer_id peer;
  uint64_t tag;
  const msg *message;
  const void *result;
} event;
