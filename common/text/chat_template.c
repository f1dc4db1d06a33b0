#include "common/text/chat_template.h"

#include "common/text/chat_template_source.h"
#include "common/text/chat_template_styles.h"
#include "common/text/unicode.h"
#include "common/base/utf8.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_BYTES_MAX = 1 << 16, ROLE_PRINT_BYTES = 32, SYSTEM_END_BYTES = 64 };

static const char *const ROLES[CHAT_ROLE_COUNT] = {"system", "user", "assistant"};

struct chat_template {
  const tokenizer *t;
  const chat_style *style;
  char *own_system; /* inserted when the first message is another; NULL: none */
};

/* ---- open and close ---- */

bool chat_template_known(const char *name) {
  return chat_style_named(name) != NULL;
}

void chat_template_names(char out[CHAT_TEMPLATE_NAMES_MAX]) {
  const chat_style *s;
  int size = 0;
  for (int i = 0; (s = chat_style_at(i)); i++)
    size += snprintf(out + size, (size_t)(CHAT_TEMPLATE_NAMES_MAX - size), "%s%s", i ? ", " : "", s->name);
}

const char *chat_template_name(const chat_template *c) {
  return c->style->name;
}

int32_t chat_template_turn_end(const chat_template *c) {
  const char *end = c->style->turn_end;
  return end ? tokenizer_find(c->t, end, strlen(end)) : -1;
}

static int no_template(err *e, const char *why) {
  char names[CHAT_TEMPLATE_NAMES_MAX];
  chat_template_names(names);
  return err_set(e, ERR_UNSUPPORTED, "the model file %s: use --raw, or --chat-template with one of %s", why,
                 names);
}

/* Finds the template among the known ones and keeps its own system message. */
static int recognise(chat_template *c, const char *text, err *e) {
  c->style = chat_style_recognise(text, &c->own_system);
  if (!c->style) return no_template(e, "has a chat template that is not built in");
  return ERR_OK;
}

static int read_template(chat_template *c, err *e) {
  size_t size;
  const char *text = tokenizer_template(c->t, &size);
  if (!text) return no_template(e, "has no chat template");
  if (size > TEMPLATE_BYTES_MAX) return no_template(e, "has a chat template that is not built in");
  char *normal = chat_template_source_normal(text, size);
  if (!normal) return err_set(e, ERR_NOMEM, "out of memory for the chat template");
  int rc = recognise(c, normal, e);
  free(normal);
  return rc;
}

static int pick(chat_template *c, const char *name, err *e) {
  char names[CHAT_TEMPLATE_NAMES_MAX];
  if (!name) return read_template(c, e);
  c->style = chat_style_named(name);
  chat_template_names(names);
  return c->style ? ERR_OK : err_set(e, ERR_ARG, "unknown template '%.40s': those known are %s", name, names);
}

static int keep_own_system(chat_template *c, const char *name, err *e) {
  if (!name || !c->style->own_system) return ERR_OK; /* by its text it has the file's */
  c->own_system = strdup(c->style->own_system);
  return c->own_system ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory for the chat template");
}

static int check_markers(const chat_template *c, err *e) {
  const char *const needs[] = {c->style->needs, c->style->turn_end};
  for (int i = 0; i < 2; i++)
    if (needs[i] && tokenizer_find(c->t, needs[i], strlen(needs[i])) < 0)
      return err_set(
          e, ERR_UNSUPPORTED,
          "the model's vocabulary lacks %s, a marker of the chat template '%s': use --raw, or another "
          "--chat-template",
          needs[i], c->style->name);
  return ERR_OK;
}

int chat_template_open(chat_template **out, const tokenizer *t, const char *name, err *e) {
  chat_template *c = calloc(1, sizeof *c);
  *out = NULL;
  if (!c) return err_set(e, ERR_NOMEM, "out of memory for the chat template");
  c->t = t;
  int rc = pick(c, name, e);
  if (!rc) rc = keep_own_system(c, name, e);
  if (!rc) rc = check_markers(c, e);
  if (rc)
    chat_template_close(c);
  else
    *out = c;
  return rc;
}

