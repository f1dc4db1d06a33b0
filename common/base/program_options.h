/* program_options.h - flags looked up in a table of argp's: by name, by llama.cpp's name, or by what a wrong
 * name is near to. Names have no dashes before them. */
#pragma once

#include "common/base/llama_flags.h"
#include <argp.h>
#include <stdbool.h>
#include <stddef.h>

/* A flag of a program's table that names a file with flags (program_config.h). */
#define PROGRAM_KEY_CONFIG 10000
#define PROGRAM_OPTION_CONFIG(group)                                                                         \
  {                                                                                                          \
    "config", PROGRAM_KEY_CONFIG, "FILE", 0, "flags in YAML, such as max-tokens: 64; the command line wins", \
        group                                                                                                \
  }
#define PROGRAM_OPTION_REPEATED                                                                              \
  0x1000 /* of argp_option.flags: may be given several times, all of which count */

/* Is this the end of a table? */
bool program_option_ends(const struct argp_option *o);
/* The flag itself, for an alias, which stands after what it is an alias of. */
const struct argp_option *program_option_meant(const struct argp_option *o);
/* The flag with this very name[size], or NULL. */
const struct argp_option *program_option(const struct argp_option *options, const char *name, size_t size);
/* Ours that llama.cpp's means, or NULL. */
const struct argp_option *program_option_of_habit(const struct argp_option *options, const llama_flag *h);
/* The name that is nearest to `wrong`, or that llama.cpp's `wrong` stands for; or NULL. */
const char *program_nearest_flag(const struct argp_option *options, const char *wrong);

/* The one of `count` words that `wrong` is most likely meant to be, or NULL: few changes away for its length.
 */
const char *program_nearest(const char *wrong, const char *const *words, int count);
