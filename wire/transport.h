/* transport.h - ZeroMQ under libuv: decoded messages come in and messages go out. Only transport.c,
 * curve.c and key.c include zmq.h.
 *
 * Everything happens on the thread of the uv loop. Undecodable frames are answered with ERROR and counted;
 * they never reach the owner. Peers: every routing id of a bound ROUTER and every connected DEALER has its
 * own peer_id, never reused within a process. */
#pragma once

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "wire/actions.h"
#include <uv.h>

typedef struct transport transport;

/* `m` and its arrays live until the callback returns. */
typedef void (*transport_on_message)(void *context, peer_id from, const msg *m);

/* The connection through which this peer of the listener was last heard has ended. The peer may have
 * connected again already, and sometimes nobody tells that a connection has ended: this is a hint. */
typedef void (*transport_on_disconnected)(void *context, peer_id from);

typedef struct transport_options {
  transport_on_message on_message;
  transport_on_disconnected on_disconnected; /* may be NULL */
  void *context;
  wire_id self;         /* this program's incarnation, for ERROR replies to undecodable frames */
  wire_role role;       /* this program's own: which key is its own, and who may come in */
  const char *keys;     /* folder of the keys, which are read when the first tcp address is bound or called;
                           NULL: the default one */
  bool allow_plaintext; /* --insecure-bind: tcp without keys, neither encrypted nor authenticated */
  /* After a message was sent or received, the loop looks for the next one for so long before it sleeps; 0: it
   * sleeps at once. A thread that sleeps is 15 to 40 us late. */
  uint32_t busy_poll_us;
  clock_source clock; /* NULL: clock_us. Read on any thread. What ZeroMQ times goes by the system's. */
  const logger *log;
} transport_options;

int transport_open(transport **out, uv_loop_t *loop, const transport_options *o, err *e);
void transport_close(transport *t); /* bounded linger; NULL is allowed */

/* "ipc://PATH", "tcp://127.0.0.1:PORT"; tcp://127.0.0.1:* picks a port. Writes the real address to
 * bound[bound_size]. ERR_ARG for an address that is not allowed, ERR_IO "port in use" with the remedy. A
 * program has one ROUTER at most. */
int transport_bind(transport *t, const char *endpoint, char *bound, size_t bound_size, err *e);
/* Adds this program's public key to a tcp endpoint in endpoint[ENDPOINT_MAX] that leads to its listener, if
 * that asks for keys. */
void transport_add_key(const transport *t, char *endpoint);

/* Whether there is a key for whom this program would call at a checked endpoint, or none is needed; else what
 * transport_connect would say. */
int transport_check_call(transport *t, const char *endpoint, err *e);
/* Makes a DEALER of its own for that address. A tcp address without the key of who listens there is that of
 * the only orchestrator that is allowed. Returns at once, while ZeroMQ connects in the background. 0 and *e:
 * the address is malformed, or there is no key for it. */
peer_id transport_connect(transport *t, const char *endpoint, err *e);
void transport_disconnect(transport *t, peer_id peer);

/* Never blocks. False when the peer is gone or its queue is full: the frame is dropped and counted; deadlines
 * and acknowledgements of the protocol repair it. */
bool transport_send(transport *t, peer_id peer, const msg *m);

typedef struct transport_counters {
  uint64_t sent, received, dropped, bad_frames;
  /* Of the frames that were sent, and of those that came, with ZMTP's header of each; not those of TCP. */
  uint64_t sent_bytes, received_bytes;
} transport_counters;
transport_counters transport_count(const transport *t);
