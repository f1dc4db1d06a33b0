/* libs: text file base */
/* fuzz_gguf - a model file of any bytes: open, read everything, and what else reads a model file.
 *
 * Even first byte: the rest is the file. Odd: the rest changes a right file (of two kinds of vocabulary),
 * three bytes a change (offset, value), so that the deep parts are reached from the first second. */
#include "common/file/model_file.h"
#include "common/text/chat_template.h"
#include "tests/support/gguf_builder.h"

#define TEMPLATE                                                                                             \
  "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "           \
  "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif "  \
  "%}"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static gguf_builder right_file(bool pieces) {
  static const char *const layer[] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                      "ffn_gate", "ffn_up", "ffn_down"};
  gguf_builder b = gb_begin(3);
  char name[64];
  gb_key_text(&b, "general.architecture", "llama");
  gb_key_u32(&b, "llama.block_count", 1), gb_key_u32(&b, "llama.context_length", 64);
  gb_key_u32(&b, "llama.embedding_length", 32), gb_key_u32(&b, "llama.feed_forward_length", 32);
  gb_key_u32(&b, "llama.attention.head_count", 2),
      gb_key_f32(&b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
  gb_array(&b, "nested", GB_ARRAY, 1), gb_number(&b, GB_U8, 4), gb_number(&b, 1, 8), gb_number(&b, 7, 1);
  gb_key_text(&b, "tokenizer.chat_template", TEMPLATE);
  if (pieces)
    gb_vocabulary_pieces(&b, GC_PIECE + GC_PIECE_COUNT, 0);
  else
    gb_vocabulary(&b, 2);
  gb_tensor(&b, "token_embd.weight", 32, GB_SPECIAL_COUNT + 256 + GB_MERGE_COUNT, GB_TYPE_Q8_0);
  for (size_t i = 0; i < sizeof layer / sizeof layer[0]; i++) {
    snprintf(name, sizeof name, "blk.0.%s.weight", layer[i]);
    gb_tensor(&b, name, 32, 32, GB_TYPE_Q4_1);
  }
  gb_tensor(&b, "blk.0.attn_norm.weight", 32, 0, GB_TYPE_F32),
      gb_tensor(&b, "blk.0.ffn_norm.weight", 32, 0, GB_TYPE_F32);
  gb_tensor(&b, "output_norm.weight", 32, 0, GB_TYPE_F32);
  gb_end(&b);
  return b;
}

/* Reads both ends of every tensor: an address or size that is wrong is seen by the sanitizer. */
static void read_tensors(const gguf *g) {
  for (int32_t i = 0; i < gguf_tensor_count(g); i++) {
    const gguf_tensor *t = gguf_tensor_at(g, i);
    volatile uint8_t first = *(const uint8_t *)t->data, last = ((const uint8_t *)t->data)[t->bytes - 1];
    (void)first, (void)last;
    if (gguf_tensor_find(g, t->name) != t) abort();
  }
  gguf_fingerprint(g);
}

static void read_keys(const gguf *g) {
  static const char *const keys[] = {"general.architecture",
                                     "nested",
                                     "tokenizer.ggml.tokens",
                                     "tokenizer.ggml.token_type",
                                     "llama.block_count",
                                     "llama.rope.freq_base",
                                     "k"};
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
    uint64_t n;
    int64_t integer;
    double number;
    gguf_string text;
    gguf_get_u64(g, keys[i], &n);
    gguf_get_f64(g, keys[i], &number);
    if (gguf_get_string(g, keys[i], &text) && text.size) {
      volatile char last = text.data[text.size - 1];
      (void)last;
    }
    if (!gguf_array_count(g, keys[i], &n)) continue;
    for (uint64_t k = 0; k <= n && k < 1000; k++) {
      gguf_array_i64(g, keys[i], k, &integer);
      gguf_array_f64(g, keys[i], k, &number);
      gguf_array_string(g, keys[i], k, &text);
    }
  }
}

static void read_text(const gguf *g) {
  tokenizer *t;
  chat_template *c;
  err e;
  tokenizer_ids ids = {0};
  const chat_message messages[] = {{"user", "hello <|im_end|> 12", 18}};
  if (tokenizer_open(&t, g, &e)) return;
  if (chat_template_open(&c, t, NULL, &e) == ERR_OK) {
    chat_template_render(c, messages, 1, &ids, &e);
    chat_template_close(c);
  }
  if (tokenizer_encode(t, "a <s>aab \xc3\xa9", 11, TOKENIZER_SPECIAL, &ids, &e)) abort();
  tokenizer_ids_fini(&ids);
  tokenizer_close(t);
}

static void read_file(const uint8_t *data, size_t size) {
  gguf *g;
  model_file *f;
  err e;
  if (gguf_open_memory(&g, data, size, &e)) {
    if (g || e.code == ERR_OK || !e.text[0]) abort();
    return;
  }
  read_tensors(g);
  read_keys(g);
  read_text(g);
  gguf_close(g);
  if (model_file_open_memory(&f, data, size, &e) && (f || !e.text[0])) abort();
  model_file_close(f);
}

/* A copy has no byte more than the file, so that a read beyond its end is seen. */
static void read_copy(const uint8_t *data, size_t size) {
  uint8_t *copy = malloc(size ? size : 1);
  if (!copy) abort();
  memcpy(copy, data, size);
  read_file(copy, size);
  free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  if (data[0] % 2 == 0) {
    read_copy(data + 1, size - 1);
    return 0;
  }
  static gguf_builder rights[2]; /* until the program's end */
  bool pieces = data[0] / 2 % 2;
  gguf_builder b = {0}, *right = &rights[pieces];
  if (!right->size) *right = right_file(pieces);
  gb_put(&b, right->bytes, right->size);
  for (size_t i = 1; i + 2 < size; i += 3) b.bytes[(data[i] | data[i + 1] << 8) % b.size] = data[i + 2];
  read_copy(b.bytes, size % 3 == 2 ? (size_t)data[size - 1] * b.size / 255 : b.size);
  gb_free(&b);
  return 0;
}
