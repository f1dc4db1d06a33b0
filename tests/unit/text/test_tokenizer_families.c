/* libs: text_counted file base */
/* Every family of tokenizers against goldens of other programs (tests/golden/tokenizers). With an argument it
 * is their tool: `test_tokenizer_families FILE` takes JSON lines {"text", "special"} on stdin and writes
 * {"ids", "decoded"}, FILE being a GGUF or a tokenizer.json (tests/compare_tokenizers.py). */
#include "common/text/detokenizer.h"
#include "common/text/tokenizer.h"
#include "tests/support/gguf_builder.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/support/growth.h"
#include "tests/support/json_lines.h"

#define FOLDER  "tests/golden/tokenizers/"
#define STRINGS 45 /* of each family */
#ifdef __SANITIZE_ADDRESS__
#define HOSTILE_BYTES (1 << 17)
#else
#define HOSTILE_BYTES (1 << 20)
#endif

/* ---- opening ---- */

static char *read_whole(const char *path, size_t *size) {
  FILE *f = fopen(path, "rb");
  gguf_builder b = {0}; /* as a growing buffer */
  char part[4096];
  if (!f) return NULL;
  for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) gb_put(&b, part, n);
  fclose(f);
  *size = b.size;
  return (char *)b.bytes;
}

static int open_json(tokenizer **t, const char *path, err *e) {
  tokenizer_texts x = {0};
  char *text = read_whole(path, &x.tokenizer_size);
  x.tokenizer = text;
  int rc = text ? tokenizer_open_texts(t, &x, 0, e) : err_set(e, ERR_IO, "%s is missing", path);
  free(text);
  return rc;
}

static int open_gguf(tokenizer **t, const char *path, err *e) {
  gguf *g;
  int rc = gguf_open(&g, path, e);
  if (rc) return rc;
  rc = tokenizer_open(t, g, e);
  gguf_close(g);
  return rc;
}

static int open_path(tokenizer **t, const char *path, err *e) {
  size_t size = strlen(path);
  bool json = size > 5 && strcmp(path + size - 5, ".json") == 0;
  return json ? open_json(t, path, e) : open_gguf(t, path, e);
}

static tokenizer *open_family(const char *name, const char *suffix) {
  char path[256];
  tokenizer *t;
  err e;
  snprintf(path, sizeof path, FOLDER "%s.%s", name, suffix);
  if (open_path(&t, path, &e)) fail_msg("%s: %s", path, e.text);
  return t;
}

/* ---- goldens ---- */

static char *decode_all(const tokenizer *t, const int32_t *ids, size_t count, size_t *size) {
  gguf_builder text = {0};
  detokenizer *d;
  detokenizer_out out;
  gb_put(&text, "", 1);
  text.size = 0;
  if (detokenizer_alloc(&d, t, NULL, 0, false, true, NULL)) abort();
  for (size_t i = 0; i <= count; i++) {
    if (i < count ? detokenizer_feed(d, ids[i], &out) : detokenizer_end(d, &out)) abort();
    gb_put(&text, out.text, out.size);
  }
  detokenizer_free(d);
  *size = text.size;
  return (char *)text.bytes;
}

typedef struct golden_run {
  const char *family;
  const tokenizer *t;
  int rows, wrong, plain, decoded;
} golden_run;

static void check_ids(golden_run *run, const json_t *row, const char *key, unsigned flags) {
  size_t size, count;
  const char *text = json_lines_text(row, "text", &size);
  int32_t *want = json_lines_ids(row, key, &count);
  tokenizer_ids got = {0};
  assert_int_equal(tokenizer_encode(run->t, text, size, flags, &got, NULL), ERR_OK);
  if (got.count != count || (count && memcmp(got.ids, want, count * sizeof *want))) {
    char *shown = json_dumps(row, JSON_ENSURE_ASCII);
    print_error("%s: %s differ: %s\n", run->family, key, shown);
    free(shown);
    run->wrong++;
  }
  assert_int_equal(got.dropped_bytes, 0);
  free(want);
  tokenizer_ids_fini(&got);
}

