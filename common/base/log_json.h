/* log_json.h - a line of the log as an object. */
#pragma once

#include <stdint.h>

/* In one line, with its line end; to free(). NULL: out of memory. Bytes of `text` that are no UTF-8 make it
 * ASCII, with "?" for all else. */
char *log_json_line(const char *program, const char *level, int64_t wall_us, const char *text);
