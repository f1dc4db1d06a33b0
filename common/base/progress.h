/* progress.h - tells people how far a long piece of work is: on a terminal by a line that is rewritten and
 * taken away at the end, elsewhere, and where TERM or NO_COLOR ask for plain text, by a line of the log now
 * and then. Work that is soon done is not mentioned. */
#pragma once

#include "common/base/log.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROGRESS_QUIET_US    1000000  /* what is done by then is not mentioned */
#define PROGRESS_INTERVAL_US 10000000 /* between two lines of the log */

typedef struct progress {
  const char *what;           /* "loading the model" */
  const logger *log;          /* its program's name begins each line; may be NULL */
  bool rewrites;              /* a line of a terminal, rather than lines of the log */
  uint64_t began_us, said_us; /* said_us: the last line; 0: none */
  int percent;                /* that was said last */
} progress;

typedef enum { PROGRESS_NOTHING, PROGRESS_REWRITE, PROGRESS_LINE } progress_kind;

/* What to say when `done` of the work, in [0, 1], is done: text for a terminal as it is, or for the log.
 * Pure.
 */
progress_kind progress_tell(progress *p, double done, uint64_t now_us, char *out, size_t size);

/* Begins now. alone: nobody else writes to stderr meanwhile, so that a line may be rewritten there if it is a
 * terminal that takes that (common/base/terminal.h). */
progress progress_begin(const char *what, const logger *log, bool alone);
/* Says on stderr what there is to say; context: the progress. */
void progress_show(void *context, double done);
/* Takes the terminal's line away, where the work has ended without being done. */
void progress_end(progress *p);
