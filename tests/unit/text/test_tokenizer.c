/* libs: text_counted file base : cost=20 */
#include "common/text/bpe.h"
#include "common/text/added_tokens.h"
#include "common/text/tokenizer.h"
#include "common/base/utf8.h"
#include "tests/support/gguf_builder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/growth.h"
#include "tests/support/json_lines.h"
#include "tests/support/random.h"

#define MODEL         "models/SmolLM2-135M-Instruct.Q4_1.gguf"
#define HOSTILE_BYTES (1 << 19)

static tokenizer *open_model(void) {
  gguf *g;
  tokenizer *t;
  err e;
  if (gguf_open(&g, MODEL, &e)) fail_msg("%s (run scripts/get_model.sh)", e.text);
  if (tokenizer_open(&t, g, &e)) fail_msg("%s", e.text);
  gguf_close(g);
  return t;
}

static int open_built(gguf_builder *b, tokenizer **t, err *e) {
  gguf *g;
  *e = (err){0};
  gb_end(b);
  if (gguf_open_memory(&g, b->bytes, b->size, e)) fail_msg("%s", e->text);
  int rc = tokenizer_open(t, g, e);
  gguf_close(g);
  gb_free(b);
  return rc;
}

static tokenizer *open_small(int dropped_below) {
  gguf_builder b = gb_begin(3);
  tokenizer *t;
  err e;
  gb_vocabulary(&b, dropped_below);
  if (open_built(&b, &t, &e)) fail_msg("%s", e.text);
  return t;
}

/* ---- goldens ---- */

static char *decode_all(const tokenizer *t, const int32_t *ids, size_t count, size_t *size) {
  gguf_builder text = {0}; /* as a growing buffer */
  gb_put(&text, "", 1);
  text.size = 0;
  for (size_t i = 0; i < count; i++) {
    size_t piece_size;
    const char *piece = tokenizer_piece(t, ids[i], &piece_size);
    assert_non_null(piece);
    gb_put(&text, piece, piece_size);
  }
  *size = text.size;
  return (char *)text.bytes;
}

typedef struct golden_run {
  const tokenizer *t;
  int wrong, round_trips, lossy;
} golden_run;

static void check_golden(const json_t *row, void *context) {
  golden_run *run = context;
  size_t size, count, back_size;
  const char *text = json_lines_text(row, "text", &size);
  int32_t *want = json_lines_ids(row, "ids", &count);
  tokenizer_ids got = {0};
  assert_int_equal(tokenizer_encode(run->t, text, size, true, &got, NULL), ERR_OK);
  if (got.count != count || (count && memcmp(got.ids, want, count * sizeof *want))) {
    print_error("case %d differs\n", (int)json_integer_value(json_object_get(row, "n")));
    run->wrong++;
  }
  char *back = decode_all(run->t, want, count, &back_size);
  bool same = back_size == size && memcmp(back, text, size) == 0;
  assert_int_equal(same, json_is_true(json_object_get(row, "round_trip")));
  assert_int_equal(got.dropped_bytes == 0, same);
  assert_int_equal(got.dropped_bytes, size - back_size);
  run->round_trips += same;
  run->lossy += !same;
  free(back);
  free(want);
  tokenizer_ids_fini(&got);
}

static void test_golden_ids_and_round_trips(void **state) {
  (void)state;
  tokenizer *t = open_model();
  golden_run run = {.t = t};
  assert_int_equal(json_lines_each("tests/golden/smollm2_tokenizer.jsonl", check_golden, &run), 155);
  assert_int_equal(run.wrong, 0);
  assert_int_equal(run.round_trips, 150);
  assert_int_equal(run.lossy, 5);
  tokenizer_close(t);
}

static void check_prompt(const json_t *row, void *context) {
  golden_run *run = context;
  size_t size, count;
  const char *text = json_lines_text(row, "prompt", &size);
  int32_t *want = json_lines_ids(row, "prompt_ids", &count);
  tokenizer_ids got = {0};
  assert_int_equal(tokenizer_encode(run->t, text, size, true, &got, NULL), ERR_OK);
  assert_int_equal(got.count, count);
  assert_memory_equal(got.ids, want, count * sizeof *want);
  free(want);
  tokenizer_ids_fini(&got);
}

static void test_golden_prompts(void **state) {
  (void)state;
  tokenizer *t = open_model();
  golden_run run = {.t = t};
  assert_int_equal(json_lines_each("tests/golden/smollm2_greedy.jsonl", check_prompt, &run), 24);
  tokenizer_close(t);
}

/* ---- the vocabulary ---- */

