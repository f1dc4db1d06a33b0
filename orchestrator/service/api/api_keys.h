/* api_keys.h - the keys with which clients may use the API, as OpenAI's: "Authorization: Bearer KEY". */
#pragma once

#include "common/base/err.h"
#include <stddef.h>
#include <stdint.h>

#define API_KEYS_MAX       1024
#define API_KEY_LENGTH_MAX 256

typedef struct api_keys {
  char **list; /* [count] */
  size_t count;
} api_keys;

/* Adds the keys of a list with commas between them. ERR_ARG: one of them is empty, too long, or has a space
 * or a control character; ERR_LIMIT; ERR_NOMEM. */
int api_keys_add(api_keys *k, const char *commas, err *e);
/* Adds the lines of a file, but for empty ones. ERR_ARG: it cannot be read, or has no key; else as above. */
int api_keys_read(api_keys *k, const char *path, err *e);
void api_keys_fini(api_keys *k);

/* The place in the list of the key that is in this header, or NULL: 0 without keys, when everybody may come
 * in; -1: none of them. The time that it takes says nothing about how much of a key is right. */
int32_t api_keys_find(const api_keys *k, const char *authorization);
