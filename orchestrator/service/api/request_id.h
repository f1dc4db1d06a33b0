/* request_id.h - X-Request-Id: the name of one request in a client's logs, a proxy's and ours. */
#pragma once

#include "orchestrator/service/http/http_exchange.h"

#define REQUEST_ID_MAX 128 /* characters */

/* Adds the header to the response, before it begins: the client's own, if that is 1 to REQUEST_ID_MAX visible
 * ASCII characters, else a new one. */
void request_id_give(http_exchange *x);
/* Afterwards: the id, as long as the exchange lives. "": it could not be made. */
const char *request_id_of(const http_exchange *x);
