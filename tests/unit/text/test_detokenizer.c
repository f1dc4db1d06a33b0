/* libs: text file base */
#include "common/text/detokenizer.h"
#include "common/base/utf8.h"
#include "tests/support/gguf_builder.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/support/json_lines.h"
#include "tests/support/random.h"

#define MODEL "models/SmolLM2-135M-Instruct.Q4_1.gguf"

enum { B = GB_SPECIAL_COUNT, M = GB_SPECIAL_COUNT + 256, HELLO = M + 3 }; /* first byte, first merged token */

static tokenizer *open_vocabulary(const gguf *g) {
  tokenizer *t;
  err e;
  if (tokenizer_open(&t, g, &e)) fail_msg("%s", e.text);
  return t;
}

static tokenizer *open_small(void) {
  gguf_builder b = gb_begin(3);
  gguf *g;
  gb_vocabulary(&b, 0);
  gb_end(&b);
  assert_int_equal(gguf_open_memory(&g, b.bytes, b.size, NULL), ERR_OK);
  tokenizer *t = open_vocabulary(g);
  gguf_close(g);
  gb_free(&b);
  return t;
}

static tokenizer *open_model(void) {
  gguf *g;
  err e;
  if (gguf_open(&g, MODEL, &e)) fail_msg("%s (run scripts/get_model.sh)", e.text);
  tokenizer *t = open_vocabulary(g);
  gguf_close(g);
  return t;
}

static detokenizer *open_with(const tokenizer *t, const char *const *stops, int32_t count, bool skip) {
  detokenizer *d;
  err e;
  if (detokenizer_alloc(&d, t, stops, count, skip, true, &e)) fail_msg("%s", e.text);
  return d;
}

/* Appends what one call gave out, which must be whole characters. */
static void collect(gguf_builder *text, const detokenizer_out *out) {
  assert_int_equal(utf8_valid(out->text, out->size), out->size);
  gb_put(text, out->text, out->size);
}

/* ---- text ---- */

static void check_replacement(const json_t *row, void *context) {
  const tokenizer *t = context;
  size_t hex_size, size;
  const char *hex = json_lines_text(row, "hex", &hex_size), *want = json_lines_text(row, "text", &size);
  detokenizer *d = open_with(t, NULL, 0, true);
  detokenizer_out out;
  gguf_builder got = {0};
  for (size_t i = 0; i < hex_size; i += 2) {
    char byte[3] = {hex[i], hex[i + 1], 0};
    assert_int_equal(detokenizer_feed(d, B + (int32_t)strtol(byte, NULL, 16), &out), ERR_OK);
    collect(&got, &out);
  }
  assert_int_equal(detokenizer_end(d, &out), ERR_OK);
  collect(&got, &out);
  if (got.size != size || (size && memcmp(got.bytes, want, size))) fail_msg("%s comes out wrong", hex);
  detokenizer_free(d);
  gb_free(&got);
}

static void test_replaces_what_is_ill_formed(void **state) {
  (void)state;
  tokenizer *t = open_small();
  assert_int_equal(json_lines_each("tests/golden/utf8_replace.jsonl", check_replacement, t), 629);
  tokenizer_close(t);
}

static void test_a_cut_gives_whole_characters_alone(void **state) {
  (void)state;
  static const char *const stops[] = {"ab\xc3\xa9"};
  tokenizer *t = open_small();
  detokenizer *d = open_with(t, stops, 1, true);
  detokenizer_out out;
  for (const char *c = "xab\xc3"; *c; c++)
    assert_int_equal(detokenizer_feed(d, B + (uint8_t)*c, &out), ERR_OK);
  assert_int_equal(out.size, 0);
  assert_int_equal(detokenizer_held(d), 2);
  detokenizer_cut(d, &out);
  assert_int_equal(out.size, 2);
  assert_memory_equal(out.text, "ab", 2);
  assert_false(out.stopped);
  detokenizer_free(d);
  tokenizer_close(t);
}

