/* flags.h - what the user typed, checked: one parser for all commands. glibc argp prints --help and usage
 * errors and leaves with STATUS_USAGE by itself. */
#pragma once

#include "orchestrator/cli/flags_table.h"

/* argv[0] is "tandem COMMAND". Strings are argv's, the environment's, or the request's own, which flags_fini
 * frees. argument_count 0 of FLAGS_RUN: stdin is a terminal, and a conversation is meant. FLAGS_RESUME: what
 * was not given is NULL, max_tokens 0 and budget -1. */
void flags_parse(flags *f, flags_command command, int argc, char **argv);
void flags_fini(flags *f);

const char *flags_command_name(flags_command command);
bool flags_wants_draft(const flags *f);
/* Is the draft a method, are its files there, does it fit the draft's model and layers? ERR_ARG says what is
 * wrong. */
int flags_check_draft(const worker_settings *w, err *e);
