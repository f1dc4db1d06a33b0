/* flags.h - what the user typed, checked: one parser for all commands. glibc argp prints --help and usage
 * errors and leaves with STATUS_USAGE by itself. */
#pragma once

#include "orchestrator/cli/flags_table.h"

/* argv[0] is "tandem COMMAND". Strings are argv's, the environment's, or the request's own, which flags_fini
 * frees. FLAGS_RUN with an argument_count of 0 means a conversation, and stdin is a terminal then. For
 * FLAGS_RESUME, strings that were not given are NULL, max_tokens is 0 and budget is -1. */
void flags_parse(flags *f, flags_command command, int argc, char **argv);
void flags_fini(flags *f);

const char *flags_command_name(flags_command command);
bool flags_wants_draft(const flags *f);
/* Checks that the draft names a method, that its files exist, and that it fits the draft's model and layers.
 * ERR_ARG says what is wrong. */
int flags_check_draft(const worker_settings *w, err *e);
