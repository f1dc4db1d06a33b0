#include "common/base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static hash16 canonical(XXH128_hash_t h) {
  XXH128_canonical_t c;
  hash16 out;
  XXH128_canonicalFromHash(&c, h);
  memcpy(out.bytes, c.digest, 16);
  return out;
}

hash16 hash_next(hash16 previous, uint64_t seed, int32_t token) {
  uint8_t buffer[20];
  uint32_t t = (uint32_t)token;
  memcpy(buffer, previous.bytes, 16);
  for (int i = 0; i < 4; i++) buffer[16 + i] = (uint8_t)(t >> (8 * i));
  return canonical(XXH3_128bits_withSeed(buffer, sizeof buffer, seed));
}

bool hash_equal(hash16 a, hash16 b) {
  return memcmp(a.bytes, b.bytes, 16) == 0;
}

bool hash_is_zero(hash16 a) {
  return hash_equal(a, (hash16){{0}});
}

hash16 hash_bytes(const void *data, size_t size) {
  return canonical(XXH3_128bits(data, size));
}

hash16 hash_fold(hash16 h, const void *data, size_t size) {
  hash16 pair[2] = {h, hash_bytes(data, size)};
  return hash_bytes(pair, sizeof pair);
}

hash_stream *hash_stream_alloc(void) {
  XXH3_state_t *state = XXH3_createState();
  if (state) XXH3_128bits_reset(state);
  return (hash_stream *)state;
}

void hash_stream_add(hash_stream *s, const void *data, size_t size) {
  XXH3_128bits_update((XXH3_state_t *)s, data, size);
}

hash16 hash_stream_end(hash_stream *s) {
  hash16 out = canonical(XXH3_128bits_digest((XXH3_state_t *)s));
  XXH3_freeState((XXH3_state_t *)s);
  return out;
}

bool hash_read_hex(const char *text, size_t count, uint8_t *bytes) {
  if (strspn(text, "0123456789abcdef") < 2 * count) return false;
  for (size_t i = 0; i < count; i++) {
    char two[] = {text[2 * i], text[2 * i + 1], 0};
    bytes[i] = (uint8_t)strtoul(two, NULL, 16);
  }
  return true;
}

void hash_format(hash16 h, char out[33]) {
  for (int i = 0; i < 16; i++) snprintf(out + 2 * i, 3, "%02x", h.bytes[i]);
}