static void test_gives_a_character_when_it_is_whole(void **state) {
  (void)state;
  static const uint8_t bytes[] = {'a', 0xf0, 0x9f, 0x98, 0x80, 0xe2, 0x82, 'b', 0xff, 0xc3};
  static const size_t sizes[] = {1, 0, 0, 0, 4, 0, 0, 4, 3, 0};
  tokenizer *t = open_small();
  detokenizer *d = open_with(t, NULL, 0, true);
  detokenizer_out out;
  for (size_t i = 0; i < sizeof bytes; i++) {
    assert_int_equal(detokenizer_feed(d, B + bytes[i], &out), ERR_OK);
    assert_int_equal(out.size, sizes[i]);
    assert_int_equal(out.keep_tokens, i + 1);
    assert_false(out.stopped);
  }
  assert_int_equal(detokenizer_end(d, &out), ERR_OK);
  assert_int_equal(out.size, 3);
  assert_memory_equal(out.text, "\xef\xbf\xbd", 3);
  detokenizer_free(d);
  tokenizer_close(t);
}

static void test_special_tokens(void **state) {
  (void)state;
  tokenizer *t = open_small();
  for (int skip = 0; skip <= 1; skip++) {
    detokenizer *d = open_with(t, NULL, 0, skip);
    detokenizer_out out;
    assert_int_equal(detokenizer_feed(d, 2, &out), ERR_OK);
    assert_int_equal(out.size, skip ? 0 : 10);
    assert_int_equal(detokenizer_feed(d, GB_USER_TOKEN, &out), ERR_OK);
    assert_int_equal(out.size, 6); /* added, but text */
    assert_int_equal(detokenizer_feed(d, HELLO, &out), ERR_OK);
    assert_memory_equal(out.text, "hello", out.size);
    assert_int_equal(out.keep_tokens, 3);
    assert_int_equal(detokenizer_feed(d, -1, &out), ERR_ARG);
    assert_int_equal(detokenizer_feed(d, tokenizer_size(t), &out), ERR_ARG);
    detokenizer_free(d);
  }
  tokenizer_close(t);
}

/* Streams ids; the text must be what `want` is, and never less than all but an unfinished character. */
static void stream(const tokenizer *t, const int32_t *ids, size_t count, const char *want, size_t size) {
  detokenizer *d = open_with(t, NULL, 0, false);
  detokenizer_out out;
  gguf_builder got = {0};
  size_t raw = 0, piece_size;
  for (size_t i = 0; i < count; i++) {
    assert_int_equal(detokenizer_feed(d, ids[i], &out), ERR_OK);
    collect(&got, &out);
    tokenizer_piece(t, ids[i], &piece_size);
    raw += piece_size;
    assert_true(got.size <= raw && raw - got.size < 4);
  }
  assert_int_equal(detokenizer_end(d, &out), ERR_OK);
  collect(&got, &out);
  assert_int_equal(got.size, size);
  if (size) assert_memory_equal(got.bytes, want, size);
  detokenizer_free(d);
  gb_free(&got);
}

static void check_case(const json_t *row, void *context) {
  size_t size, count;
  const char *text = json_lines_text(row, "text", &size);
  int32_t *ids = json_lines_ids(row, "ids", &count);
  if (json_is_true(json_object_get(row, "round_trip"))) stream(context, ids, count, text, size);
  free(ids);
}

/* The whole answer at once: pieces one after the other; valid, since these answers are. */
static void check_answer(const json_t *row, void *context) {
  size_t count, piece_size;
  int32_t *ids = json_lines_ids(row, "output_ids", &count);
  gguf_builder whole = {0};
  for (size_t i = 0; i < count; i++) {
    const char *piece = tokenizer_piece(context, ids[i], &piece_size);
    gb_put(&whole, piece, piece_size);
  }
  if (utf8_valid((char *)whole.bytes, whole.size) == whole.size)
    stream(context, ids, count, (char *)whole.bytes, whole.size);
  else
    assert_int_equal(whole.size - utf8_valid((char *)whole.bytes, whole.size) < 4, 1); /* cut at the length */
  gb_free(&whole);
  free(ids);
}

