/* ledger_backlog.h - what the ledger in memory holds and its file does not hold yet, with a track for each
 * session. The orchestrator's thread (ledger_file.c) and the writer's (ledger_writer.c) share it under its
 * lock, which is never held during I/O. */
#pragma once

#include "orchestrator/ledger/ledger.h"
#include "orchestrator/ledger/ledger_transaction.h"
#include <pthread.h>

typedef struct ledger_backlog {
  pthread_mutex_t lock; /* of everything below */
  pthread_cond_t news;  /* for the writer: there is work, or it should stop */
  pthread_cond_t done;  /* for the orchestrator: a transaction has ended */
  /* Waits until a transaction ends, under the lock. False: the monotonic clock has reached until_us before.
   * Of ledger_backlog_init; the simulation has its own. */
  bool (*wait)(struct ledger_backlog *b, uint64_t until_us);
  ledger memory;
  bool stop, dirty, urgent; /* urgent: the writer must not wait for more */
  bool failing;             /* the file cannot be written */
  bool fast;                /* what memory holds counts as durable (LEDGER_FAST) */
  ledger_track *tracks;     /* [count] */
  int32_t count, capacity;
  char *workers;       /* JSON or NULL */
  uint64_t tokens_new; /* since the last heartbeat */
} ledger_backlog;

int ledger_backlog_init(ledger_backlog *b); /* ERR_NOMEM: ledger_backlog_fini all the same */
void ledger_backlog_fini(ledger_backlog *b);

/* The functions below are called under the lock. */

ledger_track *ledger_backlog_find(const ledger_backlog *b,
                                  uint64_t session);               /* NULL: none, or it is forgotten */
int ledger_backlog_add(ledger_backlog *b, const ledger_record *r); /* ERR_NOMEM changes nothing */
/* Forgets the session of a track for good. */
void ledger_backlog_remove(ledger_backlog *b, ledger_track *t);
bool ledger_backlog_has_news(const ledger_backlog *b, const ledger_track *t);
int32_t ledger_backlog_length(const ledger_backlog *b, uint64_t session); /* tokens in memory */
void ledger_backlog_wake(ledger_backlog *b, bool urgent);                 /* wakes the writer */
