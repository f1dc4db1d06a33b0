/* command_table.h - the commands: the arguments that each takes, and what --help says of it. */
#pragma once

#include "common/command_line/flag_list.h"

typedef struct command_table_row {
  const char *name;
  const char *arguments, *text; /* of --help */
  int32_t arguments_min, arguments_max;
  const char *missing; /* the sentence that says what to do when there are fewer */
  bool without_model;  /* it can do without -m */
} command_table_row;

extern const command_table_row command_table[]; /* by flag_command, those of tandem */
