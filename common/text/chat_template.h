/* chat_template.h - messages to prompt ids. Text of a message never yields a special token; only the
 * template's own markers do. ChatML, as the file's template gives it (default system message included). */
#pragma once

#include "common/text/tokenizer.h"

typedef struct chat_message {
  const char *role; /* "system", "user", "assistant" */
  const char *content;
  size_t size; /* of content, bytes */
} chat_message;

typedef struct chat_template chat_template; /* `t` must outlive it; any thread may use it */

/* ERR_UNSUPPORTED when the file's template is none that is built in: says to use --raw. */
int chat_template_open(chat_template **out, const gguf *g, const tokenizer *t, err *e);
void chat_template_close(chat_template *c);

/* Appends the rendered prompt, generation prompt included. ERR_ARG for an unknown role or no message, and
 * tokenizer_encode's errors; an error changes nothing. */
int chat_template_render(const chat_template *c, const chat_message *messages, int32_t count,
                         tokenizer_ids *out, err *e);