static void check_row(const json_t *row, void *context) {
  golden_run *run = context;
  size_t size, count, text_size;
  const char *family = json_lines_text(row, "family", &size);
  if (strcmp(family, run->family) != 0) return;
  run->rows++;
  check_ids(run, row, "ids", TOKENIZER_SPECIAL);
  if (json_object_get(row, "plain")) {
    check_ids(run, row, "plain", 0);
    run->plain++;
  }
  if (!json_object_get(row, "decoded")) return;
  const char *want = json_lines_text(row, "decoded", &text_size);
  int32_t *ids = json_lines_ids(row, "ids", &count);
  char *text = decode_all(run->t, ids, count, &size);
  if (size != text_size || memcmp(text, want, size)) {
    print_error("%s: decodes to '%.*s', not '%s'\n", family, (int)size, text, want);
    run->wrong++;
  }
  run->decoded++;
  free(text);
  free(ids);
}

typedef struct family {
  const char *name, *suffix, *rows; /* rows: the family whose strings are meant; NULL: its own */
} family;

static const family FAMILIES[] = {
    {"gpt2", "gguf", NULL},        {"gpt2", "json", NULL},          {"llama-bpe", "gguf", NULL},
    {"llama-bpe", "json", NULL},   {"qwen2", "gguf", NULL},         {"qwen2", "json", NULL},
    {"smollm", "gguf", NULL},      {"smollm", "json", NULL},        {"tekken", "gguf", NULL},
    {"tekken", "json", NULL},      {"odd", "json", NULL},           {"spm", "gguf", NULL},
    {"spm-prepend", "json", NULL}, {"spm-metaspace", "json", NULL},
};
enum { FAMILY_COUNT = sizeof FAMILIES / sizeof *FAMILIES };

static void test_goldens(void **state) {
  (void)state;
  int wrong = 0;
  for (int i = 0; i < FAMILY_COUNT; i++) {
    tokenizer *t = open_family(FAMILIES[i].name, FAMILIES[i].suffix);
    golden_run run = {.family = FAMILIES[i].name, .t = t};
    json_lines_each(FOLDER "strings.jsonl", check_row, &run);
    assert_int_equal(run.rows, STRINGS);
    assert_true(strcmp(run.family, "spm") == 0 || run.plain >= STRINGS / 3);
    assert_true(strcmp(run.family, "spm") == 0 || strcmp(run.family, "odd") == 0 ||
                run.decoded > STRINGS / 4);
    wrong += run.wrong;
    tokenizer_close(t);
  }
  assert_int_equal(wrong, 0);
}

