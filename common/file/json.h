/* json.h - reads JSON from files that may be hostile. The text is first scanned without taking memory,
 * because a few megabytes of brackets would make a parser take gigabytes, or all of the stack. */
#pragma once

#include "common/base/err.h"
#include <jansson.h>
#include <stddef.h>

#define JSON_FILE_MAX   (64u << 20) /* bytes */
#define JSON_DEPTH_MAX  16          /* arrays and objects in each other */
#define JSON_VALUES_MAX (8u << 20)  /* values, about: brackets and commas */

/* Parses an object, which *out then owns. `label` names the bytes in messages. ERR_FORMAT (no JSON, no
 * object, a key twice), ERR_LIMIT (the limits above), ERR_NOMEM. */
int json_parse_object(json_t **out, const char *label, const void *data, size_t size, err *e);
/* Reads a file; *text is malloc'd, or NULL when there is no such file. `name` is used in messages. ERR_IO,
 * ERR_LIMIT, ERR_NOMEM; what has been read is the caller's to free even then. */
int json_read(const char *path, const char *name, char **text, size_t *size, err *e);