static void test_default_vocabulary(void **state) {
  (void)state;
  tokenizer *t = open_model();
  size_t size;
  assert_int_equal(tokenizer_size(t), 49152);
  assert_int_equal(tokenizer_eos(t), 2);
  assert_int_equal(tokenizer_bos(t), 1);
  assert_false(tokenizer_adds_bos(t));
  assert_int_equal(tokenizer_find(t, "<|im_end|>", 10), 2);
  assert_int_equal(tokenizer_find(t, "<|im_end|", 9), -1);
  assert_int_equal(tokenizer_find(t, "the", 3), -1);
  for (int32_t id = 0; id < 40; id++) assert_int_equal(tokenizer_is_special(t, id), id < 17);
  assert_memory_equal(tokenizer_piece(t, 278, &size), " b", 2); /* a golden: "a  b" is 81, 216, 278 */
  assert_int_equal(size, 2);
  tokenizer_close(t);
}

static void test_access(void **state) {
  (void)state;
  tokenizer *t = open_small(0);
  size_t size;
  const int32_t blank_w = GB_SPECIAL_COUNT + 256 + 4;
  assert_int_equal(tokenizer_size(t), GB_SPECIAL_COUNT + 256 + GB_MERGE_COUNT);
  assert_memory_equal(tokenizer_piece(t, blank_w, &size), " w", 2);
  assert_int_equal(size, 2);
  assert_memory_equal(tokenizer_spelling(t, blank_w, &size), "\xc4\xa0w", 3);
  assert_int_equal(size, 3);
  assert_memory_equal(tokenizer_piece(t, 1, &size), "<|im_start|>", 12);
  for (int byte = 0; byte < 256; byte++) {
    const char *piece = tokenizer_piece(t, GB_SPECIAL_COUNT + byte, &size);
    assert_int_equal(size, 1);
    assert_int_equal((uint8_t)*piece, byte);
  }
  const int32_t outside[] = {-1, INT32_MIN, INT32_MAX, tokenizer_size(t)};
  for (int i = 0; i < 4; i++) {
    assert_null(tokenizer_piece(t, outside[i], &size));
    assert_int_equal(size, 0);
    assert_null(tokenizer_spelling(t, outside[i], &size));
    assert_false(tokenizer_is_special(t, outside[i]));
  }
  assert_false(tokenizer_is_special(t, GB_USER_TOKEN));
  assert_int_equal(tokenizer_find(t, "<tool>", 6), GB_USER_TOKEN);
  assert_false(tokenizer_is_special(t, GB_SPECIAL_COUNT));
  tokenizer_close(t);
  tokenizer_close(NULL);
}

typedef struct small_case {
  const char *text;
  bool special;
  int32_t count, ids[12];
} small_case;

enum { B = GB_SPECIAL_COUNT, M = GB_SPECIAL_COUNT + 256 }; /* first byte, first merged token */

static void test_small_vocabulary(void **state) {
  (void)state;
  static const small_case cases[] = {
      {"hello", true, 1, {M + 3}},
      {"hello wo", true, 3, {M + 3, M + 4, B + 'o'}},
      {"hellohe", true, 2, {M + 3, M + 0}},
      {"aaaaa", true, 2, {M + 6, B + 'a'}},
      {"aab", true, 2, {M + 5, B + 'b'}}, /* aa outranks ab */
      {"abb", true, 2, {M + 7, B + 'b'}},
      {"<|im_start|>hello<|im_end|>", true, 3, {1, M + 3, 2}},
      {"<|im_start<|im", true, 8, {3, B + '_', B + 's', B + 't', B + 'a', B + 'r', B + 't', 3}},
      {"a<tool>a", true, 3, {B + 'a', 4, B + 'a'}},
      {"<tool>", false, 1, {4}}, /* added, but no mark of the model's: text like any other */
      {"<|im", false, 4, {B + '<', B + '|', B + 'i', B + 'm'}},
      {"12", true, 2, {B + '1', B + '2'}}, /* every digit alone, whatever would merge */
      {" 1", true, 2, {B + ' ', B + '1'}},
      {"", true, 0, {0}},
  };
  tokenizer *t = open_small(0);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const small_case *c = &cases[i];
    tokenizer_ids got = {0};
    assert_int_equal(tokenizer_encode(t, c->text, strlen(c->text), c->special, &got, NULL), ERR_OK);
    if (got.count != (size_t)c->count || (got.count && memcmp(got.ids, c->ids, got.count * sizeof *got.ids)))
      fail_msg("'%s' gives %zu ids, not the %d wanted", c->text, got.count, c->count);
    tokenizer_ids_fini(&got);
  }
  tokenizer_close(t);
}

