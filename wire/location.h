/* location.h - tells on which host a peer runs, as far as its connection shows that. */
#pragma once

#include "wire/message.h"

/* Locates a peer by the address that ZeroMQ gives for the other end of its connection, which is compared with
 * the interfaces of this host. NULL: nothing is known. */
wire_location location_of(const char *peer_address);
/* Do both run on one host? A program of which nothing is known is taken to run on this host. */
bool location_same_host(const wire_location *a, const wire_location *b);
