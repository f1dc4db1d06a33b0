/* kv_blocks.h - the books of a virtual cache: which blocks of KV_BLOCK rows are free, who holds which, and
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

typedef struct kv_block kv_block;

typedef struct kv_blocks {
  kv_block *of; /* [count] */
  int32_t *buckets, bucket_mask;
  int32_t count, free_first, free_count;
  int32_t kept_first, kept_last, kept_count; /* least recently used first */
  uint64_t evicted, shared; /* kept blocks that were taken for other rows; blocks that were found */
} kv_blocks;

int kv_blocks_init(kv_blocks *b, int32_t count, err *e); /* count >= 1; ERR_NOMEM */
void kv_blocks_fini(kv_blocks *b);

/* How many could be taken now: free or kept. */
int32_t kv_blocks_available(const kv_blocks *b);

/* Holds the findable blocks whose tokens are the longest beginning of tokens[0..count), in whole blocks;
 * returns how many, written to out[count / KV_BLOCK]. */
int32_t kv_blocks_find(kv_blocks *b, const int32_t *tokens, int32_t count, int32_t *out);
/* Holds `count` blocks whose rows are nobody's; false: there are not as many, nothing changes. */
bool kv_blocks_take(kv_blocks *b, int32_t count, int32_t *out);
/* The holder's block, whose rows are those of tokens[0..KV_BLOCK) after the findable `parent` or KV_NO_BLOCK,
 * can be found from now on. Where another has the same rows already, that one is held instead and the
 * holder's is given up. Returns the one that is held. */
int32_t kv_blocks_publish(kv_blocks *b, int32_t parent, const int32_t *tokens, int32_t block);
/* Gives up a sequence's blocks, or the last ones of them. */
void kv_blocks_release(kv_blocks *b, const int32_t *blocks, int32_t count);

/* For tests. */
int32_t kv_blocks_holders(const kv_blocks *b, int32_t block);
bool kv_blocks_check(const kv_blocks *b); /* do lists, counts and tree agree? */
