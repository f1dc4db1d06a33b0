/* libs: text file base */
/* fuzz_tokenizer_json - a tokenizer.json of any bytes, with a text for what opens, and the files beside it.
 *
 * Lowest bit of the first byte: the rest is the file itself, else it changes a right one, three bytes a
 * change (offset, value). The next two: which of the right ones; the bytes are tokenizer_config.json and
 * generation_config.json, too. */
#include "common/text/chat_template.h"
#include "common/text/detokenizer.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define VOCAB  "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"<0x41>\":3,\"\u2581\":4,\"\u2581a\":5,\"<unk>\":6}"
#define MERGES "\"merges\":[\"a b\",[\"\u2581\",\"a\"]]"
#define ADDED                                                                                                \
  "\"added_tokens\":[{\"id\":7,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"                  \
  "{\"id\":8,\"content\":\" x\",\"lstrip\":true,\"rstrip\":true,\"single_word\":true,\"normalized\":true}]"
#define BEGIN                                                                                                \
  "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"     \
  "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[7]}}}"

static const char *const RIGHT[] = {
    "{" ADDED
    ",\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s+|[^\\\\s\\\\p{L}]|\\\\p{L}+\"},\"behavior\":"
    "\"Isolated\",\"invert\":"
    "false},{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"ByteLevel\",\"add_prefix_space\":"
    "false,"
    "\"use_regex\":true}]}," BEGIN
    ",\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"ignore_merges\":true," VOCAB
    "," MERGES "}}",
    "{" ADDED
    ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
    "\"},\"content\":\"\u2581\"}]},\"pre_tokenizer\":null," BEGIN
    ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{"
    "\"type\":\"Strip\","
    "\"content\":\" "
    "\",\"start\":1,\"stop\":0}]},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"fuse_unk\":true,"
    "\"unk_token\":\"<unk>\"," VOCAB "," MERGES "}}",
    "{" ADDED ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_scheme\":"
    "\"first\",\"split\":"
    "true},\"decoder\":{\"type\":\"Metaspace\"},\"model\":{\"type\":\"BPE\"," VOCAB "," MERGES "}}",
};
enum { RIGHT_COUNT = sizeof RIGHT / sizeof *RIGHT };

static void use(const tokenizer *t) {
  static const char text[] = "<s>a ab\u2581b  A x 12 e\u0301\u0323\n\xf0\x9f\x98\x80 xab </s>";
  tokenizer_ids ids = {0};
  detokenizer *d;
  detokenizer_out out;
  err e;
  for (unsigned flags = 0; flags < 4; flags++) {
    int rc = tokenizer_encode(t, text, sizeof text - 1, flags, &ids, &e);
    if (rc && rc != ERR_LIMIT) abort();
  }
  if (detokenizer_alloc(&d, t, NULL, 0, true, true, NULL)) abort();
  for (size_t i = 0; i < ids.count; i++)
    if (detokenizer_feed(d, ids.ids[i], &out)) abort();
  if (detokenizer_end(d, &out)) abort();
  detokenizer_free(d);
  tokenizer_ids_fini(&ids);
}

static void render(const tokenizer *t) {
  static const chat_message messages[] = {{"system", "a", 1}, {"user", " b ", 3}};
  chat_template *c;
  tokenizer_ids ids = {0};
  err e;
  if (chat_template_open(&c, t, NULL, &e)) return;
  int rc = chat_template_render(c, messages, 2, &ids, &e);
  if (rc && rc != ERR_LIMIT) abort();
  chat_template_close(c);
  tokenizer_ids_fini(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  const char *right = RIGHT[data[0] / 2 % RIGHT_COUNT];
  size_t right_size = strlen(right);
  char *changed = malloc(right_size);
  if (!changed) abort();
  memcpy(changed, right, right_size);
  for (size_t i = 1; i + 2 < size; i += 3)
    changed[(data[i] | data[i + 1] << 8) % right_size] = (char)data[i + 2];
  const char *rest = (const char *)data + 1;
  bool whole = data[0] & 1;
  tokenizer_texts x = {.tokenizer = whole ? rest : changed,
                       .tokenizer_size = whole ? size - 1 : right_size,
                       .config = data[0] & 64 ? rest : NULL,
                       .config_size = size - 1,
                       .generation = data[0] & 128 ? rest : NULL,
                       .generation_size = size - 1,
                       .chat_template = rest,
                       .chat_template_size = size - 1};
  tokenizer *t;
  err e = {0};
  if (tokenizer_open_texts(&t, &x, data[0] & 32 ? 300 : 0, &e) == ERR_OK) {
    use(t);
    render(t);
    tokenizer_close(t);
  } else if (t || e.code == ERR_OK || !e.text[0]) {
    abort();
  }
  free(changed);
  return 0;
}
