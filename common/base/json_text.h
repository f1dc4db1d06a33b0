/* json_text.h - JSON for others to read, whether a program, a log or a terminal. */
#pragma once

#include <jansson.h>
#include <stddef.h>

/* As json_dumps, and what controls.h takes for a control character is written as \u009B and the like: the
 * value is the same. To free(). NULL: `value` is NULL, or out of memory. */
char *json_text(const json_t *value, size_t flags);
