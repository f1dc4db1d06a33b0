/* libs: text file base */
/* What a tokenizer.json says and what is refused; test_tokenizer_families.c compares the ids. */
#include "common/file/vocabulary.h"
#include "common/text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/scratch.h"

/* A small byte-level one: the parts that a test changes are by default as here. */
typedef struct parts {
  const char *normalizer, *pre, *post, *decoder, *model, *added;
} parts;

#define VOCAB  "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\u0120\":3}"
#define MERGES "\"merges\":[\"a b\"]"
#define BPE    "{\"type\":\"BPE\"," VOCAB "," MERGES "}"
#define BYTES  "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define ADDED                                                                                                \
  "[{\"id\":4,\"content\":\"<s>\",\"special\":true},{\"id\":5,\"content\":\"</s>\",\"special\":true}]"

static const char *or_default(const char *text, const char *otherwise) {
  return text ? text : otherwise;
}

static int open_parts(tokenizer **t, const parts *p, const char *config, const char *generation, err *e) {
  char *json;
  int size = asprintf(
      &json,
      "{\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":%s,"
      "\"model\":%s}",
      or_default(p->added, ADDED), or_default(p->normalizer, "null"), or_default(p->pre, BYTES),
      or_default(p->post, "null"), or_default(p->decoder, "{\"type\":\"ByteLevel\"}"),
      or_default(p->model, BPE));
  assert_true(size > 0);
  tokenizer_texts x = {.tokenizer = json,
                       .tokenizer_size = (size_t)size,
                       .config = config,
                       .config_size = config ? strlen(config) : 0,
                       .generation = generation,
                       .generation_size = generation ? strlen(generation) : 0};
  *e = (err){0};
  int rc = tokenizer_open_texts(t, &x, 0, e);
  free(json);
  return rc;
}

static void assert_ids(const tokenizer *t, const char *text, unsigned flags, const int32_t *want,
                       size_t count) {
  tokenizer_ids ids = {0};
  assert_int_equal(tokenizer_encode(t, text, strlen(text), flags, &ids, NULL), ERR_OK);
  assert_int_equal(ids.count, count);
  if (count) assert_memory_equal(ids.ids, want, count * sizeof *want);
  tokenizer_ids_fini(&ids);
}

#define ASSERT_IDS(t, text, flags, ...)                                                                      \
  assert_ids(t, text, flags, (const int32_t[]){__VA_ARGS__},                                                 \
             sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* ---- what it says ---- */

static void test_small(void **state) {
  (void)state;
  tokenizer *t;
  err e;
  if (open_parts(&t, &(parts){0}, NULL, NULL, &e)) fail_msg("%s", e.text);
  ASSERT_IDS(t, "ab ba", 0, 2, 3, 1, 0);
  ASSERT_IDS(t, "<s>ab</s>", TOKENIZER_SPECIAL, 4, 2, 5);
  ASSERT_IDS(t, "<s>ab</s>", 0, 2);
  assert_int_equal(tokenizer_bos(t), -1);
  assert_int_equal(tokenizer_eos(t), -1);
  assert_false(tokenizer_adds_bos(t));
  assert_int_equal(tokenizer_size(t), 6);
  tokenizer_close(t);
}

static void test_merges_in_both_forms(void **state) {
  (void)state;
  tokenizer *t;
  err e;
  const parts p = {.model = "{" VOCAB ",\"merges\":[[\"a\",\"b\"]]}"};
  if (open_parts(&t, &p, NULL, NULL, &e)) fail_msg("%s", e.text);
  ASSERT_IDS(t, "ab", 0, 2);
  tokenizer_close(t);
}

/* As transformers writes it for a model whose texts have no end. */
static void test_numbers_too_large(void **state) {
  (void)state;
  static const char *const numbers[] = {"1000000000000000019884624838656", "-1000000000000000019884624838656",
                                        "0.1000000000000000019884624838656",
                                        "1e-0000000000000000000000000000001"};
  char config[256];
  tokenizer *t;
  err e;
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    snprintf(
        config, sizeof config,
        "{\"x\":\"1000000000000000019884624838656\\\"\",\"model_max_length\":1000000000000000019884624838656,"
        "\"n\":%s,\"eos_token\":\"</s>\"}",
        numbers[i]);
    if (open_parts(&t, &(parts){0}, config, "{\"eos_token_id\":[5,3]}", &e))
      fail_msg("%s: %s", numbers[i], e.text);
    assert_int_equal(tokenizer_eos(t), 5);
    tokenizer_close(t);
  }
  snprintf(config, sizeof config, "{\"eos_token\":1000000000000000019884624838656%0120d}", 0);
  assert_int_equal(open_parts(&t, &(parts){0}, config, NULL, &e), ERR_OK); /* no text: as none */
  tokenizer_close(t);
}

