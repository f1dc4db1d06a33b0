/* flags.h - what the user typed, checked: one parser for all commands. */
#pragma once

#include "common/command_line/flag_list.h"
#include "orchestrator/service/request.h"
#include <limits.h>

/* What a head, and a smaller model, mean: prompt lookup adds to them and costs next to nothing. */
#define FLAGS_HEAD_DRAFT  "eagle3,ngram"
#define FLAGS_MODEL_DRAFT "model,ngram"

typedef struct flags {
  flag_command command;
  flag_values given;     /* with the defaults of the command; draft is "any" where others start the workers */
  request request;       /* all but its prompt; its context is 0 where none was given */
  int show;              /* show_when of orchestrator/cli/show.h */
  int64_t older_us;      /* of session end: only what has not changed for so long; -1: not given */
  bool draft_by_default; /* nobody has said how to draft */
  char head[PATH_MAX];   /* the one that comes with tandem (default_head_use); "": none */
} flags;

/* argv[0] is "tandem COMMAND". Strings are argv's, the environment's, or the request's own, which flags_fini
 * frees. COMMAND_RUN with an argument_count of 0 means a conversation, and stdin is a terminal then. For
 * COMMAND_RESUME, strings that were not given are NULL, math is -1, max_tokens is 0 and budget is -1. */
void flags_parse(flags *f, flag_command command, int argc, char **argv);
/* What is so where nothing is typed. */
void flags_default(flags *f, flag_command command);
void flags_fini(flags *f);

const char *flags_command_name(flag_command command);
bool flags_wants_draft(const flags *f);
/* Checks that the draft names a method, that its files exist, and that it fits the draft's model and layers.
 * ERR_ARG says what is wrong. */
int flags_check_draft(const flag_values *v, err *e);
