/* conversation.h - what was said, what the user typed, and how much of it fits a context. Pure: no terminal,
 * no worker. */
#pragma once

#include "common/text/chat_template.h"
#include <stdbool.h>
#include <stdio.h>

typedef struct conversation {
  chat_message *turns; /* [count]: the system message, if there is one, then user and assistant in turns;
                          content is owned */
  int32_t count, capacity;
} conversation;

void conversation_fini(conversation *c);

/* role: a string that stays. ERR_NOMEM changes nothing. */
int conversation_add(conversation *c, const char *role, const char *text, size_t size);
bool conversation_last_is(const conversation *c, const char *role);
void conversation_drop_last(conversation *c);
/* The oldest `exchanges`: a user's message and its answer each. The system message stays. */
void conversation_drop_oldest(conversation *c, int32_t exchanges);
void conversation_clear(conversation *c); /* all but the system message */

/* How many of the oldest exchanges have to go so that the rest has at most `most` tokens: 0: none; -1: even
 * the last turn alone has more. tokens() counts a rendered prompt; what it says below 0 is returned. */
int32_t conversation_too_many(const conversation *c, size_t most,
                              int64_t (*tokens)(void *context, const chat_message *turns, int32_t count),
                              void *context);

typedef enum {
  INPUT_MESSAGE, /* text: all of it, without blanks at its end */
  INPUT_NOTHING,
  INPUT_HELP,
  INPUT_EXIT,
  INPUT_CLEAR,
  INPUT_REGEN,
  INPUT_CONTINUE,
  INPUT_READ, /* text: FILE */
  INPUT_STATS,
  INPUT_BAD /* no such command, or a wrong number of words; text: a sentence */
} input_kind;

#define INPUT_TEXT_MAX 160

typedef struct typed {
  input_kind kind;
  const char *text; /* [size], of `line` or `sentence` */
  size_t size;
  char sentence[INPUT_TEXT_MAX];
} typed;

/* What a line means: a first character '/' begins a command. */
void conversation_parse(const char *line, size_t size, typed *out);
void conversation_help(FILE *to);
