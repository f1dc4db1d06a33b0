/* prefix.h - the committed tokens of a session, with the hash of every prefix, and the one rule by which
 * TOKENS are applied.
 *
 * All three programs keep one of these for each session. The identity of a prefix is (epoch, length, hash);
 * the owner keeps the epoch. Memory is taken once at init; no function below allocates after that. */
#pragma once

#include "common/base/hash.h"

typedef struct prefix {
  int32_t *tokens; /* [capacity] */
  hash16 *hashes;  /* [capacity + 1]; hashes[n] is the hash of the first n tokens */
  int32_t length, capacity;
  uint64_t seed; /* the session's hash seed */
} prefix;

int prefix_init(prefix *p, int32_t capacity, uint64_t seed); /* ERR_NOMEM */
void prefix_fini(prefix *p);

/* Drops all tokens and changes the seed. */
void prefix_reset(prefix *p, uint64_t seed);

/* Keeps the tokens and computes their hashes anew with another seed. */
void prefix_reseed(prefix *p, uint64_t seed);

int prefix_append(prefix *p, const int32_t *tokens, int32_t count); /* ERR_LIMIT changes nothing */
void prefix_truncate(prefix *p, int32_t length);                    /* length <= p->length */

/* Does p hold a prefix of this length and hash? False beyond p->length. */
bool prefix_has(const prefix *p, int32_t length, hash16 hash);
hash16 prefix_hash(const prefix *p); /* of all of it */

typedef enum {
  PREFIX_APPLIED,  /* *appended >= 0 tokens were new */
  PREFIX_BEYOND,   /* base is past our length: ask RESEND from p->length */
  PREFIX_CONFLICT, /* an overlapping token or the final hash differs: DESYNC */
  PREFIX_LIMIT     /* the tokens would exceed the capacity */
} prefix_verdict;

/* Applies TOKENS(base, tokens[count], hash after them). Nothing changes unless the verdict is PREFIX_APPLIED.
 * Repetition and reordering are harmless by this rule alone. */
prefix_verdict prefix_apply(prefix *p, int32_t base, const int32_t *tokens, int32_t count, hash16 hash,
                            int32_t *appended);
