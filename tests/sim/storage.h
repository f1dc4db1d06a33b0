/* storage.h - the orchestrator's ledger over a simulated disk. The calls, the backlog and what a transaction
 * takes from it are production's; here is the file that transactions write, with the conditions of their
 * statements (ledger_transaction.c), each of which names the owner of a session.
 *
 * A transaction takes time, waits while the disk stands still, fails while it is full, once in a while only
 * in name, and at the death of the program it is there whole or not at all. A call that must wait for the
 * file waits for the end of a transaction, which comes at once then. */
#pragma once

#include "orchestrator/ledger/ledger_batch.h"
#include "tests/sim/toy.h"

#define STORAGE_RECORDS 8 /* more than sessions of one world at a time */

typedef struct storage_state { /* of one session on the disk */
  bool begun, ended;
  int32_t length;
  uint32_t epoch; /* the highest that may be sent */
} storage_state;

typedef struct storage_record {
  uint64_t session; /* 0: free */
  uint32_t owner;   /* the process that serves it; 0: none */
  bool taken;       /* another orchestrator has it, */
  bool lost;        /* and the process that had it does not know it yet: it may go no further than `held` */
  storage_state held;
  uint32_t foreign; /* the highest epoch that another orchestrator may have sent */
  uint64_t hash_seed;
  int32_t prompt_length;
  int32_t tokens[TOY_CONTEXT];
  storage_state disk;
} storage_record;

typedef struct storage {
  ledger calls; /* production's, of the process that lives */
  ledger_backlog backlog;
  ledger_batch batch;
  uint32_t process; /* counts its lives; as owner it stands for the one that lives */
  storage_record records[STORAGE_RECORDS];
  bool writes; /* a transaction is under way */
  bool full;   /* nothing can be written, */
  bool lies;   /* but the next transaction is there all the same */
  uint64_t stalled_until_us, retry_us, now_us;
} storage;

/* A process opens the ledger: *out lasts until storage_crash or storage_close. ERR_NOMEM: storage_close. */
int storage_open(storage *s, ledger *out);
/* It dies; if a transaction was under way, `lands` says whether it is there. */
void storage_crash(storage *s, bool lands);
void storage_close(storage *s);

/* Begins a transaction if there is anything to be written and none is under way: it ends with
 * storage_finish. */
bool storage_begin(storage *s, uint64_t now_us);
void storage_finish(storage *s);

/* Another orchestrator with workers of its own takes the session over, uses up some epochs and adds tokens
 * [count]. The process that had it can write nothing of it any more. */
void storage_take(storage_record *x, uint32_t epochs, const int32_t *tokens, int32_t count, bool ended);
/* The process that lives will resume a session that nobody has. */
void storage_claim(storage *s, uint64_t session);
/* What the process that has it, or had it, may show, acknowledge and send of a session. */
const storage_state *storage_own(const storage_record *x);
void storage_free(storage *s, uint64_t session); /* it lets it go; whoever asks for it may have it */
storage_record *storage_any(storage *s, uint64_t session); /* or NULL */

/* What the disk has of a session, or NULL. */
const storage_record *storage_find(const storage *s, uint64_t session);
void storage_drop(storage *s, uint64_t session); /* nobody asks for it any more */
