/* ledger_choice.h - opens the ledger that a service writes: a named file, the default file, or, for "none", a
 * ledger in memory. On the loop's thread it tells the service when more is logged, and once a second it
 * writes which workers there are. */
#pragma once

#include "orchestrator/ledger/ledger_file.h"
#include "orchestrator/sessions/sessions.h"
#include <uv.h>

typedef struct ledger_choice ledger_choice;

typedef struct ledger_choice_options {
  uv_loop_t *loop;
  const char *ledger; /* a path, "none", or NULL: the default file, or memory if that cannot be used */
  ledger_mode mode;
  const char *command, *model;
  hash16 fingerprint;
  uint64_t resume; /* as in ledger_file_options; unless it is 0, memory does not suffice */
  int64_t resume_updated;
  const logger *log;
  void (*on_logged)(void *context); /* the writer has put more into the file; called on the loop's thread */
  void (*on_new_file)(void *context, const char *path); /* the default file has just been created; or NULL */
  void *context;
} ledger_choice_options;

/* The errors of ledger_file_open and ledger_database_default_path. */
int ledger_choice_open(ledger_choice **out, const ledger_choice_options *o, err *e);
/* Run the loop once more afterwards, because only then is everything freed. NULL is allowed. */
void ledger_choice_close(ledger_choice *c);

ledger ledger_choice_ledger(const ledger_choice *c);
/* From now on the workers of this machine are written to the file once a second; NULL: no workers are. */
void ledger_choice_watch(ledger_choice *c, const sessions_machine *o);
/* Does a file keep the sessions, and has it taken everything until now? */
bool ledger_choice_keeps(const ledger_choice *c);
/* Did a named file fail to take everything? */
bool ledger_choice_failed(const ledger_choice *c);
