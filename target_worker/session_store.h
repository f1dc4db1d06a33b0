/* session_store.h - the target's sessions: which exist, in which slot of the cache, and how long they may
 * stay.
 *
 * The number of slots is fixed and their memory is taken once. A conversation's next request finds the rows
 * of those before it. Static cache: the rows of an ended session stay until its slot is taken again. Virtual
 * cache: the full blocks of all sessions can be found (block_pool.h), and several sessions may share one.
 * From its OPEN to its end, a session holds the blocks for its whole completion, so it never runs out of
 * them. They are given back at once, even while a job of it is under way: batches come one after the other,
 * so whoever takes them writes later. Finished sessions make room for new ones, least recently used first;
 * running ones never do. */
#pragma once

#include "common/base/err.h"
#include "common/model/block_pool.h"
#include "target_worker/session.h"

#define SESSION_STORE_LEASE_US 10000000

typedef struct session_store {
  session *slots;         /* [count] */
  int32_t count, context; /* context: tokens of one session */
  bool is_virtual;
  block_pool blocks;        /* of a virtual cache */
  taps_offer taps;          /* the features that drafts may be granted */
  uint64_t reused_rows;     /* rows that new sessions found in the cache */
  uint64_t longest_step_us; /* the longest time between two steps of one session */
} session_store;

/* blocks: of a virtual cache; 0: static. ERR_NOMEM. */
int session_store_init(session_store *store, int32_t count, int32_t context, int32_t blocks, err *e);
void session_store_fini(session_store *store);

session *session_store_get(session_store *store, uint64_t id); /* NULL: none */
/* Finds a session, or takes a slot for a new one (*fresh). NULL: the store is full. It prefers a free slot
 * whose cache begins with these tokens: then C is that beginning and cache.rows counts its rows. Otherwise C
 * is empty, and it takes the slot that has been free longest or, if none is free, that of the least recently
 * used finished session. */
session *session_store_take(session_store *store, uint64_t id, uint64_t now_us, const int32_t *tokens,
                            int32_t count, bool *fresh);
/* Virtual cache: takes blocks for a session whose C has just been set, with cache.rows of it in the cache, so
 * that it can grow to `tokens` tokens, of which all but the last have rows. It may find more rows in the
 * prefix cache. ERR_FULL: there are too few blocks now; ERR_LIMIT: there will never be enough. After an error
 * the session holds no blocks. Static cache: does nothing. */
int session_store_admit(session_store *store, session *s, int32_t tokens, err *e);
/* The session's first `committed` rows are committed: lets other sessions find the blocks that these rows
 * fill. */
void session_store_publish(session_store *store, session *s, int32_t committed);
/* Gives back the session's blocks, because it needs no rows any more. Static cache: does nothing. */
void session_store_give_back(session_store *store, session *s);
/* Allocates the history that penalties look at; false: out of memory. */
bool session_store_penalties(const session_store *store, session *s);
/* Allocates the marks of accepted tokens; false: out of memory. */
bool session_store_accepted(const session_store *store, session *s);
/* Renews the session's lease, because its orchestrator has shown that it still wants it. */
void session_store_renew(session *s, uint64_t now_us);
/* Ends one session that nobody has renewed for SESSION_STORE_LEASE_US, and sets *id to it; false: there is
 * none. */
bool session_store_purge(session_store *store, uint64_t now_us, uint64_t *id);
/* Of the next session_store_purge; UINT64_MAX: none. */
uint64_t session_store_deadline(const session_store *store);
bool session_store_end(session_store *store, uint64_t id); /* whether it existed */
int32_t session_store_active(const session_store *store);  /* running or desynced */
bool session_store_empty(const session_store *store);
