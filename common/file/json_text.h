/* json_text.h - JSON files of megabytes that nobody vouches for (tokenizer.json and those beside it). A scan
 * without memory comes before the parser, which would take gigabytes for a few megabytes of brackets. */
#pragma once

#include "common/base/err.h"
#include <jansson.h>
#include <stddef.h>

#define JSON_TEXT_MAX        (64u << 20) /* bytes */
#define JSON_TEXT_VALUES_MAX (8u << 20)  /* values, about: brackets and commas */

/* The file's bytes, malloc'd; *text is NULL when there is no such file. `name` stands in messages. ERR_IO,
 * ERR_LIMIT, ERR_NOMEM; what has been read is the caller's to free even then. */
int json_text_read(const char *path, const char *name, char **text, size_t *size, err *e);
/* An object; *out is the caller's. ERR_FORMAT, ERR_LIMIT, ERR_NOMEM. */
int json_text_parse(json_t **out, const char *name, const char *text, size_t size, err *e);
