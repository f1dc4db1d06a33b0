#include "wire/key.h"

#include <stdio.h>
#include <string.h>
#include <zmq.h>

#define Z85_MAX 41 /* bytes of a key as ZeroMQ writes it, with the NUL */

key_hex key_hex_of(const key_bytes *k) {
  key_hex h;
  for (int i = 0; i < KEY_BYTES; i++) snprintf(h.text + 2 * i, 3, "%02x", k->bytes[i]);
  return h;
}

static int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool key_parse(const char *hex, size_t size, key_bytes *out) {
  if (size != KEY_HEX) return false;
  for (int i = 0; i < KEY_BYTES; i++) {
    int high = digit_of(hex[2 * i]), low = digit_of(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out->bytes[i] = (uint8_t)(high << 4 | low);
  }
  return true;
}

int key_generate(key_bytes *secret, key_bytes *public, err *e) {
  char public_z85[Z85_MAX], secret_z85[Z85_MAX];
  if (zmq_curve_keypair(public_z85, secret_z85) != 0)
    return err_set(e, ERR_UNSUPPORTED, "this ZeroMQ has no CURVE: install one that was built with libsodium");
  zmq_z85_decode(secret->bytes, secret_z85);
  zmq_z85_decode(public->bytes, public_z85);
  explicit_bzero(secret_z85, sizeof secret_z85);
  return ERR_OK;
}

void key_public_of(const key_bytes *secret, key_bytes *out) {
  char public_z85[Z85_MAX], secret_z85[Z85_MAX];
  zmq_z85_encode(secret_z85, secret->bytes, KEY_BYTES);
  int code = zmq_curve_public(public_z85, secret_z85);
  explicit_bzero(secret_z85, sizeof secret_z85);
  if (code == 0)
    zmq_z85_decode(out->bytes, public_z85);
  else
    *out = (key_bytes){{0}};
}
