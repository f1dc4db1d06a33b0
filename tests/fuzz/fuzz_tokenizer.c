/* libs: text file base */
/* fuzz_tokenizer - any text through a small vocabulary and back, and any stop string over its stream.
 *
 * First byte: its lowest bit, special tokens recognised; the next two, the size of the stop string that
 * follows. */
#include "common/text/detokenizer.h"
#include "common/base/utf8.h"
#include "tests/support/gguf_builder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static tokenizer *open_vocabulary(void) {
  gguf_builder b = gb_begin(3);
  gguf *g;
  tokenizer *t;
  gb_vocabulary(&b, 0);
  gb_end(&b);
  if (gguf_open_memory(&g, b.bytes, b.size, NULL) || tokenizer_open(&t, g, NULL)) abort();
  gguf_close(g);
  gb_free(&b);
  return t;
}

/* Every byte has a token here, so the text comes back, through the detokenizer too. */
static void check_round_trip(const tokenizer *t, const tokenizer_ids *ids, const char *text, size_t size) {
  detokenizer *d;
  detokenizer_out out;
  size_t at = 0;
  if (detokenizer_alloc(&d, t, NULL, 0, false, true, NULL)) abort();
  for (size_t i = 0; i <= ids->count; i++) {
    if (i < ids->count ? detokenizer_feed(d, ids->ids[i], &out) : detokenizer_end(d, &out)) abort();
    if (out.size > size - at || memcmp(out.text, text + at, out.size)) abort();
    at += out.size;
  }
  if (at != size || out.stopped) abort();
  detokenizer_free(d);
}

/* What comes out is the text up to the first occurrence of the stop, or all of it. */
static void check_stop(const tokenizer *t, const tokenizer_ids *ids, const char *text, size_t size,
                       const char *stop) {
  detokenizer *d;
  detokenizer_out out = {0};
  err e;
  if (detokenizer_alloc(&d, t, &stop, 1, false, true, &e)) return;
  const char *found = memmem(text, size, stop, strlen(stop));
  size_t want = found ? (size_t)(found - text) : size, at = 0;
  for (size_t i = 0; i <= ids->count && !out.stopped; i++) {
    if (i < ids->count ? detokenizer_feed(d, ids->ids[i], &out) : detokenizer_end(d, &out)) abort();
    if (out.size > want - at || memcmp(out.text, text + at, out.size)) abort();
    if (utf8_valid(out.text, out.size) != out.size) abort();
    at += out.size;
  }
  if (at != want || out.stopped != (found != NULL) || (size_t)out.keep_tokens > ids->count) abort();
  detokenizer_free(d);
}

/* Bytes as tokens, valid or not: the stream is valid UTF-8 and is the same however it is cut. */
static void check_bytes(const tokenizer *t, const uint8_t *data, size_t size) {
  detokenizer *d;
  detokenizer_out out;
  size_t valid = utf8_valid((const char *)data, size), at = 0;
  if (detokenizer_alloc(&d, t, NULL, 0, true, true, NULL)) abort();
  for (size_t i = 0; i < size; i++) {
    if (detokenizer_feed(d, GB_SPECIAL_COUNT + data[i], &out)) abort();
    if (utf8_valid(out.text, out.size) != out.size) abort();
    at += out.size;
    if (i < valid && at > i + 1) abort();
  }
  if (detokenizer_end(d, &out)) abort();
  if (valid == size && at + out.size != size) abort();
  detokenizer_free(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static tokenizer *t; /* until the program's end */
  if (!t) t = open_vocabulary();
  if (size == 0) return 0;
  size_t stop_size = data[0] >> 1 & 3;
  if (size < 1 + stop_size) return 0;
  char stop[4] = {0};
  memcpy(stop, data + 1, stop_size);
  const char *text = (const char *)data + 1 + stop_size;
  size -= 1 + stop_size;
  check_bytes(t, (const uint8_t *)text, size);
  tokenizer_ids ids = {0};
  err e;
  int rc = tokenizer_encode(t, text, size, data[0] & 1, &ids, &e);
  if ((rc == ERR_FORMAT) != (utf8_valid(text, size) < size) || (rc && rc != ERR_FORMAT) || ids.dropped_bytes)
    abort();
  if (rc == ERR_OK) {
    check_round_trip(t, &ids, text, size);
    check_stop(t, &ids, text, size, stop);
  }
  tokenizer_ids_fini(&ids);
  return 0;
}
