/* program_flags.h - what glibc's argp lacks: flags from the environment, and what a wrong one may have meant. */
#pragma once

#include <argp.h>

/* As argp_parse, after the program's environment: a flag --some-name that takes a value has TANDEM_SOME_NAME, one
 * that takes none is given where that is 1. The command line wins, being read later. A long flag that does not exist
 * ends the program with argp_err_exit_status and the nearest one that does. argv[0] is what messages begin with. */
void program_parse_flags(const struct argp *parser, int argc, char **argv, void *input);

/* The one of `count` words that `wrong` is most likely meant to be, or NULL: few changes away for its length. */
const char *program_nearest(const char *wrong, const char *const *words, int count);
