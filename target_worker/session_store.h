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
#include "target_worker/session_grammar.h"
#include "target_worker/speculation.h"

#define SESSION_STORE_LEASE_US 10000000

typedef struct session_store {
  session *slots;         /* [count] */
  int32_t count, context; /* context: tokens of one session */
  bool is_virtual;
  uint32_t generations;                  /* the highest one that a session which is gone has given out */
  block_pool blocks;                     /* of a virtual cache */
  taps_offer taps;                       /* the features that drafts may be granted */
  const speculation_shared *speculation; /* what forwards cost; NULL: that is not known */
  session_grammar_source vocabulary;     /* for grammars */
  bool plain_drafts;        /* the draft that attached last reads no features: the next one is likely to */
  uint64_t reused_rows;     /* rows that new sessions found in the cache */
  uint64_t repeated_rows;   /* rows that were there and were dropped to be computed again */
  uint64_t longest_step_us; /* the longest time between two steps of one session */
  session_ahead ahead;      /* of all sessions that ever were, */
  session_chunks chunks;    /* likewise */
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
/* Shortens what counts as the session's rows, so that the next jobs compute the rows behind it again, to the
 * same bits; only while none of its jobs is under way. Virtual cache: blocks that others may read are left
 * for others, so up to KV_BLOCK - 1 more rows may go; false: there are too few blocks, and nothing changes.
 */
bool session_store_rewind(session_store *store, session *s, int32_t rows);
/* The session's first `committed` rows are committed: lets other sessions find the blocks that these rows
 * fill. */
void session_store_publish(session_store *store, session *s, int32_t committed);
/* Gives back the session's blocks, because it needs no rows any more. Static cache: does nothing. */
void session_store_give_back(session_store *store, session *s);
/* Allocates what jobs with these options carry, beside the options; false: out of memory. */
bool session_store_sampling(const session_store *store, session *s, const msg_options *o);
/* Allocates the marks of accepted tokens; false: out of memory. */
bool session_store_accepted(const session_store *store, session *s);
/* Allocates room for `each` log-probabilities of a token, none of which are there yet; false: out of memory.
 */
bool session_store_logprobs(session *s, int32_t each);
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
