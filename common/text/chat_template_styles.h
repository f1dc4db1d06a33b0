/* chat_template_styles.h - the chat templates that are built in, as data: the text around the messages of
 * each role. Source: the templates that the models publish (tests/golden/make_chat_templates.py has them). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define CHAT_MARKS_MAX 6

enum { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_ROLE_COUNT };

/* In a style's texts, these characters stand for the tokens that begin and end a text. */
#define CHAT_BOS "\1"
#define CHAT_EOS "\2"

typedef enum {
  CHAT_SYSTEM_TURN,  /* a turn of its own, anywhere */
  CHAT_SYSTEM_ONCE,  /* a turn of its own, only the first message */
  CHAT_SYSTEM_FIRST, /* inside the first message of the user */
  CHAT_SYSTEM_LAST   /* inside the last message, if that is the user's */
} chat_system_position;

typedef struct chat_style {
  const char *name;
  const char *marks[CHAT_MARKS_MAX]; /* a file's template with this style contains all of these */
  const char *lacks[CHAT_MARKS_MAX]; /* and contains none of these, which would change the text */
  const char *needs;                 /* a token that the vocabulary must have; NULL: none */
  const char *begin, *open;          /* text at the very beginning; text before the reply */
  struct {
    const char *before, *after;
  } turns[CHAT_ROLE_COUNT];
  chat_system_position system;
  bool trim[CHAT_ROLE_COUNT]; /* blanks around the content */
  bool alternate;             /* user and assistant must alternate, the user first */
  bool thinking;              /* thoughts of earlier replies are left out (Qwen3) */
  bool always_system;         /* there is a system turn even without a system message */
  const char *own_system;     /* the system message where none is given, when the style is chosen by name; a
                                 file's template has its own */
  const char *turn_end;       /* the token that ends a reply; NULL: the vocabulary's own */
} chat_style;

const chat_style *chat_style_at(int i);               /* NULL from their number on */
const chat_style *chat_style_named(const char *name); /* NULL: unknown */

/* The style of a file's template in its normal form (chat_template_source.h); NULL: none. *own: its own
 * system message, malloc'd, or NULL: it has none. */
const chat_style *chat_style_recognise(const char *text, char **own);
