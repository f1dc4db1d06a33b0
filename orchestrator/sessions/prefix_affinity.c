#include "orchestrator/sessions/prefix_affinity.h"

#include "common/base/hash.h"
#include <string.h>

/* The hash of a beginning at a worker, longer by a stride with each call. */
static uint64_t next_key(hash16 *chain, const int32_t *tokens) {
  uint64_t key;
  *chain = hash_fold(*chain, tokens, PREFIX_AFFINITY_STRIDE * sizeof *tokens);
  memcpy(&key, chain->bytes, sizeof key);
  return key ? key : 1; /* 0 is an empty place */
}

void prefix_affinity_note(prefix_affinity *a, uint64_t worker, const int32_t *tokens, int32_t count) {
  hash16 chain = hash_bytes(&worker, sizeof worker);
  for (int32_t i = 0; i + PREFIX_AFFINITY_STRIDE <= count; i += PREFIX_AFFINITY_STRIDE) {
    uint64_t key = next_key(&chain, tokens + i);
    a->places[key % PREFIX_AFFINITY_PLACES] = key;
  }
}

int32_t prefix_affinity_held(const prefix_affinity *a, uint64_t worker, const int32_t *tokens,
                             int32_t count) {
  hash16 chain = hash_bytes(&worker, sizeof worker);
  int32_t held = 0;
  for (; held + PREFIX_AFFINITY_STRIDE <= count; held += PREFIX_AFFINITY_STRIDE) {
    uint64_t key = next_key(&chain, tokens + held);
    if (a->places[key % PREFIX_AFFINITY_PLACES] != key) break;
  }
  return held;
}
