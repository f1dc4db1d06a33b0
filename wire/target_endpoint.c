#include "wire/target_endpoint.h"

#include "wire/endpoint.h"
#include "wire/location.h"
#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LOOPBACK "127.0.0.1"

static bool is_any(const char *host) {
  return strcmp(host, "*") == 0 || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

target_endpoint_scope target_endpoint_scope_of(const char *endpoint) {
  char host[ENDPOINT_MAX];
  const char *port;
  if (strncmp(endpoint, "ipc://", 6) == 0) return TARGET_ENDPOINT_OWN_HOST;
  if (!endpoint_split(endpoint, host, &port)) return TARGET_ENDPOINT_GLOBAL;
  if (is_any(host)) return TARGET_ENDPOINT_ANY;
  return endpoint_host_is_loopback(host) ? TARGET_ENDPOINT_OWN_HOST : TARGET_ENDPOINT_GLOBAL;
}

bool target_endpoint_same(const char *a, const wire_location *a_host, const char *b,
                          const wire_location *b_host) {
  return strcmp(a, b) == 0 &&
         (target_endpoint_scope_of(a) == TARGET_ENDPOINT_GLOBAL || location_same_host(a_host, b_host));
}

static void put_tcp(const char *host, const char *port, char *out) {
  bool v6 = strchr(host, ':');
  snprintf(out, WIRE_STRING_MAX + 1, "tcp://%s%s%s:%s", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

static const char *host_name(const wire_location *p) {
  return p->away ? p->address : "the orchestrator's";
}

int target_endpoint_resolve(const char *endpoint, const wire_location *target, const wire_location *draft,
                            char *out, err *e) {
  char host[ENDPOINT_MAX];
  const char *port;
  bool same = location_same_host(target, draft);
  target_endpoint_scope scope = target_endpoint_scope_of(endpoint);
  snprintf(out, WIRE_STRING_MAX + 1, "%s", endpoint);
  if (scope == TARGET_ENDPOINT_GLOBAL || (scope == TARGET_ENDPOINT_OWN_HOST && same)) return ERR_OK;
  if (scope == TARGET_ENDPOINT_OWN_HOST)
    return err_set(
        e, ERR_GONE,
        "a draft is here, but on another host (%s) than the target (%s), which takes drafts at %.*s "
        "alone: start the "
        "target with --bind tcp://ADDRESS:PORT",
        host_name(draft), host_name(target), ENDPOINT_PLAIN(endpoint));
  endpoint_split(endpoint, host, &port);
  bool known = target->address[0] && !endpoint_host_is_loopback(target->address);
  if (!known && !same)
    return err_set(e, ERR_GONE,
                   "a draft is here, but on another host (%s), and the address by which it reaches the "
                   "target is not known: start "
                   "the target with --advertise tcp://ADDRESS:%.*s",
                   host_name(draft), ENDPOINT_PLAIN(port));
  put_tcp(known ? target->address : LOOPBACK, port, out);
  return ERR_OK;
}

/* A name's first address tells. */
static bool leads_to_ipv6(const char *endpoint) {
  endpoint_numbers found;
  if (!endpoint_has_name(endpoint)) return endpoint_is_ipv6(endpoint);
  endpoint_look_up(endpoint, &found);
  return found.count > 0 && endpoint_is_ipv6(found.list[0]);
}

void target_endpoint_to_bind(const char *orchestrator, int64_t process, char *out) {
  bool v6 = leads_to_ipv6(orchestrator);
  if (!endpoint_is_tcp(orchestrator))
    snprintf(out, ENDPOINT_MAX, "%s.target-%" PRId64, orchestrator, process);
  else if (!endpoint_leads_elsewhere(orchestrator))
    snprintf(out, ENDPOINT_MAX, "tcp://" LOOPBACK ":*");
  else
    snprintf(out, ENDPOINT_MAX, v6 ? "tcp://[::]:*" : "tcp://0.0.0.0:*");
}

void target_endpoint_insist(const char *advertised, char *out) {
  char host[ENDPOINT_MAX];
  const char *port;
  struct in_addr number;
  snprintf(out, WIRE_STRING_MAX + 1, "%s", advertised);
  bool own = target_endpoint_scope_of(advertised) == TARGET_ENDPOINT_OWN_HOST &&
             endpoint_split(advertised, host, &port);
  if (own && inet_pton(AF_INET, host, &number) == 1) put_tcp("localhost", port, out);
}
