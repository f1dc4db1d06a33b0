#include "wire/connection_limit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

void connection_limit_init(connection_limit *c, int listener) {
  *c = (connection_limit){.listener = listener};
}

/* --- addresses --- */

typedef union address {
  struct sockaddr any;
  struct sockaddr_un local;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
} address;

static bool own_address(int fd, address *out) {
  socklen_t size = sizeof *out;
  memset(out, 0, sizeof *out);
  return getsockname(fd, &out->any, &size) == 0;
}

static bool peer_address(int fd, address *out) {
  socklen_t size = sizeof *out;
  memset(out, 0, sizeof *out);
  return getpeername(fd, &out->any, &size) == 0;
}

/* Is this descriptor a connection that came in at this listener? It may be closed, or be another file by now.
 */
static bool came_in(const connection_limit *c, int fd) {
  address listener, own, peer;
  if (!peer_address(fd, &peer) || !own_address(fd, &own) || !own_address(c->listener, &listener))
    return false;
  if (own.any.sa_family != listener.any.sa_family) return false;
  if (own.any.sa_family == AF_UNIX)
    return memcmp(own.local.sun_path, listener.local.sun_path, sizeof own.local.sun_path) == 0;
  return own.any.sa_family == AF_INET6 ? own.v6.sin6_port == listener.v6.sin6_port
                                       : own.v4.sin_port == listener.v4.sin_port;
}

/* Who owns one IPv6 address owns its network, so all of that counts as one. */
static connection_address of_v6(const struct in6_addr *a) {
  connection_address out = {.family = AF_INET6};
  if (IN6_IS_ADDR_V4MAPPED(a)) {
    out.family = AF_INET;
    memcpy(&out.number, a->s6_addr + 12, 4);
  } else {
    memcpy(&out.number, a->s6_addr, sizeof out.number);
  }
  return out;
}

static connection_address of_v4(const struct in_addr *a) {
  connection_address out = {.family = AF_INET};
  memcpy(&out.number, a, 4);
  return out;
}

static connection_address address_of(int fd) {
  address peer;
  if (!peer_address(fd, &peer)) return (connection_address){0};
  if (peer.any.sa_family == AF_INET) return of_v4(&peer.v4.sin_addr);
  if (peer.any.sa_family == AF_INET6) return of_v6(&peer.v6.sin6_addr);
  return (connection_address){.family = peer.any.sa_family};
}

static bool parse_address(const char *text, size_t size, connection_address *out) {
  char copy[INET6_ADDRSTRLEN];
  struct in_addr v4;
  struct in6_addr v6;
  if (size >= sizeof copy) return false;
  memcpy(copy, text, size);
  copy[size] = 0;
  if (inet_pton(AF_INET, copy, &v4) == 1) {
    *out = of_v4(&v4);
    return true;
  }
  if (inet_pton(AF_INET6, copy, &v6) != 1) return false;
  *out = of_v6(&v6);
  return true;
}

static bool is_same(connection_address a, connection_address b) {
  return a.family == b.family && a.number == b.number;
}

/* --- the list --- */

static void list_remove(connection_limit *c, int32_t at) {
  c->count--;
  memmove(c->list + at, c->list + at + 1, (size_t)(c->count - at) * sizeof *c->list);
}

static connection_entry *find(connection_limit *c, int fd) {
  for (int32_t i = 0; i < c->count; i++)
    if (c->list[i].fd == fd) return &c->list[i];
  return NULL;
}

static void forget_ended(connection_limit *c) {
  int32_t kept = 0;
  for (int32_t i = 0; i < c->count; i++)
    if (came_in(c, c->list[i].fd)) c->list[kept++] = c->list[i];
  c->count = kept;
}

static int32_t count_of(const connection_limit *c, connection_address from, bool greeted) {
  int32_t n = 0;
  for (int32_t i = 0; i < c->count; i++)
    n += is_same(c->list[i].address, from) && c->list[i].greeted == greeted;
  return n;
}

static void close_one(connection_limit *c, int fd) {
  const connection_entry *known = find(c, fd);
  if (came_in(c, fd)) shutdown(fd, SHUT_RDWR);
  if (known) list_remove(c, (int32_t)(known - c->list));
  c->refused++;
}

/* --- sources --- */

/* What comes by ipc is one user's, this program's own: each connection is judged alone. */
static connection_address source_address(connection_address a, int fd) {
  if (a.family == AF_UNIX) a.number = (uint64_t)fd;
  return a;
}

static connection_source *find_source(connection_limit *c, connection_address from) {
  for (connection_source *s = c->sources; s < c->sources + CONNECTION_SOURCES_MAX; s++)
    if (is_same(s->address, from)) return s;
  return NULL;
}

