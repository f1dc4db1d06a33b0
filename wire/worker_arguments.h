/* worker_arguments.h - the command line that every worker has.
 *
 * A worker's own flags are a struct whose first member is a worker_arguments, and its argp parser gives
 * every key to worker_arguments_take first. Help texts are the worker's own, because what a flag is for
 * differs: the keys below go into its table of options, and its own keys begin at WORKER_KEY_OWN. */
#pragma once

#include "common/base/err.h"
#include "common/base/log.h"
#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

enum {
  WORKER_KEY_MODEL = 'm',
  WORKER_KEY_VERSION = 'V',
  WORKER_KEY_ORCHESTRATOR = 256,
  WORKER_KEY_CONTEXT,
  WORKER_KEY_SESSIONS,
  WORKER_KEY_THREADS,
  WORKER_KEY_DEVICE,
  WORKER_KEY_KV_MEMORY,
  WORKER_KEY_REPACK_CACHE,
  WORKER_KEY_COUNTERS,
  WORKER_KEY_BUSY_POLL,
  WORKER_KEY_PARENT,
  WORKER_KEY_KEYS,
  WORKER_KEY_INSECURE,
  WORKER_KEY_LOG,
  WORKER_KEY_LOG_FORMAT,
  WORKER_KEY_TRACE,
  WORKER_KEY_OWN
};

#define WORKER_DEVICE_DEFAULT "cpu"

/* Rows of a table of options, in the group with this number. */
#define WORKER_OPTIONS_KEYS(group)                                                                           \
  {"keys",                                                                                                   \
   WORKER_KEY_KEYS,                                                                                          \
   "DIR",                                                                                                    \
   0,                                                                                                        \
   "Folder of the keys for tcp, as tandem keygen makes it; default: ~/.config/tandem/keys",                  \
   group},                                                                                                   \
  {                                                                                                          \
    "insecure-bind", WORKER_KEY_INSECURE, NULL, 0,                                                           \
        "Use no keys, as an orchestrator with --insecure-bind: tcp is not encrypted, and whoever reaches "   \
        "an "                                                                                                \
        "address can read prompts and answers",                                                              \
        group                                                                                                \
  }

/* --busy-poll of a target on a GPU, and of its draft: as long as the forward of a small model takes. Beside
 * longer ones it does not matter how late a thread wakes. */
#define WORKER_BUSY_POLL_US     2000
#define WORKER_BUSY_POLL_US_MAX 1000000

typedef struct worker_arguments {
  const char *orchestrator, *model, *repack_cache; /* NULL: not given */
  const char *device;                              /* NULL: not given */
  const char *keys;                                /* a folder; NULL: the default one */
  const char *trace;                               /* a file (trace_file.h); NULL: none */
  int32_t context, sessions, threads;
  int64_t kv_memory; /* bytes that the cache may take; 0: what sessions and context ask for */
  int32_t parent;    /* a process; 0: not given */
  int32_t busy_poll; /* us, as transport_options has it */
  bool counters, version, insecure_bind;
  log_level log;
  log_format log_format; /* in use once the flags are read */
} worker_arguments;

/* What a flag of every worker may be in this one. */
typedef struct worker_limits {
  int32_t context_min, context_max, sessions_max;
} worker_limits;

/* Part of an argp parser whose input begins with a worker_arguments. ARGP_ERR_UNKNOWN: not a key of every
 * worker. A value that does not fit, or a word that is no flag's value, is argp_error's. */
error_t worker_arguments_take(const worker_limits *limits, int key, const char *text,
                              struct argp_state *state);

/* Reads the whole command line and the environment into `a`, which holds the defaults and is the input of
 * `parser`. A wrong flag ends the program with its usage status; variables that nobody reads are warned of.
 */
void worker_arguments_parse(const struct argp *parser, const char *program, int argc, char **argv,
                            worker_arguments *a);

/* Is all there that the worker cannot do without? If not, the log says what to give. */
bool worker_arguments_complete(const worker_arguments *a, bool needs_model, const logger *log);

/* The line of --version that every worker begins with: name, version, commit and protocol. */
void worker_arguments_print_version(const char *program);
