/* logbook.h - which ledger a command writes: by --ledger a file, the default file or none, and what the loop
 * has to do for it: news of what is logged, and once a second what `tandem status` shows of the workers. */
#pragma once

#include "orchestrator/ledger/ledger_writer.h"
#include "orchestrator/sessions/sessions.h"
#include <uv.h>

typedef struct logbook logbook;

typedef struct logbook_options {
  uv_loop_t *loop;
  const char *ledger; /* a path, "none", or NULL: the default file, or memory if that cannot be used */
  const char *command, *model;
  hash16 fingerprint;
  uint64_t resume; /* as in ledger_writer_options; not 0: memory will not do */
  int64_t resume_updated;
  const logger *log;
  void (*on_logged)(void *context); /* on the loop's thread: more is logged */
  void *context;
} logbook_options;

/* The errors of ledger_writer_open and ledger_database_default_path. */
int logbook_open(logbook **out, const logbook_options *o, err *e);
/* Run the loop once more after it: only then is everything freed. NULL is allowed. */
void logbook_close(logbook *b);

ledger logbook_ledger(const logbook *b);
/* Whose workers are told of from now on. */
void logbook_watch(logbook *b, const sessions_machine *o);
bool logbook_is_file(const logbook *b);
/* A file that was asked for by name could not take everything. */
bool logbook_failed(const logbook *b);
