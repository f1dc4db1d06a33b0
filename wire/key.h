/* key.h - one half of a curve25519 key pair, and its text: 64 hexadecimal digits. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KEY_BYTES 32
#define KEY_HEX   64

typedef struct key_bytes {
  uint8_t bytes[KEY_BYTES];
} key_bytes;

typedef struct key_hex {
  char text[KEY_HEX + 1];
} key_hex;

key_hex key_hex_of(const key_bytes *k);
bool key_parse(const char *hex, size_t size, key_bytes *out);

/* ERR_UNSUPPORTED: ZeroMQ was built without libsodium. */
int key_generate(key_bytes *secret, key_bytes *public, err *e);
void key_public_of(const key_bytes *secret, key_bytes *out);
