#include "common/base/program_flags.h"

#include "common/base/least.h"
#include "common/base/program.h"
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 40 /* of a flag; a longer one is near to none */
#define WORDS_MAX      64
#define VARIABLE       "TANDEM_"

/* --- what may have been meant --- */

/* Letters to insert, drop, change or swap with their neighbour (optimal string alignment). */
static int distance(const char *a, const char *b) {
  int rows[3][NAME_MAX_BYTES + 1], la = (int)strlen(a), lb = (int)strlen(b);
  if (la > NAME_MAX_BYTES || lb > NAME_MAX_BYTES) return NAME_MAX_BYTES;
  for (int j = 0; j <= lb; j++) rows[0][j] = j;
  for (int i = 1; i <= la; i++) {
    int *row = rows[i % 3];
    const int *above = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
    row[0] = i;
    for (int j = 1; j <= lb; j++) {
      row[j] = least_i32(least_i32(above[j], row[j - 1]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = least_i32(row[j], before[j - 2] + 1);
    }
  }
  return rows[la % 3][lb];
}

const char *program_nearest(const char *wrong, const char *const *words, int count) {
  const char *best = NULL;
  int allowed = 1 + (int)strlen(wrong) / 4;
  for (int i = 0; i < count; i++) {
    int d = distance(wrong, words[i]);
    if (d > allowed || (best && d == allowed)) continue;
    best = words[i];
    allowed = d;
  }
  return best;
}

/* --- flags --- */

static bool ends(const struct argp_option *o) { return !o->name && !o->key && !o->doc && !o->group; }

/* An alias stands after what it is an alias of. */
static const struct argp_option *meant(const struct argp_option *o) {
  while (o->flags & OPTION_ALIAS) o--;
  return o;
}

static const struct argp_option *option_by_key(const struct argp_option *o, int key) {
  for (; !ends(o); o++)
    if (o->key == key) return o;
  return NULL;
}

/* As getopt: a name, or the beginning of one. */
static const struct argp_option *option_by_name(const struct argp_option *o, const char *name, size_t size) {
  for (; !ends(o); o++)
    if (o->name && strncmp(o->name, name, size) == 0) return meant(o);
  return NULL;
}

static bool is_argps_own(const char *name, size_t size) {
  bool version = argp_program_version || argp_program_version_hook;
  return strncmp("help", name, size) == 0 || strncmp("usage", name, size) == 0 ||
         (version && strncmp("version", name, size) == 0);
}

static void refuse_flag(const struct argp *parser, const char *program, const char *name, size_t size) {
  const char *words[WORDS_MAX] = {"help", "usage"};
  int count = 2;
  char wrong[NAME_MAX_BYTES + 2];
  snprintf(wrong, sizeof wrong, "%.*s", (int)size, name);
  for (const struct argp_option *o = parser->options; !ends(o) && count < WORDS_MAX; o++)
    if (o->name && !(o->flags & OPTION_HIDDEN)) words[count++] = o->name;
  const char *near = program_nearest(wrong, words, count);
  fprintf(stderr, "%s: there is no flag --%.*s", program, (int)size, name);
  if (near) fprintf(stderr, ": did you mean --%s?", near);
  fprintf(stderr, "\nTry `%s --help' for all flags.\n", program);
  exit(argp_err_exit_status);
}

/* Looks for long flags that do not exist where argp would look for flags. True: one of argp's own is there, such as
 * --help, which -h is too. */
static bool check_names(const struct argp *parser, int argc, char **argv) {
  static char help[] = "--help";
  bool own = false;
  for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
    const struct argp_option *o = NULL;
    if (strcmp(argv[i], "-h") == 0) argv[i] = help;
    const char *name = argv[i] + 2;
    size_t size = argv[i][0] == '-' && argv[i][1] == '-' ? strcspn(name, "=") : 0;
    if (size > 0) {
      o = option_by_name(parser->options, name, size);
      if (!o && !is_argps_own(name, size)) refuse_flag(parser, argv[0], name, size);
      own |= !o;
      if (name[size]) continue; /* its value stands with it */
    } else if (argv[i][0] == '-' && argv[i][1] && !argv[i][2]) {
      o = option_by_key(parser->options, argv[i][1]);
    }
    if (o && o->arg && !(o->flags & OPTION_ARG_OPTIONAL)) i++; /* the next one is its value */
  }
  return own;
}

static void variable_of(const char *name, char *out, size_t size) {
  snprintf(out, size, "%s%s", VARIABLE, name);
  for (char *c = out; *c; c++) *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
}

static void take_variable(const struct argp *parser, const struct argp_option *named, const char *program,
                          void *input) {
  char variable[sizeof VARIABLE + NAME_MAX_BYTES], name[256];
  const struct argp_option *o = meant(named);
  variable_of(named->name, variable, sizeof variable);
  char *value = getenv(variable);
  if (!value || (!o->arg && strcmp(value, "0") == 0)) return;
  snprintf(name, sizeof name, "%s=%.40s %s", variable, value, program); /* as a shell would take it */
  struct argp_state state = {
      .root_argp = parser, .input = input, .name = name, .err_stream = stderr, .out_stream = stdout};
  if (!o->arg && strcmp(value, "1") != 0) argp_error(&state, "'%s' must be 1 or 0", value);
  parser->parser(o->key, o->arg ? value : NULL, &state);
}

/* -md, as llama.cpp writes --model-draft: argp would take it for -m d. */
static void expand_short(const struct argp *parser, int argc, char **argv) {
  static char expanded[] = "--model-draft";
  if (!option_by_name(parser->options, expanded + 2, sizeof expanded - 3)) return;
  for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
    if (strcmp(argv[i], "-md") == 0) argv[i] = expanded;
}

static int put(const program_flag *f, const char *text, void *at, err *e) {
  int64_t whole;
  double number;
  int rc = ERR_OK;
  switch (f->kind) {
  case PROGRAM_TEXT: *(const char **)at = text; break;
  case PROGRAM_SWITCH: *(bool *)at = true; break;
  case PROGRAM_INT:
    rc = program_int(f->name, text, (int64_t)f->low, (int64_t)f->high, &whole, e);
    if (rc == ERR_OK) *(int32_t *)at = (int32_t)whole;
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

error_t program_take_flag(const program_flag *list, size_t count, int key, const char *text, struct argp_state *state) {
  err e;
  size_t i = 0;
  while (i < count && list[i].key != key) i++;
  if (i == count) return ARGP_ERR_UNKNOWN;
  if (put(&list[i], text, (char *)state->input + list[i].offset, &e) != ERR_OK) argp_error(state, "%s", e.text);
  return 0;
}

/* A program's version is no wish of whoever set a variable of that name. */
static bool has_variable(const struct argp_option *o) {
  return o->name && !(o->flags & OPTION_HIDDEN) && strcmp(o->name, "version") != 0;
}

void program_parse_flags(const struct argp *parser, int argc, char **argv, void *input) {
  expand_short(parser, argc, argv);
  bool help = check_names(parser, argc, argv); /* which a wrong variable shall not hide */
  for (const struct argp_option *o = parser->options; !help && !ends(o); o++)
    if (has_variable(o)) take_variable(parser, o, argv[0], input);
  argp_parse(parser, argc, argv, 0, NULL, input);
}
