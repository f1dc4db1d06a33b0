/* connection_limit.h - limits how many connections a listener accepts, because each of them may make this
 * program hold a queue of frames.
 *
 * A connection is a stranger until it has been greeted. Strangers beyond the limit of one address make way,
 * the oldest first, so that a program that greets at once finds room although others only hold connections
 * open. Private to wire/. It keeps the accepted descriptors and asks the system which of them are still
 * connections, because nothing reports reliably when a connection ends. */
#pragma once

#include "common/base/log_limit.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONNECTION_LIMIT_MAX     192
#define CONNECTION_STRANGERS_MAX 16 /* of one address */
/* Greeted ones of one TCP address at a listener that asks for no keys. All users of an ipc address are the
 * user that this program runs as. */
#define CONNECTION_GUESTS_MAX 24

/* Frames that are of no use, of all connections of one address together, or of one ipc connection: so many at
 * once, then one in so long, a large one counting as several. Beyond that the connection is shut down, and
 * for a while no other one is accepted from there. */
#define CONNECTION_USELESS_BURST    1024
#define CONNECTION_USELESS_EVERY_US 5000
#define CONNECTION_BARRED_US        2000000

/* Connections of one address whose key was refused: so many at once, then one in so long. Each costs a
 * handshake, so beyond that the address comes in slowly, but it comes in: others there may have good keys. */
#define CONNECTION_DENIED_BURST    16
#define CONNECTION_DENIED_EVERY_US 500000
#define CONNECTION_SLOW_US         2000000 /* for so long, at each refusal anew, */
#define CONNECTION_SLOW_EVERY_US   50000   /* one connection in so long is accepted */

#define CONNECTION_SOURCES_MAX 64 /* addresses and ipc connections that are remembered for all this */

typedef struct connection_address {
  uint16_t family; /* AF_UNIX, AF_INET or AF_INET6; 0: not known */
  uint64_t number; /* of IPv6 the first half, which is one network; of AF_UNIX 0, or a descriptor */
} connection_address;

typedef struct connection_source {
  connection_address address;
  log_limit useless, denied, accepts;
  uint64_t barred_until_us, slow_until_us;
} connection_source;

typedef struct connection_entry {
  int fd;
  bool greeted;
  connection_address address;
} connection_entry;

typedef struct connection_limit {
  int listener;                                /* the descriptor that listens */
  connection_entry list[CONNECTION_LIMIT_MAX]; /* in the order in which they came */
  int32_t count;
  connection_source sources[CONNECTION_SOURCES_MAX];
  uint64_t refused; /* connections that were shut down */
} connection_limit;

void connection_limit_init(connection_limit *c, int listener);
/* Counts a connection that was just accepted. False: there were too many, or its address is barred, and this
 * one or an older stranger has been shut down. */
bool connection_limit_accept(connection_limit *c, int fd, uint64_t now_us);
/* The program at the other end is known now. `keyed`: by its key, so its address does not matter. False:
 * there are too many from there, and this one has been shut down. */
bool connection_limit_greeted(connection_limit *c, int fd, bool keyed);
/* A key was refused that came from this address, "127.0.0.1" or "::1". */
void connection_limit_denied(connection_limit *c, const char *text, size_t size, uint64_t now_us);
/* A frame came by this connection that was of no use; `weight` is at least 1. False: it was one too many, and
 * the connection has been shut down. */
bool connection_limit_useless(connection_limit *c, int fd, uint32_t weight, uint64_t now_us);