void chat_template_close(chat_template *c) {
  if (!c) return;
  free(c->own_system);
  free(c);
}

/* ---- writing: text between two special tokens is one stretch, as in a prompt that is tokenised whole ----
 */

typedef struct writer {
  const chat_template *c;
  tokenizer_ids *out;
  char *text; /* of the stretch at hand */
  size_t size, capacity;
  bool inside; /* a token has been written */
  err *e;
} writer;

static int out_of_memory(writer *w) {
  return err_set(w->e, ERR_NOMEM, "out of memory for the prompt");
}

static int write_text(writer *w, const char *text, size_t size) {
  if (w->size + size > w->capacity) {
    size_t capacity = 2 * (w->size + size);
    char *bigger = realloc(w->text, capacity);
    if (!bigger) return out_of_memory(w);
    w->text = bigger;
    w->capacity = capacity;
  }
  if (size) memcpy(w->text + w->size, text, size);
  w->size += size;
  return ERR_OK;
}

static int end_stretch(writer *w) {
  size_t size = w->size;
  w->size = 0;
  return tokenizer_encode(w->c->t, w->text, size, w->inside ? TOKENIZER_INSIDE : 0, w->out, w->e);
}

/* A vocabulary without a beginning or end token has none here either. */
static int write_token(writer *w, int32_t id) {
  int rc = end_stretch(w);
  if (rc || id < 0) return rc;
  w->inside = true;
  return tokenizer_ids_add(w->out, id) ? out_of_memory(w) : ERR_OK;
}

/* A text of the table: what the vocabulary has as a special token is one. */
static int write_own(writer *w, const char *text) {
  const tokenizer *t = w->c->t;
  while (*text) {
    size_t at = strcspn(text, CHAT_BOS CHAT_EOS), marker_at, marker_size = 1;
    int32_t id = tokenizer_first_special(t, text, at, &marker_at, &marker_size);
    if (id >= 0) at = marker_at;
    int rc = write_text(w, text, at);
    if (rc || !text[at]) return rc;
    if (id < 0) id = text[at] == *CHAT_BOS ? tokenizer_bos(t) : tokenizer_eos(t);
    rc = write_token(w, id);
    if (rc) return rc;
    text += at + marker_size;
  }
  return ERR_OK;
}

/* ---- messages ---- */

typedef struct span {
  const char *text;
  size_t size;
} span;

/* What Python's str.strip takes off. */
static bool is_blank(uint32_t code) {
  return unicode_is_space(code) || (code >= 0x1c && code <= 0x1f);
}

static span trim_left(span s) {
  size_t length;
  uint32_t code;
  while (s.size) {
    utf8_next((const uint8_t *)s.text, s.size, &length, &code);
    if (!is_blank(code)) break;
    s.text += length;
    s.size -= length;
  }
  return s;
}

static span trim_right(span s) {
  size_t length, begin;
  uint32_t code;
  for (; s.size; s.size = begin) {
    begin = s.size - 1;
    while (begin && ((uint8_t)s.text[begin] & 0xc0) == 0x80) begin--;
    utf8_next((const uint8_t *)s.text + begin, s.size - begin, &length, &code);
    if (!is_blank(code)) break;
  }
  return s;
}

static span trim_newlines(span s) {
  while (s.size && *s.text == '\n') s.text++, s.size--;
  while (s.size && s.text[s.size - 1] == '\n') s.size--;
  return s;
}

static int role_of(const chat_message *m) {
  int role = 0;
  while (role < CHAT_ROLE_COUNT && strcmp(m->role, ROLES[role])) role++;
  return role;
}

typedef struct conversation {
  const chat_message *messages;
  int32_t count;
  int32_t last_user; /* -1: none */
  span system;       /* the first message, where it is written elsewhere; text NULL: there is none such */
  int32_t system_at; /* the message that it goes into, or -1 */
} conversation;

