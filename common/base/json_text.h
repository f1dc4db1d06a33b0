/* json_text.h - JSON as it is written for others. */
#pragma once

#include <jansson.h>

/* json_dumps, with what would move a terminal's cursor or turn its text around as \u escapes too: DEL, the C1
 * controls, and the marks that override or isolate a direction. Whoever parses it reads the same. Freed by
 * free; NULL: out of memory, or value is NULL. */
char *json_text(const json_t *value, size_t flags);
