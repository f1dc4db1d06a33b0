/* http_server.h - HTTP/1.1 by libmicrohttpd in libuv's loop: whole requests come in, responses go out at once
 * or as a stream.
 *
 * One thread: everything is called from the loop. libmicrohttpd has no thread of its own; its epoll
 * descriptor is one handle of the loop. */
#pragma once

#include "common/base/err.h"
#include "common/base/log.h"
#include "orchestrator/service/http/http_exchange.h"
#include "orchestrator/service/http/http_tls.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define HTTP_CONNECTIONS_MAX   1024
#define HTTP_IDLE_S            60          /* a connection without a byte in either direction is closed */
#define HTTP_CONNECTION_MEMORY (64u << 10) /* bytes: a request's line and headers must fit */

typedef struct http_server http_server;

typedef struct http_server_options {
  const char *host;    /* a name or an address */
  uint16_t port;       /* 0: any free one */
  const http_tls *tls; /* must live as long as the server; NULL: it speaks HTTP without TLS */
  /* A request is there: whole, unless http_problem names a status. Answer it, now or later. */
  void (*on_request)(void *owner, http_exchange *x);
  /* The client went away before it had the whole response, or its connection broke; the exchange is gone
   * after this call. Not called for an exchange whose user is NULL. */
  void (*on_gone)(void *owner, http_exchange *x);
  void *owner;
  const logger *log;
} http_server_options;

/* ERR_ARG: no such host; ERR_IO: the address cannot be bound; ERR_NOMEM. */
int http_server_open(http_server **out, uv_loop_t *loop, const http_server_options *o, err *e);
/* Closes all connections; their exchanges get on_gone. The loop must turn once more to free it. NULL is
 * allowed. */
void http_server_close(http_server *s);
uint16_t http_server_port(const http_server *s);
int32_t http_server_connections(const http_server *s);