/* The last of `text` in s, or NULL. */
static const char *last_of(span s, const char *text) {
  size_t size = strlen(text);
  const char *found = NULL;
  for (size_t i = 0; i + size <= s.size; i++)
    if (memcmp(s.text + i, text, size) == 0) found = s.text + i;
  return found;
}

/* For Qwen3, a reply is what follows its thoughts; only a reply after the last message of the user keeps
 * them. */
static int write_answer(writer *w, const conversation *v, int32_t i, span content) {
  static const char begin[] = "<think>", end[] = "</think>";
  const char *first_end = memmem(content.text, content.size, end, sizeof end - 1),
             *last_end = last_of(content, end);
  span thoughts = {"", 0};
  if (first_end) {
    thoughts = (span){content.text, (size_t)(first_end - content.text)};
    const char *thought = last_of(thoughts, begin);
    if (thought)
      thoughts = (span){thought + sizeof begin - 1, (size_t)(first_end - thought) - (sizeof begin - 1)};
    thoughts = trim_newlines(thoughts);
    content = (span){last_end + sizeof end - 1,
                     content.size - (size_t)(last_end - content.text) - (sizeof end - 1)};
    while (content.size && *content.text == '\n') content.text++, content.size--;
  }
  bool keeps = v->last_user >= 0 && i > v->last_user && (i == v->count - 1 || thoughts.size);
  int rc = ERR_OK;
  if (keeps) {
    while (content.size && *content.text == '\n') content.text++, content.size--;
    rc = write_own(w, "<think>\n");
    if (!rc) rc = write_text(w, thoughts.text, thoughts.size);
    if (!rc) rc = write_own(w, "\n</think>\n\n");
  }
  return rc ? rc : write_text(w, content.text, content.size);
}

/* trimmed: what is behind it, too, because nothing follows. */
static int write_system_inside(writer *w, span system, bool trimmed) {
  const chat_style *s = w->c->style;
  char after[SYSTEM_END_BYTES];
  span end = {s->turns[CHAT_SYSTEM].after, strlen(s->turns[CHAT_SYSTEM].after)};
  if (trimmed) end = trim_right(end);
  snprintf(after, sizeof after, "%.*s", (int)end.size, end.text);
  int rc = write_own(w, s->turns[CHAT_SYSTEM].before);
  if (!rc) rc = write_text(w, system.text, system.size);
  return rc ? rc : write_own(w, after);
}

static int write_message(writer *w, const conversation *v, int32_t i) {
  const chat_style *s = w->c->style;
  int role = role_of(&v->messages[i]);
  span content = {v->messages[i].content, v->messages[i].size};
  bool after_system = i == v->system_at;
  /* Llama 2 trims what the system message and the user's make together. */
  bool together = s->trim[role] && after_system && s->turns[CHAT_SYSTEM].before[0];
  if (s->trim[role] && !together) content = trim_left(content);
  if (s->trim[role]) content = trim_right(content);
  int rc = write_own(w, s->turns[role].before);
  if (!rc && after_system) rc = write_system_inside(w, v->system, together && !content.size);
  if (!rc && s->thinking && role == CHAT_ASSISTANT)
    rc = write_answer(w, v, i, content);
  else if (!rc)
    rc = write_text(w, content.text, content.size);
  return rc ? rc : write_own(w, s->turns[role].after);
}

/* The system message that the template or its file has, where the first message is another. */
static int write_default_system(writer *w, const conversation *v) {
  const chat_style *s = w->c->style;
  const char *own = w->c->own_system;
  if (role_of(&v->messages[0]) == CHAT_SYSTEM || (!own && !s->always_system)) return ERR_OK;
  int rc = write_own(w, s->turns[CHAT_SYSTEM].before);
  if (!rc && own) rc = write_text(w, own, strlen(own));
  return rc ? rc : write_own(w, s->turns[CHAT_SYSTEM].after);
}

