/* worker_lines.h - the workers of /v1/workers as people see them. */
#pragma once

#include "common/base/err.h"
#include <jansson.h>
#include <stdio.h>

/* A line each, below a heading. */
void worker_lines_print(FILE *to, const json_t *workers);
/* The whole id of the one worker whose id begins with these digits, valid as long as the list; NULL: there is
 * none, or several, as *e says. */
const char *worker_lines_find(const json_t *workers, const char *digits, err *e);
