/* exit_status.h - the exit statuses of `tandem`. Scripts may rely on them; `tandem --help` prints them. Up to
 * 3 they mean the same as those of the workers (common/base/program.h). */
#pragma once

/* X(name, number, what it means) */
#define STATUS_LIST(X)                                                                                       \
  X(OK, 0, "done")                                                                                           \
  X(FAILED, 1, "failed at run time, also in part: lines of a batch, checks of doctor")                       \
  X(USAGE, 2, "a flag or argument is unknown, malformed or missing")                                         \
  X(MODEL, 3, "the model file is missing, damaged or of a kind that is not supported")                       \
  X(INPUT, 6, "a prompt or ids that cannot be used: empty, not UTF-8, longer than the context")              \
  X(WORKER, 7, "tandem-target or tandem-draft could not start, kept dying or reported an error")             \
  X(IO, 8, "a file, a stream or the address of --listen could not be used")                                  \
  X(HANGUP, 129, "ended by SIGHUP; the answer so far was given")                                             \
  X(INTERRUPTED, 130, "ended by Ctrl-C (SIGINT); the answer so far was given")                               \
  X(TERMINATED, 143, "ended by SIGTERM; the answer so far was given")

#define STATUS_ENUM(name, number, text) STATUS_##name = number,
typedef enum { STATUS_LIST(STATUS_ENUM) } exit_status;
#undef STATUS_ENUM