static int render(writer *w, const conversation *v) {
  const chat_style *s = w->c->style;
  int rc = write_own(w, s->begin);
  if (!rc) rc = write_default_system(w, v);
  for (int32_t i = v->system.text != NULL; !rc && i < v->count; i++) rc = write_message(w, v, i);
  if (!rc) rc = write_own(w, s->open);
  return rc ? rc : end_stretch(w);
}

/* ---- what a template takes ---- */

static int bad_role(const chat_message *m, err *e) {
  char text[ROLE_PRINT_BYTES + 1];
  snprintf(text, sizeof text, "%s", m->role);
  for (char *p = text; *p; p++)
    if (*p < ' ' || *p > '~') *p = '?';
  return err_set(e, ERR_ARG, "a message has the role '%s'; the roles are system, user and assistant", text);
}

static int check_message(const chat_message *m, err *e) {
  if (role_of(m) == CHAT_ROLE_COUNT) return bad_role(m, e);
  if (m->size > TOKENIZER_TEXT_MAX)
    return err_set(e, ERR_LIMIT, "a message has %zu bytes; at most %u are taken: shorten it", m->size,
                   TOKENIZER_TEXT_MAX);
  size_t valid = m->size ? utf8_valid(m->content, m->size) : 0;
  if (valid < m->size)
    return err_set(e, ERR_FORMAT, "a message is not UTF-8 at byte %zu (0x%02x): convert it to UTF-8", valid,
                   (uint8_t)m->content[valid]);
  return ERR_OK;
}

static int check_order(const chat_style *s, const conversation *v, err *e) {
  int32_t begin = v->count && role_of(&v->messages[0]) == CHAT_SYSTEM && s->system != CHAT_SYSTEM_TURN;
  for (int32_t i = begin; i < v->count; i++) {
    int role = role_of(&v->messages[i]);
    if (s->alternate && role != (i - begin) % 2 + CHAT_USER)
      return err_set(
          e, ERR_ARG,
          "the chat template '%s' takes a system message first, if any, then user and assistant in turn, the "
          "user first: message %d is of role %s",
          s->name, i, ROLES[role]);
    if (s->system != CHAT_SYSTEM_TURN && role == CHAT_SYSTEM)
      return err_set(e, ERR_ARG,
                     "the chat template '%s' takes a system message as the first only; message %d is one",
                     s->name, i);
  }
  return ERR_OK;
}

static int read_conversation(const chat_template *c, conversation *v, err *e) {
  const chat_style *s = c->style;
  if (v->count < 1) return err_set(e, ERR_ARG, "there is no message to answer: give at least one");
  for (int32_t i = 0; i < v->count; i++) {
    int rc = check_message(&v->messages[i], e);
    if (rc) return rc;
    if (role_of(&v->messages[i]) == CHAT_USER) v->last_user = i;
  }
  bool elsewhere = s->system == CHAT_SYSTEM_FIRST || s->system == CHAT_SYSTEM_LAST;
  if (elsewhere && role_of(&v->messages[0]) == CHAT_SYSTEM) {
    v->system = (span){v->messages[0].content ? v->messages[0].content : "", v->messages[0].size};
    v->system_at = s->system == CHAT_SYSTEM_FIRST ? 1 : v->count - 1;
    if (v->last_user < 0)
      return err_set(e, ERR_ARG, "there is a system message but none of the user's: give one");
    if (role_of(&v->messages[v->system_at]) != CHAT_USER) v->system_at = -1;
  }
  return check_order(s, v, e);
}

int chat_template_render(const chat_template *c, const chat_message *messages, int32_t count,
                         tokenizer_ids *out, err *e) {
  conversation v = {.messages = messages, .count = count, .last_user = -1, .system_at = -1};
  int rc = read_conversation(c, &v, e);
  if (rc) return rc;
  size_t before = out->count, dropped = out->dropped_bytes;
  writer w = {.c = c, .out = out, .e = e};
  rc = render(&w, &v);
  free(w.text);
  if (rc) {
    out->count = before;
    out->dropped_bytes = dropped;
  }
  return rc;
}
