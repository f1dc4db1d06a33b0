/* flags.h - what the user typed, checked: one parser for all commands. glibc argp prints --help and usage
 * errors and leaves with STATUS_USAGE by itself. */
#pragma once

#include "orchestrator/service/request.h"
#include "orchestrator/service/worker_settings.h"

#define FLAGS_SESSIONS_DEFAULT 4 /* of batch */
#define FLAGS_SESSIONS_MAX     64
#define FLAGS_KV_BLOCKS_MAX    (INT32_MAX / 16)
#define FLAGS_ARGUMENTS_MAX    2
#define FLAGS_LIST_DEFAULT     20

typedef enum {
  FLAGS_RUN,
  FLAGS_BATCH,
  FLAGS_SERVE,
  FLAGS_TOKENIZE,
  FLAGS_DETOKENIZE,
  FLAGS_DOCTOR,
  FLAGS_STATUS,
  FLAGS_LIST, /* of sessions, as all below */
  FLAGS_SHOW,
  FLAGS_RESUME,
  FLAGS_ROLLBACK,
  FLAGS_EXPORT,
  FLAGS_END
} flags_command;

typedef struct flags {
  flags_command command;
  request request;         /* all but its prompt; its context is 0 where none was given */
  worker_settings workers; /* model: NULL only where the command can do without */
  const char *template;    /* name of the chat template; NULL: the file's own */
  const char *listen;      /* endpoint where workers register that others start; NULL: tandem starts them */
  const char *ledger;      /* a file, "none", or NULL: the default file */
  int32_t wait;            /* seconds without a target until it gives up; 0: for ever */
  int32_t to;              /* of rollback; -1: not given */
  int32_t limit;           /* of list; 0: all */
  int64_t older_us;        /* of end: those that nothing has changed for so long; -1: not given */
  bool insecure_bind, json, compare;
  bool whole;  /* of resume */
  bool forget; /* of end */
  const char *arguments[FLAGS_ARGUMENTS_MAX];
  int32_t argument_count;
  bool draft_by_variable;  /* the draft's model or its layers are the environment's, */
  bool method_by_variable; /* or the draft itself, */
  bool blocks_by_variable; /* or the number of cache blocks */
  const char
      *for_workers; /* a flag that was given and is meant for programs that tandem starts; NULL: none */
} flags;

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
