/* libs: wire base */
/* Any bytes as a frame: refused with a named rule and little memory, or taken, and then what was decoded
 * encodes to a frame that decodes and encodes to the same again, and a deep copy is no different. Corpus:
 * wire/vectors. */
#include "wire/actions.h"
#include "wire/codec.h"
#include <stdlib.h>
#include <string.h>

static void require(int condition) {
  if (!condition) abort();
}

static void check_taken(const msg *m) {
  codec_buffer first = {0}, second = {0};
  arena memory;
  msg again;
  err e;
  arena_init(&memory, CODEC_ARENA_MAX);
  require(codec_encode(m, &first, &e) == ERR_OK);
  require(codec_decode(first.data, first.size, &memory, &again, &e) == ERR_OK);
  require(codec_encode(&again, &second, &e) == ERR_OK);
  require(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
  arena_reset(&memory);
  const msg *copy = actions_copy(&memory, m);
  require(copy && codec_encode(copy, &second, &e) == ERR_OK);
  require(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
  codec_buffer_fini(&first);
  codec_buffer_fini(&second);
  arena_fini(&memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  arena memory;
  msg m;
  err e = {0};
  arena_init(&memory, CODEC_ARENA_MAX);
  int code = codec_decode(data, size, &memory, &m, &e);
  if (code == ERR_OK) {
    check_taken(&m);
  } else {
    require(code == ERR_PROTOCOL || code == ERR_LIMIT || code == ERR_VERSION);
    require(e.code == code && strncmp(e.text, "R-", 2) == 0);
  }
  arena_fini(&memory);
  return 0;
}
