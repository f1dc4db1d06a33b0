/* block_pool.h - the books of a virtual cache: which blocks of KV_BLOCK rows are free, who holds which, and
 * which hold the rows of which tokens. Pure: no rows, no device; one thread.
 *
 * A block is free, or held by one or more sequences, or kept: nobody holds it, but its rows can be found
 * again. A full block that is published becomes findable: a node of a radix tree, below the block of the 16
 * tokens before it. It is found by comparing tokens. A findable block is never written again. Who holds a
 * findable block holds those above it, so that of the kept ones, given up deepest first, the least recently
 * used has nothing below it and can go.
 *
 * After vLLM's automatic prefix caching (Kwon et al., SOSP 2023) and SGLang's RadixAttention (Zheng et al.,
 * 2024). */
#pragma once

#include "common/base/err.h"
#include "common/model/kv_cache.h"

#define KV_NO_BLOCK (-1)

typedef struct pool_block pool_block;

typedef struct block_pool {
  pool_block *of; /* [count] */
  int32_t *buckets, bucket_mask;
  int32_t count, free_first, free_count;
  int32_t kept_first, kept_last, kept_count; /* least recently used first */
  uint64_t evicted, shared; /* kept blocks that were taken for other rows; blocks that were found */
} block_pool;

int block_pool_init(block_pool *b, int32_t count, err *e); /* count >= 1; ERR_NOMEM */
void block_pool_fini(block_pool *b);

/* How many could be taken now: free or kept. */
int32_t block_pool_available(const block_pool *b);

/* Holds the findable blocks whose tokens are the longest beginning of tokens[0..count), in whole blocks;
 * returns how many, written to out[count / KV_BLOCK]. */
int32_t block_pool_find(block_pool *b, const int32_t *tokens, int32_t count, int32_t *out);
/* Holds `count` blocks whose rows are nobody's; false: there are not as many, nothing changes. */
bool block_pool_take(block_pool *b, int32_t count, int32_t *out);
/* The holder's block, whose rows are those of tokens[0..KV_BLOCK) after the findable `parent` or KV_NO_BLOCK,
 * can be found from now on. Where another has the same rows already, that one is held instead and the
 * holder's is given up. Returns the one that is held. */
int32_t block_pool_publish(block_pool *b, int32_t parent, const int32_t *tokens, int32_t block);
/* Gives up a sequence's blocks, or the last ones of them. */
void block_pool_release(block_pool *b, const int32_t *blocks, int32_t count);

/* For tests. */
int32_t block_pool_holders(const block_pool *b, int32_t block);
bool block_pool_check(const block_pool *b); /* do lists, counts and tree agree? */
