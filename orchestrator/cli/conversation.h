/* conversation.h - the messages of a chat so far, and how many of them fit a context. Pure: no terminal, no
 * worker. */
#pragma once

#include "common/text/chat_template.h"
#include <stdbool.h>

typedef struct conversation {
  /* [count]: the system message, if there is one, then the user's and the assistant's one after the other;
   * the content is owned. */
  chat_message *messages;
  int32_t count, capacity;
} conversation;

void conversation_fini(conversation *c);

/* role: a string that stays. ERR_NOMEM changes nothing. */
int conversation_add(conversation *c, const char *role, const char *text, size_t size);
bool conversation_last_is(const conversation *c, const char *role);
int32_t conversation_system(const conversation *c); /* 1: the first is the system message; 0: there is none */
int32_t conversation_exchanges(const conversation *c); /* before the last message */
void conversation_drop_last(conversation *c);
/* Drops the oldest `exchanges`, each of which is a user's message and its answer. The system message stays.
 */
void conversation_drop_oldest(conversation *c, int32_t exchanges);
void conversation_clear(conversation *c); /* drops all messages but the system message */

/* Returns how many of the oldest exchanges must be dropped so that the rest has at most `most` tokens; -1:
 * the last message alone has more. tokens() counts the tokens of the rendered prompt; if it returns a
 * negative number, that is returned. */
int32_t conversation_exchanges_to_drop(const conversation *c, size_t most,
                                       int64_t (*tokens)(void *context, const chat_message *messages,
                                                         int32_t count),
                                       void *context);