static void test_appends_and_counts_dropped_bytes(void **state) {
  (void)state;
  tokenizer *t = open_small(0x20); /* control characters have no token */
  tokenizer_ids ids = {0};
  assert_int_equal(tokenizer_encode(t, "a", 1, true, &ids, NULL), ERR_OK);
  assert_int_equal(tokenizer_encode(t, "\x01!\x02!\n", 5, true, &ids, NULL), ERR_OK);
  assert_int_equal(ids.count, 3);
  assert_int_equal(ids.dropped_bytes, 3);
  assert_int_equal(ids.ids[2], B + '!');
  tokenizer_ids_fini(&ids);
  assert_int_equal(ids.count, 0);
  tokenizer_close(t);
}

/* ---- SentencePiece's ---- */

static int open_pieces(tokenizer **t, uint64_t scores, float score, bool prefix, err *e) {
  gguf_builder b = gb_begin(3);
  gb_vocabulary_pieces(&b, scores, score);
  if (!prefix) gb_key_bool(&b, "tokenizer.ggml.add_space_prefix", 0);
  return open_built(&b, t, e);
}

static void test_an_unknown_token_outside_the_vocabulary_is_none(void **state) {
  (void)state;
  static const uint32_t outside[] = {UINT32_MAX, GC_PIECE + GC_PIECE_COUNT};
  for (int i = 0; i < 2; i++) {
    gguf_builder b = gb_begin(3);
    tokenizer *t;
    err e;
    gb_vocabulary_pieces(&b, GC_PIECE + GC_PIECE_COUNT, 0);
    gb_key(&b, "tokenizer.ggml.unknown_token_id", GB_U32);
    gb_number(&b, outside[i], 4);
    if (open_built(&b, &t, &e)) fail_msg("%s", e.text);
    assert_non_null(strstr(tokenizer_doubt(t), "tokenizer.ggml.unknown_token_id is "));
    tokenizer_close(t);
  }
}

enum { P = GC_PIECE, Y = GC_SPECIAL_COUNT, ALL_SCORES = GC_PIECE + GC_PIECE_COUNT };

static void test_pieces(void **state) {
  (void)state;
  static const small_case cases[] = {
      {"ab",
       false,
       2,
       {P + 0, P + 3}}, /* the blank that is put before it stays alone: ab scores more than _a */
      {"aab", false, 2, {P + 0, P + 6}},         /* aa, then aab */
      {"b a", false, 3, {P + 0, P + 2, P + 5}},  /* b, then _a */
      {"a  a", false, 3, {P + 5, P + 0, P + 5}}, /* _a scores more than __ */
      {"b  ", false, 3, {P + 0, P + 2, P + 9}},
      {"xy", false, 2, {P + 0, P + 8}}, /* of two characters that are no pieces */
      {"yx", false, 3, {P + 0, Y + 'y', Y + 'x'}},
      {"\xc3\xa9"
       "b",
       false,
       2,
       {P + 0, P + 7}},
      {"\xc3\xa9"
       "a",
       false,
       4,
       {P + 0, Y + 0xc3, Y + 0xa9, P + 1}},
      {"\n", false, 2, {P + 0, Y + '\n'}},
      {"<s>b</s>b", true, 6, {1, P + 0, P + 2, 2, P + 0, P + 2}},
      {"", true, 0, {0}},
  };
  tokenizer *t;
  err e;
  size_t size;
  if (open_pieces(&t, ALL_SCORES, 0, true, &e)) fail_msg("%s", e.text);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const small_case *c = &cases[i];
    tokenizer_ids got = {0};
    assert_int_equal(tokenizer_encode(t, c->text, strlen(c->text), c->special, &got, NULL), ERR_OK);
    if (got.count != (size_t)c->count || (got.count && memcmp(got.ids, c->ids, got.count * sizeof *got.ids)))
      fail_msg("'%s' gives %zu ids, %d and on", c->text, got.count, got.count ? got.ids[0] : -1);
    tokenizer_ids_fini(&got);
  }
  assert_memory_equal(tokenizer_piece(t, P + 5, &size), " a", 2);
  assert_memory_equal(tokenizer_piece(t, Y + 0xc3, &size), "\xc3", 1);
  assert_int_equal(size, 1);
  assert_true(tokenizer_adds_bos(t) && tokenizer_strips_blank(t) && tokenizer_is_special(t, 0));
  tokenizer_close(t);
  if (open_pieces(&t, ALL_SCORES, 0, false, &e)) fail_msg("%s", e.text);
  tokenizer_ids got = {0};
  assert_int_equal(tokenizer_encode(t, "ab", 2, 0, &got, NULL), ERR_OK);
  assert_true(got.count == 1 && got.ids[0] == P + 3 && !tokenizer_strips_blank(t));
  tokenizer_ids_fini(&got);
  tokenizer_close(t);
}

