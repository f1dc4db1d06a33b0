/* endpoint.h - addresses as users write them, judged before ZeroMQ sees them. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stddef.h>

#define ENDPOINT_MAX 512 /* bytes with the NUL, as WIRE_STRING_MAX */

/* "ipc://PATH" or "tcp://HOST:PORT". ERR_ARG names what is wrong. */
int endpoint_check(const char *endpoint, err *e);

/* May a ROUTER be bound there? ERR_ARG for an address that others can reach, unless allow_plaintext; ERR_IO
 * when another program listens on an ipc path (ZeroMQ would take it away silently). Writes what is to be
 * bound
 * ("localhost" as a number) to out[ENDPOINT_MAX]. */
int endpoint_check_bind(const char *endpoint, bool allow_plaintext, char *out, err *e);

bool endpoint_is_ipv6(const char *endpoint);

/* HOST of tcp://HOST:PORT without brackets, into host[ENDPOINT_MAX], and where PORT begins; false when there
 * is none. */
bool endpoint_split(const char *endpoint, char *host, const char **port);
bool endpoint_host_is_loopback(const char *host); /* a number */
/* Does the endpoint lead to another host, as far as its text tells? */
bool endpoint_leads_elsewhere(const char *endpoint);
bool endpoint_lacks_port(const char *endpoint); /* its port is a star */
