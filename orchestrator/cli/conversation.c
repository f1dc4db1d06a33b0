#include "orchestrator/cli/conversation.h"

#include <stdlib.h>
#include <string.h>

void conversation_fini(conversation *c) {
  while (c->count > 0) conversation_drop_last(c);
  free(c->messages);
  *c = (conversation){0};
}

static int reserve(conversation *c) {
  if (c->count < c->capacity) return ERR_OK;
  int32_t capacity = c->capacity ? 2 * c->capacity : 16;
  chat_message *more = realloc(c->messages, (size_t)capacity * sizeof *more);
  if (!more) return ERR_NOMEM;
  c->messages = more;
  c->capacity = capacity;
  return ERR_OK;
}

int conversation_add(conversation *c, const char *role, const char *text, size_t size) {
  char *copy = malloc(size + 1);
  if (!copy || reserve(c)) {
    free(copy);
    return ERR_NOMEM;
  }
  if (size) memcpy(copy, text, size);
  copy[size] = 0;
  c->messages[c->count++] = (chat_message){.role = role, .content = copy, .size = size};
  return ERR_OK;
}

bool conversation_last_is(const conversation *c, const char *role) {
  return c->count > 0 && strcmp(c->messages[c->count - 1].role, role) == 0;
}

int32_t conversation_system(const conversation *c) {
  return c->count > 0 && strcmp(c->messages[0].role, "system") == 0;
}

int32_t conversation_exchanges(const conversation *c) {
  return (c->count - conversation_system(c) - 1) / 2;
}

static void drop(conversation *c, int32_t first, int32_t count) {
  for (int32_t i = first; i < first + count; i++) free((char *)c->messages[i].content);
  memmove(c->messages + first, c->messages + first + count,
          (size_t)(c->count - first - count) * sizeof *c->messages);
  c->count -= count;
}

void conversation_drop_last(conversation *c) {
  drop(c, c->count - 1, 1);
}

void conversation_drop_oldest(conversation *c, int32_t exchanges) {
  drop(c, conversation_system(c), 2 * exchanges);
}

void conversation_clear(conversation *c) {
  drop(c, conversation_system(c), c->count - conversation_system(c));
}

int32_t conversation_exchanges_to_drop(const conversation *c, size_t most,
                                       int64_t (*tokens)(void *context, const chat_message *messages,
                                                         int32_t count),
                                       void *context) {
  int32_t kept = conversation_system(c), exchanges = conversation_exchanges(c), result = -1;
  chat_message *rest = malloc((size_t)(c->count + 1) * sizeof *rest);
  if (!rest) return ERR_NOMEM;
  for (int32_t n = 0; n <= exchanges; n++) {
    int32_t from = kept + 2 * n;
    if (kept) rest[0] = c->messages[0];
    memcpy(rest + kept, c->messages + from, (size_t)(c->count - from) * sizeof *rest);
    int64_t size = tokens(context, rest, kept + c->count - from);
    if (size >= 0 && (size_t)size > most) continue;
    result = size < 0 ? (int32_t)size : n;
    break;
  }
  free(rest);
  return result;
}