static void test_refuses_bad_scores(void **state) {
  (void)state;
  tokenizer *t;
  err e;
  assert_int_equal(open_pieces(&t, ALL_SCORES - 1, 0, true, &e), ERR_FORMAT);
  assert_non_null(strstr(e.text, "one score for each"));
  assert_int_equal(open_pieces(&t, ALL_SCORES, NAN, true, &e), ERR_FORMAT);
  assert_non_null(strstr(e.text, "no number"));
}

static void test_hash(void **state) {
  (void)state;
  tokenizer *t = open_small(0), *same = open_small(0), *other = open_small(1);
  assert_true(hash_equal(tokenizer_hash(t), tokenizer_hash(same)));
  assert_false(hash_equal(tokenizer_hash(t), tokenizer_hash(other)));
  tokenizer_close(t), tokenizer_close(same), tokenizer_close(other);
  hash16 h[4];
  const char *const spelt[4][2] = {{"ab", "c"}, {"a", "bc"}, {"ab", "c"}, {"ab", "d"}};
  const uint32_t kinds[4] = {1, 1, 3, 1};
  for (int i = 0; i < 4; i++) {
    gguf_builder b = gb_begin(3);
    err e;
    gb_key_text(&b, "tokenizer.ggml.model", "gpt2"), gb_key_text(&b, "tokenizer.ggml.pre", "smollm");
    gb_array(&b, "tokenizer.ggml.tokens", GB_STRING, 2);
    for (int k = 0; k < 2; k++) gb_string(&b, spelt[i][k], strlen(spelt[i][k]));
    gb_array(&b, "tokenizer.ggml.token_type", GB_I32, 2), gb_number(&b, 1, 4), gb_number(&b, kinds[i], 4);
    gb_array(&b, "tokenizer.ggml.merges", GB_STRING, 0);
    if (open_built(&b, &t, &e)) fail_msg("%s", e.text);
    h[i] = tokenizer_hash(t);
    tokenizer_close(t);
    for (int k = 0; k < i; k++) assert_false(hash_equal(h[i], h[k]));
  }
}

/* ---- bad files ---- */

typedef struct bad_vocabulary {
  const char *model, *pre, *merge, *token;
  uint32_t kind;
  uint64_t kinds, eos;
  int code;
  const char *part;
} bad_vocabulary;

