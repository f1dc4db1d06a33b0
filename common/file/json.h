/* json.h - JSON from a file that nobody vouches for. A scan without memory comes first: a few megabytes of
 * brackets would otherwise make a parser take gigabytes, or all of the stack. */
#pragma once

#include "common/base/err.h"
#include <jansson.h>
#include <stddef.h>

#define JSON_FILE_MAX   (16u << 20) /* bytes */
#define JSON_DEPTH_MAX  16          /* arrays and objects in each other */
#define JSON_VALUES_MAX (1u << 20)  /* values, about: brackets and commas */

typedef struct json_limits {
  size_t bytes, values, depth;
  size_t flags; /* of jansson's decoder */
} json_limits;

/* Within limits of the caller's. The errors of json_parse_object. */
int json_parse_within(json_t **out, const char *label, const void *data, size_t size, const json_limits *l, err *e);
/* An object; *out is the caller's. `label` names the bytes in messages. ERR_FORMAT (no JSON, no object, a key
 * twice), ERR_LIMIT (the limits above), ERR_NOMEM. */
int json_parse_object(json_t **out, const char *label, const void *data, size_t size, err *e);