static void test_goldens_stream_as_they_decode_whole(void **state) {
  (void)state;
  tokenizer *t = open_model();
  assert_int_equal(json_lines_each("tests/golden/smollm2_tokenizer.jsonl", check_case, t), 155);
  assert_int_equal(json_lines_each("tests/golden/smollm2_greedy.jsonl", check_answer, t), 24);
  tokenizer_close(t);
}

/* ---- stop strings ---- */

typedef struct stop_case {
  const char *stops[3];
  int32_t ids[9]; /* 0 ends */
  const char *text;
  bool stopped;
  int32_t keep;
} stop_case;

static void test_stops(void **state) {
  (void)state;
  static const stop_case cases[] = {
      {{"ell"}, {B + '!', HELLO, B + 'x'}, "!h", true, 2},     /* inside one token: it is partly before */
      {{"hello"}, {B + '!', HELLO, B + 'x'}, "!", true, 1},    /* the token is the stop and nothing else */
      {{"!hello"}, {B + '!', HELLO, B + 'x'}, "", true, 0},    /* spans two tokens */
      {{"o!h"}, {HELLO, B + '!', HELLO}, "hell", true, 1},     /* ends inside the third */
      {{"hellox"}, {HELLO, HELLO, B + 'x'}, "hello", true, 1}, /* held back, given out, found */
      {{"hellox"}, {HELLO, HELLO}, "hellohello", false, 2},    /* never completed: comes at the end */
      {{"aab"}, {M + 5, B + 'a', B + 'b'}, "a", true, 1},      /* an overlap with itself; aa begins before */
      {{"llo", "ell"}, {HELLO}, "h", true, 1},                 /* the one completed first */
      {{"llo", "ello"}, {HELLO}, "h", true, 1},                /* completed together: the longer */
      {{"lo", "xy"}, {HELLO}, "hel", true, 1},
      {{"\xe2\x82\xac"},
       {B + 'a', B + 0xe2, B + 0x82, B + 0xac},
       "a",
       true,
       1}, /* a character of three tokens */
      {{"\xef\xbf\xbd!"},
       {B + 'a', B + 0xe2, B + 0x82, B + '!'},
       "a",
       true,
       1},                                                   /* replaced bytes count as text */
      {{"\xef\xbf\xbd"}, {B + 'a', B + 0xc3}, "a", true, 1}, /* completed by the end */
      {{"!"}, {HELLO, 2, B + '!', 2}, "hello", true, 1},     /* a token without text before the stop */
      {{"!"}, {2, HELLO, B + '!'}, "hello", true, 2},
      {{"he"}, {B + 0xc3, HELLO}, "\xef\xbf\xbd", true, 1},    /* the broken byte is before */
      {{"<|im_end|>"}, {HELLO, 2, B + '!'}, "hello", true, 1}, /* a special token by its spelling */
      {{"lo<|im_end|>"}, {HELLO, 2}, "hel", true, 1},          /* and text before it */
      {{"lo<|im_end|>", "<|im_end|>"}, {HELLO, 2}, "hel", true, 1},
      {{"lo<|im_end|>"}, {HELLO, B + '!', 2}, "hello!", false, 3},
      {{"im_end"}, {HELLO, 2}, "hello", false, 2},  /* a part of its spelling is no text */
      {{"<|im_end|>"}, {B + 0xc3, 2}, "", true, 0}, /* inside a character, which is never whole */
  };
  tokenizer *t = open_small();
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const stop_case *c = &cases[i];
    int32_t stops = 0;
    while (stops < 3 && c->stops[stops]) stops++;
    detokenizer *d = open_with(t, c->stops, stops, true);
    detokenizer_out out = {0};
    gguf_builder got = {0};
    for (int k = 0; c->ids[k] && !out.stopped; k++) {
      assert_int_equal(detokenizer_feed(d, c->ids[k], &out), ERR_OK);
      collect(&got, &out);
    }
    if (!out.stopped) {
      assert_int_equal(detokenizer_end(d, &out), ERR_OK);
      collect(&got, &out);
    }
    gb_put(&got, "", 1);
    if (strcmp((char *)got.bytes, c->text) || out.stopped != c->stopped || out.keep_tokens != c->keep)
      fail_msg("case %zu: '%s' stopped %d keeps %d", i, (char *)got.bytes, out.stopped, out.keep_tokens);
    gb_free(&got);
    for (int k = 0; out.stopped && k < 2; k++) { /* nothing may follow */
      assert_int_equal(k ? detokenizer_end(d, &out) : detokenizer_feed(d, HELLO, &out), ERR_OK);
      assert_true(out.stopped && out.size == 0 && out.keep_tokens == c->keep);
    }
    detokenizer_free(d);
  }
  tokenizer_close(t);
}

