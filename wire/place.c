#include "wire/place.h"

#include "wire/endpoint.h"
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <string.h>

#define V4_IN_V6 "::ffff:"
#define LOOPBACK "127.0.0.1"

/* --- hosts --- */

/* A number, or "". As it is compared and written: without scope, IPv4 as IPv4. */
static void normalise(const char *peer_address, char out[WIRE_ADDRESS_MAX]) {
  struct in6_addr address; /* of either family */
  bool mapped = strncmp(peer_address, V4_IN_V6, strlen(V4_IN_V6)) == 0 && strchr(peer_address, '.');
  size_t size = strcspn(peer_address += mapped ? strlen(V4_IN_V6) : 0, "%");
  if (size >= WIRE_ADDRESS_MAX) size = 0;
  memcpy(out, peer_address, size);
  out[size] = 0;
  if (inet_pton(AF_INET, out, &address) != 1 && inet_pton(AF_INET6, out, &address) != 1) out[0] = 0;
}

static bool has_address(const struct sockaddr *own, const char *address) {
  char text[INET6_ADDRSTRLEN];
  const void *number = own->sa_family == AF_INET ? (const void *)&((const struct sockaddr_in *)own)->sin_addr
                       : own->sa_family == AF_INET6
                           ? (const void *)&((const struct sockaddr_in6 *)own)->sin6_addr
                           : NULL;
  return number && inet_ntop(own->sa_family, number, text, sizeof text) && strcmp(text, address) == 0;
}

static bool is_own(const char *address) {
  struct ifaddrs *list, *at;
  if (endpoint_host_is_loopback(address)) return true;
  if (getifaddrs(&list) != 0) return false;
  for (at = list; at && !(at->ifa_addr && has_address(at->ifa_addr, address));) at = at->ifa_next;
  freeifaddrs(list);
  return at != NULL;
}

wire_place place_of(const char *peer_address) {
  wire_place p = {0};
  if (peer_address) normalise(peer_address, p.address);
  p.away = p.address[0] && !is_own(p.address);
  return p;
}

bool place_same_host(const wire_place *a, const wire_place *b) {
  return a->away == b->away && (!a->away || strcmp(a->address, b->address) == 0);
}

/* --- addresses --- */

static bool is_any(const char *host) {
  return strcmp(host, "*") == 0 || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

place_scope place_scope_of(const char *endpoint) {
  char host[ENDPOINT_MAX];
  const char *port;
  if (strncmp(endpoint, "ipc://", 6) == 0) return PLACE_OWN_HOST;
  if (!endpoint_split(endpoint, host, &port)) return PLACE_GLOBAL;
  if (is_any(host)) return PLACE_ANY;
  return endpoint_host_is_loopback(host) ? PLACE_OWN_HOST : PLACE_GLOBAL;
}

bool place_same_door(const char *a, const wire_place *a_host, const char *b, const wire_place *b_host) {
  return strcmp(a, b) == 0 && (place_scope_of(a) == PLACE_GLOBAL || place_same_host(a_host, b_host));
}

static void put_tcp(const char *host, const char *port, char *out) {
  bool v6 = strchr(host, ':');
  snprintf(out, WIRE_STRING_MAX + 1, "tcp://%s%s%s:%s", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

static const char *host_name(const wire_place *p) {
  return p->away ? p->address : "the orchestrator's";
}

int place_resolve(const char *door, const wire_place *target, const wire_place *draft, char *out, err *e) {
  char host[ENDPOINT_MAX];
  const char *port;
  bool same = place_same_host(target, draft);
  place_scope scope = place_scope_of(door);
  snprintf(out, WIRE_STRING_MAX + 1, "%s", door);
  if (scope == PLACE_GLOBAL || (scope == PLACE_OWN_HOST && same)) return ERR_OK;
  if (scope == PLACE_OWN_HOST)
    return err_set(e, ERR_GONE,
                   "a draft is here, but on another host (%s) than the target (%s), which takes drafts at %s "
                   "alone: start the "
                   "target with --bind tcp://ADDRESS:PORT --insecure-bind",
                   host_name(draft), host_name(target), door);
  endpoint_split(door, host, &port);
  bool known = target->address[0] && !endpoint_host_is_loopback(target->address);
  if (!known && !same)
    return err_set(e, ERR_GONE,
                   "a draft is here, but on another host (%s), and the address by which it reaches the "
                   "target is not known: start "
                   "the target with --advertise tcp://ADDRESS:%s",
                   host_name(draft), port);
  put_tcp(known ? target->address : LOOPBACK, port, out);
  return ERR_OK;
}

bool place_elsewhere(const char *endpoint) {
  char host[ENDPOINT_MAX];
  const char *port;
  return endpoint_split(endpoint, host, &port) && strcmp(host, "localhost") != 0 &&
         !endpoint_host_is_loopback(host);
}

bool place_lacks_port(const char *endpoint) {
  char host[ENDPOINT_MAX];
  const char *port;
  return endpoint_split(endpoint, host, &port) && strcmp(port, "*") == 0;
}

const char *place_door(const char *orchestrator, bool insecure) {
  if (!insecure || !place_elsewhere(orchestrator)) return "tcp://" LOOPBACK ":*";
  return endpoint_is_ipv6(orchestrator) ? "tcp://[::]:*" : "tcp://0.0.0.0:*";
}

void place_insist(const char *advertised, char *out) {
  char host[ENDPOINT_MAX];
  const char *port;
  struct in_addr number;
  snprintf(out, WIRE_STRING_MAX + 1, "%s", advertised);
  bool own = place_scope_of(advertised) == PLACE_OWN_HOST && endpoint_split(advertised, host, &port);
  if (own && inet_pton(AF_INET, host, &number) == 1) put_tcp("localhost", port, out);
}
