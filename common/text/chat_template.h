/* chat_template.h - turns messages into prompt ids, by one of the built-in templates: the file's own,
 * recognised by its text, or one chosen by name. The text of a message never becomes a special token; only
 * the template's own markers do. Source: the templates that the models publish
 * (tests/golden/make_chat_templates.py has them). */
#pragma once

#include "common/text/tokenizer.h"

#define CHAT_TEMPLATE_NAMES_MAX 256 /* bytes */

typedef struct chat_message {
  const char *role; /* "system", "user", "assistant" */
  const char *content;
  size_t size; /* of content, bytes */
} chat_message;

typedef struct chat_template chat_template; /* `t` must outlive it; any thread may use it */

/* name NULL: by the file's template. ERR_UNSUPPORTED: it is none that is built in, or the vocabulary lacks
 * its markers; says what to do. ERR_ARG: no such name; names those known. */
int chat_template_open(chat_template **out, const tokenizer *t, const char *name, err *e);
void chat_template_close(chat_template *c); /* NULL is allowed */

bool chat_template_known(const char *name);
void chat_template_names(char out[CHAT_TEMPLATE_NAMES_MAX]); /* "chatml, llama2, ..." */
const char *chat_template_name(const chat_template *c);
/* The token that ends a reply, or -1: the vocabulary's own. */
int32_t chat_template_turn_end(const chat_template *c);

/* Appends the rendered prompt, generation prompt included. ERR_ARG for an unknown role, roles in an order
 * that the template does not take, or no message; tokenizer_encode's errors. An error changes nothing. */
int chat_template_render(const chat_template *c, const chat_message *messages, int32_t count,
                         tokenizer_ids *out, err *e);
