#include "common/command_line/flag_reader.h"

#include "common/base/exit_status.h"
#include "common/base/terminal.h"
#include "common/command_line/flag_file.h"
#include "common/command_line/flag_help.h"
#include "common/command_line/flag_variables.h"
#include "common/command_line/habits.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IDLE_MAX_BYTES 120 /* of what is said of flags that change nothing */

/* ---- the words of the command line ---- */

typedef struct word { /* a flag and its value, or, with row NULL, an argument */
  const flag_row *row;
  const char *text;
} word;

typedef struct words {
  const flag_program *reader;
  char **argv;
  int argc, at; /* at: the next word */
  word *list;   /* of argc at most */
  int count;
  bool help, usage;
  char idle[IDLE_MAX_BYTES]; /* flags of llama.cpp's that change nothing here: "-ngl, -fa" */
  const char *idle_why;      /* what to do instead, of the last one that has it; NULL: nothing */
} words;

static _Noreturn void refuse_flag(const words *w, const char *flag, size_t size, const char *near) {
  flag_refuse(w->reader, "", "there is no flag %.*s%s%s%s", (int)size, flag, near ? ": did you mean --" : "",
              near ? near : "", near ? "?" : "");
}

static const flag_row *row_of_habit(const words *w, const habit *h) {
  return h->ours ? flag_named(w->reader->command, h->ours + 2, strlen(h->ours + 2)) : NULL;
}

/* A flag that another program has: ours that it means takes its place. */
static const flag_row *need_habit(const words *w, const habit *h, const char *flag, size_t size) {
  const flag_row *row = row_of_habit(w, h);
  if (!row)
    flag_refuse(w->reader, "", "there is no flag %.*s here: %s%s%s", (int)size, flag,
                h->instead ? h->instead : "it is ", h->instead ? "" : h->ours,
                h->instead ? "" : " of `tandem run'");
  return row;
}

static void add(words *w, const flag_row *row, const char *text) {
  w->list[w->count++] = (word){row, text};
}

/* value: what stands with the flag, or NULL. */
static void add_flag(words *w, const flag_row *row, const char *value) {
  if (!row->argument && value) flag_refuse(w->reader, "", "--%s takes no value", row->name);
  if (row->argument && !value && !flag_is_optional(row)) {
    if (w->at == w->argc) flag_refuse(w->reader, "", "--%s requires an argument", row->name);
    value = w->argv[w->at++];
  }
  add(w, row, value);
}

/* The flag with this name, or the one that begins so. */
static const flag_row *named(const words *w, const char *name, size_t size) {
  const flag_row *found = flag_named(w->reader->command, name, size);
  if (found || size == 0) return found;
  const char *other = strncmp("help", name, size) == 0    ? "help"
                      : strncmp("usage", name, size) == 0 ? "usage"
                                                          : NULL;
  for (const flag_row *r = flag_rows; r < flag_rows + flag_row_count; r++) {
    if (!(r->commands >> w->reader->command & 1) || !r->help || strncmp(r->name, name, size) != 0) continue;
    if (found) other = r->name;
    if (!found) found = r;
  }
  if (found && other)
    flag_refuse(w->reader, "", "--%.*s may be --%s or --%s", (int)size, name, found->name, other);
  return found;
}

static bool is_help(words *w, const char *name, size_t size) {
  if (size == 0) return false;
  w->help |= strncmp("help", name, size) == 0;
  w->usage |= !w->help && strncmp("usage", name, size) == 0;
  return w->help || w->usage;
}

static void take_long(words *w, const char *flag) {
  size_t size = strcspn(flag, "=");
  const char *value = flag[size] ? flag + size + 1 : NULL;
  const habit *h = flag_named(w->reader->command, flag + 2, size - 2) ? NULL : habits_find(flag, size);
  const flag_row *row = h ? need_habit(w, h, flag, size) : named(w, flag + 2, size - 2);
  char wrong[FLAG_NAME_MAX + 2];
  snprintf(wrong, sizeof wrong, "%.*s", (int)size - 2, flag + 2);
  if (row)
    add_flag(w, row, value);
  else if (!is_help(w, flag + 2, size - 2))
    refuse_flag(w, flag, size, flag_nearest(w->reader->command, wrong));
}

static const flag_row *lettered(const words *w, char letter) {
  for (const flag_row *r = flag_rows; r < flag_rows + flag_row_count; r++)
    if (r->letter == letter && r->commands >> w->reader->command & 1) return r;
  return NULL;
}

/* -max-tokens would be -m with a value. */
static void refuse_long_name(const words *w, const char *flag, size_t size) {
  char name[FLAG_NAME_MAX + 2];
  int n = snprintf(name, sizeof name, "-%.*s", (int)size, flag);
  if (size < 3 || n >= (int)sizeof name) return;
  const habit *h = habits_find(name, (size_t)n);
  if (flag_named(w->reader->command, name + 2, size - 1)) refuse_flag(w, flag, size, name + 2);
  if (h && row_of_habit(w, h)) refuse_flag(w, flag, size, h->ours + 2);
}

/* One letter, with or without a value behind it, or several letters of switches; or a name of several
 * letters, as llama.cpp has them. */
