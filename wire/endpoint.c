#include "wire/endpoint.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define IPC "ipc://"
#define TCP "tcp://"

static bool starts(const char *text, const char *head) {
  return strncmp(text, head, strlen(head)) == 0;
}

static int check_ipc(const char *endpoint, err *e) {
  size_t size = strlen(endpoint + strlen(IPC));
  struct sockaddr_un address;
  if (size == 0) return err_set(e, ERR_ARG, "endpoint \"%s\" has no path: write ipc://PATH", endpoint);
  if (size < sizeof address.sun_path) return ERR_OK;
  return err_set(
      e, ERR_ARG,
      "endpoint \"%.60s...\" has a path of %zu bytes, a socket's is at most %zu: choose a shorter one",
      endpoint, size, sizeof address.sun_path - 1);
}

bool endpoint_split(const char *endpoint, char *host, const char **port) {
  if (!starts(endpoint, TCP)) return false;
  const char *start = endpoint + strlen(TCP), *colon = strrchr(start, ':');
  if (!colon || colon == start) return false;
  size_t size = (size_t)(colon - start);
  bool bracketed = start[0] == '[' && start[size - 1] == ']' && size > 2;
  if (bracketed)
    snprintf(host, ENDPOINT_MAX, "%.*s", (int)size - 2, start + 1);
  else
    snprintf(host, ENDPOINT_MAX, "%.*s", (int)size, start);
  *port = colon + 1;
  return bracketed || !strchr(host, ':');
}

const char *endpoint_key(const char *endpoint) {
  const char *mark = starts(endpoint, TCP) ? strchr(endpoint, ENDPOINT_KEY_MARK) : NULL;
  return mark ? mark + 1 : NULL;
}

static bool port_is_good(const char *port) {
  size_t digits = strspn(port, "0123456789");
  if (strcmp(port, "*") == 0) return true;
  if ((port[digits] && port[digits] != ENDPOINT_KEY_MARK) || digits == 0 || digits > 5) return false;
  return atoi(port) >= 1 && atoi(port) <= 65535;
}

static int check_key(const char *endpoint, err *e) {
  const char *key = endpoint_key(endpoint);
  key_bytes ignored;
  if (!key || key_parse(key, strlen(key), &ignored)) return ERR_OK;
  return err_set(e, ERR_ARG, "endpoint \"%.100s\": what follows # is no key: one has 64 hexadecimal digits",
                 endpoint);
}

static int check_tcp(const char *endpoint, err *e) {
  char host[ENDPOINT_MAX];
  const char *port;
  if (endpoint_split(endpoint, host, &port) && port_is_good(port)) return check_key(endpoint, e);
  return err_set(e, ERR_ARG, "endpoint \"%s\": write tcp://ADDRESS:PORT, an IPv6 address in brackets",
                 endpoint);
}

int endpoint_check(const char *endpoint, err *e) {
  if (strlen(endpoint) >= ENDPOINT_MAX)
    return err_set(e, ERR_ARG, "endpoint \"%.60s...\" is longer than %d bytes", endpoint, ENDPOINT_MAX - 1);
  if (starts(endpoint, IPC)) return check_ipc(endpoint, e);
  if (starts(endpoint, TCP)) return check_tcp(endpoint, e);
  return err_set(e, ERR_ARG, "endpoint \"%s\": write ipc://PATH or tcp://ADDRESS:PORT", endpoint);
}

bool endpoint_is_tcp(const char *endpoint) {
  return starts(endpoint, TCP);
}

const char *endpoint_path(const char *endpoint) {
  return starts(endpoint, IPC) && !starts(endpoint, IPC "@") ? endpoint + strlen(IPC) : NULL;
}

/* --- names --- */

static bool is_number(const char *host) {
  struct in_addr v4;
  struct in6_addr v6;
  char plain[ENDPOINT_MAX];
  snprintf(plain, sizeof plain, "%.*s", (int)strcspn(host, "%"),
           host); /* without an interface, as in fe80::1%eth0 */
  return inet_pton(AF_INET, host, &v4) == 1 || inet_pton(AF_INET6, plain, &v6) == 1;
}

bool endpoint_has_name(const char *endpoint) {
  char host[ENDPOINT_MAX];
  const char *port;
  return endpoint_split(endpoint, host, &port) && !is_number(host) && strcmp(host, "*") != 0;
}

bool endpoint_is_ipv6(const char *endpoint) {
  return starts(endpoint, TCP "[");
}

