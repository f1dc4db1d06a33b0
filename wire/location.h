/* location.h - on which host a peer runs, as far as its connection tells. */
#pragma once

#include "wire/message.h"

/* From the address that ZeroMQ gives for the other end of a connection; NULL: nothing is known. Compares it
 * with the interfaces of this host. */
wire_location location_of(const char *peer_address);
/* Do both run on one host? One of which nothing is known is taken to run on this host. */
bool location_same_host(const wire_location *a, const wire_location *b);