/* What looks like depth inside a string is none, also after a quote that does not end it. */
static void test_brackets_in_strings(void **state) {
  (void)state;
  tokenizer *t;
  err e;
  const parts p = {.added = "[{\"id\":4,\"content\":\"<\\\"[[[[[[[[[[[[[[[[[[[[[[[[[\\\\\"},"
                            "{\"id\":5,\"content\":\"\\\"\"},{\"id\":6,\"content\":\"\\\\\"}]"};
  if (open_parts(&t, &p, NULL, NULL, &e)) fail_msg("%s", e.text);
  ASSERT_IDS(t, "\"a\\<\"[[[[[[[[[[[[[[[[[[[[[[[[[\\", 0, 5, 0, 6, 4);
  tokenizer_close(t);
}

#define TEMPLATE                                                                                             \
  "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":"  \
  "\"A\"}}],"                                                                                                \
  "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[4]}}}"

static void test_beginning_and_ends(void **state) {
  (void)state;
  tokenizer *t;
  err e;
  int32_t count;
  size_t size;
  const parts p = {.post = "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}," TEMPLATE "]}"};
  if (open_parts(&t, &p, NULL, "{\"eos_token_id\":[5,0,5,99],\"bos_token_id\":1}", &e))
    fail_msg("%s", e.text);
  assert_true(tokenizer_adds_bos(t));
  assert_int_equal(tokenizer_bos(t), 4); /* the post-processor's comes first */
  assert_int_equal(tokenizer_eos(t), 5);
  const int32_t *stops = tokenizer_stops(t, &count);
  assert_int_equal(count, 2); /* each once, and none outside the vocabulary */
  assert_true(stops[0] == 5 && stops[1] == 0);
  assert_null(tokenizer_template(t, &size));
  tokenizer_close(t);
  if (open_parts(&t, &p,
                 "{\"eos_token\":{\"content\":\"</s>\"},\"bos_token\":\"<s>\",\"add_bos_token\":false,"
                 "\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"x\"},{\"name\":\"default\","
                 "\"template\":\"yz\"}]}",
                 "{\"eos_token_id\":2}", &e))
    fail_msg("%s", e.text);
  assert_false(tokenizer_adds_bos(t));
  assert_int_equal(tokenizer_eos(t), 5);
  stops = tokenizer_stops(t, &count);
  assert_true(count == 2 && stops[0] == 5 && stops[1] == 2);
  assert_string_equal(tokenizer_template(t, &size), "yz");
  assert_int_equal(size, 2);
  tokenizer_close(t);
}

