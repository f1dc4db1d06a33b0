/* flag_variables.h - flags from the environment: --some-name is TANDEM_SOME_NAME. */
#pragma once

#include "common/command_line/flag_value.h"

/* Gives the command's flags that stand in the environment to the reader. What is wrong ends the program. */
void flag_variables_read(const flag_program *r);

/* Warns of each variable TANDEM_... that no program reads, with the name that it may have been meant to be:
 * once, not again in the programs that this one starts. */
void flag_variables_check(const char *program);
