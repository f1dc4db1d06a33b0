/* json.h - JSON from a file that nobody vouches for. A scan without memory comes first: a few megabytes of
 * brackets would otherwise make a parser take gigabytes, or all of the stack. */
#pragma once

#include "common/base/err.h"
#include <jansson.h>
#include <stddef.h>

#define JSON_FILE_MAX   (64u << 20) /* bytes */
#define JSON_DEPTH_MAX  16          /* arrays and objects in each other */
#define JSON_VALUES_MAX (8u << 20)  /* values, about: brackets and commas */

/* An object; *out is the caller's. `label` names the bytes in messages. ERR_FORMAT (no JSON, no object, a key
 * twice), ERR_LIMIT (the limits above), ERR_NOMEM. */
int json_parse_object(json_t **out, const char *label, const void *data, size_t size, err *e);
/* A file's bytes, malloc'd; *text is NULL when there is no such file. `name` stands in messages. ERR_IO,
 * ERR_LIMIT, ERR_NOMEM; what has been read is the caller's to free even then. */
int json_read(const char *path, const char *name, char **text, size_t *size, err *e);
