/* program.h - what the three programs' mains have in common: exit statuses, strict values, an identity, a
 * parent.
 */
#pragma once

#include "common/base/err.h"
#include "common/base/exit_status.h"
#include <stddef.h>
#include <stdint.h>

/* "Exit status: ..." for --help of a worker; static. */
const char *program_exit_help(void);
/* Exit status for an ERR_ code that ended the start of a program: of a file that was read, or of a device. */
int program_exit_of_file(int code);

/* The whole of `text` as a number in [low, high]. ERR_ARG names the flag, its range and what was given. */
int program_int(const char *flag, const char *text, int64_t low, int64_t high, int64_t *out, err *e);
int program_u64(const char *flag, const char *text, uint64_t *out, err *e);
int program_double(const char *flag, const char *text, double low, double high, double *out, err *e);
/* Bytes: a whole number with or without a unit, K, M, G or T (of 1024): "512M". */
int program_size(const char *flag, const char *text, int64_t *out, err *e);
/* The index of `text` in names[count], or ERR_ARG which lists them. */
int program_choice(const char *flag, const char *text, const char *const *names, int count, err *e);

/* "1.5 GiB", for people. */
typedef struct program_size_text {
  char text[16];
} program_size_text;
void program_print_size(program_size_text *out, uint64_t bytes);

/* The first thing that every program does: sets what it lives by, whoever started it, and however.
 * - A standard stream that was closed (`2>&-') would else be the next file or socket, and what is said would
 *   be written there. Now reading stdin fails, as does writing stdout, and what goes to stderr is lost.
 * - No signal is blocked; children are waited for; who writes to a closed pipe, or beyond the limit of a
 * file's size (ulimit -f), gets an error in place of a signal. SIGHUP, SIGINT and SIGTERM that are ignored
 * stay so (nohup).
 * - As many files may be open as the hard limit allows (ulimit -n).
 * - Threads have PROGRAM_STACK bytes of stack, and so has the first one where the hard limit (ulimit -s)
 * allows it. Ends the program with a sentence where that is less than PROGRAM_STACK_MIN. */
#define PROGRAM_STACK     (8 << 20)
#define PROGRAM_STACK_MIN (512 << 10)
void program_begin(const char *name);

/* How many files may be open in this process: descriptors are below it. */
int32_t program_files_max(void);

/* Random bytes of the system. ERR_IO. */
int program_random(void *out, size_t size, err *e);

/* Processors that this process may use, >= 1. */
int32_t program_processors(void);

/* Lives no longer than its parent: gets SIGHUP when that one ends, and leaves SIGINT (Ctrl-C goes to the
 * whole foreground group) to it. ERR_STATE when `parent` is not the parent any more: leave at once. */
int program_follow_parent(int64_t parent, err *e);
