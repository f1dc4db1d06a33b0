/* ledger_file.h - the ledger in a file, beside the one in memory that it is written from (ledger_writer.h).
 *
 * Normally no call waits for the file. What is not written yet is what memory holds beyond `durable`, so
 * there is no queue that could fill. When the file cannot be written (the disk is full, or another process
 * holds its lock), one warning says so, and `durable` stays where it is until it can be written again. */
#pragma once

#include "common/base/log.h"
#include "orchestrator/ledger/ledger.h"

typedef enum ledger_mode {                /* what `durable` promises */
                           LEDGER_NORMAL, /* it survives kill -9; a power cut may cost the last seconds, never
                                             the file */
                           LEDGER_DURABLE, /* it survives a power cut: every transaction is synced to the disk
                                            */
                           LEDGER_FAST /* nothing: what memory holds counts, and the file follows when it can
                                        */
} ledger_mode;

typedef struct ledger_file_options {
  const char *path; /* made if it is not there */
  ledger_mode mode;
  const char *command; /* what this process does, for `tandem status` */
  const char *model;   /* its path */
  hash16 fingerprint;
  uint64_t resume; /* this session is taken over; 0: none */
  /* When the session had changed last, as it was read: it must not have changed since. */
  int64_t resume_updated;
  const logger *log;
  void (*on_durable)(void *context); /* on the writer's thread: look at `durable` again */
  void *context;
} ledger_file_options;

/* The errors of ledger_database_open; ERR_STATE: the session to resume is served by another process, or has
 * changed. */
int ledger_file_open(ledger *out, const ledger_file_options *o, err *e);
/* What `tandem status` shows of the workers, JSON; copied. */
void ledger_file_set_workers(ledger *l, const char *json);
/* The file could not be written, and has not been since. */
bool ledger_file_failing(const ledger *l);
