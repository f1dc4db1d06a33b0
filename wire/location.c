#include "wire/location.h"

#include "wire/endpoint.h"
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <string.h>

#define V4_IN_V6 "::ffff:"

/* The number in the form in which it is compared and written: without scope, IPv4 as IPv4. "" if it is none.
 */
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

static bool is_of_this_host(const char *address) {
  struct ifaddrs *list, *at;
  if (endpoint_host_is_loopback(address)) return true;
  if (getifaddrs(&list) != 0) return false;
  for (at = list; at && !(at->ifa_addr && has_address(at->ifa_addr, address));) at = at->ifa_next;
  freeifaddrs(list);
  return at != NULL;
}

wire_location location_of(const char *peer_address) {
  wire_location p = {0};
  if (peer_address) normalise(peer_address, p.address);
  p.away = p.address[0] && !is_of_this_host(p.address);
  return p;
}

bool location_same_host(const wire_location *a, const wire_location *b) {
  return a->away == b->away && (!a->away || strcmp(a->address, b->address) == 0);
}