/* From when on nothing is held against it. */
static uint64_t good_from_us(const connection_source *s) {
  uint64_t us = s->useless.whole_us;
  if (s->denied.whole_us > us) us = s->denied.whole_us;
  if (s->barred_until_us > us) us = s->barred_until_us;
  return s->slow_until_us > us ? s->slow_until_us : us;
}

/* An address that is new takes the place of the one that has been good for longest. */
static connection_source *source_of(connection_limit *c, connection_address from) {
  connection_source *s = find_source(c, from);
  if (s) return s;
  s = c->sources;
  for (connection_source *other = s + 1; other < c->sources + CONNECTION_SOURCES_MAX; other++)
    if (good_from_us(other) < good_from_us(s)) s = other;
  *s = (connection_source){.address = from};
  return s;
}

/* An ipc connection that is new has a new number of its own, whoever had it before. */
static bool is_barred(connection_limit *c, connection_address from, uint64_t now_us) {
  connection_source *s = find_source(c, from);
  if (!s) return false;
  if (from.family == AF_UNIX) {
    *s = (connection_source){0};
    return false;
  }
  return now_us < s->barred_until_us ||
         (now_us < s->slow_until_us && !log_limit_takes(&s->accepts, now_us, 1, CONNECTION_SLOW_EVERY_US));
}

void connection_limit_denied(connection_limit *c, const char *text, size_t size, uint64_t now_us) {
  connection_address from;
  if (!parse_address(text, size, &from)) return;
  connection_source *s = source_of(c, from);
  if (!log_limit_takes(&s->denied, now_us, CONNECTION_DENIED_BURST, CONNECTION_DENIED_EVERY_US))
    s->slow_until_us = now_us + CONNECTION_SLOW_US;
}

bool connection_limit_useless(connection_limit *c, int fd, uint32_t weight, uint64_t now_us) {
  const connection_entry *known = find(c, fd);
  if (!known) return true; /* it is closed already, and what had come by it is still read */
  connection_source *s = source_of(c, source_address(known->address, fd));
  for (; weight > 0; weight--)
    if (!log_limit_takes(&s->useless, now_us, CONNECTION_USELESS_BURST, CONNECTION_USELESS_EVERY_US)) {
      s->barred_until_us = now_us + CONNECTION_BARRED_US;
      close_one(c, fd);
      return false;
    }
  return true;
}

/* --- limits --- */

/* The oldest connection that was not greeted; -1: there is none. */
static int oldest_stranger(const connection_limit *c, connection_address from, bool of_any_address) {
  for (int32_t i = 0; i < c->count; i++)
    if (!c->list[i].greeted && (of_any_address || is_same(c->list[i].address, from))) return c->list[i].fd;
  return -1;
}

static bool is_full(const connection_limit *c, connection_address from) {
  return c->count == CONNECTION_LIMIT_MAX || count_of(c, from, false) == CONNECTION_STRANGERS_MAX;
}

/* False: a stranger had to go, or `fd` itself. */
static bool make_room(connection_limit *c, connection_address from, int fd) {
  if (!is_full(c, from)) return true;
  forget_ended(c);
  if (!is_full(c, from)) return true;
  int old = oldest_stranger(c, from, count_of(c, from, false) < CONNECTION_STRANGERS_MAX);
  close_one(c, old < 0 ? fd : old);
  return false;
}

bool connection_limit_accept(connection_limit *c, int fd, uint64_t now_us) {
  const connection_entry *before = find(c, fd);
  if (before) list_remove(c, (int32_t)(before - c->list)); /* it has ended, its number is used again */
  connection_address from = address_of(fd);
  if (is_barred(c, source_address(from, fd), now_us)) {
    close_one(c, fd);
    return false;
  }
  bool room = make_room(c, from, fd);
  if (c->count < CONNECTION_LIMIT_MAX) c->list[c->count++] = (connection_entry){.fd = fd, .address = from};
  return room;
}

bool connection_limit_greeted(connection_limit *c, int fd, bool keyed) {
  connection_entry *known = find(c, fd);
  if (!known || known->greeted) return true;
  bool limited = known->address.family != AF_UNIX && !keyed;
  if (limited && count_of(c, known->address, true) >= CONNECTION_GUESTS_MAX) {
    forget_ended(c);
    known = find(c, fd);
    if (known && count_of(c, known->address, true) >= CONNECTION_GUESTS_MAX) {
      close_one(c, fd);
      return false;
    }
  }
  if (known) known->greeted = true;
  return true;
}