/* One vocabulary, whichever file it comes from: ids mean the same, and so do the marks. */
static void test_gguf_and_json_agree(void **state) {
  (void)state;
  static const char *const names[][2] = {{"gpt2", "gpt2"},     {"llama-bpe", "llama-bpe"},
                                         {"qwen2", "qwen2"},   {"smollm", "smollm"},
                                         {"tekken", "tekken"}, {"spm", "spm-prepend"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    tokenizer *a = open_family(names[i][0], "gguf"), *b = open_family(names[i][1], "json");
    bool spm = strcmp(names[i][0], "spm") == 0;
    bool bos = spm || strcmp(names[i][0], "llama-bpe") == 0 || strcmp(names[i][0], "tekken") == 0;
    assert_true(hash_equal(tokenizer_hash(a), tokenizer_hash(b)));
    assert_int_equal(tokenizer_size(a), tokenizer_size(b));
    for (int32_t id = 0; id < tokenizer_size(a); id++) {
      size_t size_a, size_b;
      const char *p = tokenizer_piece(a, id, &size_a), *q = tokenizer_piece(b, id, &size_b);
      assert_int_equal(tokenizer_is_special(a, id), tokenizer_is_special(b, id));
      assert_int_equal(size_a, size_b);
      if (size_a) assert_memory_equal(p, q, size_a);
    }
    assert_int_equal(tokenizer_find(a, "<|im_end|>", 10), tokenizer_find(b, "<|im_end|>", 10));
    assert_true(tokenizer_find(a, "<think>", 7) > 0);
    assert_int_equal(tokenizer_adds_bos(a), bos); /* by the family: the file says nothing */
    assert_int_equal(tokenizer_adds_bos(b), bos); /* by its post_processor */
    if (bos) assert_int_equal(tokenizer_bos(a), tokenizer_bos(b));
    assert_int_equal(tokenizer_strips_blank(a), spm);
    assert_int_equal(tokenizer_strips_blank(b), spm);
    tokenizer_close(a);
    tokenizer_close(b);
  }
}

/* ---- near-linear on anything ---- */

typedef struct hostile {
  const tokenizer *t;
  const char *text;
} hostile;

static void encode_hostile(void *context, size_t size) {
  const hostile *h = context;
  tokenizer_ids ids = {0};
  while ((h->text[size] & 0xc0) == 0x80) size--; /* no character is cut */
  assert_int_equal(tokenizer_encode(h->t, h->text, size, TOKENIZER_SPECIAL, &ids, NULL), ERR_OK);
  tokenizer_ids_fini(&ids);
}

static void encode_near_linear(const tokenizer *t, const char *name, const char *unit) {
  size_t n = strlen(unit), size = HOSTILE_BYTES / n * n, back_size;
  char *text = malloc(size);
  tokenizer_ids ids = {0};
  for (size_t i = 0; i < size; i++) text[i] = unit[i % n];
  if (!growth_is_near_linear(encode_hostile, &(hostile){t, text}, GROWTH_SIZE))
    fail_msg("%s: %zu bytes of %s take more than their share", name, size, unit);
  assert_int_equal(tokenizer_encode(t, text, size, TOKENIZER_SPECIAL, &ids, NULL), ERR_OK);
  char *back = decode_all(t, ids.ids, ids.count, &back_size);
  /* NFC makes another text; SentencePiece puts a blank after every added token, or drops the text's first
   * one. */
  bool same = !strstr(unit, "\xcc") && ((*unit != '<' && *unit != ' ') || !tokenizer_strips_blank(t));
  if (same) {
    assert_int_equal(back_size, size);
    assert_memory_equal(back, text, size);
  }
  free(back);
  free(text);
  tokenizer_ids_fini(&ids);
}

static void test_hostile_text_is_near_linear(void **state) {
  (void)state;
  static const char *const units[] = {"a",
                                      "A",
                                      "1",
                                      " ",
                                      "\n",
                                      " \n",
                                      "\xe6\xbc\xa2",
                                      "'s",
                                      "a A1",
                                      "<|im_start",
                                      "!?/",
                                      "\xcc\x81\xcc\xa3",
                                      "e\xcc\x81"};
  for (int i = 0; i < FAMILY_COUNT; i++) {
    if (strcmp(FAMILIES[i].name, "odd") == 0) continue; /* its patterns are not tandem's */
    if (strcmp(FAMILIES[i].suffix, "json") == 0 && strncmp(FAMILIES[i].name, "spm", 3) != 0) continue;
    tokenizer *t = open_family(FAMILIES[i].name, FAMILIES[i].suffix);
    for (size_t k = 0; k < sizeof units / sizeof *units; k++)
      encode_near_linear(t, FAMILIES[i].name, units[k]);
    tokenizer_close(t);
  }
}

/* ---- the tool ---- */

static void answer_line(const json_t *row, void *context) {
  const tokenizer *t = context;
  size_t size, decoded_size;
  const char *text = json_lines_text(row, "text", &size);
  tokenizer_ids ids = {0};
  err e;
  unsigned flags = json_is_true(json_object_get(row, "special")) ? TOKENIZER_SPECIAL : 0;
  if (tokenizer_encode(t, text, size, flags, &ids, &e)) fail_msg("%s", e.text);
  char *decoded = decode_all(t, ids.ids, ids.count, &decoded_size);
  json_t *answer = json_object(), *list = json_array();
  for (size_t i = 0; i < ids.count; i++) json_array_append_new(list, json_integer(ids.ids[i]));
  json_object_set_new(answer, "ids", list);
  json_object_set_new(answer, "decoded", json_stringn(decoded, decoded_size));
  json_dumpf(answer, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
  putchar('\n');
  json_decref(answer);
  free(decoded);
  tokenizer_ids_fini(&ids);
}

static int tool(const char *path) {
  tokenizer *t;
  err e;
  if (open_path(&t, path, &e)) {
    fprintf(stderr, "%s\n", e.text);
    return 1;
  }
  json_lines_each("/dev/stdin", answer_line, t);
  tokenizer_close(t);
  return 0;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_goldens),
      cmocka_unit_test(test_gguf_and_json_agree),
      cmocka_unit_test(test_hostile_text_is_near_linear),
  };
  return argc > 1 ? tool(argv[1]) : cmocka_run_group_tests(tests, NULL, NULL);
}
