/* flag_list.h - the flags of all programs, made of the table flags.def: their values, and what is known of
 * each. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FLAG_NAME_MAX      40 /* bytes of a name; a longer one is near to none */
#define FLAG_ARGUMENTS_MAX 3

/* COMMAND_RUN, ...: the commands of tandem, those of sessions from COMMAND_STATUS on, and then the other
 * programs. */
typedef enum {
#define COMMAND(id, ...) COMMAND_##id,
#include "common/command_line/commands.def"
#undef COMMAND
  COMMAND_COUNT
} flag_command;

typedef struct flag_command_row {
  const char *name;
  const char *arguments;                   /* of --help: "PROMPT\n-" */
  int32_t least_arguments, most_arguments; /* of the latter at most FLAG_ARGUMENTS_MAX */
  bool needs_model;                        /* it does nothing without -m */
  const char *missing;                     /* what to do when there are fewer; or NULL */
  const char *text;                        /* of --help */
} flag_command_row;

extern const flag_command_row flag_command_rows[]; /* by flag_command */

/* FLAG_model, ...; where a value has come from, the nearer ones later. */
typedef enum {
#define FLAG(field, ...) FLAG_##field,
#define ALSO(...)
#include "common/command_line/flags.def"
#undef FLAG
#undef ALSO
  FLAG_COUNT
} flag_id;

typedef enum { FLAG_FROM_DEFAULT, FLAG_FROM_FILE, FLAG_FROM_VARIABLE, FLAG_FROM_COMMAND_LINE } flag_source;

/* Texts are borrowed: of the command line, of the environment, or of a file of flags, which all stay. Of a
 * CHOICE it is the number of the word. What a program reads itself (OWN, MANY) is the last text. */
typedef struct flag_values {
#define C_TEXT                               const char *
#define C_OWN                                const char *
#define C_MANY                               const char *
#define C_SWITCH                             bool
#define C_CHOICE                             int32_t
#define C_INT(l, h)                          int32_t
#define C_SIZE                               int64_t
#define C_SEED(bits)                         uint64_t
#define C_NUMBER(l, h)                       float
#define FLAG(field, name, letter, type, ...) C_##type field;
#define ALSO(...)
#include "common/command_line/flags.def"
#undef FLAG
#undef ALSO
  uint8_t from[FLAG_COUNT]; /* flag_source */
  const char *arguments[FLAG_ARGUMENTS_MAX];
  int32_t argument_count;
} flag_values;

typedef enum {
  FLAG_TEXT,
  FLAG_OWN,
  FLAG_MANY,
  FLAG_SWITCH,
  FLAG_CHOICE,
  FLAG_INT,
  FLAG_SIZE,
  FLAG_SEED,
  FLAG_NUMBER
} flag_type;

/* A row of the table. */
typedef struct flag_row {
  flag_id id;
  const char *name; /* without dashes */
  int letter;       /* 0: none */
  flag_type type;
  double low, high;           /* INT, NUMBER: both allowed; of a SEED high is its bits */
  const char *argument;       /* NULL: it takes no value; "[FILE]": it may have one */
  uint32_t commands;          /* 1 << flag_command */
  int group;                  /* of --help */
  const char *target, *draft; /* the worker's flag that it is handed on by; NULL: it is not */
  const char *help;           /* NULL: --help does not show it */
  size_t offset;              /* in flag_values */
} flag_row;

extern const flag_row flag_rows[];
extern const int flag_row_count;

/* What is not given, in most commands. */
extern const flag_values flag_defaults;

/* The command's flag with this very name[size]; NULL: it has none. */
const flag_row *flag_named(flag_command command, const char *name, size_t size);
/* The name of the command's flag that is nearest to `wrong`, or that llama.cpp's `wrong` stands for; or NULL.
 */
const char *flag_nearest(flag_command command, const char *wrong);

/* Whether it may stand without its value. */
bool flag_is_optional(const flag_row *row);
/* The first row of a flag. */
const flag_row *flag_of(flag_id id);
