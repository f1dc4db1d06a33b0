#include "wire/worker_arguments.h"

#include "common/base/cpus.h"
#include "common/base/output_file.h"
#include "common/base/program.h"
#include "common/base/program_flags.h"
#include "common/base/program_variables.h"
#include "version.h"
#include "wire/keys.h"
#include "wire/message.h"
#include <limits.h>
#include <stdio.h>

#define THREADS_MAX 256

error_t worker_arguments_take(const worker_limits *limits, int key, const char *text,
                              struct argp_state *state) {
  /* clang-format off: a row each */
  const program_flag list[] = {
      PROGRAM_FLAG_TEXT(WORKER_KEY_ORCHESTRATOR, worker_arguments, orchestrator),
      PROGRAM_FLAG_TEXT(WORKER_KEY_MODEL, worker_arguments, model),
      PROGRAM_FLAG_TEXT(WORKER_KEY_DEVICE, worker_arguments, device),
      PROGRAM_FLAG_SIZE(WORKER_KEY_KV_MEMORY, worker_arguments, kv_memory, "--kv-memory"),
      PROGRAM_FLAG_TEXT(WORKER_KEY_REPACK_CACHE, worker_arguments, repack_cache),
      PROGRAM_FLAG_TEXT(WORKER_KEY_KEYS, worker_arguments, keys),
      PROGRAM_FLAG_TEXT(WORKER_KEY_TRACE, worker_arguments, trace),
      PROGRAM_FLAG_SWITCH(WORKER_KEY_INSECURE, worker_arguments, insecure_bind),
      PROGRAM_FLAG_SWITCH(WORKER_KEY_COUNTERS, worker_arguments, counters),
      PROGRAM_FLAG_SWITCH(WORKER_KEY_VERSION, worker_arguments, version),
      PROGRAM_FLAG_INT(WORKER_KEY_THREADS, worker_arguments, threads, "--threads", 1, THREADS_MAX),
      PROGRAM_FLAG_INT(WORKER_KEY_CONTEXT, worker_arguments, context, "--ctx", limits->context_min,
                       limits->context_max),
      PROGRAM_FLAG_INT(WORKER_KEY_SESSIONS, worker_arguments, sessions, "--sessions", 1,
                       limits->sessions_max),
      PROGRAM_FLAG_INT(WORKER_KEY_BUSY_POLL, worker_arguments, busy_poll, "--busy-poll", 0,
                       WORKER_BUSY_POLL_US_MAX),
      PROGRAM_FLAG_INT(WORKER_KEY_PARENT, worker_arguments, parent, "--parent", 1, INT32_MAX),
      PROGRAM_FLAG_CHOICE(WORKER_KEY_LOG, worker_arguments, log, "--log-level", log_level_words),
      PROGRAM_FLAG_CHOICE(WORKER_KEY_LOG_FORMAT, worker_arguments, log_format, "--log-format",
                          log_format_words)};
  /* clang-format on */
  if (key == ARGP_KEY_ARG) argp_error(state, "unexpected argument '%s'", text);
  return program_take_flag(list, sizeof list / sizeof *list, key, text, state);
}

void worker_arguments_parse(const struct argp *parser, const char *program, int argc, char **argv,
                            worker_arguments *a) {
  char folder[PATH_MAX];
  argp_err_exit_status = PROGRAM_EXIT_USAGE;
  program_parse_flags(parser, argc, argv, a);
  log_use_format(a->log_format);
  output_file_spare(a->model);
  if (keys_folder(a->keys, folder, NULL) == ERR_OK) output_file_spare(folder);
  program_check_variables(program);
}

bool worker_arguments_complete(const worker_arguments *a, bool needs_model, const logger *log) {
  const char *missing = needs_model && !a->model ? "-m MODEL"
                        : !a->orchestrator       ? "--orchestrator ENDPOINT"
                                                 : NULL;
  if (missing) log_line(log, LOG_ERROR, "%s is missing; see %s --help", missing, log->program);
  if (!missing && a->threads > cpus_threads())
    log_line(log, LOG_WARNING,
             "--threads %d is more than the %d processors that this program may use: that makes it slower",
             a->threads, cpus_threads());
  return !missing;
}

void worker_arguments_print_version(const char *program) {
  printf("%s %s (%s), wire protocol %d to %d\n", program, TANDEM_VERSION, TANDEM_COMMIT, WIRE_VERSION_MIN,
         WIRE_VERSION_MAX);
}
