/* endpoint.h - checks addresses as users write them, before ZeroMQ sees them. */
#pragma once

#include "common/base/err.h"
#include "wire/key.h"
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define ENDPOINT_MAX 512 /* bytes with the NUL, as WIRE_STRING_MAX */

/* "ipc://PATH", "tcp://HOST:PORT", or "tcp://HOST:PORT#KEY" with the public key of who listens there. ERR_ARG
 * names what is wrong. */
int endpoint_check(const char *endpoint, err *e);

#define ENDPOINT_KEY_MARK '#'
const char *endpoint_key(const char *endpoint); /* NULL: it names none */
/* Adds a key to a tcp endpoint in endpoint[ENDPOINT_MAX] that names none. */
void endpoint_add_key(char *endpoint, const key_bytes *key);
/* For "%.*s": the endpoint without its key, which says nothing to people. */
#define ENDPOINT_PLAIN(endpoint) (int)strcspn((endpoint), "#"), (endpoint)

/* May a ROUTER bind to this endpoint? ERR_ARG for an ipc address that is no file, unless allow_plaintext;
 * ERR_IO when another program listens on an ipc path (ZeroMQ would take it away silently). Writes the
 * endpoint to bind to out[ENDPOINT_MAX], a host's name as its number: ZeroMQ would take the name for that of
 * a network interface, which may stand there as well. ERR_ARG: the name has no address. */
int endpoint_check_bind(const char *endpoint, bool allow_plaintext, char *out, err *e);

bool endpoint_is_tcp(const char *endpoint);
const char *endpoint_path(const char *endpoint); /* the file of an ipc endpoint; NULL: it has none */

bool endpoint_is_ipv6(const char *endpoint);  /* its host is an IPv6 address, in brackets */
bool endpoint_has_name(const char *endpoint); /* its host is a name, no number and no star */

/* The addresses of a name, as endpoints with numbers and without a key: those of IPv4 first, each kind in the
 * resolver's order. */
#define ENDPOINT_NUMBERS_MAX 16
typedef struct endpoint_numbers {
  int count;       /* 0: there is none, */
  const char *why; /* and why; static */
  char list[ENDPOINT_NUMBERS_MAX][ENDPOINT_MAX];
} endpoint_numbers;
/* Asks the system's resolver, which may take as long as it likes, for an endpoint that endpoint_has_name. */
void endpoint_look_up(const char *endpoint, endpoint_numbers *out);

/* Copies HOST of tcp://HOST:PORT, without brackets, to host[ENDPOINT_MAX] and points *port at PORT. False:
 * the endpoint has no host and port. */
bool endpoint_split(const char *endpoint, char *host, const char **port);
bool endpoint_host_is_loopback(const char *host); /* host: a number, not a name */
/* Does the endpoint lead to another host, as far as its text tells? */
bool endpoint_leads_elsewhere(const char *endpoint);
bool endpoint_lacks_port(const char *endpoint); /* its port is a star */