/* Rows of the model's embedding beyond the vocabulary are tokens nobody uses. */
static void test_padding(void **state) {
  (void)state;
  static const char json[] = "{\"model\":" BPE ",\"pre_tokenizer\":" BYTES "}";
  tokenizer_texts x = {.tokenizer = json, .tokenizer_size = sizeof json - 1};
  tokenizer *t, *wider;
  size_t size;
  err e;
  if (tokenizer_open_texts(&t, &x, 4, &e) || tokenizer_open_texts(&wider, &x, 7, &e)) fail_msg("%s", e.text);
  assert_int_equal(tokenizer_size(t), 4);
  assert_int_equal(tokenizer_size(wider), 7);
  assert_memory_equal(tokenizer_spelling(wider, 6, &size), "[PAD6]", 6);
  assert_false(hash_equal(tokenizer_hash(t), tokenizer_hash(wider)));
  ASSERT_IDS(wider, "ab[PAD6]", TOKENIZER_SPECIAL, 2);
  tokenizer_close(t), tokenizer_close(wider);
}

/* A mark of turns is one, whatever the file calls it. */
static void test_marks_are_special(void **state) {
  (void)state;
  const parts p = {
      .added = "[{\"id\":4,\"content\":\"<|im_end|>\",\"special\":false},{\"id\":5,\"content\":\"<x>\"}]"};
  tokenizer *t;
  err e;
  if (open_parts(&t, &p, NULL, NULL, &e)) fail_msg("%s", e.text);
  assert_true(tokenizer_is_special(t, 4));
  assert_false(tokenizer_is_special(t, 5));
  ASSERT_IDS(t, "a<|im_end|><x>", TOKENIZER_SPECIAL, 0, 4, 5);
  ASSERT_IDS(t, "a<|im_end|><x>", 0, 0, 5);
  tokenizer_close(t);
}

/* ---- what is refused ---- */

typedef struct refusal {
  parts parts;
  int code;
  const char *part; /* of the message */
} refusal;

