/* json_lines.h - test data of one JSON object a line. Include after cmocka.h; what is missing fails the test.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Calls each line's object; returns how many there were. */
int json_lines_each(const char *path, void (*each)(const json_t *row, void *context), void *context);

const char *json_lines_text(const json_t *row, const char *key, size_t *size);

/* malloc'd [*count]. */
int32_t *json_lines_ids(const json_t *row, const char *key, size_t *count);
