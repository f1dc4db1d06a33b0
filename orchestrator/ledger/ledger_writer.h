/* ledger_writer.h - the ledger in a file, beside the one in memory that it is made from.
 *
 * A writer thread takes everything that is new, of all sessions, into one transaction (group commit), at most
 * one every LEDGER_GROUP_US but for beginnings and ends, which do not wait. Nothing waits for it: what it has
 * not written yet is what memory holds beyond `durable`, so there is no queue that could fill. What a
 * committed transaction holds survives the death of this process; a power cut may lose the last ones
 * (synchronous = NORMAL), never the file.
 *
 * When the file cannot be written (disk full, or locked for LEDGER_STALL_US) one warning says so, and the
 * answers go on: `durable` is then what memory holds. It is tried again every second, and nothing is missing
 * when it succeeds. */
#pragma once

#include "common/base/log.h"
#include "orchestrator/ledger/ledger.h"

#define LEDGER_GROUP_US     50000
#define LEDGER_STALL_US     30000000 /* a lock of another process is waited for so long */
#define LEDGER_RETRY_US     1000000
#define LEDGER_BEAT_US      1000000 /* the row of this process is renewed, while answers run */
#define LEDGER_IDLE_BEAT_US 5000000
#define LEDGER_EPOCHS_AHEAD 16 /* epochs are recorded so many ahead, so that a new one need not wait */

typedef struct ledger_writer_options {
  const char *path;    /* made if it is not there */
  const char *command; /* what this process does, for `tandem status` */
  const char *model;   /* its path */
  hash16 fingerprint;
  uint64_t resume;        /* this session is taken over; 0: none */
  int64_t resume_updated; /* as it was when it was read: it must not have changed since */
  const logger *log;
  void (*on_durable)(void *context); /* on the writer's thread: look at `durable` again */
  void *context;
} ledger_writer_options;

/* The errors of ledger_database_open; ERR_STATE: the session to resume is served by another process, or has
 * changed. */
int ledger_writer_open(ledger *out, const ledger_writer_options *o, err *e);
/* What `tandem status` tells of the workers, JSON; copied. */
void ledger_writer_set_workers(ledger *l, const char *json);
/* It could not be written, and has not been since. */
bool ledger_writer_failing(const ledger *l);
