/* command_flags.h - what the commands of tandem-bench that run a model share: their flags, and how they fail.
 */
#pragma once

#include "common/base/err.h"
#include "common/command_line/flag_list.h"

/* Gives each number of "N,N,..." to `take`. ERR_ARG: there are more than `most`, or it refuses one. */
int command_list(const char *flag, const char *text, int32_t most,
                 int (*take)(void *context, const char *number, err *e), void *context, err *e);
int command_needs_model(const flag_values *given, err *e); /* ERR_ARG: there is none */
int command_fail(int status, const char *why);             /* says why, and returns the status */