/* Files say in several ways that there is no such token. */
static void test_an_end_outside_the_vocabulary_is_none(void **state) {
  (void)state;
  static const struct {
    uint32_t kind;
    int bytes;
    uint64_t id;
    const char *doubt;
  } rows[] = {{GB_U32, 4, 1, ""},
              {GB_U32, 4, 3, "tokenizer.ggml.eos_token_id is 3, which is no token"},
              {GB_U32, 4, UINT32_MAX, "tokenizer.ggml.eos_token_id is 4294967295, which is no token"},
              {GB_I32, 4, UINT32_MAX, "tokenizer.ggml.eos_token_id is -1, which is no token"},
              {GB_U64, 8, UINT64_MAX, "which is no token"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    gguf_builder b = gb_begin(3);
    tokenizer *t;
    err e;
    gb_key_text(&b, "tokenizer.ggml.model", "gpt2"), gb_key_text(&b, "tokenizer.ggml.pre", "smollm");
    gb_array(&b, "tokenizer.ggml.tokens", GB_STRING, 3);
    gb_string(&b, "a", 1), gb_string(&b, "b", 1), gb_string(&b, "ab", 2);
    gb_array(&b, "tokenizer.ggml.token_type", GB_I32, 3);
    for (int k = 0; k < 3; k++) gb_number(&b, 1, 4);
    gb_array(&b, "tokenizer.ggml.merges", GB_STRING, 1), gb_string(&b, "a b", 3);
    gb_key(&b, "tokenizer.ggml.eos_token_id", rows[i].kind);
    gb_number(&b, rows[i].id, rows[i].bytes);
    if (open_built(&b, &t, &e)) fail_msg("row %zu: %s", i, e.text);
    assert_non_null(strstr(tokenizer_doubt(t), rows[i].doubt));
    assert_int_equal(tokenizer_doubt(t)[0] != 0, rows[i].doubt[0] != 0);
    assert_int_equal(tokenizer_eos(t), rows[i].doubt[0] ? -1 : 1);
    tokenizer_close(t);
  }
}

static void test_refuses_bad_vocabularies(void **state) {
  (void)state;
  static const bad_vocabulary rows[] = {
      {"bert", "smollm", "a b", "ab", 1, 3, 0, ERR_UNSUPPORTED, "'bert'; those known are gpt2 and llama"},
      {"gpt2", "falcon", "a b", "ab", 1, 3, 0, ERR_UNSUPPORTED,
       "'falcon'; those known are gpt2, llama-bpe, qwen2, deepseek-r1-qwen, smollm, tekken"},
      {NULL, "smollm", "a b", "ab", 1, 3, 0, ERR_FORMAT, "kind"},
      {"gpt2", NULL, "a b", "ab", 1, 3, 0, ERR_FORMAT, "splits text"},
      {"gpt2", "smollm", NULL, "ab", 1, 3, 0, ERR_FORMAT, "no merges"},
      {"gpt2", "smollm", "ab", "ab", 1, 3, 0, ERR_FORMAT, "merge 0"},
      {"gpt2", "smollm", "a c", "ab", 1, 3, 0, ERR_FORMAT, "merge 0"},
      {"gpt2", "smollm", "b a", "ab", 1, 3, 0, ERR_FORMAT, "merge 0"},
      {"gpt2", "smollm", "a b ", "ab", 1, 3, 0, ERR_FORMAT, "merge 0"},
      {"gpt2", "smollm", "", "ab", 1, 3, 0, ERR_FORMAT, "merge 0"},
      {"gpt2", "smollm", "a b", NULL, 1, 0, 0, ERR_FORMAT, "no tokens"},
      {"gpt2", "smollm", "a b", "a\xff", 1, 3, 0, ERR_FORMAT, "not UTF-8"},
      {"gpt2", "smollm", "a b", "ab", 0, 3, 0, ERR_FORMAT, "kind that does not exist"},
      {"gpt2", "smollm", "a b", "ab", 7, 3, 0, ERR_FORMAT, "kind that does not exist"},
      {"gpt2", "smollm", "a b", "ab", 1, 2, 0, ERR_FORMAT, "one kind for each"},
      {"gpt2", "smollm", "a b", "ab", 1, 4, 0, ERR_FORMAT, "one kind for each"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const bad_vocabulary *r = &rows[i];
    gguf_builder b = gb_begin(3);
    tokenizer *t = (tokenizer *)1;
    err e;
    if (r->model) gb_key_text(&b, "tokenizer.ggml.model", r->model);
    if (r->pre) gb_key_text(&b, "tokenizer.ggml.pre", r->pre);
    gb_array(&b, "tokenizer.ggml.tokens", GB_STRING, r->token ? 3 : 0);
    if (r->token) gb_string(&b, "a", 1), gb_string(&b, "b", 1), gb_string(&b, r->token, strlen(r->token));
    gb_array(&b, "tokenizer.ggml.token_type", GB_I32, r->kinds);
    for (uint64_t k = 0; k < r->kinds; k++) gb_number(&b, r->kind, 4);
    if (r->merge)
      gb_array(&b, "tokenizer.ggml.merges", GB_STRING, 1), gb_string(&b, r->merge, strlen(r->merge));
    gb_key_u32(&b, "tokenizer.ggml.eos_token_id", (uint32_t)r->eos);
    int rc = open_built(&b, &t, &e);
    if (rc != r->code || !strstr(e.text, r->part)) fail_msg("row %zu: %d %s", i, rc, e.text);
    assert_null(t);
  }
}

/* ---- bad text ---- */

static void test_refuses_text_that_is_not_utf8(void **state) {
  (void)state;
  static const struct {
    const char *text;
    int at;
  } rows[] = {{"\xff", 0},
              {"abcdefghij\x80", 10},
              {"a\xc3", 1},
              {"\xc3\xa9\xc0\xaf", 2},
              {"ab\xe2\x82", 2},
              {"\xed\xa0\x80", 0},
              {"x\xf4\x90\x80\x80", 1},
              {"12345678\xf0\x9f\x98", 8},
              {"\xe0\x80\x80", 0}};
  tokenizer *t = open_small(0);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    tokenizer_ids ids = {0};
    err e;
    char where[32];
    assert_int_equal(tokenizer_encode(t, "ab\x01", 3, true, &ids, NULL), ERR_OK);
    size_t count = ids.count;
    assert_int_equal(tokenizer_encode(t, rows[i].text, strlen(rows[i].text), true, &ids, &e), ERR_FORMAT);
    snprintf(where, sizeof where, "byte %d ", rows[i].at);
    if (!strstr(e.text, where)) fail_msg("row %zu: %s", i, e.text);
    assert_int_equal(ids.count, count);
    tokenizer_ids_fini(&ids);
  }
  tokenizer_close(t);
}

static void test_refuses_text_that_is_too_long(void **state) {
  (void)state;
  tokenizer *t = open_small(0);
  tokenizer_ids ids = {0};
  err e;
  size_t size = TOKENIZER_TEXT_MAX + 1;
  char *text = malloc(size);
  memset(text, '1', size);
  assert_int_equal(tokenizer_encode(t, text, size, true, &ids, &e), ERR_LIMIT);
  assert_int_equal(ids.count, 0);
  assert_int_equal(tokenizer_encode(t, text, size - 1, true, &ids, &e), ERR_OK);
  assert_int_equal(ids.count, size - 1);
  tokenizer_ids_fini(&ids);
  tokenizer_close(t);
  free(text);
}

/* Sanitizers map more address space than any limit allows. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static void test_out_of_memory_changes_nothing(void **state) {
  (void)state;
  skip();
}
#else
static size_t address_space(void) {
  size_t pages = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  assert_non_null(f);
  assert_int_equal(fscanf(f, "%zu", &pages), 1);
  fclose(f);
  return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* A word of 16 MiB wants several hundred; two words before it have been encoded when memory ends. */
static void test_out_of_memory_changes_nothing(void **state) {
  (void)state;
  tokenizer *t = open_small(0x20);
  tokenizer_ids ids = {0};
  struct rlimit before, low;
  err e;
  char *text = malloc(TOKENIZER_TEXT_MAX);
  memset(text, 'a', TOKENIZER_TEXT_MAX);
  memcpy(text, "hello\x01hello ", 12);
  assert_int_equal(tokenizer_encode(t, "ab\x02", 3, true, &ids, NULL), ERR_OK);
  const size_t count = ids.count;
  assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
  low = before;
  low.rlim_cur = address_space() + (100u << 20);
  assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
  int rc = tokenizer_encode(t, text, TOKENIZER_TEXT_MAX, true, &ids, &e);
  assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
  assert_int_equal(rc, ERR_NOMEM);
  assert_int_equal(ids.count, count);
  assert_int_equal(ids.dropped_bytes, 1);
  assert_int_equal(tokenizer_encode(t, text, TOKENIZER_TEXT_MAX, true, &ids, &e), ERR_OK);
  tokenizer_ids_fini(&ids);
  tokenizer_close(t);
  free(text);
}
#endif

/* How many sequences of each length are characters is known: all code points but the surrogates. */
static void test_utf8_counts(void **state) {
  (void)state;
  static const uint8_t more[] = {0x00, 0x41, 0x7f, 0x80, 0x81, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xff};
  uint32_t code, count[5] = {0};
  size_t length;
  for (uint32_t c = 0; c < 0x110000; c++) { /* every code point, written by arithmetic */
    uint8_t p[4] = {(uint8_t)c};
    size_t size = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t marks[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = size - 1; size > 1 && i > 0; i--)
      p[i] = (uint8_t)(0x80 | (c >> (6 * (size - 1 - i)) & 0x3f));
    if (size > 1) p[0] = (uint8_t)(marks[size] | c >> (6 * (size - 1)));
    bool good = utf8_next(p, size, &length, &code) == UTF8_CHARACTER && length == size && code == c;
    assert_int_equal(good, c < 0xd800 || c > 0xdfff);
    count[size] += good;
  }
  assert_true(count[1] == 128 && count[2] == 1920 && count[3] == 61440 && count[4] == 1048576);
  uint32_t two = 0, three = 0;
  for (int a = 0; a < 256; a++) {
    for (int b = 0; b < 256; b++) {
      uint8_t p[3] = {(uint8_t)a, (uint8_t)b, 0};
      two += utf8_next(p, 2, &length, &code) == UTF8_CHARACTER && length == 2;
      for (int c = 0; c < 256; c++) {
        p[2] = (uint8_t)c;
        three += utf8_next(p, 3, &length, &code) == UTF8_CHARACTER && length == 3;
      }
    }
    for (size_t i = 0; i < sizeof more * sizeof more * sizeof more; i++) { /* four bytes: borders alone */
      uint8_t p[4] = {(uint8_t)a, more[i % 12], more[i / 12 % 12], more[i / 144]};
      bool good = utf8_next(p, 4, &length, &code) == UTF8_CHARACTER && length == 4;
      uint32_t value =
          (uint32_t)(p[0] & 7) << 18 | (uint32_t)(p[1] & 63) << 12 | (uint32_t)(p[2] & 63) << 6 | (p[3] & 63);
      bool shape = p[0] >> 3 == 0x1e && p[1] >> 6 == 2 && p[2] >> 6 == 2 && p[3] >> 6 == 2;
      assert_int_equal(good, shape && value >= 0x10000 && value <= 0x10ffff);
    }
  }
  assert_int_equal(two, 1920);
  assert_int_equal(three, 61440);
}

/* ---- near-linear on anything ---- */

static char *repeat(const char *unit, size_t *size) {
  size_t n = strlen(unit);
  char *text = malloc(HOSTILE_BYTES);
  *size = HOSTILE_BYTES / n * n;
  for (size_t i = 0; i < *size; i++) text[i] = unit[i % n];
  return text;
}

typedef struct hostile {
  const tokenizer *t;
  const char *text;
} hostile;

static void encode_hostile(void *context, size_t size) {
  const hostile *h = context;
  tokenizer_ids ids = {0};
  while ((h->text[size] & 0xc0) == 0x80) size--; /* no character is cut */
  assert_int_equal(tokenizer_encode(h->t, h->text, size, true, &ids, NULL), ERR_OK);
  tokenizer_ids_fini(&ids);
}

static void encode_near_linear(const tokenizer *t, const char *name, const char *text, size_t size) {
  tokenizer_ids ids = {0};
  size_t back_size;
  if (!growth_is_near_linear(encode_hostile, &(hostile){t, text}, GROWTH_SIZE))
    fail_msg("%zu bytes of %s take more than their share", size, name);
  assert_int_equal(tokenizer_encode(t, text, size, true, &ids, NULL), ERR_OK);
  char *back = decode_all(t, ids.ids, ids.count, &back_size);
  assert_int_equal(back_size + ids.dropped_bytes, size);
  if (!ids.dropped_bytes) assert_memory_equal(back, text, size);
  free(back);
  tokenizer_ids_fini(&ids);
}

static void test_hostile_text_is_near_linear(void **state) {
  (void)state;
  static const char *const units[] = {
      "a",       " ",    "1",        "\n",         "ab",           " \n",          "a1",
      "!?",      "<",    "=",        "<|im_start", "<|im_start|>", "\xe6\xbc\xa2", "'s",
      "\t a \n", "\x04", "e\xcc\x81"};
  tokenizer *t = open_model();
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
    size_t size;
    char *text = repeat(units[i], &size);
    encode_near_linear(t, units[i], text, size);
    text[size - 1] = 'x'; /* blanks before a word: the lookahead */
    if ((uint8_t)units[i][0] < 0x80 && (uint8_t)units[i][strlen(units[i]) - 1] < 0x80)
      encode_near_linear(t, units[i], text, size);
    free(text);
  }
  uint64_t seed = 7;
  char *text = malloc(HOSTILE_BYTES);
  for (size_t i = 0; i < HOSTILE_BYTES; i++) text[i] = (char)('a' + random_next(&seed) % 26);
  encode_near_linear(t, "random letters", text, HOSTILE_BYTES);
  free(text);
  tokenizer_close(t);
}