static void add_numbers(endpoint_numbers *out, const struct addrinfo *list, int family, const char *port) {
  char number[ENDPOINT_MAX - 32];
  for (const struct addrinfo *a = list; a && out->count < ENDPOINT_NUMBERS_MAX; a = a->ai_next)
    if (a->ai_family == family &&
        getnameinfo(a->ai_addr, a->ai_addrlen, number, sizeof number, NULL, 0, NI_NUMERICHOST) == 0)
      snprintf(out->list[out->count++], ENDPOINT_MAX, family == AF_INET6 ? TCP "[%s]:%.*s" : TCP "%s:%.*s",
               number, (int)strcspn(port, "#"), port);
}

void endpoint_look_up(const char *endpoint, endpoint_numbers *out) {
  const struct addrinfo want = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  struct addrinfo *list = NULL;
  char host[ENDPOINT_MAX];
  const char *port;
  endpoint_split(endpoint, host, &port);
  int code = getaddrinfo(host, NULL, &want, &list);
  out->count = 0;
  out->why = code ? gai_strerror(code) : "it has neither an IPv4 nor an IPv6 address";
  if (code) return;
  add_numbers(out, list, AF_INET, port);
  add_numbers(out, list, AF_INET6, port);
  freeaddrinfo(list);
}

/* The endpoint with a number in place of its name; a network interface's name stays. */
static int bind_by_number(const char *endpoint, char *out, err *e) {
  char host[ENDPOINT_MAX];
  const char *port;
  endpoint_numbers found;
  if (!endpoint_has_name(endpoint)) return ERR_OK;
  endpoint_look_up(endpoint, &found);
  endpoint_split(endpoint, host, &port);
  if (found.count > 0)
    memcpy(out, found.list[0], ENDPOINT_MAX);
  else if (if_nametoindex(host) == 0)
    return err_set(
        e, ERR_ARG,
        "endpoint \"%s\": no address of %s is known (%s): give an address of this machine, or * for all",
        endpoint, host, found.why);
  return ERR_OK;
}

void endpoint_add_key(char *endpoint, const key_bytes *key) {
  size_t size = strlen(endpoint);
  if (!starts(endpoint, TCP) || endpoint_key(endpoint)) return;
  snprintf(endpoint + size, ENDPOINT_MAX - size, "%c%s", ENDPOINT_KEY_MARK, key_hex_of(key).text);
}

bool endpoint_host_is_loopback(const char *host) {
  struct in_addr v4;
  struct in6_addr v6;
  if (inet_pton(AF_INET, host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

static bool ipc_is_taken(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  bool taken = connect(fd, (const struct sockaddr *)&address, sizeof address) == 0;
  close(fd);
  return taken;
}

int endpoint_check_bind(const char *endpoint, bool allow_plaintext, char *out, err *e) {
  int code = endpoint_check(endpoint, e);
  if (code != ERR_OK) return code;
  snprintf(out, ENDPOINT_MAX, "%s", endpoint);
  if (starts(endpoint, IPC "@") && !allow_plaintext)
    return err_set(e, ERR_ARG,
                   "endpoint %s is no file, so every account of this machine can reach it: use a path, or "
                   "accept the risk "
                   "with --insecure-bind",
                   endpoint);
  if (starts(endpoint, IPC)) {
    struct stat file; /* the library would take away whatever is there */
    if (stat(endpoint + strlen(IPC), &file) == 0 && !S_ISSOCK(file.st_mode))
      return err_set(e, ERR_IO, "%s is there and no socket: choose another path for %s",
                     endpoint + strlen(IPC), endpoint);
    if (!ipc_is_taken(endpoint + strlen(IPC))) return ERR_OK;
    return err_set(e, ERR_IO,
                   "endpoint %s is in use: end the program that listens there or choose another path",
                   endpoint);
  }
  if (endpoint_key(endpoint))
    return err_set(e, ERR_ARG,
                   "endpoint %.*s: leave out what follows the port: the key is this program's own",
                   ENDPOINT_PLAIN(endpoint));
  return bind_by_number(endpoint, out, e);
}

bool endpoint_leads_elsewhere(const char *endpoint) {
  char host[ENDPOINT_MAX];
  const char *port;
  return endpoint_split(endpoint, host, &port) && strcmp(host, "localhost") != 0 &&
         !endpoint_host_is_loopback(host);
}

bool endpoint_lacks_port(const char *endpoint) {
  char host[ENDPOINT_MAX];
  const char *port;
  return endpoint_split(endpoint, host, &port) && strcmp(port, "*") == 0;
}
