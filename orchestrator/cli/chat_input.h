/* chat_input.h - tells what a line typed in a conversation means: a message, or a command such as /help.
 * Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef enum {
  CHAT_INPUT_MESSAGE, /* text: all of it, without blanks at its end */
  CHAT_INPUT_NOTHING,
  CHAT_INPUT_HELP,
  CHAT_INPUT_EXIT,
  CHAT_INPUT_CLEAR,
  CHAT_INPUT_REGEN, /* text: what stands behind it */
  CHAT_INPUT_CONTINUE,
  CHAT_INPUT_READ, /* text: FILE */
  CHAT_INPUT_STATS,
  CHAT_INPUT_BAD /* no such command, or a wrong number of words; text: a sentence */
} chat_input_kind;

#define CHAT_INPUT_SENTENCE_MAX 160

typedef struct chat_input {
  chat_input_kind kind;
  const char *text; /* [size], of the line or of `sentence` */
  size_t size;
  char sentence[CHAT_INPUT_SENTENCE_MAX];
} chat_input;

/* A first character '/' begins a command. *out points into `line`. */
void chat_input_parse(const char *line, size_t size, chat_input *out);
void chat_input_print_help(FILE *to);
