/* transport.h - ZeroMQ under libuv: decoded messages in, messages out. The only file that includes zmq.h.
 *
 * One thread: that of the uv loop. Undecodable frames are answered with ERROR and counted; they never reach
 * the owner. Peers: every routing id of a bound ROUTER and every connected DEALER has its own peer_id, never
 * reused within a process. */
#pragma once

#include "common/base/err.h"
#include "common/base/log.h"
#include "wire/actions.h"
#include <uv.h>

typedef struct transport transport;

/* `m` and its arrays live until the callback returns. */
typedef void (*transport_on_message)(void *context, peer_id from, const msg *m);

typedef struct transport_options {
  transport_on_message on_message;
  void *context;
  wire_id self; /* this program's incarnation: in ERROR replies nothing else is needed */
  bool
      allow_plaintext; /* --insecure-bind: a bind address that is not loopback or ipc is refused without it */
  const logger *log;
} transport_options;

int transport_open(transport **out, uv_loop_t *loop, const transport_options *o, err *e);
void transport_close(transport *t); /* bounded linger; NULL is allowed */

/* "ipc://PATH", "tcp://127.0.0.1:PORT"; tcp://127.0.0.1:* picks a port. Writes the real address to
 * bound[bound_size]. ERR_ARG for an address that is not allowed, ERR_IO "port in use" with the remedy. One
 * ROUTER a program. */
int transport_bind(transport *t, const char *endpoint, char *bound, size_t bound_size, err *e);

/* A DEALER of its own to that address; 0 and *e on a malformed one. Returns at once: connecting goes on
 * behind. */
peer_id transport_connect(transport *t, const char *endpoint, err *e);
void transport_disconnect(transport *t, peer_id peer);

/* Never blocks. False when the peer is gone or its queue is full: the frame is dropped and counted; deadlines
 * and acknowledgements of the protocol repair it. */
bool transport_send(transport *t, peer_id peer, const msg *m);

typedef struct transport_counters {
  uint64_t sent, received, dropped, bad_frames;
} transport_counters;
transport_counters transport_count(const transport *t);
