/* worker_program.h - what the mains of both workers have in common: their flags are read, what is missing is
 * said. */
#pragma once

#include "common/base/log.h"
#include "common/command_line/flag_reader.h"

#define WORKER_DEVICE_DEFAULT "cpu"

/* --busy-poll of a target on a GPU, and of its draft: as long as the forward of a small model takes. Beside
 * longer ones it does not matter how late a thread wakes. */
#define WORKER_BUSY_POLL_US 2000

/* Reads the command line and the environment as flag_read_all does, with the exit statuses as the end of
 * --help; variables that nobody reads are warned of, and what is read is never written over. */
void worker_program_read(flag_program *r, const char *program, int argc, char **argv);

/* Is all there that the worker cannot do without? If not, the log says what to give. */
bool worker_program_complete(const flag_values *v, bool needs_model, const logger *log);

/* The line of --version that every worker begins with: name, version, commit and protocol. */
void worker_program_print_version(const char *program);
