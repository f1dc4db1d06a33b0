/* peer_table.h - the peers of a transport, found by number or by routing id. The table is bounded: when it is
 * full, the peer that has been silent longest is forgotten, and peers that were never greeted go first.
 *
 * Private to wire/. A number is never given twice. Peers of a ROUTER come and go with their frames; a
 * connection that this program made itself is pinned until it is removed. */
#pragma once

#include "common/base/err.h"
#include "wire/actions.h"
#include <stddef.h>

#define PEER_TABLE_MAX         1024 /* remembered at once, pinned ones included */
#define PEER_TABLE_PINNED_MAX  256
#define PEER_TABLE_ROUTING_MAX 255 /* bytes of a routing id, a limit of ZeroMQ */

typedef struct peer {
  peer_id id; /* 0: a free slot */
  void *link; /* the owner's: the socket it is reached by */
  bool pinned;
  bool greeted;  /* it was sent WELCOME: strangers are forgotten first */
  uint64_t used; /* `uses` of the table at the last use */
  uint64_t bad_frames;
  uint32_t routing_size;
  uint8_t routing[PEER_TABLE_ROUTING_MAX];
  int32_t next; /* slot with the same bucket, -1: none */
} peer;

typedef struct peer_table {
  peer *slots;      /* [PEER_TABLE_MAX] */
  int32_t *buckets; /* [PEER_TABLE_MAX], by hash of the routing id; -1: empty */
  uint64_t uses, serial;
  int32_t pinned_count;
  uint64_t forgotten; /* pushed out by newer ones */
} peer_table;

int peer_table_init(peer_table *p); /* ERR_NOMEM */
void peer_table_fini(peer_table *p);

/* Returns the peer with this routing id, which is added if it is unknown, and sets its link. size <=
 * PEER_TABLE_ROUTING_MAX. */
peer *peer_table_of_routing(peer_table *p, void *link, const void *routing, size_t size);
/* Adds a pinned peer without a routing id. NULL: there are PEER_TABLE_PINNED_MAX already. */
peer *peer_table_pin(peer_table *p, void *link);

peer *peer_table_find(peer_table *p, peer_id id); /* NULL: forgotten, removed, or never there */
void peer_table_remove(peer_table *p, peer *gone);
