/* hash.h - the identity of a token prefix, and of files and vocabularies.
 *
 * hash(0) = 16 zero bytes; hash(n) = XXH3_128 of the 20 bytes hash(n-1) || token n as u32 little-endian,
 * seeded with the session's 64-bit hash seed, in xxHash's canonical (big-endian) form.
 * Source: xxHash 0.8 specification. Golden values: wire/vectors/hash.json. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hash16 {
  uint8_t bytes[16];
} hash16;

hash16 hash_next(hash16 previous, uint64_t seed, int32_t token);
bool hash_equal(hash16 a, hash16 b);
bool hash_is_zero(hash16 a);

/* XXH3_128 of `size` bytes, seed 0, canonical form. */
hash16 hash_bytes(const void *data, size_t size);
/* hash_bytes of h and the hash of the bytes: over several pieces without memory, so that it cannot fail. */
hash16 hash_fold(hash16 h, const void *data, size_t size);

/* The same over several pieces: init, add..., end. */
typedef struct hash_stream hash_stream;
hash_stream *hash_stream_alloc(void); /* NULL when out of memory */
void hash_stream_add(hash_stream *s, const void *data, size_t size);
hash16 hash_stream_end(hash_stream *s); /* frees s */

/* 32 lower-case hex digits and a NUL. */
void hash_format(hash16 h, char out[33]);
/* The bytes that the first 2 * `count` lower-case hex digits of `text` are. False: there are fewer. */
bool hash_read_hex(const char *text, size_t count, uint8_t *bytes);
