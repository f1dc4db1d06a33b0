#include "orchestrator/cli/chat_input.h"

#include <string.h>

#define USAGE_COLUMNS 27

typedef struct command {
  const char *name, *argument; /* argument NULL: it takes none; it may be left out where it has brackets */
  chat_input_kind kind;
  const char *help; /* NULL: another name of one that is told */
} command;

static const command commands[] = {
    {"/help", NULL, CHAT_INPUT_HELP, "this list"},
    {"/exit", NULL, CHAT_INPUT_EXIT, "leave (so does Ctrl-D)"},
    {"/quit", NULL, CHAT_INPUT_EXIT, NULL},
    {"/clear", NULL, CHAT_INPUT_CLEAR, "forget what was said, but for the system message"},
    {"/new", NULL, CHAT_INPUT_CLEAR, NULL},
    {"/regen", "[TEMPERATURE [SEED]]", CHAT_INPUT_REGEN,
     "answer the last message once more, with another seed"},
    {"/continue", NULL, CHAT_INPUT_CONTINUE, "go on with an answer that was cut or stopped"},
    {"/read", "FILE", CHAT_INPUT_READ, "put the text of FILE before the next message"},
    {"/stats", NULL, CHAT_INPUT_STATS, "tokens, speed and what the draft guessed so far"},
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void trim_end(const char *text, size_t *size) {
  while (*size > 0 && is_blank(text[*size - 1])) --*size;
}

static void bad(chat_input *out) {
  out->kind = CHAT_INPUT_BAD;
  out->text = out->sentence;
  out->size = strlen(out->sentence);
}

static void take_command(const command *c, const char *rest, size_t size, chat_input *out) {
  *out = (chat_input){.kind = c->kind, .text = rest, .size = size};
  if (c->argument && c->argument[0] != '[' && size == 0) {
    snprintf(out->sentence, sizeof out->sentence, "which? %s %s", c->name, c->argument);
    bad(out);
  } else if (!c->argument && size > 0) {
    snprintf(out->sentence, sizeof out->sentence, "%s stands alone on its line", c->name);
    bad(out);
  }
}

void chat_input_parse(const char *line, size_t size, chat_input *out) {
  trim_end(line, &size);
  *out = (chat_input){.kind = size ? CHAT_INPUT_MESSAGE : CHAT_INPUT_NOTHING, .text = line, .size = size};
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

void chat_input_print_help(FILE *to) {
  for (int i = 0; i < COMMAND_COUNT; i++) {
    const command *c = &commands[i];
    char usage[USAGE_COLUMNS + 1];
    snprintf(usage, sizeof usage, "%s%s%s", c->name, c->argument ? " " : "", c->argument ? c->argument : "");
    if (c->help) fprintf(to, "  %-*s %s\n", USAGE_COLUMNS, usage, c->help);
  }
  fputs("  A line that ends with \\ goes on in the next; a paste of several lines is one message.\n"
        "  Ctrl-C stops an answer, and twice it leaves. What you type during an answer waits for its end.\n",
        to);
}
