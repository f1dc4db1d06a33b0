#include "orchestrator/service/api/api_keys.h"

#include "common/base/plain_text.h"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define SCHEME "Bearer "

static bool is_key(const char *text, size_t size) {
  for (size_t i = 0; i < size; i++)
    if (text[i] <= ' ' || text[i] > '~') return false;
  return size > 0 && size <= API_KEY_LENGTH_MAX;
}

static int add(api_keys *k, const char *text, size_t size, err *e) {
  if (!is_key(text, size))
    return err_set(e, ERR_ARG, "an API key has 1 to %d visible ASCII characters, and no space",
                   API_KEY_LENGTH_MAX);
  if (k->count == API_KEYS_MAX) return err_set(e, ERR_LIMIT, "there may be %d API keys", API_KEYS_MAX);
  char **grown = realloc(k->list, (k->count + 1) * sizeof *grown), *copy = strndup(text, size);
  if (grown) k->list = grown;
  if (grown && copy) {
    k->list[k->count++] = copy;
    return ERR_OK;
  }
  free(copy);
  return err_set(e, ERR_NOMEM, "out of memory for API keys");
}

int api_keys_add(api_keys *k, const char *commas, err *e) {
  for (const char *at = commas;;) {
    size_t size = strcspn(at, ",");
    int code = add(k, at, size, e);
    if (code || !at[size]) return code;
    at += size + 1;
  }
}

static int read_lines(api_keys *k, FILE *from, err *e) {
  char *line = NULL;
  size_t room = 0;
  int code = ERR_OK;
  for (bool first = true; !code && getline(&line, &room, from) >= 0; first = false) {
    const char *key = line + (first ? plain_text_mark(line, strlen(line)) : 0);
    size_t size = strcspn(key, "\r\n");
    if (size) code = add(k, key, size, e);
  }
  free(line);
  return code;
}

int api_keys_read(api_keys *k, const char *path, err *e) {
  FILE *from = fopen(path, "r");
  if (!from) return err_set(e, ERR_ARG, "cannot read the API keys in %.200s: %s", path, strerror(errno));
  size_t before = k->count;
  int code = read_lines(k, from, e);
  fclose(from);
  if (!code && k->count == before) return err_set(e, ERR_ARG, "there is no API key in %.200s", path);
  return code;
}

void api_keys_fini(api_keys *k) {
  for (size_t i = 0; i < k->count; i++) free(k->list[i]);
  free(k->list);
  *k = (api_keys){0};
}

/* 0: equal. Looks at every character that was given. */
static unsigned difference(const char *given, size_t size, const char *key) {
  size_t length = strlen(key);
  volatile unsigned differ = size != length;
  for (size_t i = 0; i < size; i++) differ |= (unsigned char)given[i] ^ (unsigned char)key[i % length];
  return differ;
}

int32_t api_keys_find(const api_keys *k, const char *authorization) {
  if (!k->count) return 0;
  if (!authorization || strncasecmp(authorization, SCHEME, strlen(SCHEME)) != 0) return -1;
  const char *given = authorization + strlen(SCHEME);
  size_t size = strlen(given);
  int32_t index = -1;
  for (size_t i = 0; i < k->count; i++)
    if (difference(given, size, k->list[i]) == 0) index = (int32_t)i;
  return index;
}
