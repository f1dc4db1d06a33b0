/* owner_lock.h - tells for certain whether the orchestrator that serves a session still lives.
 *
 * While it lives, every orchestrator holds a lock on one byte of the file LEDGER-owners, at an offset that
 * its id gives (an OFD lock, fcntl(2)). The kernel releases it when the process dies, however it dies, and it
 * is seen from every PID namespace and container; no clock is asked. Only one thing cannot be known: on a
 * file system that hosts share, a lock of another host may not be seen. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stdint.h>

typedef enum owner_state {
  OWNER_DEAD,     /* for certain */
  OWNER_ALIVE,    /* it holds its lock */
  OWNER_ELSEWHERE /* on another host, as far as is known: only a person can say that it is dead */
} owner_state;

#define OWNER_LOCK_BESIDE "-owners" /* after the name of the ledger */

#define OWNER_LOCK_HOST_MAX 40
/* What this host is called in the ledger. It changes when the host boots. */
void owner_lock_host(char out[OWNER_LOCK_HOST_MAX]);

/* Takes the lock of this process before anything in the ledger names it as an owner. *fd is for
 * owner_lock_release. ERR_IO: the file cannot be made, or its file system has no locks. */
int owner_lock_take(int *fd, const char *ledger, uint64_t owner, err *e);
/* Takes the locks of all: no orchestrator lives then, and none starts until the release. ERR_STATE: one
 * lives. */
int owner_lock_take_all(int *fd, const char *ledger, err *e);
void owner_lock_release(int fd); /* -1 is allowed */

/* host: owner_lock_host, as the owner has written it. */
owner_state owner_lock_state(const char *ledger, uint64_t owner, const char *host);

/* The same of an owner that is known to hold no lock here. */
owner_state owner_lock_unlocked(const char *ledger, const char *host);

/* Are these two names one host? A host that has found no id of its own is called zeros: it may be any. */
bool owner_lock_same_host(const char *one, const char *other);

/* The rule by itself. local: no other host can use the ledger's file system, so that every lock is seen. */
owner_state owner_lock_judge(bool locked, bool same_host, bool local);