static void take_short(words *w, const char *flag) {
  size_t size = strcspn(flag, "=");
  const habit *h = lettered(w, flag[1]) && !flag[2] ? NULL : habits_find(flag, size);
  if (!h && !lettered(w, flag[1]) && isdigit((unsigned char)flag[2]))
    h = habits_find(flag, size = 2); /* -n128 */
  if (h) {
    add_flag(w, need_habit(w, h, flag, size), flag[size] ? flag + size + (flag[size] == '=') : NULL);
    return;
  }
  refuse_long_name(w, flag, size);
  for (const char *at = flag + 1; *at; at++) {
    const flag_row *row = lettered(w, *at);
    if (*at == '?') w->help = true;
    if (!row && *at != '?') refuse_flag(w, flag, strlen(flag), NULL);
    if (row) add_flag(w, row, row->argument && at[1] ? at + 1 : NULL);
    if (row && row->argument) return;
  }
}

/* A flag that another program has and that would change nothing here: its value goes with it. */
static bool pass_over(words *w, const char *flag) {
  size_t size = strcspn(flag, "="), said = strlen(w->idle);
  bool own = flag[1] == '-' && flag_named(w->reader->command, flag + 2, size > 2 ? size - 2 : 0);
  const habit_idle *h = own ? NULL : habits_find_idle(flag, size);
  if (!h) return false;
  snprintf(w->idle + said, sizeof w->idle - said, "%s%.*s", said ? ", " : "", (int)size, flag);
  if (h->instead) w->idle_why = h->instead;
  const char *next = w->at < w->argc ? w->argv[w->at] : NULL;
  if (h->value == HABIT_SWITCH || flag[size]) return true;
  if (h->value == HABIT_VALUE && !next) flag_refuse(w->reader, "", "%.*s has no value", (int)size, flag);
  w->at += h->value == HABIT_VALUE || (next && habits_is_word(next));
  return true;
}

static void take_all(words *w) {
  while (w->at < w->argc) {
    const char *text = w->argv[w->at++];
    if (strcmp(text, "--") == 0)
      while (w->at < w->argc) add(w, NULL, w->argv[w->at++]);
    else if (strcmp(text, "-h") == 0)
      w->help = true;
    else if (text[0] != '-' || !text[1])
      add(w, NULL, text);
    else if (!pass_over(w, text))
      text[1] == '-' ? take_long(w, text) : take_short(w, text);
  }
}

/* ---- all of it ---- */

static void warn_of_idle(const words *w) {
  bool many = strchr(w->idle, ',');
  if (w->idle[0])
    fprintf(stderr, "%s: warning: %s change%s nothing here%s%s\n", w->reader->name, w->idle, many ? "" : "s",
            w->idle_why ? ": " : "", w->idle_why ? w->idle_why : "");
}

static void read_file(const words *w) {
  const char *path = NULL;
  for (int i = 0; i < w->count; i++)
    if (w->list[i].row && w->list[i].row->id == FLAG_config) path = w->list[i].text;
  if (path) flag_file_read(w->reader, path);
}

bool flag_is_model_path(const char *text) {
  const char *end = strrchr(text, '.');
  return end && strcmp(end, ".gguf") == 0;
}

/* A model's path among the arguments is there for want of -m; words of a prompt are, for want of quotes. */
static const char *missing_before(const flag_program *r, const char *text) {
  const char *first = r->values->argument_count > 0 ? r->values->arguments[0] : text;
  bool model = !r->values->model && flag_command_rows[r->command].needs_model;
  if (model && (flag_is_model_path(first) || flag_is_model_path(text)))
    return ": -m goes before the model's path";
  return r->command == COMMAND_RUN ? ": put the prompt in quotes, or give - and the prompt on stdin" : "";
}

static void give_argument(const flag_program *r, const char *text) {
  flag_values *v = r->values;
  if (v->argument_count == flag_command_rows[r->command].most_arguments)
    flag_refuse(r, "", "'%s' is one argument too many%s", text, missing_before(r, text));
  v->arguments[v->argument_count++] = text;
}

static void give_all(const words *w) {
  for (const word *one = w->list; one < w->list + w->count; one++) {
    if (one->row && one->row->id != FLAG_config)
      flag_give(w->reader, one->row, one->text, FLAG_FROM_COMMAND_LINE, "");
    if (!one->row || one->row->id == FLAG_prompt) give_argument(w->reader, one->text);
  }
  const char *of_file = w->reader->values->prompt;
  if (w->reader->values->argument_count == 0 && of_file) give_argument(w->reader, of_file);
}

static void read_all(const flag_program *r, int argc, char **argv) {
  words w = {.reader = r, .argv = argv, .argc = argc, .at = 1};
  err e = {0};
  w.list = calloc((size_t)argc + 1, sizeof *w.list);
  if (!w.list) {
    fprintf(stderr, "%s: out of memory\n", r->name);
    exit(STATUS_FAILED);
  }
  take_all(&w);
  if (w.help || w.usage) flag_help_print(r, w.usage); /* a wrong variable shall not hide it */
  warn_of_idle(&w);
  read_file(&w);
  flag_variables_read(r);
  give_all(&w);
  free(w.list);
  if (r->whole && r->whole(r->context, &e) != ERR_OK) flag_refuse(r, "", "%s", e.text);
}

/* What is wrong quotes words and files as they are. */
void flag_read_all(const flag_program *p, int argc, char **argv) {
  flag_program r = *p;
  const char *folder_end = strrchr(argv[0], '/');
  r.name = folder_end ? folder_end + 1 : argv[0];
  FILE *whole = stderr, *messages = terminal_message_stream(stderr);
  if (messages) stderr = messages;
  read_all(&r, argc, argv);
  stderr = whole;
  if (messages) fclose(messages);
}
