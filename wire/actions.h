/* actions.h - what a state machine wants done after one step, such as messages to send and peers to connect.
 *
 * Messages are copied whole (arrays into the arena), so a machine may build them from its own state. The
 * owner of the machine carries out the actions in order and then resets them. */
#pragma once

#include "common/base/arena.h"
#include "wire/message.h"
#include "wire/peer_id.h"

typedef enum {
  ACTION_SEND,       /* peer, message */
  ACTION_CONNECT,    /* endpoint: the transport answers with EVENT_CONNECTED of the same `tag` */
  ACTION_DISCONNECT, /* peer */
  ACTION_LOG,        /* level, text */
  ACTION_EXIT        /* code: an exit status of common/base/program.h */
} action_kind;

typedef struct action {
  action_kind kind;
  peer_id peer;
  uint64_t tag;
  int level, code;
  const char *text; /* endpoint or log line, in the arena */
  const msg *message;
} action;

typedef struct actions {
  arena memory;
  action *list; /* [capacity], in the arena; `count` of them are set */
  int32_t count, capacity;
  uint64_t lost; /* actions that found no memory; never reset */
} actions;

void actions_init(actions *a);
void actions_fini(actions *a);
void actions_reset(actions *a);

void actions_send(actions *a, peer_id peer, const msg *m);
void actions_connect(actions *a, uint64_t tag, wire_string endpoint);
void actions_disconnect(actions *a, peer_id peer);
void actions_log(actions *a, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));
void actions_exit(actions *a, int code);

/* Deep copy into an arena; NULL when it is full. */
const msg *actions_copy(arena *a, const msg *m);
