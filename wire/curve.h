/* curve.h - encryption and authentication of ZeroMQ's connections (CURVE, RFC 26), and who may come in (ZAP,
 * RFC 27).
 *
 * Private to wire/. A listener asks the gate about every key. It fails closed: without the gate's word, be
 * the gate late, dead or missing, ZeroMQ ends the connection before any byte of a message is delivered,
 * because the listener has a domain and enforces it. */
#pragma once

#include "common/base/log.h"
#include "wire/keys.h"
#include <uv.h>

/* For a socket that is not bound or connected yet. False: errno of ZeroMQ. */
bool curve_protect_listener(void *socket, const key_bytes *secret);
bool curve_protect_call(void *socket, const keys *own, const key_bytes *server);

typedef struct curve_gate curve_gate;

typedef struct curve_gate_options {
  void *context; /* of ZeroMQ */
  uv_loop_t *loop;
  keys *own; /* must outlive the gate */
  unsigned roles;
  const logger *log;
  /* A program at this address was not let in; or NULL. */
  void (*on_denied)(void *owner, const char *address, size_t size);
  void *owner;
} curve_gate_options;

/* The gate of all listeners of the context, which must all be on this loop's thread: lets in the keys that
 * the allow-list has for one of `roles`. */
int curve_gate_open(curve_gate **out, const curve_gate_options *o, err *e);
/* Closes its socket at once, and frees it when the loop runs next. NULL is allowed. */
void curve_gate_close(curve_gate *g);

#define CURVE_USER_MAX (KEY_HEX + 2) /* bytes of a User-Id with its NUL */

/* What the gate has found out of whoever has sent a message, by the "User-Id" that ZeroMQ attaches to it: a
 * set of KEYS_ROLE. 0: no key. */
unsigned curve_user_roles(const char *user);