static void test_refuses_bad_stops(void **state) {
  (void)state;
  char long_text[DETOKENIZER_STOP_BYTES_MAX + 2];
  const char *many[DETOKENIZER_STOP_MAX + 1], *bad[] = {"", "\xff", "\xe2\x82", long_text, "lo<|im_end|>x"};
  tokenizer *t = open_small();
  detokenizer *d;
  err e;
  memset(long_text, 'x', sizeof long_text);
  long_text[sizeof long_text - 1] = 0;
  for (int i = 0; i < 5; i++) {
    assert_int_equal(detokenizer_alloc(&d, t, &bad[i], 1, true, true, &e), ERR_ARG);
    assert_null(d);
  }
  assert_non_null(strstr(e.text, "special token <|im_end|>"));
  long_text[DETOKENIZER_STOP_BYTES_MAX] = 0;
  for (int i = 0; i <= DETOKENIZER_STOP_MAX; i++) many[i] = long_text;
  assert_int_equal(detokenizer_alloc(&d, t, many, DETOKENIZER_STOP_MAX + 1, true, true, &e), ERR_ARG);
  detokenizer_free(open_with(t, many, DETOKENIZER_STOP_MAX, true));
  detokenizer_free(NULL);
  tokenizer_close(t);
}

/* ---- against the definition, on random streams ---- */

enum { STREAM = 40, TEXT_MAX = 4096 };

typedef struct oracle { /* everything decoded at once */
  uint8_t raw[TEXT_MAX];
  size_t raw_size, raw_begin[STREAM + 1]; /* of each token */
  char text[3 * TEXT_MAX];
  size_t size, text_of[TEXT_MAX + 1]; /* where the character with this raw byte begins */
  bool stopped;
  size_t stop_at;
} oracle;

static void decode_whole(oracle *o, bool ended) {
  uint32_t code;
  o->size = 0;
  for (size_t at = 0, length; at < o->raw_size; at += length) {
    utf8_kind kind = utf8_next(o->raw + at, o->raw_size - at, &length, &code);
    if (kind == UTF8_PARTIAL && !ended) return;
    for (size_t i = 0; i < length; i++) o->text_of[at + i] = o->size;
    bool good = kind == UTF8_CHARACTER;
    memcpy(o->text + o->size, good ? (char *)o->raw + at : "\xef\xbf\xbd", good ? length : 3);
    o->size += good ? length : 3;
  }
}

/* The earliest end of any stop; of those that end there, the earliest beginning. */
static void find_stop(oracle *o, const char *const *stops, int32_t count) {
  o->stopped = false;
  for (size_t end = 1; end <= o->size && !o->stopped; end++) {
    for (int32_t i = 0; i < count; i++) {
      size_t n = strlen(stops[i]);
      if (n > end || memcmp(o->text + end - n, stops[i], n)) continue;
      if (!o->stopped || end - n < o->stop_at) o->stop_at = end - n;
      o->stopped = true;
    }
  }
}

/* The longest end of the text that begins a stop string. */
static size_t may_become_stop(const oracle *o, const char *const *stops, int32_t count) {
  size_t longest = 0;
  for (int32_t i = 0; i < count; i++) {
    for (size_t n = strlen(stops[i]) - 1; n > longest; n--)
      if (n <= o->size && memcmp(o->text + o->size - n, stops[i], n) == 0) longest = n;
  }
  return longest;
}

