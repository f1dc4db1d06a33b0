/* flags.h - what the user typed, checked: one parser for all commands. glibc argp prints --help and usage
 * errors and leaves with STATUS_USAGE by itself. */
#pragma once

#include "common/speculative/sampler.h"
#include "common/text/detokenizer.h"

#define FLAGS_CONTEXT_DEFAULT  4096 /* or the model's, if that is less */
#define FLAGS_TOKENS_DEFAULT   256
#define FLAGS_BUDGET_DEFAULT   15
#define FLAGS_SESSIONS_DEFAULT 4 /* of batch */
#define FLAGS_SESSIONS_MAX     64
#define FLAGS_THREADS_MAX      256
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
  const char *model; /* NULL only where the command can do without */
  const char *draft; /* "none", "ngram", "model" or "replay:FILE:RATE[:S]"; with `listen` "none" or "any" */
  const char *model_draft;  /* the model of "model", or NULL: the first draft_layers of `model` */
  const char *math;         /* "int8" or "f32" */
  const char *kv;           /* "static" or "virtual" */
  const char *system;       /* NULL: the template's own default */
  const char *template;     /* name of the chat template; NULL: the file's own */
  const char *repack_cache; /* folder, or NULL */
  const char *pin;          /* as tandem-target takes it */
  const char *listen;       /* endpoint where workers register that others start; NULL: tandem starts them */
  const char *ledger;       /* a file, "none", or NULL: the default file */
  const char *stops[DETOKENIZER_STOP_MAX];
  int32_t stop_count;
  sampler_options sampling;                                          /* seed: a random one, unless given */
  int32_t max_tokens, context, threads, budget, selfcheck, sessions; /* context 0: default */
  int32_t kv_blocks;                                                 /* 0: default */
  int32_t draft_layers, draft_threads, draft_context; /* of "model"; 0: all, the draft's default, `context` */
  int32_t wait;     /* seconds without a target until it gives up; 0: for ever */
  int32_t to;       /* of rollback; -1: not given */
  int32_t limit;    /* of list; 0: all */
  int64_t older_us; /* of end: those that nothing has changed for so long; -1: not given */
  bool insecure_bind, lockstep, single, seed_given, raw, no_special, json, verbose, compare, whole,
      forget; /* whole: of resume; forget: of end */
  const char *arguments[FLAGS_ARGUMENTS_MAX];
  int32_t argument_count;
  bool draft_by_variable, method_by_variable,
      blocks_by_variable; /* model_draft or draft_layers, draft, kv_blocks: the environment's */
  const char
      *for_workers; /* a flag that was given and is meant for programs that tandem starts; NULL: none */
} flags;

/* argv[0] is "tandem COMMAND". Strings are argv's, or the environment's. argument_count 0 of FLAGS_RUN: stdin
 * is a terminal, a conversation is meant. */
void flags_parse(flags *f, flags_command command, int argc, char **argv);

/* FLAGS_RESUME: what was not given is NULL, and max_tokens 0, budget -1. */
const char *flags_command_name(flags_command command);
bool flags_wants_draft(const flags *f);
/* Is `draft` a method, are its files there, does it fit model_draft and draft_layers? ERR_ARG says what is
 * wrong. */
int flags_check_draft(const flags *f, err *e);
/* One more stop string, size bytes, kept by reference; `name` is what the user calls it. ERR_ARG. */
int flags_add_stop(flags *f, const char *name, const char *text, size_t size, err *e);
