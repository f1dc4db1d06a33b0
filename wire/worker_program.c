#include "wire/worker_program.h"

#include "common/base/cpus.h"
#include "common/base/output_file.h"
#include "common/base/program.h"
#include "common/command_line/flag_variables.h"
#include "version.h"
#include "wire/keys.h"
#include "wire/message.h"
#include <limits.h>
#include <stdio.h>

void worker_program_read(flag_program *r, const char *program, int argc, char **argv) {
  char folder[PATH_MAX];
  const flag_values *v = r->values;
  if (!r->more) r->more = program_exit_help();
  flag_read_all(r, argc, argv);
  log_use_format((log_format)v->log_format);
  output_file_spare(v->model);
  if (keys_folder(v->keys, folder, NULL) == ERR_OK) output_file_spare(folder);
  flag_variables_check(program);
}

bool worker_program_complete(const flag_values *v, bool needs_model, const logger *log) {
  const char *missing = needs_model && !v->model ? "-m MODEL"
                        : !v->orchestrator       ? "--orchestrator ENDPOINT"
                                                 : NULL;
  if (missing) log_line(log, LOG_ERROR, "%s is missing; see %s --help", missing, log->program);
  if (!missing && v->threads > cpus_threads())
    log_line(log, LOG_WARNING,
             "--threads %d is more than the %d processors that this program may use: that makes it slower",
             v->threads, cpus_threads());
  return !missing;
}

void worker_program_print_version(const char *program) {
  printf("%s %s (%s), wire protocol %d to %d\n", program, TANDEM_VERSION, TANDEM_COMMIT, WIRE_VERSION_MIN,
         WIRE_VERSION_MAX);
}