static int32_t tokens_before_stop(const oracle *o, int32_t fed) {
  int32_t keep = 0;
  while (keep < fed && o->raw_begin[keep] < o->raw_size && o->text_of[o->raw_begin[keep]] < o->stop_at)
    keep++;
  return keep;
}

static void assert_equals_oracle(const oracle *o, const gguf_builder *got, const detokenizer_out *out,
                                 size_t held, int32_t fed) {
  size_t want = o->stopped ? o->stop_at : o->size - held;
  assert_int_equal(out->stopped, o->stopped);
  assert_int_equal(got->size, want);
  if (want) assert_memory_equal(got->bytes, o->text, want);
  assert_int_equal(out->keep_tokens, o->stopped ? tokens_before_stop(o, fed) : fed);
}

static int32_t random_token(uint64_t *seed) {
  static const uint8_t bytes[] = {'a', 'b', 'a', 'b', 0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xff, 0xf0};
  uint64_t r = random_next(seed);
  if (r % 9 == 0) return (int32_t)(r >> 8) & 1 ? 2 : GB_USER_TOKEN; /* no text */
  if (r % 9 < 4) return M + 5 + (int32_t)((r >> 8) % 4);            /* aa, aaaa, ab, bb */
  return B + bytes[(r >> 8) % sizeof bytes];
}

static void random_stop(uint64_t *seed, char *out) {
  static const char *const parts[] = {"a", "b", "ab", "aa", "\xc3\xa9", "\xe2\x82\xac", "\xef\xbf\xbd"};
  *out = 0;
  for (uint64_t n = 1 + random_next(seed) % 4; n; n--) strcat(out, parts[random_next(seed) % 7]);
}

/* One stream; 1 when a stop was found. */
static int run_random(const tokenizer *t, uint64_t *seed) {
  char texts[3][32];
  const char *stops[3] = {texts[0], texts[1], texts[2]};
  int32_t count = (int32_t)(random_next(seed) % 4);
  for (int i = 0; i < 3; i++) random_stop(seed, texts[i]);
  detokenizer *d = open_with(t, stops, count, true);
  detokenizer_out out = {0};
  gguf_builder got = {0};
  oracle o = {0};
  int32_t fed = 0;
  while (fed < STREAM && !out.stopped) {
    int32_t id = random_token(seed);
    size_t size;
    const char *piece = tokenizer_piece(t, id, &size);
    if (tokenizer_is_special(t, id)) size = 0;
    o.raw_begin[fed++] = o.raw_size;
    memcpy(o.raw + o.raw_size, piece, size);
    o.raw_size += size;
    assert_int_equal(detokenizer_feed(d, id, &out), ERR_OK);
    collect(&got, &out);
    decode_whole(&o, false);
    find_stop(&o, stops, count);
    assert_equals_oracle(&o, &got, &out, may_become_stop(&o, stops, count), fed);
  }
  if (!out.stopped) {
    assert_int_equal(detokenizer_end(d, &out), ERR_OK);
    collect(&got, &out);
    decode_whole(&o, true);
    find_stop(&o, stops, count);
    assert_equals_oracle(&o, &got, &out, 0, fed);
  }
  detokenizer_free(d);
  gb_free(&got);
  return o.stopped;
}

static void test_random_streams_by_the_definition(void **state) {
  (void)state;
  tokenizer *t = open_small();
  uint64_t seed = 3;
  int stopped = 0, rounds = 4000;
  for (int i = 0; i < rounds; i++) stopped += run_random(t, &seed);
  assert_in_range(stopped, rounds / 4, rounds * 3 / 4);
  tokenizer_close(t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_replaces_what_is_ill_formed),
      cmocka_unit_test(test_gives_a_character_when_it_is_whole),
      cmocka_unit_test(test_a_cut_gives_whole_characters_alone),
      cmocka_unit_test(test_special_tokens),
      cmocka_unit_test(test_goldens_stream_as_they_decode_whole),
      cmocka_unit_test(test_stops),
      cmocka_unit_test(test_refuses_bad_stops),
      cmocka_unit_test(test_random_streams_by_the_definition),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
