#include "common/command_line/flag_list.h"

#include "common/command_line/habits.h"
#include "common/command_line/nearest_word.h"
#include <stdio.h>
#include <string.h>

/* Sets of commands. */
enum {
#define COMMAND(id, ...) id = 1 << COMMAND_##id,
#include "common/command_line/commands.def"
#undef COMMAND
};

_Static_assert(COMMAND_COUNT < 31, "a command is a bit of flag_row.commands");

#define ANSWER    (RUN | BATCH | SERVE | SERVE_WORKERS | BENCH_SPECULATION)
#define LISTENING (RUN | BATCH | SERVE | SERVE_WORKERS | RESUME)
#define WORKER    (TARGET | DRAFT)
#define EVERY     ((1 << COMMAND_COUNT) - 1)
#define SESSION   (LIST | SHOW | RESUME | ROLLBACK | EXPORT | IMPORT | CHECK | REPAIR | RELEASE | END)
#define LEDGER    (STATUS | SESSION)

enum { SERVER = 1, INPUT, OUTPUT, SAMPLING, SPECULATION, WORK, NETWORK, KEPT, MISC };

#define R_TEXT         .type = FLAG_TEXT
#define R_OWN          .type = FLAG_OWN
#define R_MANY         .type = FLAG_MANY
#define R_SWITCH       .type = FLAG_SWITCH
#define R_CHOICE       .type = FLAG_CHOICE
#define R_INT(l, h)    .type = FLAG_INT, .low = l, .high = h
#define R_SIZE         .type = FLAG_SIZE
#define R_SEED(bits)   .type = FLAG_SEED, .high = bits
#define R_NUMBER(l, h) .type = FLAG_NUMBER, .low = l, .high = h

const flag_command_row flag_command_rows[] = {
#define COMMAND(id, ...) {__VA_ARGS__},
#include "common/command_line/commands.def"
};

/* clang-format off */
const flag_row flag_rows[] = {
#define FLAG(field, name_, letter_, type, default, argument_, commands_, group_, target_, draft_, help_) \
  {.id = FLAG_##field, .name = name_, .letter = letter_, R_##type, .argument = argument_, \
   .commands = commands_, .group = group_, .target = target_, .draft = draft_, .help = help_, \
   .offset = offsetof(flag_values, field)},
#define ALSO(field, name_, letter_, type, argument_, commands_, group_, help_) \
  {.id = FLAG_##field, .name = name_, .letter = letter_, R_##type, .argument = argument_, \
   .commands = commands_, .group = group_, .help = help_, .offset = offsetof(flag_values, field)},
#include "common/command_line/flags.def"
#undef FLAG
#undef ALSO
};
/* clang-format on */
const int flag_row_count = sizeof flag_rows / sizeof *flag_rows;

const flag_values flag_defaults = {
#define FLAG(field, name, letter, type, default, ...) .field = default,
#define ALSO(...)
#include "common/command_line/flags.def"
};

/* --- by name --- */

const flag_row *flag_named(flag_command command, const char *name, size_t size) {
  for (const flag_row *r = flag_rows; r < flag_rows + flag_row_count; r++)
    if (r->commands >> command & 1 && strncmp(r->name, name, size) == 0 && !r->name[size]) return r;
  return NULL;
}

bool flag_is_optional(const flag_row *row) {
  return row->argument && row->argument[0] == '[';
}

const flag_row *flag_of(flag_id id) {
  const flag_row *r = flag_rows;
  while (r->id != id) r++;
  return r;
}

const char *flag_nearest(flag_command command, const char *wrong) {
  const char *names[NEAREST_WORDS_MAX] = {"help", "usage"}, *mean[NEAREST_WORDS_MAX] = {"help", "usage"};
  char theirs[NEAREST_WORDS_MAX][FLAG_NAME_MAX];
  int count = 2, habits;
  for (const flag_row *r = flag_rows; r < flag_rows + flag_row_count && count < NEAREST_WORDS_MAX; r++)
    if (r->commands >> command & 1 && r->help) names[count] = mean[count] = r->name, count++;
  const habit *h = habits_all(&habits);
  for (int i = 0; i < habits && count < NEAREST_WORDS_MAX; i++)
    for (const char *at = h[i].theirs; h[i].ours && (at = strstr(at, "--")) && count < NEAREST_WORDS_MAX;
         at++) {
      snprintf(theirs[count], FLAG_NAME_MAX, "%.*s", (int)strcspn(at + 2, " "), at + 2);
      if (flag_named(command, h[i].ours + 2, strlen(h[i].ours + 2)))
        names[count] = theirs[count], mean[count] = h[i].ours + 2, count++;
    }
  const char *near = nearest_word(wrong, names, count);
  for (int i = 0; i < count; i++)
    if (names[i] == near) return near ? mean[i] : NULL;
  return NULL;
}