/* ---- the parts against slow and plain ones ---- */

/* The definition: the lowest rank, leftmost, again and again. `share` merges one after the other have one
 * rank. */
static size_t merge_naively(const int32_t (*merges)[3], int merge_count, int share, int32_t *ids,
                            size_t count) {
  for (;;) {
    int best = -1;
    size_t at = 0;
    for (size_t i = 0; i + 1 < count; i++) {
      int r = 0;
      while (r < merge_count && (merges[r][0] != ids[i] || merges[r][1] != ids[i + 1])) r++;
      if (r == merge_count || (best >= 0 && r / share >= best / share)) continue;
      best = r;
      at = i;
    }
    if (best < 0) return count;
    ids[at] = merges[best][2];
    memmove(ids + at + 1, ids + at + 2, (count - at - 2) * sizeof *ids);
    count--;
  }
}

static void test_merges_by_the_definition(void **state) {
  (void)state;
  enum { MERGES = 40, LENGTH = 60 };
  uint64_t seed = 1;
  bpe_scratch scratch = {0};
  int changed = 0;
  for (int round = 0; round < 3000; round++) {
    int32_t merges[MERGES][3];
    const int share = 1 + round % 3;
    bpe *b;
    assert_int_equal(bpe_alloc(&b, MERGES), ERR_OK);
    for (int i = 0; i < MERGES; i++) { /* pairs may come twice: the first rank counts */
      merges[i][0] = (int32_t)(random_next(&seed) % (uint64_t)(3 + i));
      merges[i][1] = (int32_t)(random_next(&seed) % (uint64_t)(3 + i));
      merges[i][2] = 3 + i;
      bpe_add(b, merges[i][0], merges[i][1], (uint32_t)(i / share), merges[i][2]);
    }
    int32_t ids[LENGTH], want[LENGTH];
    size_t count = random_next(&seed) % (LENGTH + 1);
    for (size_t i = 0; i < count; i++) ids[i] = want[i] = (int32_t)(random_next(&seed) % 3);
    size_t want_count = merge_naively((const int32_t(*)[3])merges, MERGES, share, want, count), got = count;
    assert_int_equal(bpe_merge(b, &scratch, ids, &got), ERR_OK);
    assert_int_equal(got, want_count);
    assert_memory_equal(ids, want, got * sizeof *ids);
    changed += got != count;
    bpe_free(b);
  }
  assert_true(changed > 2000);
  bpe_scratch_fini(&scratch);
}

