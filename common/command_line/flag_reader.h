/* flag_reader.h - reads the flags of a program: from the file of --config, from the environment, where
 * --some-name is TANDEM_SOME_NAME (1 or 0 for a switch), and from the command line. The nearer one wins, in
 * this order. Flags of llama.cpp that mean ours are ours (habits.h). */
#pragma once

#include "common/command_line/flag_value.h"

/* argv[0] is what messages begin with. What is wrong ends the program with STATUS_USAGE and a sentence;
 * --help and --usage end it too. */
void flag_read_all(const flag_program *p, int argc, char **argv);

/* Is an argument a model's path, FILE.gguf, before which -m is missing? */
bool flag_is_model_path(const char *text);
