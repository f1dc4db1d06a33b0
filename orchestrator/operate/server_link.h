/* server_link.h - asks a running `tandem serve' over HTTP, by libcurl. One thread. */
#pragma once

#include "common/base/err.h"
#include <jansson.h>

typedef struct server_link server_link;

/* `url` is what comes before the paths; `key` may be NULL. Nothing is sent yet. ERR_NOMEM. */
int server_link_open(server_link **out, const char *url, const char *key, err *e);
void server_link_close(server_link *l); /* NULL is allowed */

/* GET, or POST where there is a body. *text is the response, to free(). ERR_GONE: nobody answers; ERR_IO: the
 * server refuses; both say why, and what to do. */
int server_link_ask(server_link *l, const char *path, const char *body, char **text, err *e);
/* The same for a response that is JSON. ERR_FORMAT: it is none. */
int server_link_ask_json(server_link *l, const char *path, const char *body, json_t **out, err *e);
