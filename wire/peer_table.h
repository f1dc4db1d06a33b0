/* peer_table.h - the peers of a transport, found by number or by routing id. The table is bounded: when it is
 * full, the peer that has been silent longest is forgotten, and peers that were never greeted go first.
 *
 * Private to wire/. A number is never given twice. Peers of a ROUTER come and go with their frames; a
 * connection that this program made itself is pinned until it is removed. */
#pragma once

#include "common/base/err.h"
#include "common/base/log_limit.h"
#include "wire/actions.h"
#include <stddef.h>

#define PEER_TABLE_MAX         1024 /* remembered at once, pinned ones included */
#define PEER_TABLE_PINNED_MAX  256
#define PEER_TABLE_ROUTING_MAX 255 /* bytes of a routing id, a limit of ZeroMQ */
#define PEER_TABLE_USER_MAX    66

typedef struct peer {
  peer_id id; /* 0: a free slot */
  void *link; /* the owner's: the socket it is reached by */
  bool pinned;
  bool greeted;   /* it was sent WELCOME: strangers are forgotten first */
  int connection; /* of a ROUTER's peer: the descriptor through which it was heard last; 0: none */
  uint64_t used;  /* `uses` of the table at the last use */
  uint64_t bad_frames;
  log_limit frames;  /* that have come, at a listener, */
  log_limit replies; /* and that were answers to what it can send as often as it likes, */
  log_limit ends;    /* which END may be */
  uint32_t routing_size;
  uint8_t routing[PEER_TABLE_ROUTING_MAX];
  char user[PEER_TABLE_USER_MAX]; /* whose key it has (curve.h); "": none */
  int32_t next;                   /* slot with the same bucket, -1: none */
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

/* Returns the peer with this routing id and user, which is added if it is unknown, and sets its link. A peer
 * that had the routing id with another key is removed: its connection has been taken over, so that nothing
 * that is meant for it must go there any more. size <= PEER_TABLE_ROUTING_MAX. */
peer *peer_table_of_routing(peer_table *p, void *link, const void *routing, size_t size, const char *user);
/* Adds a pinned peer without a routing id. NULL: there are PEER_TABLE_PINNED_MAX already. */
peer *peer_table_pin(peer_table *p, void *link);

/* A peer that was heard last through this connection; NULL: there is none. */
peer *peer_table_of_connection(peer_table *p, int connection);
peer *peer_table_find(peer_table *p, peer_id id); /* NULL: forgotten, removed, or never there */
void peer_table_remove(peer_table *p, peer *gone);
