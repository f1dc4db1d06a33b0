/* exit_status.h - the exit statuses of all programs. Scripts may rely on them; --help prints them. */
#pragma once

/* X(name, number, meaning): of every program, of tandem, of the workers. */
#define STATUS_LIST(ALL, TANDEM, WORKERS)                                                                    \
  ALL(OK, 0, "done; of a worker: drained and left after SIGTERM or SIGINT")                                  \
  ALL(FAILED, 1, "failed at run time, also in part: lines of a batch, checks of doctor")                     \
  ALL(USAGE, 2, "a flag or argument is unknown, malformed, missing or out of range")                         \
  ALL(FILE, 3, "an input file, such as the model, is missing, damaged or of a kind that is not supported")   \
  WORKERS(ADDRESS, 4, "an endpoint is malformed or in use, or a key for it is missing")                      \
  WORKERS(REFUSED, 5, "a peer refuses to work with this program (version, vocabulary, model)")               \
  TANDEM(INPUT, 6, "a prompt or ids that cannot be used: empty, not UTF-8, longer than the context")         \
  TANDEM(WORKER, 7, "tandem-target or tandem-draft could not start, kept dying or reported an error")        \
  ALL(IO, 8, "a file, a stream or the address of --listen could not be used")                                \
  WORKERS(DEVICE, 9, "what it computes on is lost: a driver error that stays, a reset, a removed card")      \
  TANDEM(HANGUP, 129, "ended by SIGHUP; the answer so far was given")                                        \
  ALL(INTERRUPTED, 130, "ended by Ctrl-C (SIGINT); a worker: by a second signal, or its parent is gone")     \
  TANDEM(TERMINATED, 143, "ended by SIGTERM; the answer so far was given")

#define STATUS_ENUM(name, number, text) STATUS_##name = number,
typedef enum { STATUS_LIST(STATUS_ENUM, STATUS_ENUM, STATUS_ENUM) } exit_status;
#undef STATUS_ENUM
