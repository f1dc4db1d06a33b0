/* program_flags.h - what glibc's argp lacks: values that go where they belong by a table, flags from the
 * environment, and what a wrong one may have meant. */
#pragma once

#include "common/base/program_options.h"
#include <argp.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
  PROGRAM_TEXT,
  PROGRAM_SWITCH,
  PROGRAM_INT,
  PROGRAM_SIZE,
  PROGRAM_FLOAT,
  PROGRAM_CHOICE
} program_flag_kind;

/* A flag, and where its value goes. */
typedef struct program_flag {
  int key; /* argp's */
  program_flag_kind kind;
  size_t offset; /* in the program's flags, of a const char *, borrowed; a bool, set; an int32_t; an int64_t,
                    of bytes; a float; an enum */
  const char *name;         /* INT, SIZE, FLOAT, CHOICE: "--name", for the error */
  double low, high;         /* INT (within an int32_t), FLOAT: both allowed */
  const char *const *words; /* CHOICE: words[word_count], each at the number of its value */
  int word_count;
} program_flag;

#define PROGRAM_FLAG_TEXT(key_, flags, field)                                                                \
  { .key = key_, .kind = PROGRAM_TEXT, .offset = offsetof(flags, field) }
#define PROGRAM_FLAG_SWITCH(key_, flags, field)                                                              \
  { .key = key_, .kind = PROGRAM_SWITCH, .offset = offsetof(flags, field) }
#define PROGRAM_FLAG_INT(key_, flags, field, name_, low_, high_)                                             \
  {                                                                                                          \
    .key = key_, .kind = PROGRAM_INT, .offset = offsetof(flags, field), .name = name_, .low = low_,          \
    .high = high_                                                                                            \
  }
#define PROGRAM_FLAG_SIZE(key_, flags, field, name_)                                                         \
  { .key = key_, .kind = PROGRAM_SIZE, .offset = offsetof(flags, field), .name = name_ }
#define PROGRAM_FLAG_FLOAT(key_, flags, field, name_, low_, high_)                                           \
  {                                                                                                          \
    .key = key_, .kind = PROGRAM_FLOAT, .offset = offsetof(flags, field), .name = name_, .low = low_,        \
    .high = high_                                                                                            \
  }
#define PROGRAM_FLAG_CHOICE(key_, flags, field, name_, words_)                                               \
  {                                                                                                          \
    .key = key_, .kind = PROGRAM_CHOICE, .offset = offsetof(flags, field), .name = name_, .words = words_,   \
    .word_count = sizeof(words_) / sizeof *(words_)                                                          \
  }

/* Part of an argp parser whose input is the program's flags: puts the value of the flag with this key where
 * list[count] says. A value that does not fit is argp_error's. ARGP_ERR_UNKNOWN: the list has no such key. */
error_t program_take_flag(const program_flag *list, size_t count, int key, const char *text,
                          struct argp_state *state);

/* As argp_parse, after the file of --config, and after the program's environment: a flag --some-name that
 * takes a value has TANDEM_SOME_NAME, one that takes none is given where that is 1. The command line wins,
 * being read later. A flag of llama.cpp's counts as ours of the same meaning (llama_flags.h). One that does
 * not exist ends the program with argp_err_exit_status and the nearest one that does. argv[0] is what
 * messages begin with. */
void program_parse_flags(const struct argp *parser, int argc, char **argv, void *input);
