#include "common/speculative/prefix.h"

#include "common/base/err.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int prefix_init(prefix *p, int32_t capacity, uint64_t seed) {
  assert(capacity >= 0);
  size_t room = (size_t)capacity + 1;
  *p = (prefix){.capacity = capacity, .seed = seed};
  p->tokens = malloc(room * sizeof *p->tokens);
  p->hashes = calloc(room, sizeof *p->hashes); /* hashes[0] is 16 zero bytes */
  if (p->tokens && p->hashes) return ERR_OK;
  prefix_fini(p);
  return ERR_NOMEM;
}

void prefix_fini(prefix *p) {
  free(p->tokens);
  free(p->hashes);
  *p = (prefix){0};
}

void prefix_reset(prefix *p, uint64_t seed) {
  p->length = 0;
  p->seed = seed;
}

/* Writes behind the length, where nobody looks yet, and returns the hash of the whole. */
static hash16 write_tail(prefix *p, const int32_t *tokens, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    int32_t n = p->length + i;
    p->tokens[n] = tokens[i];
    p->hashes[n + 1] = hash_next(p->hashes[n], p->seed, tokens[i]);
  }
  return p->hashes[p->length + count];
}

void prefix_reseed(prefix *p, uint64_t seed) {
  p->seed = seed;
  for (int32_t i = 0; i < p->length; i++) p->hashes[i + 1] = hash_next(p->hashes[i], seed, p->tokens[i]);
}

int prefix_append(prefix *p, const int32_t *tokens, int32_t count) {
  assert(count >= 0);
  if (count > p->capacity - p->length) return ERR_LIMIT;
  write_tail(p, tokens, count);
  p->length += count;
  return ERR_OK;
}

void prefix_truncate(prefix *p, int32_t length) {
  assert(length >= 0 && length <= p->length);
  p->length = length;
}

bool prefix_has(const prefix *p, int32_t length, hash16 hash) {
  return length >= 0 && length <= p->length && hash_equal(p->hashes[length], hash);
}

hash16 prefix_hash(const prefix *p) {
  return p->hashes[p->length];
}

prefix_verdict prefix_apply(prefix *p, int32_t base, const int32_t *tokens, int32_t count, hash16 hash,
                            int32_t *appended) {
  assert(base >= 0 && count >= 0);
  *appended = 0;
  if (base > p->length) return PREFIX_BEYOND;
  int32_t known = p->length - base;
  int32_t overlap = count < known ? count : known;
  if (overlap && memcmp(p->tokens + base, tokens, (size_t)overlap * sizeof *tokens)) return PREFIX_CONFLICT;
  int32_t fresh = count - overlap;
  /* Equal tokens after different prefixes look alike: only the hash tells. */
  if (fresh == 0) return prefix_has(p, base + count, hash) ? PREFIX_APPLIED : PREFIX_CONFLICT;
  if (fresh > p->capacity - p->length) return PREFIX_LIMIT;
  if (!hash_equal(write_tail(p, tokens + overlap, fresh), hash)) return PREFIX_CONFLICT;
  p->length += fresh;
  *appended = fresh;
  return PREFIX_APPLIED;
}