static void test_refuses_what_it_does_not_know(void **state) {
  (void)state;
  static const refusal rows[] = {
      {{.model = "{\"type\":\"Unigram\",\"vocab\":[]}"}, ERR_UNSUPPORTED, "'Unigram'"},
      {{.model = "{\"type\":\"WordPiece\",\"vocab\":{}}"}, ERR_UNSUPPORTED, "'WordPiece'"},
      {{.model = "{\"vocab\":{}}"}, ERR_FORMAT, "no kind"},
      {{.model = "7"}, ERR_FORMAT, "no model"},
      {{.model = "{\"type\":\"BPE\",\"vocab\":[]," MERGES "}"}, ERR_FORMAT, "model.vocab"},
      {{.model = "{\"type\":\"BPE\"," VOCAB "}"}, ERR_FORMAT, "no merges"},
      {{.model = "{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"ab\"]}"}, ERR_FORMAT, "merge 0"},
      {{.model = "{\"type\":\"BPE\"," VOCAB ",\"merges\":[[\"a\"]]}"}, ERR_FORMAT, "merge 0"},
      {{.model = "{\"type\":\"BPE\"," VOCAB ",\"merges\":[[\"a\",1]]}"}, ERR_FORMAT, "merge 0"},
      {{.model = "{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"b a\"]}"}, ERR_FORMAT, "merge 0"},
      {{.model = "{\"type\":\"BPE\"," VOCAB "," MERGES ",\"dropout\":0.1}"}, ERR_UNSUPPORTED, "dropout"},
      {{.model = "{\"type\":\"BPE\"," VOCAB "," MERGES ",\"end_of_word_suffix\":\"</w>\"}"},
       ERR_UNSUPPORTED,
       "suffix"},
      {{.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":-1}," MERGES "}"}, ERR_FORMAT, "whole number"},
      {{.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":0.5}," MERGES "}"}, ERR_FORMAT, "whole number"},
      {{.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":1048576}," MERGES "}"}, ERR_LIMIT, "1048576"},
      {{.model = "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0}," MERGES "}"}, ERR_FORMAT, "one id"},
      {{.added = "[{\"id\":0,\"content\":\"x\"}]"}, ERR_FORMAT, "one id"},
      {{.added = "[{\"id\":9}]"}, ERR_FORMAT, "content"},
      {{.added = "[7]"}, ERR_FORMAT, "content"},
      {{.normalizer = "{\"type\":\"NFKC\"}"}, ERR_UNSUPPORTED, "normalizer 'NFKC'"},
      {{.normalizer =
            "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}"},
       ERR_UNSUPPORTED,
       "'Lowercase' is not supported; those known are Sequence, NFC, Prepend, Replace"},
      {{.normalizer = "{\"type\":\"Prepend\",\"prepend\":\"x\"}"}, ERR_UNSUPPORTED, "Prepend"},
      {{.normalizer = "{\"type\":\"Prepend\",\"prepend\":\"\u2581\"}"}, ERR_UNSUPPORTED, "without Replace"},
      {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x\"},\"content\":\"y\"}"},
       ERR_UNSUPPORTED,
       "Replace"},
      {{.normalizer = "{\"no\":1}"}, ERR_UNSUPPORTED, "normalizer ''"},
      {{.pre = "{\"type\":\"BertPreTokenizer\"}"}, ERR_UNSUPPORTED, "pre_tokenizer 'BertPreTokenizer'"},
      {{.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTES "," BYTES "]}"},
       ERR_UNSUPPORTED,
       "after ByteLevel"},
      {{.pre = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}"},
       ERR_UNSUPPORTED,
       "'('"},
      {{.pre = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":\"Isolated\"}"},
       ERR_UNSUPPORTED,
       "&&"},
      {{.pre = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Removed\"}"},
       ERR_UNSUPPORTED,
       "Split"},
      {{.pre = "{\"type\":\"Metaspace\",\"replacement\":\"_\"}"}, ERR_UNSUPPORTED, "Metaspace"},
      {{.post = "{\"type\":\"BertProcessing\"}"}, ERR_UNSUPPORTED, "post_processor 'BertProcessing'"},
      {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[]}"}, ERR_UNSUPPORTED, "post_processor"},
      {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{"
                "\"Sequence\":{}}]}"},
       ERR_FORMAT,
       "post_processor"},
      {{.decoder = "{\"type\":\"WordPiece\"}"}, ERR_UNSUPPORTED, "decoder 'WordPiece'"},
      {{.decoder = "{\"type\":\"Strip\",\"content\":\" \",\"start\":2,\"stop\":0}"},
       ERR_UNSUPPORTED,
       "Strip"},
      {{.model = "{"}, ERR_FORMAT, "no JSON"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    tokenizer *t = (tokenizer *)1;
    err e;
    int rc = open_parts(&t, &rows[i].parts, NULL, NULL, &e);
    if (rc != rows[i].code || !strstr(e.text, rows[i].part) || !strstr(e.text, ": "))
      fail_msg("row %zu: %d %s", i, rc, e.text);
    assert_null(t);
  }
}

static void test_refuses_files_beside_it(void **state) {
  (void)state;
  tokenizer *t;
  err e;
  assert_int_equal(open_parts(&t, &(parts){0}, "[]", NULL, &e), ERR_FORMAT);
  assert_non_null(strstr(e.text, "tokenizer_config.json"));
  assert_int_equal(open_parts(&t, &(parts){0}, NULL, "{\"a\"", &e), ERR_FORMAT);
  assert_non_null(strstr(e.text, "generation_config.json"));
}

/* Megabytes of brackets would make a parser take gigabytes. */
static void test_refuses_too_many_values(void **state) {
  (void)state;
  size_t size = 9u << 20;
  char *text = malloc(size);
  memset(text, '[', size);
  tokenizer_texts x = {.tokenizer = text, .tokenizer_size = size};
  tokenizer *t;
  err e;
  assert_int_equal(tokenizer_open_texts(&t, &x, 0, &e), ERR_LIMIT);
  x.tokenizer_size = 17; /* few, but too deep */
  assert_int_equal(tokenizer_open_texts(&t, &x, 0, &e), ERR_LIMIT);
  free(text);
}

