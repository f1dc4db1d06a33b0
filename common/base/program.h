/* program.h - what the three programs' mains have in common: exit codes, strict flags, an identity, a parent.
 */
#pragma once

#include "common/base/err.h"
#include <stddef.h>
#include <stdint.h>

/* X(name, number, meaning): --help of every program prints this table. */
#define PROGRAM_EXIT_LIST(X)                                                                                 \
  X(OK, 0, "done; a worker: drained and left after SIGTERM or SIGINT")                                       \
  X(FAILED, 1, "failed at run time; the last line on stderr says why")                                       \
  X(USAGE, 2, "a flag or argument is unknown, missing or out of range")                                      \
  X(FILE, 3, "an input file is missing, unreadable or not what it claims to be")                             \
  X(ADDRESS, 4, "an endpoint is malformed or in use, or a key for it is missing")                            \
  X(REFUSED, 5, "a peer refuses to work with this program (version, vocabulary, model)")                     \
  X(DEVICE, 6, "what the program computes on is lost: a driver error that stays, a reset, a removed card")   \
  X(SIGNAL, 130, "ended at once: a second signal, or the parent is gone")
#define PROGRAM_EXIT_ENUM(name, number, text) PROGRAM_EXIT_##name = number,
enum { PROGRAM_EXIT_LIST(PROGRAM_EXIT_ENUM) };
#undef PROGRAM_EXIT_ENUM

/* "Exit status: ..." for --help; static. */
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
