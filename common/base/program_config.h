/* program_config.h - a program's flags from a YAML file: a mapping of names, without dashes, to values. */
#pragma once

#include <argp.h>

/* Gives each flag of the file at `path` to the parser, in the file's order, as if it stood on the command
 * line: a text or a number to a flag that takes a value; true or false to one that takes none; a list to one
 * with PROGRAM_OPTION_REPEATED. The values live as long as the program. Whatever is wrong ends the program
 * with argp_err_exit_status and one line that names the file and the line. To be called once. */
void program_config_read(const char *path, const struct argp *parser, const char *program, void *input);
