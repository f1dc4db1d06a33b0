/* place.h - on which host a program sits, as far as another one sees it, and at which address a draft there
 * reaches a target. Pure, but for place_of. */
#pragma once

#include "common/base/err.h"
#include "wire/message.h"

/* From what ZeroMQ tells of a connection's other end; NULL: nothing is known. Looks at this host's
 * interfaces. */
wire_place place_of(const char *peer_address);
/* Also where nothing is known of one of them. */
bool place_same_host(const wire_place *a, const wire_place *b);

typedef enum {
  PLACE_OWN_HOST, /* ipc, or a loopback address as a number: means another program on every host */
  PLACE_ANY,      /* tcp://0.0.0.0:P, tcp://[::]:P, tcp://...:P with a star: every address of its host */
  PLACE_GLOBAL    /* an address that may be told to anybody; names are, also localhost */
} place_scope;
place_scope place_scope_of(const char *endpoint);

/* Is it the same door? Equal addresses that mean "this host" are two on two hosts. */
bool place_same_door(const char *a, const wire_place *a_host, const char *b, const wire_place *b_host);

/* Does an address lead to another host, as far as its text says? */
bool place_elsewhere(const char *endpoint);
bool place_lacks_port(const char *endpoint); /* it is a star */

/* What a draft is told, into out[WIRE_STRING_MAX + 1], of a target that names `door` in its HELLO. ERR_GONE
 * with a sentence when no address is known by which the one would reach the other. */
int place_resolve(const char *door, const wire_place *target, const wire_place *draft, char *out, err *e);

/* Where a target that was not told binds its door for drafts: a free port of this host alone; of an
 * orchestrator elsewhere and when `insecure`, of all its addresses. */
const char *place_door(const char *orchestrator, bool insecure);
/* An address that somebody insists on: judged by nobody on its way to a draft. */
void place_insist(const char *advertised, char *out);
