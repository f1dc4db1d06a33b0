#include "common/command_line/flag_variables.h"

#include "common/base/log.h"
#include "common/command_line/habits.h"
#include "common/command_line/nearest_word.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX         "TANDEM_"
#define PREFIX_BYTES   (sizeof PREFIX - 1)
#define CHECKED        PREFIX "VARIABLES_CHECKED" /* set for the programs that this one starts */
#define NAME_MAX_BYTES 64                         /* a longer one is near to none */

/* Read by tests and scripts, and what tests make go wrong. */
static const char *const others[] = {"bin",         "subset",       "peer",      "fault",      "far",
                                     "test-device", "test-devices", "cuda-lose", "cuda-graphs"};
enum { OTHER_COUNT = sizeof others / sizeof *others };

static void to_variable(const char *flag, char *out, size_t size) {
  snprintf(out, size, PREFIX "%s", flag);
  for (char *c = out; *c; c++) *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
}

/* A program's version is no wish of whoever set a variable of that name, and a file of one program's flags is
 * not for those that it starts. */
static bool has_variable(const flag_row *row) {
  return row->help && row->id != FLAG_config && row->id != FLAG_version;
}

/* ---- reading ---- */

static void read_one(const flag_program *r, const flag_row *row) {
  char variable[PREFIX_BYTES + NAME_MAX_BYTES], where[2 * sizeof variable];
  to_variable(row->name, variable, sizeof variable);
  const char *value = getenv(variable);
  if (!value || (!row->argument && strcmp(value, "0") == 0)) return;
  snprintf(where, sizeof where, "%s=%.40s: ", variable, value);
  if (!row->argument && strcmp(value, "1") != 0) flag_refuse(r, where, "a switch is 1 or 0");
  flag_give(r, row, value, FLAG_FROM_VARIABLE, where);
}

void flag_variables_read(const flag_program *r) {
  for (int i = 0; i < flag_row_count; i++)
    if (flag_rows[i].commands >> r->command & 1 && has_variable(&flag_rows[i])) read_one(r, &flag_rows[i]);
}

/* ---- checking ---- */

/* SOME_NAME[size] as a flag's some-name. */
static void to_flag(const char *name, size_t size, char *out) {
  for (size_t i = 0; i < size; i++) out[i] = name[i] == '_' ? '-' : (char)tolower((unsigned char)name[i]);
  out[size] = 0;
}

static bool is_known(const char *flag) {
  for (int i = 0; i < flag_row_count; i++)
    if (has_variable(&flag_rows[i]) && strcmp(flag_rows[i].name, flag) == 0) return true;
  for (int i = 0; i < OTHER_COUNT; i++)
    if (strcmp(others[i], flag) == 0) return true;
  return false;
}

static const char *meant_by(const char *flag) {
  const char *names[NEAREST_WORDS_MAX];
  char typed[NAME_MAX_BYTES + 3];
  int count = 0, size = snprintf(typed, sizeof typed, "--%s", flag);
  const habit *h = habits_find(typed, (size_t)size);
  for (int i = 0; i < flag_row_count && count < NEAREST_WORDS_MAX; i++)
    if (has_variable(&flag_rows[i])) names[count++] = flag_rows[i].name;
  return h && h->ours ? h->ours + 2 : nearest_word(flag, names, count);
}

static void check(const logger *log, const char *variable, size_t size) {
  char flag[NAME_MAX_BYTES + 1] = "", ours[sizeof PREFIX + NAME_MAX_BYTES];
  if (size - PREFIX_BYTES <= NAME_MAX_BYTES) to_flag(variable + PREFIX_BYTES, size - PREFIX_BYTES, flag);
  bool upper = true; /* Tandem_Temp and TANDEM_temp are read by nobody */
  for (size_t i = PREFIX_BYTES; i < size; i++)
    upper &= !islower((unsigned char)variable[i]) && variable[i] != '-';
  if (upper && is_known(flag)) return;
  const char *near = *flag ? is_known(flag) ? flag : meant_by(flag) : NULL;
  if (near) to_variable(near, ours, sizeof ours);
  log_line(log, LOG_WARNING, "nobody reads the environment variable %.*s%s%s%s", (int)size, variable,
           near ? ": did you mean " : "", near ? ours : "", near ? "?" : "");
}

void flag_variables_check(const char *program) {
  const logger log = {program, LOG_WARNING};
  if (getenv(CHECKED)) return;
  for (char **v = environ; v && *v; v++)
    if (strncmp(*v, PREFIX, PREFIX_BYTES) == 0) check(&log, *v, strcspn(*v, "="));
  setenv(CHECKED, "1", 1);
}
