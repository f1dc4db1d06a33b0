#include "common/text/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_BYTES_MAX = 1 << 16, ROLE_PRINT_BYTES = 32 };

/* What every ChatML template has in common: one message, and the generation prompt. */
#define CHATML_MESSAGES                                                                                      \
  "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"       \
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

/* A template is known by its text around the default system message, which the file itself gives. */
typedef struct known_template {
  const char *head, *tail; /* tail NULL: no default system message, and head is all */
} known_template;

static const known_template KNOWN[] = {
    {"{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
     "{{ '<|im_start|>system\n",
     "<|im_end|>\n' }}{% endif %}" CHATML_MESSAGES},
    {"{% for message in messages %}" CHATML_MESSAGES, NULL},
};

static const char *const ROLES[] = {"system", "user", "assistant"};

struct chat_template {
  const tokenizer *t;
  int32_t start, end;   /* <|im_start|>, <|im_end|> */
  char *default_system; /* inserted when the first message is another; NULL: none */
  size_t default_size;
};

/* ---- open and close ---- */

static int no_template(err *e, const char *why) {
  return err_set(e, ERR_UNSUPPORTED, "the model file %s: use --raw and write the prompt's markers yourself",
                 why);
}

/* Templates write a newline as itself or as an escape; out[size] gets it as itself. */
static size_t unescape_newlines(const char *text, size_t size, char *out) {
  size_t count = 0;
  for (size_t i = 0; i < size; i++) {
    bool escape = text[i] == '\\' && i + 1 < size && text[i + 1] == 'n';
    out[count++] = escape ? '\n' : text[i];
    i += escape;
  }
  return count;
}

/* Whether the text is this template; *middle[*middle_size]: its default system message, of plain text alone
 * (a quote or a backslash would mean something to the template language). */
static bool matches(const known_template *k, const char *text, size_t size, const char **middle,
                    size_t *middle_size) {
  size_t head = strlen(k->head), tail = k->tail ? strlen(k->tail) : 0;
  *middle = NULL;
  *middle_size = 0;
  if (size < head + tail || memcmp(text, k->head, head)) return false;
  if (!k->tail) return size == head;
  if (memcmp(text + size - tail, k->tail, tail)) return false;
  *middle = text + head;
  *middle_size = size - head - tail;
  return !memchr(*middle, '\'', *middle_size) && !memchr(*middle, '\\', *middle_size);
}

/* Finds the template among the known ones and keeps its default system message. */
static int recognise(chat_template *c, const char *text, size_t size, err *e) {
  const char *middle;
  for (size_t i = 0; i < sizeof KNOWN / sizeof KNOWN[0]; i++) {
    if (!matches(&KNOWN[i], text, size, &middle, &c->default_size)) continue;
    if (!middle) return ERR_OK;
    c->default_system = malloc(c->default_size + 1);
    if (!c->default_system) return err_set(e, ERR_NOMEM, "out of memory for the chat template");
    memcpy(c->default_system, middle, c->default_size);
    return ERR_OK;
  }
  return no_template(e, "has a chat template that is not built in");
}

static int read_template(chat_template *c, const gguf *g, err *e) {
  gguf_string text;
  if (!gguf_get_string(g, "tokenizer.chat_template", &text)) return no_template(e, "has no chat template");
  if (text.size > TEMPLATE_BYTES_MAX) return no_template(e, "has a chat template that is not built in");
  char *plain = malloc(text.size + 1);
  if (!plain) return err_set(e, ERR_NOMEM, "out of memory for the chat template");
  int rc = recognise(c, plain, unescape_newlines(text.data, text.size, plain), e);
  free(plain);
  return rc;
}

static int find_markers(chat_template *c, err *e) {
  static const char start[] = "<|im_start|>", end[] = "<|im_end|>";
  c->start = tokenizer_find(c->t, start, sizeof start - 1);
  c->end = tokenizer_find(c->t, end, sizeof end - 1);
  return c->start >= 0 && c->end >= 0 ? ERR_OK : no_template(e, "lacks the markers of its own chat template");
}

