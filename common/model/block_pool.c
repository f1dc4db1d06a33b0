#include "common/model/block_pool.h"

#include "common/base/hash.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct block_pool_block {
  int32_t holders;
  bool findable;
  int32_t parent, children; /* of a findable one; children: findable ones below */
  int32_t in_bucket;        /* the next one of its bucket */
  int32_t before, after;    /* in the list of kept blocks; after: also in that of free ones */
  int32_t tokens[KV_BLOCK];
};

/* --- lists --- */

static void push_free(block_pool *b, int32_t block) {
  b->of[block].after = b->free_first;
  b->free_first = block;
  b->free_count++;
}

static int32_t pop_free(block_pool *b) {
  int32_t block = b->free_first;
  b->free_first = b->of[block].after;
  b->free_count--;
  return block;
}

static void keep(block_pool *b, int32_t block) {
  b->of[block].before = b->cached_last;
  b->of[block].after = KV_NO_BLOCK;
  if (b->cached_last >= 0)
    b->of[b->cached_last].after = block;
  else
    b->cached_first = block;
  b->cached_last = block;
  b->cached_count++;
}

static void unkeep(block_pool *b, int32_t block) {
  const block_pool_block *k = &b->of[block];
  if (k->before >= 0)
    b->of[k->before].after = k->after;
  else
    b->cached_first = k->after;
  if (k->after >= 0)
    b->of[k->after].before = k->before;
  else
    b->cached_last = k->before;
  b->cached_count--;
}

/* --- the tree: its edges are in a hash table --- */

static int32_t *bucket_of(const block_pool *b, int32_t parent, const int32_t *tokens) {
  int32_t key[KV_BLOCK + 1] = {parent};
  uint32_t h;
  memcpy(key + 1, tokens, KV_BLOCK * sizeof *tokens);
  hash16 hash = hash_bytes(key, sizeof key);
  memcpy(&h, hash.bytes, sizeof h);
  return &b->buckets[h & (uint32_t)b->bucket_mask];
}

static int32_t child_of(const block_pool *b, int32_t parent, const int32_t *tokens) {
  int32_t i = *bucket_of(b, parent, tokens);
  while (i >= 0 &&
         (b->of[i].parent != parent || memcmp(b->of[i].tokens, tokens, sizeof b->of[i].tokens) != 0))
    i = b->of[i].in_bucket;
  return i;
}

static void add_node(block_pool *b, int32_t parent, const int32_t *tokens, int32_t block) {
  block_pool_block *k = &b->of[block];
  int32_t *bucket = bucket_of(b, parent, tokens);
  memcpy(k->tokens, tokens, sizeof k->tokens);
  k->findable = true;
  k->parent = parent;
  k->children = 0;
  k->in_bucket = *bucket;
  *bucket = block;
  if (parent >= 0) b->of[parent].children++;
}

static void drop_node(block_pool *b, int32_t block) {
  block_pool_block *k = &b->of[block];
  assert(k->findable && k->holders == 0 && k->children == 0);
  int32_t *link = bucket_of(b, k->parent, k->tokens);
  while (*link != block) link = &b->of[*link].in_bucket;
  *link = k->in_bucket;
  k->findable = false;
  if (k->parent >= 0) b->of[k->parent].children--;
}

/* --- life --- */

int block_pool_init(block_pool *b, int32_t count, err *e) {
  int32_t buckets = 1;
  assert(count >= 1);
  while (buckets < count && buckets <= INT32_MAX / 2) buckets *= 2;
  *b = (block_pool){.count = count,
                    .free_first = KV_NO_BLOCK,
                    .cached_first = KV_NO_BLOCK,
                    .cached_last = KV_NO_BLOCK,
                    .bucket_mask = buckets - 1};
  b->of = calloc((size_t)count, sizeof *b->of);
  b->buckets = malloc((size_t)buckets * sizeof *b->buckets);
  if (!b->of || !b->buckets) {
    block_pool_fini(b);
    return err_set(e, ERR_NOMEM, "no memory for the books of %d cache blocks: lower --kv-blocks", count);
  }
  for (int32_t i = 0; i < buckets; i++) b->buckets[i] = KV_NO_BLOCK;
  for (int32_t i = count - 1; i >= 0; i--) push_free(b, i);
  return ERR_OK;
}

