/* target_endpoint.h - the endpoint at which a draft reaches a target: where the target binds, what it
 * advertises, and what a draft on the same or on another host is told. Pure, but for
 * names of hosts, which are looked up. */
#pragma once

#include "common/base/err.h"
#include "wire/message.h"

typedef enum {
  TARGET_ENDPOINT_OWN_HOST, /* ipc, or a loopback address as a number: it leads to a different program on
                               every host */
  TARGET_ENDPOINT_ANY,   /* tcp://0.0.0.0:P, tcp://[::]:P, or a star as the host: every address of its host */
  TARGET_ENDPOINT_GLOBAL /* leads to the same program from every host; names count as such, even localhost */
} target_endpoint_scope;
target_endpoint_scope target_endpoint_scope_of(const char *endpoint);

/* Do these two lead to one program? Equal endpoints that mean "this host" do not on two hosts. */
bool target_endpoint_same(const char *a, const wire_location *a_host, const char *b,
                          const wire_location *b_host);

/* Writes to out[WIRE_STRING_MAX + 1] the endpoint that a draft is sent for a target whose HELLO names
 * `endpoint`. ERR_GONE with a sentence: no endpoint is known at which this draft would reach this target. */
int target_endpoint_resolve(const char *endpoint, const wire_location *target, const wire_location *draft,
                            char *out, err *e);

/* Writes to out[ENDPOINT_MAX] where a target without --bind listens for drafts: beside the socket of an
 * orchestrator that is called by ipc, else at a free port, of this host alone, or of all addresses if the
 * orchestrator runs on another host. */
void target_endpoint_to_bind(const char *orchestrator, int64_t process, char *out);
/* Writes an endpoint of --advertise to out[WIRE_STRING_MAX + 1], in a form that every draft is sent
 * unchanged. */
void target_endpoint_insist(const char *advertised, char *out);
