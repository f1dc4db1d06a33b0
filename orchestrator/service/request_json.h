/* request_json.h - a request as a line of JSON: what `batch' and `serve-workers' read. */
#pragma once

#include "orchestrator/service/request.h"
#include <jansson.h>

#define REQUEST_JSON_LINE_MAX     (32u << 20) /* bytes */
#define REQUEST_JSON_MESSAGES_MAX 1024        /* of one conversation */

/* Fills *out with the request of one line; what the line does not say is taken from `defaults`. Release *out
 * with request_fini, also after an error. *id gets the line's "id" (to json_decref), also after an error
 * where it can be read; else NULL, as where the line has none. `vocabulary` is the number of token ids.
 * ERR_FORMAT (no JSON object, not UTF-8), ERR_ARG (a key missing, unknown, of another kind, or one too many),
 * ERR_LIMIT, ERR_NOMEM. */
int request_json_read(const char *line, size_t size, const request *defaults, int32_t vocabulary,
                      request *out, json_t **id, err *e);

/* Is the line blank? */
bool request_json_is_blank(const char *line, size_t size);
