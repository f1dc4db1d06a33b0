/* target_endpoint.h - at which endpoint a draft reaches a target: where the target binds, what it advertises,
 * and what of it a draft on the same or on another host is sent. Pure. */
#pragma once

#include "common/base/err.h"
#include "wire/message.h"

typedef enum {
  TARGET_ENDPOINT_OWN_HOST, /* ipc, or a loopback address as a number: on every host it leads to another
                               program */
  TARGET_ENDPOINT_ANY, /* tcp://0.0.0.0:P, tcp://[::]:P, tcp://...:P with a star: every address of its host */
  TARGET_ENDPOINT_GLOBAL /* leads to the same program from everywhere; names do, localhost included */
} target_endpoint_scope;
target_endpoint_scope target_endpoint_scope_of(const char *endpoint);

/* Do these two lead to one program? Equal endpoints that mean "this host" do not on two hosts. */
bool target_endpoint_same(const char *a, const wire_location *a_host, const char *b,
                          const wire_location *b_host);

/* What a draft is sent, into out[WIRE_STRING_MAX + 1], of a target whose HELLO names `endpoint`. ERR_GONE
 * with a sentence when no endpoint is known by which this draft would reach this target. */
int target_endpoint_resolve(const char *endpoint, const wire_location *target, const wire_location *draft,
                            char *out, err *e);

/* Where a target without --bind listens for drafts: on a free port of this host alone, or, where `insecure`
 * allows it and the orchestrator runs on another host, of all addresses. */
const char *target_endpoint_to_bind(const char *orchestrator, bool insecure);
/* An endpoint of --advertise, into out[WIRE_STRING_MAX + 1], in a form that reaches every draft unchanged. */
void target_endpoint_insist(const char *advertised, char *out);
