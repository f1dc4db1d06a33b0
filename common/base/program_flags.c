#include "common/base/program_flags.h"

#include "common/base/llama_flags.h"
#include "common/base/program.h"
#include "common/base/program_config.h"
#include "common/base/terminal.h"
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 40 /* of a flag; a longer one is near to none */
#define VARIABLE       "TANDEM_"
#define IDLE_MAX_BYTES 120 /* of what is said of flags that change nothing */

static const struct argp_option *option_by_key(const struct argp_option *o, int key) {
  for (; !program_option_ends(o); o++)
    if (o->key == key) return o;
  return NULL;
}

static const struct argp_option *option_named(const struct argp_option *o, const char *name, size_t size) {
  for (; !program_option_ends(o); o++)
    if (o->name && strncmp(o->name, name, size) == 0 && !o->name[size]) return program_option_meant(o);
  return NULL;
}

/* As getopt: a name, or else the beginning of one. */
static const struct argp_option *option_by_name(const struct argp_option *o, const char *name, size_t size) {
  const struct argp_option *whole = option_named(o, name, size);
  for (; !whole && !program_option_ends(o); o++)
    if (o->name && strncmp(o->name, name, size) == 0) return program_option_meant(o);
  return whole;
}

static bool is_argps_own(const char *name, size_t size) {
  bool version = argp_program_version || argp_program_version_hook;
  return strncmp("help", name, size) == 0 || strncmp("usage", name, size) == 0 ||
         (version && strncmp("version", name, size) == 0);
}

/* argv as argp shall see it. */
typedef struct words {
  const struct argp *parser;
  const char *program;
  char **list; /* of twice argc words at most, and NULL */
  int count;
  const char *config;        /* value of --config; NULL: none */
  bool argps_own;            /* one of argp's own is there, such as --help, which -h is too */
  char idle[IDLE_MAX_BYTES]; /* flags of llama.cpp's that change nothing here: "-ngl, -fa" */
  const char *idle_why;      /* what to do instead, of the last one that has it; NULL: nothing */
} words;

static void add_word(words *w, const char *text) {
  w->list[w->count++] = (char *)text; /* argp does not write it */
}

static _Noreturn void refuse_flag(const words *w, const char *word, size_t size, const char *near) {
  fprintf(stderr, "%s: there is no flag %.*s", w->program, (int)size, word);
  if (near) fprintf(stderr, ": did you mean --%s?", near);
  fprintf(stderr, "\nTry `%s --help' for all flags.\n", w->program);
  exit(argp_err_exit_status);
}

static _Noreturn void refuse_habit(const words *w, const llama_flag *h) {
  if (h->instead)
    fprintf(stderr, "%s: there is no flag %s here: %s\n", w->program, h->theirs, h->instead);
  else
    fprintf(stderr, "%s: there is no flag %s here: it is %s of `tandem run'\n", w->program, h->theirs,
            h->ours);
  exit(argp_err_exit_status);
}

/* A flag that another program has: ours that it means takes its place. */
static const struct argp_option *add_habit(words *w, const llama_flag *h) {
  const struct argp_option *o = program_option_of_habit(w->parser->options, h);
  if (!o) refuse_habit(w, h);
  add_word(w, h->ours);
  return o;
}

/* A flag that another program has and that would change nothing here; NULL: it is none. */
static const llama_idle *idle_flag(const words *w, const char *word) {
  size_t size = strcspn(word, "=");
  bool own = word[0] == '-' && word[1] == '-' && program_option(w->parser->options, word + 2, size - 2);
  return own ? NULL : llama_flags_find_idle(word, size);
}

/* Notes it, and returns how many of the words behind it are its value. next: the word behind it, or NULL. */
static int pass_over(words *w, const llama_idle *h, const char *word, const char *next) {
  size_t size = strlen(w->idle);
  snprintf(w->idle + size, sizeof w->idle - size, "%s%s", size ? ", " : "", h->theirs);
  if (h->instead) w->idle_why = h->instead;
  if (h->value == LLAMA_SWITCH || word[strlen(h->theirs)] == '=') return 0;
  if (h->value == LLAMA_WORD) return next && llama_flags_is_word(next);
  if (next) return 1;
  fprintf(stderr, "%s: %s has no value\n", w->program, h->theirs);
  exit(argp_err_exit_status);
}

