#include "orchestrator/cli/conversation.h"

#include <stdlib.h>
#include <string.h>

/* ---- turns ---- */

void conversation_fini(conversation *c) {
  while (c->count > 0) conversation_drop_last(c);
  free(c->turns);
  *c = (conversation){0};
}

static int reserve(conversation *c) {
  if (c->count < c->capacity) return ERR_OK;
  int32_t capacity = c->capacity ? 2 * c->capacity : 16;
  chat_message *more = realloc(c->turns, (size_t)capacity * sizeof *more);
  if (!more) return ERR_NOMEM;
  c->turns = more;
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
  c->turns[c->count++] = (chat_message){.role = role, .content = copy, .size = size};
  return ERR_OK;
}

bool conversation_last_is(const conversation *c, const char *role) {
  return c->count > 0 && strcmp(c->turns[c->count - 1].role, role) == 0;
}

static int32_t system_turns(const conversation *c) {
  return c->count > 0 && strcmp(c->turns[0].role, "system") == 0;
}

static void drop(conversation *c, int32_t first, int32_t count) {
  for (int32_t i = first; i < first + count; i++) free((char *)c->turns[i].content);
  memmove(c->turns + first, c->turns + first + count, (size_t)(c->count - first - count) * sizeof *c->turns);
  c->count -= count;
}

void conversation_drop_last(conversation *c) {
  drop(c, c->count - 1, 1);
}

void conversation_drop_oldest(conversation *c, int32_t exchanges) {
  drop(c, system_turns(c), 2 * exchanges);
}

void conversation_clear(conversation *c) {
  drop(c, system_turns(c), c->count - system_turns(c));
}

int32_t conversation_too_many(const conversation *c, size_t most,
                              int64_t (*tokens)(void *context, const chat_message *turns, int32_t count),
                              void *context) {
  int32_t kept = system_turns(c), exchanges = (c->count - kept - 1) / 2, answer = -1;
  chat_message *rest = malloc((size_t)(c->count + 1) * sizeof *rest);
  if (!rest) return ERR_NOMEM;
  for (int32_t n = 0; n <= exchanges; n++) {
    int32_t from = kept + 2 * n;
    if (kept) rest[0] = c->turns[0];
    memcpy(rest + kept, c->turns + from, (size_t)(c->count - from) * sizeof *rest);
    int64_t size = tokens(context, rest, kept + c->count - from);
    if (size >= 0 && (size_t)size > most) continue;
    answer = size < 0 ? (int32_t)size : n;
    break;
  }
  free(rest);
  return answer;
}

/* ---- commands ---- */

typedef struct command {
  const char *name, *argument; /* argument NULL: it takes none */
  input_kind kind;
  const char *help; /* NULL: another name of one that is told */
} command;

static const command commands[] = {
    {"/help", NULL, INPUT_HELP, "this list"},
    {"/exit", NULL, INPUT_EXIT, "leave (so does Ctrl-D)"},
    {"/quit", NULL, INPUT_EXIT, NULL},
    {"/clear", NULL, INPUT_CLEAR, "forget what was said, but for the system message"},
    {"/new", NULL, INPUT_CLEAR, NULL},
    {"/regen", NULL, INPUT_REGEN, "answer the last message once more, with another seed"},
    {"/continue", NULL, INPUT_CONTINUE, "go on with an answer that was cut or stopped"},
    {"/read", "FILE", INPUT_READ, "put the text of FILE before the next message"},
    {"/stats", NULL, INPUT_STATS, "tokens, speed and what the draft guessed so far"},
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void trim_end(const char *text, size_t *size) {
  while (*size > 0 && is_blank(text[*size - 1])) --*size;
}

static void bad(typed *out) {
  out->kind = INPUT_BAD;
  out->text = out->sentence;
  out->size = strlen(out->sentence);
}

static void take_command(const command *c, const char *rest, size_t size, typed *out) {
  *out = (typed){.kind = c->kind, .text = rest, .size = size};
  if (c->argument && size == 0) {
    snprintf(out->sentence, sizeof out->sentence, "which? %s %s", c->name, c->argument);
    bad(out);
  } else if (!c->argument && size > 0) {
    snprintf(out->sentence, sizeof out->sentence, "%s stands alone on its line", c->name);
    bad(out);
  }
}

void conversation_parse(const char *line, size_t size, typed *out) {
  trim_end(line, &size);
  *out = (typed){.kind = size ? INPUT_MESSAGE : INPUT_NOTHING, .text = line, .size = size};
  if (size == 0 || line[0] != '/') return;
  size_t word = 0, rest;
  while (word < size && !is_blank(line[word])) word++;
  for (rest = word; rest < size && is_blank(line[rest]);) rest++;
  for (int i = 0; i < COMMAND_COUNT; i++)
    if (strlen(commands[i].name) == word && memcmp(commands[i].name, line, word) == 0) {
      take_command(&commands[i], line + rest, size - rest, out);
      return;
    }
  snprintf(out->sentence, sizeof out->sentence,
           "there is no command %.*s: /help tells them; a message that begins with / needs a blank before",
           word < 24 ? (int)word : 24, line);
  bad(out);
}

void conversation_help(FILE *to) {
  for (int i = 0; i < COMMAND_COUNT; i++) {
    const command *c = &commands[i];
    char usage[24];
    snprintf(usage, sizeof usage, "%s%s%s", c->name, c->argument ? " " : "", c->argument ? c->argument : "");
    if (c->help) fprintf(to, "  %-12s %s\n", usage, c->help);
  }
  fputs("  A line that ends with \\ goes on in the next; a paste of several lines is one message.\n"
        "  Ctrl-C stops an answer, and twice it leaves. What you type during an answer waits for its end.\n",
        to);
}