/* A pattern that goes back for ever is given up. */
static void test_gives_up_a_slow_pattern(void **state) {
  (void)state;
  const parts p = {.pre =
                       "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
                       "\"(a|a|aa)+[cd]\"},\"behavior\":\"Isolated\"}," BYTES "]}"};
  tokenizer *t;
  tokenizer_ids ids = {0};
  err e;
  char text[65] = "";
  memset(text, 'a', 64);
  if (open_parts(&t, &p, NULL, NULL, &e)) fail_msg("%s", e.text);
  assert_int_equal(tokenizer_encode(t, text, 64, 0, &ids, &e), ERR_LIMIT);
  assert_non_null(strstr(e.text, "too long"));
  assert_int_equal(ids.count, 0);
  tokenizer_ids_fini(&ids);
  tokenizer_close(t);
}

/* ---- a folder ---- */

static void write_file(const char *folder, const char *name, const char *text) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static int open_folder(tokenizer **t, const char *folder, err *e) {
  char path[256];
  snprintf(path, sizeof path, "%s/tokenizer.json", folder);
  return tokenizer_open_json(t, path, 0, e);
}

static void test_folder(void **state) {
  (void)state;
  static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
                                      "chat_template.jinja"};
  const scratch_path_text made = scratch_make_folder();
  const char *folder = made.text;
  char path[256];
  tokenizer *t;
  err e;
  size_t size;
  assert_int_equal(open_folder(&t, folder, &e), ERR_IO);
  assert_non_null(strstr(e.text, "prompt_ids"));
  write_file(folder, names[0], "{\"model\":" BPE ",\"pre_tokenizer\":" BYTES ",\"added_tokens\":" ADDED "}");
  if (open_folder(&t, folder, &e)) fail_msg("%s", e.text);
  ASSERT_IDS(t, "ab", 0, 2);
  snprintf(path, sizeof path, "%s/%s", folder, names[0]);
  hash16 h; /* the target finds the same identity without a tokenizer */
  assert_int_equal(vocabulary_hash_json(path, 0, &h, &e), ERR_OK);
  assert_true(hash_equal(h, tokenizer_hash(t)));
  assert_int_equal(vocabulary_hash_json(path, 9, &h, &e), ERR_OK);
  assert_false(hash_equal(h, tokenizer_hash(t)));
  assert_int_equal(vocabulary_hash_json(scratch_path("none").text, 0, &h, &e), ERR_IO);
  assert_true(hash_is_zero(h));
  tokenizer_close(t);
  write_file(folder, names[1], "{\"eos_token\":\"</s>\",\"chat_template\":\"old\"}");
  write_file(folder, names[2], "{\"bos_token_id\":4,\"eos_token_id\":5}");
  write_file(folder, names[3], "new");
  if (open_folder(&t, folder, &e)) fail_msg("%s", e.text);
  assert_int_equal(tokenizer_bos(t), 4);
  assert_int_equal(tokenizer_eos(t), 5);
  assert_string_equal(tokenizer_template(t, &size), "new");
  tokenizer_close(t);
  for (int i = 0; i < 4; i++) {
    snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    unlink(path);
  }
  snprintf(path, sizeof path, "%s/%s", folder, names[0]);
  assert_int_equal(mkdir(path, 0700), 0); /* no file */
  assert_int_equal(open_folder(&t, folder, &e), ERR_IO);
  rmdir(path);
  rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_small),
      cmocka_unit_test(test_merges_in_both_forms),
      cmocka_unit_test(test_numbers_too_large),
      cmocka_unit_test(test_brackets_in_strings),
      cmocka_unit_test(test_beginning_and_ends),
      cmocka_unit_test(test_padding),
      cmocka_unit_test(test_marks_are_special),
      cmocka_unit_test(test_refuses_what_it_does_not_know),
      cmocka_unit_test(test_refuses_files_beside_it),
      cmocka_unit_test(test_refuses_too_many_values),
      cmocka_unit_test(test_gives_up_a_slow_pattern),
      cmocka_unit_test(test_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
