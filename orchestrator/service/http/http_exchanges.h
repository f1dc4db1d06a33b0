/* http_exchanges.h - all exchanges of a server: what libmicrohttpd calls for requests and their responses.
 * For http_server.c alone. */
#pragma once

#include "orchestrator/service/http/http_exchange.h"
#include <microhttpd.h>
#include <stdint.h>
#include <uv.h>

#define HTTP_BODY_MAX   (16u << 20) /* bytes */
#define HTTP_BODIES_MAX (64u << 20) /* bytes of all requests that are being received or answered */

typedef struct http_exchanges {
  uv_loop_t *loop;
  uv_timer_t *turn; /* started with 0 ms when libmicrohttpd has something to do that nothing tells of */
  void (*on_turn)(uv_timer_t *turn);
  void (*on_request)(void *owner, http_exchange *x); /* as in http_server_options */
  void (*on_gone)(void *owner, http_exchange *x);
  void *owner;
  http_exchange *first;
  size_t body_bytes; /* of all of them */
} http_exchanges;

/* MHD_NotifyConnectionCallback, MHD_AccessHandlerCallback and MHD_RequestCompletedCallback; the context is
 * the http_exchanges. */
void http_exchanges_on_connection(void *all, struct MHD_Connection *c, void **context,
                                  enum MHD_ConnectionNotificationCode what);
enum MHD_Result http_exchanges_on_request(void *all, struct MHD_Connection *c, const char *url,
                                          const char *method, const char *version, const char *data,
                                          size_t *size, void **exchange);
void http_exchanges_on_completed(void *all, struct MHD_Connection *c, void **exchange,
                                 enum MHD_RequestTerminationCode why);
/* Their owners are told that they are gone, and their connections will close. */
void http_exchanges_break(http_exchanges *all);
