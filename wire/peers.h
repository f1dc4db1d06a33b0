/* peers.h - the peers of a transport by number and by routing id: bounded, the longest silent is forgotten,
 * strangers first.
 *
 * Private to wire/. A number is never given twice. Peers of a ROUTER come and go with frames; a connection
 * that this program made itself is pinned until it is removed. */
#pragma once

#include "common/base/err.h"
#include "wire/actions.h"
#include <stddef.h>

#define PEERS_MAX         1024 /* remembered at once, pinned ones included */
#define PEERS_PINNED_MAX  256
#define PEERS_ROUTING_MAX 255 /* bytes of a routing id, a limit of ZeroMQ */

typedef struct peer {
  peer_id id; /* 0: a free slot */
  void *link; /* the owner's: the socket it is reached by */
  bool pinned;
  bool greeted;  /* it was sent WELCOME: strangers are forgotten first */
  uint64_t used; /* turn of the last use */
  uint64_t bad_frames;
  uint32_t routing_size;
  uint8_t routing[PEERS_ROUTING_MAX];
  int32_t next; /* slot with the same bucket, -1: none */
} peer;

typedef struct peers {
  peer *slots;      /* [PEERS_MAX] */
  int32_t *buckets; /* [PEERS_MAX], by hash of the routing id; -1: empty */
  uint64_t turn, serial;
  int32_t pinned_count;
  uint64_t forgotten; /* pushed out by newer ones */
} peers;

int peers_init(peers *p); /* ERR_NOMEM */
void peers_fini(peers *p);

/* The peer with this routing id, new when unknown; its link is set. size <= PEERS_ROUTING_MAX. */
peer *peers_of_routing(peers *p, void *link, const void *routing, size_t size);
/* A pinned peer without routing id; NULL when PEERS_PINNED_MAX would be passed. */
peer *peers_pin(peers *p, void *link);

peer *peers_find(peers *p, peer_id id); /* NULL: forgotten, removed, or never there */
void peers_remove(peers *p, peer *gone);
