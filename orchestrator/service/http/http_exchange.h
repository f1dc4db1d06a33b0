/* http_exchange.h - a request by HTTP and its response, as whoever answers it sees them. It is called in the
 * loop's thread only. */
#pragma once

#include "common/base/err.h"
#include <stddef.h>

#define HTTP_HEADERS_MAX 8 /* of a response that its owner adds */

typedef struct http_exchange http_exchange;

/* What was asked; valid until the exchange has been answered whole, or is gone. */
unsigned http_problem(const http_exchange *x); /* 0, 413 (too large a body) or 503 (too many bodies) */
const char *http_method(const http_exchange *x);
const char *http_path(const http_exchange *x);
const char *http_header(const http_exchange *x, const char *name); /* NULL: not given */
const char *http_query(const http_exchange *x, const char *name);  /* NULL: not given */
const char *http_body(const http_exchange *x, size_t *size);       /* with a NUL behind it */
/* The owner's own. on_gone is called only where there is one. */
void http_set_user(http_exchange *x, void *user);
void *http_user(const http_exchange *x);

/* A header of the response, before it begins: at most HTTP_HEADERS_MAX; `name` is a literal. */
void http_add_header(http_exchange *x, const char *name, const char *value);
const char *http_added_header(const http_exchange *x, const char *name); /* NULL: not added */
/* The whole response; `data` is copied. After it the exchange is not the owner's any more. */
void http_reply(http_exchange *x, unsigned status, const char *type, const char *data, size_t size);
/* A response in pieces: begin, then writes, then end. ERR_NOMEM: a piece is lost, and the caller should
 * abort. */
int http_stream_begin(http_exchange *x, unsigned status, const char *type);
int http_stream_write(http_exchange *x, const char *data, size_t size);
size_t http_stream_unsent(const http_exchange *x); /* bytes that the client has not taken yet */
/* After one of these two the exchange is not the owner's any more. Abort breaks the connection, so that the
 * client sees that the response is not whole. */
void http_stream_end(http_exchange *x);
void http_abort(http_exchange *x);
