/* block_pool.h - manages the blocks of a virtual cache: which blocks of KV_BLOCK rows are free, which
 * sequence holds which, and which tokens' rows they contain. Pure: it touches no rows and no device. One
 * thread.
 *
 * A block is free, held by one or more sequences, or cached: no sequence holds it, but its rows can be found
 * again. A full block enters the prefix cache when it is published: it becomes a node of a radix tree, below
 * the block of the 16 tokens before it, and is found by comparing tokens. From then on it is never written
 * again. A sequence that holds such a block also holds those above it. Blocks are given up deepest first, so
 * the least recently used cached block has nothing below it and can be evicted.
 *
 * After vLLM's automatic prefix caching (Kwon et al., SOSP 2023) and SGLang's RadixAttention (Zheng et al.,
 * 2024). */
#pragma once

#include "common/base/err.h"
#include "common/model/kv_cache.h"

#define KV_NO_BLOCK (-1)

typedef struct block_pool_block block_pool_block;

typedef struct block_pool {
  block_pool_block *of; /* [count] */
  int32_t *buckets, bucket_mask;
  int32_t count, free_first, free_count;
  int32_t cached_first, cached_last, cached_count; /* least recently used first */
  uint64_t evicted, shared; /* cached blocks that were taken for other rows; blocks that were found */
} block_pool;

int block_pool_init(block_pool *b, int32_t count, err *e); /* count >= 1; ERR_NOMEM */
void block_pool_fini(block_pool *b);

/* How many blocks could be taken now, which are the free and the cached ones. */
int32_t block_pool_available(const block_pool *b);

/* Finds the published blocks for the longest prefix of tokens[0..count), in whole blocks, and holds them.
 * Writes them to out[count / KV_BLOCK] and returns how many. */
int32_t block_pool_find(block_pool *b, const int32_t *tokens, int32_t count, int32_t *out);
/* Takes `count` blocks for new rows. False: there are too few, and nothing changes. */
bool block_pool_take(block_pool *b, int32_t count, int32_t *out);
/* Publishes a held block, whose rows are those of tokens[0..KV_BLOCK) after the published block `parent` (or
 * KV_NO_BLOCK). If another block with the same rows is published already, that one is held instead and this
 * one is given up. Returns the block that is held. */
int32_t block_pool_publish(block_pool *b, int32_t parent, const int32_t *tokens, int32_t block);
/* Gives up a sequence's blocks, or the last ones of them. */
void block_pool_release(block_pool *b, const int32_t *blocks, int32_t count);

/* For tests: */
int32_t block_pool_holders(const block_pool *b, int32_t block);
bool block_pool_check(const block_pool *b); /* whether lists, counts and tree agree */
