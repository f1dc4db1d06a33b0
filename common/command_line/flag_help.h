/* flag_help.h - what --help and --usage print. */
#pragma once

#include "common/command_line/flag_value.h"

/* Prints it, and ends the program. */
_Noreturn void flag_help_print(const flag_program *p, bool usage);
