/* workers_json.h - the workers over HTTP: what an operator sees, and what he may ask of one. */
#pragma once

#include "orchestrator/service/service.h"
#include <jansson.h>

/* {object: "list", data: [a worker each]} (worker_report.h). NULL: out of memory. */
json_t *workers_json_list(const service *s);
/* Does to the worker of this id what a body {drained: true or false} asks. On success *out is the new list.
 * ERR_ARG: it is no such body; ERR_GONE: there is no such worker. */
int workers_json_change(service *s, const char *id, const json_t *body, json_t **out, err *e);
