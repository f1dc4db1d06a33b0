/* transport.h - ZeroMQ under libuv: decoded messages come in and messages go out. Only transport.c includes
 * zmq.h.
 *
 * Everything happens on the thread of the uv loop. Undecodable frames are answered with ERROR and counted;
 * they never reach the owner. Peers: every routing id of a bound ROUTER and every connected DEALER has its
 * own peer_id, never reused within a process. */
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
  wire_id self;         /* this program's incarnation, for ERROR replies to undecodable frames */
  bool allow_plaintext; /* --insecure-bind: without it, a bind address that is neither loopback nor ipc is
                           refused */
  /* After a message was sent or received, the loop looks for the next one for so long before it sleeps; 0: it
   * sleeps at once. A thread that sleeps is 15 to 40 us late. */
  uint32_t busy_poll_us;
  const logger *log;
} transport_options;

int transport_open(transport **out, uv_loop_t *loop, const transport_options *o, err *e);
void transport_close(transport *t); /* bounded linger; NULL is allowed */

/* "ipc://PATH", "tcp://127.0.0.1:PORT"; tcp://127.0.0.1:* picks a port. Writes the real address to
 * bound[bound_size]. ERR_ARG for an address that is not allowed, ERR_IO "port in use" with the remedy. A
 * program has one ROUTER at most. */
int transport_bind(transport *t, const char *endpoint, char *bound, size_t bound_size, err *e);

/* Makes a DEALER of its own for that address. Returns at once, while ZeroMQ connects in the background. 0 and
 * *e: the address is malformed. */
peer_id transport_connect(transport *t, const char *endpoint, err *e);
void transport_disconnect(transport *t, peer_id peer);

/* Never blocks. False when the peer is gone or its queue is full: the frame is dropped and counted; deadlines
 * and acknowledgements of the protocol repair it. */
bool transport_send(transport *t, peer_id peer, const msg *m);

typedef struct transport_counters {
  uint64_t sent, received, dropped, bad_frames;
} transport_counters;
transport_counters transport_count(const transport *t);