static const added_token *find_naively(const added_tokens *s, const char *text, size_t size, size_t *at) {
  for (*at = 0; *at < size; ++*at) {
    const added_token *best = NULL;
    for (size_t i = 0; i < s->count; i++) {
      const added_token *t = &s->tokens[i];
      if (t->size > size - *at || memcmp(t->text, text + *at, t->size)) continue;
      if (!best || t->size > best->size || (t->size == best->size && t->id < best->id)) best = t;
    }
    if (best) return best;
  }
  return NULL;
}

static void test_finds_special_tokens_by_the_definition(void **state) {
  (void)state;
  uint64_t seed = 2;
  int found = 0;
  for (int round = 0; round < 3000; round++) {
    added_tokens s = {0};
    char pool[12][5], text[30];
    uint32_t sizes[12];
    int count = (int)(random_next(&seed) % 13);
    for (int i = 0; i < count; i++) {
      uint32_t size = sizes[i] = 1 + (uint32_t)(random_next(&seed) % 5);
      for (uint32_t k = 0; k < size; k++) pool[i][k] = (char)("a\xff<"[random_next(&seed) % 3]);
      assert_int_equal(added_tokens_add(&s, pool[i], size, i, 0), ERR_OK);
    }
    added_tokens_sort(&s);
    for (size_t k = 0; k < sizeof text; k++) text[k] = "a\xff<z"[random_next(&seed) % 4];
    size_t at = 0, want_at;
    const added_token *want = find_naively(&s, text, sizeof text, &want_at);
    assert_ptr_equal(added_tokens_find(&s, text, sizeof text, &at), want);
    if (want) assert_int_equal(at, want_at), found++;
    for (int i = 0; i < count; i++) {
      const added_token *exact = added_tokens_exact(&s, pool[i], sizes[i]);
      assert_true(exact && exact->size == sizes[i] && exact->id <= i);
      assert_memory_equal(exact->text, pool[i], sizes[i]);
    }
    added_tokens_fini(&s);
  }
  assert_true(found > 1500);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_hostile_text_is_near_linear), /* before what takes long without it */
      cmocka_unit_test(test_golden_ids_and_round_trips),
      cmocka_unit_test(test_golden_prompts),
      cmocka_unit_test(test_default_vocabulary),
      cmocka_unit_test(test_access),
      cmocka_unit_test(test_small_vocabulary),
      cmocka_unit_test(test_appends_and_counts_dropped_bytes),
      cmocka_unit_test(test_pieces),
      cmocka_unit_test(test_refuses_bad_scores),
      cmocka_unit_test(test_hash),
      cmocka_unit_test(test_an_end_outside_the_vocabulary_is_none),
      cmocka_unit_test(test_an_unknown_token_outside_the_vocabulary_is_none),
      cmocka_unit_test(test_refuses_bad_vocabularies),
      cmocka_unit_test(test_refuses_text_that_is_not_utf8),
      cmocka_unit_test(test_refuses_text_that_is_too_long),
      cmocka_unit_test(test_out_of_memory_changes_nothing),
      cmocka_unit_test(test_utf8_counts),
      cmocka_unit_test(test_merges_by_the_definition),
      cmocka_unit_test(test_finds_special_tokens_by_the_definition),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
