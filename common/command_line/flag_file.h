/* flag_file.h - flags in a file: YAML, a mapping of names to values, with libyaml. */
#pragma once

#include "common/command_line/flag_value.h"

/* Gives the flags of the file to the program. Whatever is wrong ends it with one line that names the file and
 * the line. */
void flag_file_read(const flag_program *p, const char *path);
