/* partial_options.h - what a request says of partial KV, by the names of SpecPV (arXiv 2512.02337): the same
 * in an HTTP body and in a line of JSON. */
#pragma once

#include "orchestrator/service/request.h"

/* Fields that are not there, or are null, leave what is in the request. ERR_ARG: *name is the field that is
 * wrong, or NULL where several do not fit together; `quote` is put around it. */
int partial_options_read(const json_t *object, char quote, request *r, const char **name, err *e);
