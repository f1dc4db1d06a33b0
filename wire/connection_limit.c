#include "wire/connection_limit.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

void connection_limit_init(connection_limit *c, int listener) {
  *c = (connection_limit){.listener = listener};
}

typedef union address {
  struct sockaddr any;
  struct sockaddr_un local;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
} address;

static bool address_of(int fd, address *out) {
  socklen_t size = sizeof *out;
  memset(out, 0, sizeof *out);
  return getsockname(fd, &out->any, &size) == 0;
}

/* Is this descriptor a connection that came in at this listener? It may be closed, or be another file by now.
 */
static bool came_in(const connection_limit *c, int fd) {
  address listener, own, peer;
  socklen_t size = sizeof peer;
  if (getpeername(fd, &peer.any, &size) != 0 || !address_of(fd, &own) || !address_of(c->listener, &listener))
    return false;
  if (own.any.sa_family != listener.any.sa_family) return false;
  if (own.any.sa_family == AF_UNIX)
    return memcmp(own.local.sun_path, listener.local.sun_path, sizeof own.local.sun_path) == 0;
  return own.any.sa_family == AF_INET6 ? own.v6.sin6_port == listener.v6.sin6_port
                                       : own.v4.sin_port == listener.v4.sin_port;
}

static void forget_ended(connection_limit *c) {
  int32_t kept = 0;
  for (int32_t i = 0; i < c->count; i++)
    if (came_in(c, c->list[i])) c->list[kept++] = c->list[i];
  c->count = kept;
}

bool connection_limit_accept(connection_limit *c, int fd) {
  for (int32_t i = 0; i < c->count; i++)
    if (c->list[i] == fd) return true; /* the one before it that had this number has ended */
  if (c->count == CONNECTION_LIMIT_MAX) forget_ended(c);
  if (c->count < CONNECTION_LIMIT_MAX) {
    c->list[c->count++] = fd;
    return true;
  }
  c->refused++;
  if (came_in(c, fd)) shutdown(fd, SHUT_RDWR);
  return false;
}