int chat_template_open(chat_template **out, const gguf *g, const tokenizer *t, err *e) {
  chat_template *c = calloc(1, sizeof *c);
  *out = NULL;
  if (!c) return err_set(e, ERR_NOMEM, "out of memory for the chat template");
  c->t = t;
  int rc = read_template(c, g, e);
  if (!rc) rc = find_markers(c, e);
  if (rc)
    chat_template_close(c);
  else
    *out = c;
  return rc;
}

void chat_template_close(chat_template *c) {
  if (!c) return;
  free(c->default_system);
  free(c);
}

/* ---- rendering ---- */

static int add_marker(int32_t id, tokenizer_ids *out, err *e) {
  if (tokenizer_ids_add(out, id)) return err_set(e, ERR_NOMEM, "out of memory for the prompt");
  return ERR_OK;
}

/* ROLE newline CONTENT as one stretch: merges may reach over the newline, as in a prompt tokenised whole. */
static int add_text(const chat_template *c, const chat_message *m, tokenizer_ids *out, err *e) {
  if (m->size > TOKENIZER_TEXT_MAX)
    return err_set(e, ERR_LIMIT, "a message has %zu bytes; at most %u are taken: shorten it", m->size,
                   TOKENIZER_TEXT_MAX);
  size_t role = strlen(m->role), size = role + 1 + m->size;
  char *text = malloc(size);
  if (!text) return err_set(e, ERR_NOMEM, "out of memory for the prompt");
  memcpy(text, m->role, role);
  text[role] = '\n';
  if (m->size) memcpy(text + role + 1, m->content, m->size);
  int rc = tokenizer_encode(c->t, text, size, false, out, e);
  free(text);
  return rc;
}

static int add_message(const chat_template *c, const chat_message *m, tokenizer_ids *out, err *e) {
  int rc = add_marker(c->start, out, e);
  if (!rc) rc = add_text(c, m, out, e);
  if (!rc) rc = add_marker(c->end, out, e);
  return rc ? rc : tokenizer_encode(c->t, "\n", 1, false, out, e);
}

static int check_role(const chat_message *m, err *e) {
  for (size_t i = 0; i < sizeof ROLES / sizeof ROLES[0]; i++)
    if (strcmp(m->role, ROLES[i]) == 0) return ERR_OK;
  char text[ROLE_PRINT_BYTES + 1];
  snprintf(text, sizeof text, "%s", m->role);
  for (char *p = text; *p; p++)
    if (*p < ' ' || *p > '~') *p = '?';
  return err_set(e, ERR_ARG, "a message has the role '%s'; the roles are system, user and assistant", text);
}

static int render(const chat_template *c, const chat_message *messages, int32_t count, tokenizer_ids *out,
                  err *e) {
  const chat_message first = {"system", c->default_system, c->default_size};
  const chat_message answer = {"assistant", NULL, 0};
  int rc = ERR_OK;
  if (c->default_system && strcmp(messages[0].role, "system")) rc = add_message(c, &first, out, e);
  for (int32_t i = 0; !rc && i < count; i++) rc = add_message(c, &messages[i], out, e);
  if (!rc) rc = add_marker(c->start, out, e);
  return rc ? rc : add_text(c, &answer, out, e);
}

int chat_template_render(const chat_template *c, const chat_message *messages, int32_t count,
                         tokenizer_ids *out, err *e) {
  if (count < 1) return err_set(e, ERR_ARG, "there is no message to answer: give at least one");
  for (int32_t i = 0; i < count; i++) {
    int rc = check_role(&messages[i], e);
    if (rc) return rc;
  }
  size_t before = out->count, dropped = out->dropped_bytes;
  int rc = render(c, messages, count, out, e);
  if (rc) {
    out->count = before;
    out->dropped_bytes = dropped;
  }
  return rc;
}
