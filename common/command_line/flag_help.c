#include "common/command_line/flag_help.h"

#include "common/base/exit_status.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH       79 /* columns */
#define HELP_AT     29 /* of a flag */
#define USAGE_MAX   8192
#define TEXT_AT     8 /* of a line with a tab */
#define HEADED_FROM 5 /* groups: with fewer of them headings say nothing */

/* By the groups of flag_list.c. */
static const char *const headings[] = {
    NULL,           "The server:",     NULL,
    "The answer:",  "Sampling:",       "Speculation (never changes a token):",
    "Work:",        "Other programs:", "What is kept:",
    "What is said:"};
enum { GROUPS = sizeof headings / sizeof *headings };

/* What every program has beside its own. */
static const flag_row parser_rows[] = {{.name = "help", .letter = '?', .help = "this help"},
                                       {.name = "usage", .help = "a short usage message"}};

/* ---- lines ---- */

/* Words of text[size], from column `at` on, where the cursor is; further lines begin at `indent`. */
static void print_words(const char *text, size_t size, int at, int indent) {
  bool first = true;
  for (const char *end = text + size, *word = text; word < end;) {
    size_t blanks = strspn(word, " "), length = strcspn(word += blanks, " \n");
    if (word + length > end || length == 0) break;
    if (!first && at + 1 + (int)length > WIDTH)
      printf("\n%*s", indent, ""), at = indent;
    else if (!first)
      printf(" "), at++;
    at += printf("%.*s", (int)length, word);
    word += length, first = false;
  }
  printf("\n");
}

/* Lines of their own; what stands behind a tab is a column. */
static void print_text(const char *text) {
  for (size_t size; *text; text += size + (text[size] == '\n')) {
    size = strcspn(text, "\n");
    size_t label = strcspn(text, "\t\n"), skip = text[label] == '\t' ? label + 1 : 0;
    int at = skip ? printf("%-*.*s", TEXT_AT, (int)label, text) : 0;
    print_words(text + skip, size - skip, at, at);
  }
}

/* ---- flags ---- */

/* "=FILE", or "[=FILE]" where it may be left out, in two parts. */
typedef struct value {
  const char *mark, *text;
} value;

static value value_of(const flag_row *row) {
  if (!row->argument) return (value){"", ""};
  return flag_is_optional(row) ? (value){"[=", row->argument + 1} : (value){"=", row->argument};
}

/* "  -m, --model=FILE" and what that is. */
static void print_flag(const flag_row *row) {
  const char letter[] = {'-', (char)row->letter, ',', 0};
  value v = value_of(row);
  int at = printf("  %-3s --%s%s%s", row->letter ? letter : "", row->name, v.mark, v.text);
  if (at > HELP_AT - 2) at = printf("\n") - 1;
  printf("%*s", HELP_AT - at, "");
  print_words(row->help, strlen(row->help), HELP_AT, HELP_AT);
}

static bool is_shown(const flag_row *row, flag_command command, int group) {
  return row->commands >> command & 1 && row->help && row->group == group;
}

/* The command's flag of this group that follows `last` by name; NULL: none. */
static const flag_row *next_flag(flag_command command, int group, const char *last) {
  const flag_row *next = NULL;
  for (const flag_row *r = flag_rows; r < flag_rows + flag_row_count; r++)
    if (is_shown(r, command, group) && strcmp(r->name, last) > 0 &&
        (!next || strcmp(r->name, next->name) < 0))
      next = r;
  return next;
}

static void print_flags(flag_command command) {
  int groups = 0;
  for (int g = 0; g < GROUPS; g++) groups += next_flag(command, g, "") != NULL;
  for (int g = 0; g < GROUPS; g++) {
    const flag_row *row = next_flag(command, g, "");
    if (row) printf("\n");
    if (row && groups >= HEADED_FROM && headings[g]) printf(" %s\n", headings[g]);
    for (; row; row = next_flag(command, g, row->name)) print_flag(row);
  }
  printf("\n");
  for (size_t i = 0; i < sizeof parser_rows / sizeof *parser_rows; i++) print_flag(&parser_rows[i]);
}

/* ---- all of it ---- */

static void print_short_usage(const flag_program *r) {
  char flags[USAGE_MAX] = "";
  size_t size = 0;
  for (int g = 0; g < GROUPS; g++)
    for (const flag_row *row = NULL;
         (row = next_flag(r->command, g, row ? row->name : "")) && size < USAGE_MAX;) {
      value v = value_of(row);
      size += (size_t)snprintf(flags + size, USAGE_MAX - size, " [--%s%s%s]", row->name, v.mark, v.text);
    }
  print_words(flags, strlen(flags), printf("Usage: %s ", r->name), sizeof "Usage:");
}

/* "Usage: tandem run [OPTION...] PROMPT", and a line for each other way. */
static void print_usage(const flag_program *r) {
  const char *way = flag_command_rows[r->command].arguments;
  for (const char *word = "Usage:"; way; word = "  or: ") {
    size_t size = strcspn(way, "\n");
    printf("%s %s [OPTION...]%s%.*s\n", word, r->name, size ? " " : "", (int)size, way);
    way = way[size] ? way + size + 1 : NULL;
  }
}

_Noreturn void flag_help_print(const flag_program *r, bool usage) {
  if (usage) {
    print_short_usage(r);
  } else {
    print_usage(r);
    print_text(flag_command_rows[r->command].text);
    print_flags(r->command);
    if (r->more) printf("\n");
    if (r->more) print_text(r->more);
  }
  if (fflush(stdout) == 0) exit(STATUS_OK);
  fprintf(stderr, "%s: cannot write to stdout: %s\n", r->name, strerror(errno));
  exit(STATUS_IO);
}
