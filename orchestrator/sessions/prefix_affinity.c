#include "orchestrator/sessions/prefix_affinity.h"

#include "common/base/hash.h"
#include <string.h>

/* The key of a beginning at a worker; with each call the beginning is longer by one stride. */
static uint64_t next_key(hash16 *chain, const int32_t *tokens) {
  uint64_t key;
  *chain = hash_fold(*chain, tokens, PREFIX_AFFINITY_STRIDE * sizeof *tokens);
  memcpy(&key, chain->bytes, sizeof key);
  return key ? key : 1; /* 0 is an empty slot */
}

void prefix_affinity_add(prefix_affinity *a, uint64_t worker, const int32_t *tokens, int32_t count) {
  hash16 chain = hash_bytes(&worker, sizeof worker);
  for (int32_t i = 0; i + PREFIX_AFFINITY_STRIDE <= count; i += PREFIX_AFFINITY_STRIDE) {
    uint64_t key = next_key(&chain, tokens + i);
    a->keys[key % PREFIX_AFFINITY_SLOTS] = key;
  }
}

int32_t prefix_affinity_length(const prefix_affinity *a, uint64_t worker, const int32_t *tokens,
                               int32_t count) {
  hash16 chain = hash_bytes(&worker, sizeof worker);
  int32_t length = 0;
  for (; length + PREFIX_AFFINITY_STRIDE <= count; length += PREFIX_AFFINITY_STRIDE) {
    uint64_t key = next_key(&chain, tokens + length);
    if (a->keys[key % PREFIX_AFFINITY_SLOTS] != key) break;
  }
  return length;
}