void block_pool_fini(block_pool *b) {
  free(b->of);
  free(b->buckets);
  *b = (block_pool){0};
}

int32_t block_pool_available(const block_pool *b) {
  return b->free_count + b->cached_count;
}

/* --- holding --- */

static void hold(block_pool *b, int32_t block) {
  if (b->of[block].holders++ == 0 && b->of[block].findable) unkeep(b, block);
}

static void give_up(block_pool *b, int32_t block) {
  block_pool_block *k = &b->of[block];
  assert(k->holders > 0);
  if (--k->holders > 0) return;
  if (k->findable)
    keep(b, block);
  else
    push_free(b, block);
}

int32_t block_pool_find(block_pool *b, const int32_t *tokens, int32_t count, int32_t *out) {
  int32_t found = 0, parent = KV_NO_BLOCK;
  for (; (found + 1) * KV_BLOCK <= count; found++) {
    int32_t block = child_of(b, parent, tokens + found * KV_BLOCK);
    if (block < 0) break;
    hold(b, block);
    out[found] = parent = block;
  }
  b->shared += (uint64_t)found;
  return found;
}

static int32_t evict(block_pool *b) {
  int32_t block = b->cached_first;
  unkeep(b, block);
  drop_node(b, block);
  b->evicted++;
  return block;
}

bool block_pool_take(block_pool *b, int32_t count, int32_t *out) {
  if (count > block_pool_available(b)) return false;
  for (int32_t i = 0; i < count; i++) {
    out[i] = b->free_count > 0 ? pop_free(b) : evict(b);
    hold(b, out[i]);
  }
  return true;
}

int32_t block_pool_publish(block_pool *b, int32_t parent, const int32_t *tokens, int32_t block) {
  assert(b->of[block].holders == 1 && !b->of[block].findable);
  assert(parent == KV_NO_BLOCK || (b->of[parent].findable && b->of[parent].holders > 0));
  int32_t same = child_of(b, parent, tokens);
  if (same < 0) {
    add_node(b, parent, tokens, block);
    return block;
  }
  hold(b, same);
  give_up(b, block);
  return same;
}

void block_pool_release(block_pool *b, const int32_t *blocks, int32_t count) {
  for (int32_t i = count - 1; i >= 0; i--) give_up(b, blocks[i]);
}

/* --- for tests --- */

int32_t block_pool_holders(const block_pool *b, int32_t block) {
  return b->of[block].holders;
}

static bool node_right(const block_pool *b, int32_t i) {
  const block_pool_block *k = &b->of[i];
  if (child_of(b, k->parent, k->tokens) != i) return false;
  return k->parent < 0 || (b->of[k->parent].findable && b->of[k->parent].holders >= (k->holders > 0));
}

bool block_pool_check(const block_pool *b) {
  int32_t held = 0, below = 0, children = 0, kept = 0, unheld = 0, before = KV_NO_BLOCK;
  for (int32_t i = 0; i < b->count; i++) {
    const block_pool_block *k = &b->of[i];
    held += k->holders > 0;
    if (!k->findable) continue;
    children += k->children;
    below += k->parent >= 0;
    if (!node_right(b, i)) return false;
  }
  for (int32_t i = b->cached_first; i >= 0; before = i, i = b->of[i].after, kept++)
    if (b->of[i].holders || !b->of[i].findable || b->of[i].before != before) return false;
  for (int32_t i = b->free_first; i >= 0; i = b->of[i].after, unheld++)
    if (b->of[i].holders || b->of[i].findable) return false;
  return kept == b->cached_count && unheld == b->free_count && held + kept + unheld == b->count &&
         children == below && before == b->cached_last;
}