static void warn_of_idle(const words *w) {
  if (!w->idle[0] || w->argps_own) return;
  bool many = strchr(w->idle, ',');
  fprintf(stderr, "%s: warning: %s change%s nothing here%s%s\n", w->program, w->idle, many ? "" : "s",
          w->idle_why ? ": " : "", w->idle_why ? w->idle_why : "");
}

/* Both: the flag, if its value does not stand with it; NULL: nothing more of it is to come. */
static const struct argp_option *add_long(words *w, const char *word) {
  size_t size = strcspn(word, "=");
  const char *value = word[size] ? word + size + 1 : NULL;
  const struct argp_option *options = w->parser->options, *o = NULL;
  const llama_flag *h = program_option(options, word + 2, size - 2) ? NULL : llama_flags_find(word, size);
  if (h) {
    o = add_habit(w, h);
    if (value) add_word(w, value);
    return value ? NULL : o;
  }
  o = option_by_name(options, word + 2, size - 2);
  if (!o && !is_argps_own(word + 2, size - 2)) {
    char wrong[NAME_MAX_BYTES + 2];
    snprintf(wrong, sizeof wrong, "%.*s", (int)size - 2, word + 2);
    refuse_flag(w, word, size, program_nearest_flag(w->parser->options, wrong));
  }
  w->argps_own |= !o;
  if (o && o->key == PROGRAM_KEY_CONFIG && value) w->config = value;
  add_word(w, word);
  return value ? NULL : o;
}

/* -max-tokens would be -m with a value. */
static void refuse_long_name(const words *w, const char *word, size_t size) {
  char name[NAME_MAX_BYTES + 2];
  int n = snprintf(name, sizeof name, "-%.*s", (int)size, word);
  if (size < 3 || n >= (int)sizeof name) return;
  const llama_flag *h = llama_flags_find(name, (size_t)n);
  if (program_option(w->parser->options, name + 2, size - 1)) refuse_flag(w, word, size, name + 2);
  if (h && program_option_of_habit(w->parser->options, h)) refuse_flag(w, word, size, h->ours + 2);
}

/* One letter, with or without a value behind it, or several of them, as argp takes them; or a name of several
 * letters, as llama.cpp has them, which argp would take for -m with a value. */
static const struct argp_option *add_short(words *w, const char *word) {
  const struct argp_option *options = w->parser->options, *o = option_by_key(options, word[1]);
  size_t size = strcspn(word, "=");
  const llama_flag *h = o && !word[2] ? NULL : llama_flags_find(word, size);
  if (!h && !o && isdigit((unsigned char)word[2])) h = llama_flags_find(word, size = 2); /* -n128 */
  if (h) {
    o = add_habit(w, h);
    const char *value = word + size + (word[size] == '=');
    if (word[size]) add_word(w, value);
    return word[size] ? NULL : o;
  }
  refuse_long_name(w, word, size);
  add_word(w, word);
  return word[2] ? NULL : o;
}

/* Looks for flags where argp would look for them: refuses those that do not exist, and puts ours for another
 * program's. */
static void add_all(words *w, int argc, char **argv) {
  add_word(w, argv[0]);
  for (int i = 1; i < argc; i++) {
    const char *word = argv[i];
    const struct argp_option *o = NULL;
    const llama_idle *idle = idle_flag(w, word);
    if (idle) {
      i += pass_over(w, idle, word, i + 1 < argc ? argv[i + 1] : NULL);
    } else if (strcmp(word, "--") == 0) {
      while (i < argc) add_word(w, argv[i++]);
    } else if (strcmp(word, "-h") == 0) {
      add_word(w, "--help");
      w->argps_own = true;
    } else if (word[0] == '-' && word[1]) {
      o = word[1] == '-' ? add_long(w, word) : add_short(w, word);
    } else {
      add_word(w, word);
    }
    bool has_value = o && o->arg && !(o->flags & OPTION_ARG_OPTIONAL);
    if (!has_value || i + 1 == argc) continue;
    add_word(w, argv[++i]);
    if (o->key == PROGRAM_KEY_CONFIG) w->config = argv[i];
  }
  w->list[w->count] = NULL;
}

static void variable_of(const char *name, char *out, size_t size) {
  snprintf(out, size, "%s%s", VARIABLE, name);
  for (char *c = out; *c; c++) *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
}

static void take_variable(const struct argp *parser, const struct argp_option *named, const char *program,
                          void *input) {
  char variable[sizeof VARIABLE + NAME_MAX_BYTES], name[256];
  const struct argp_option *o = program_option_meant(named);
  variable_of(named->name, variable, sizeof variable);
  char *value = getenv(variable);
  if (!value || (!o->arg && strcmp(value, "0") == 0)) return;
  snprintf(name, sizeof name, "%s=%.40s %s", variable, value, program); /* as a shell would take it */
  struct argp_state state = {
      .root_argp = parser, .input = input, .name = name, .err_stream = stderr, .out_stream = stdout};
  if (!o->arg && strcmp(value, "1") != 0) argp_error(&state, "'%s' must be 1 or 0", value);
  parser->parser(o->key, o->arg ? value : NULL, &state);
}

static int put(const program_flag *f, const char *text, void *at, err *e) {
  int64_t whole;
  double number;
  int rc = ERR_OK;
  switch (f->kind) {
  case PROGRAM_TEXT:
    *(const char **)at = text;
    break;
  case PROGRAM_SWITCH:
    *(bool *)at = true;
    break;
  case PROGRAM_INT:
    rc = program_int(f->name, text, (int64_t)f->low, (int64_t)f->high, &whole, e);
    if (rc == ERR_OK) *(int32_t *)at = (int32_t)whole;
    break;
  case PROGRAM_SIZE:
    rc = program_size(f->name, text, at, e);
    break;
  case PROGRAM_FLOAT:
    rc = program_double(f->name, text, f->low, f->high, &number, e);
    if (rc == ERR_OK) *(float *)at = (float)number;
    break;
  case PROGRAM_CHOICE:
    rc = program_choice(f->name, text, f->words, f->word_count, e);
    if (rc >= 0) *(int32_t *)at = rc; /* enums are as wide */
    break;
  }
  return rc < 0 ? rc : ERR_OK;
}

error_t program_take_flag(const program_flag *list, size_t count, int key, const char *text,
                          struct argp_state *state) {
  err e;
  size_t i = 0;
  if (key == PROGRAM_KEY_CONFIG) return 0; /* has been read */
  while (i < count && list[i].key != key) i++;
  if (i == count) return ARGP_ERR_UNKNOWN;
  if (put(&list[i], text, (char *)state->input + list[i].offset, &e) != ERR_OK)
    argp_error(state, "%s", e.text);
  return 0;
}

/* A program's version is no wish of whoever set a variable of that name, and a file of one program's flags is
 * not for those that it starts. */
static bool has_variable(const struct argp_option *o) {
  return o->name && !(o->flags & OPTION_HIDDEN) && o->key != PROGRAM_KEY_CONFIG &&
         strcmp(o->name, "version") != 0;
}

static void parse_flags(const struct argp *parser, int argc, char **argv, void *input) {
  words w = {.parser = parser, .program = argv[0], .list = calloc(2 * (size_t)argc + 1, sizeof *w.list)};
  if (!w.list) {
    fprintf(stderr, "%s: out of memory\n", argv[0]);
    exit(PROGRAM_EXIT_FAILED);
  }
  add_all(&w, argc, argv);
  warn_of_idle(&w);
  if (w.config && !w.argps_own) program_config_read(w.config, parser, argv[0], input);
  for (const struct argp_option *o = parser->options; !w.argps_own && !program_option_ends(o);
       o++) /* a wrong variable shall not hide help */
    if (has_variable(o)) take_variable(parser, o, argv[0], input);
  argp_parse(parser, w.count, w.list, 0, NULL, input);
  free(w.list);
}

/* What is wrong quotes words and files as they are, and says it on stderr: so do argp and getopt. */
void program_parse_flags(const struct argp *parser, int argc, char **argv, void *input) {
  FILE *whole = stderr, *messages = terminal_message_stream(stderr);
  if (messages) stderr = messages;
  parse_flags(parser, argc, argv, input);
  stderr = whole;
  if (messages) fclose(messages);
}
