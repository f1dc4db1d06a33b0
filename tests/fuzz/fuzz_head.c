/* libs: file base */
/* fuzz_head - a draft head of any bytes: refused with one error, or a head whose every part is within its
 * limits and fits its target. First byte 0: the rest is a config.json; 1: what follows the beginning of a
 * right one; else changes of a right GGUF, three bytes a change (offset, value). */
#include "common/file/head_file.h"
#include "common/file/json.h"
#include "tests/support/gguf_builder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { EMBED = 32, VOCAB = 96 };

static const model_config target = {.layers = 4, .embed = EMBED, .vocab = VOCAB};
static volatile uint8_t sink;

static void check_config(const head_config *c) {
  if (c->tap_count < 1 || c->tap_count > HEAD_TAPS_MAX || c->target_embed != EMBED) abort();
  for (int32_t i = 0; i < c->tap_count; i++)
    if (c->taps[i] < 0 || c->taps[i] > target.layers || (i && c->taps[i] <= c->taps[i - 1])) abort();
  if (c->layer.layers != 1 || c->layer.vocab != VOCAB || c->draft_vocab < 0 || c->draft_vocab > VOCAB)
    abort();
  if (c->layer.embed < 1 || c->layer.embed > MODEL_EMBED_MAX || c->layer.heads % c->layer.kv_heads) abort();
}

/* Reads both ends of every tensor: a wrong size is seen by the sanitizer. */
static void check_head(const head_file *h) {
  const head_config *c = head_file_config(h);
  const int32_t *ids = head_file_ids(h);
  check_config(c);
  if (c->draft_vocab < 1 || (!ids && c->draft_vocab != VOCAB)) abort();
  for (int32_t i = 0; ids && i < c->draft_vocab; i++)
    if (ids[i] < 0 || ids[i] >= VOCAB) abort();
  for (head_role role = 0; role < HEAD_ROLE_COUNT; role++) {
    const gguf_tensor *t = head_file_tensor(h, role);
    if (t) sink = (uint8_t)(((const uint8_t *)t->data)[0] ^ ((const uint8_t *)t->data)[t->bytes - 1]);
  }
}

/* With room for no more than the header says. */
static void make_row(const head_file *h) {
  static const float values[VOCAB][EMBED] = {{1, -1, 0.5f}};
  const gguf_tensor rows = {.type = GGUF_F32, .dims = 2, .shape = {EMBED, VOCAB, 1, 1}, .data = values};
  const gguf_tensor *output = head_file_tensor(h, HEAD_OUTPUT);
  if (!output) return;
  size_t columns = (size_t)head_file_config(h)->layer.embed, bytes = output->bytes / (size_t)output->shape[1];
  float *scratch = malloc((2 * (EMBED + 1) + columns) * sizeof *scratch);
  uint8_t *row = malloc(bytes);
  if (scratch && row && head_file_map_row(h, &rows, 0, scratch, row)) sink = row[bytes - 1];
  free(scratch);
  free(row);
}

static void check_map(const head_file *h) {
  const gguf_tensor *map = head_file_map(h);
  if (!map) return;
  if (map->shape[0] != EMBED + 1 || map->shape[1] != head_file_config(h)->layer.embed) abort();
  sink = ((const uint8_t *)map->data)[map->bytes - 1];
  make_row(h);
}

static void read_config(const char *text, size_t size) {
  head_config c;
  json_t *object;
  err e = {0};
  int rc = json_parse_object(&object, "config.json", text, size, &e);
  if (!rc) rc = head_config_read_json(&c, object, &target, &e);
  if (!rc) check_config(&c);
  if (rc && (rc != e.code || !e.text[0])) abort();
  json_decref(object);
}

static void continue_config(const uint8_t *data, size_t size) {
  static char text[1 << 16];
  if (size > sizeof text / 2) return;
  int n = snprintf(text, sizeof text,
                   "{\"hidden_size\":32,\"intermediate_size\":64,\"num_attention_heads\":2,\"vocab_size\":96,"
                   "\"num_hidden_layers\":1,\"draft_vocab_size\":24");
  memcpy(text + n, data, size);
  read_config(text, (size_t)n + size);
}

static void add_keys(gguf_builder *b) {
  gb_key_text(b, "general.architecture", "eagle3");
  gb_key_u32(b, "eagle3.block_count", 1), gb_key_u32(b, "eagle3.context_length", 64);
  gb_key_u32(b, "eagle3.embedding_length", EMBED), gb_key_u32(b, "eagle3.feed_forward_length", EMBED);
  gb_key_u32(b, "eagle3.attention.head_count", 2), gb_key_u32(b, "eagle3.vocab_size", VOCAB);
  gb_key_f32(b, "eagle3.attention.layer_norm_rms_epsilon", 1e-5f);
  gb_key_u32(b, "eagle3.target_hidden_size", EMBED);
  gb_key_bool(b, "eagle3.norm_before_residual", 1);
  gb_array(b, "eagle3.target_layers", GB_I32, 2), gb_number(b, 1, 4), gb_number(b, 4, 4);
  gb_array(b, HEAD_MAP_NAME, GB_U16, (EMBED + 1) * EMBED);
  for (int i = 0; i < (EMBED + 1) * EMBED; i++) gb_number(b, 0x3f80, 2);
}

/* A vocabulary of one token, token 0. */
static gguf_builder right_head(void) {
  static const char *const wide[] = {"q", "k", "v"}, *const square[] = {"attn_output", "ffn_gate", "ffn_up",
                                                                        "ffn_down"};
  gguf_builder b = gb_begin(3);
  char name[64];
  add_keys(&b);
  gb_tensor(&b, "fc.weight", 2 * EMBED, EMBED, GB_TYPE_Q8_0);
  for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
    snprintf(name, sizeof name, "blk.0.attn_%s.weight", wide[i]);
    gb_tensor(&b, name, 2 * EMBED, EMBED, GB_TYPE_Q4_1);
  }
  for (size_t i = 0; i < sizeof square / sizeof *square; i++) {
    snprintf(name, sizeof name, "blk.0.%s.weight", square[i]);
    gb_tensor(&b, name, EMBED, EMBED, GB_TYPE_Q8_0);
  }
  gb_tensor(&b, "blk.0.attn_norm.weight", EMBED, 0, GB_TYPE_F32);
  gb_tensor(&b, "blk.0.attn_norm_2.weight", EMBED, 0, GB_TYPE_F32);
  gb_tensor(&b, "blk.0.ffn_norm.weight", EMBED, 0, GB_TYPE_F32);
  gb_tensor(&b, "output_norm.weight", EMBED, 0, GB_TYPE_F32);
  gb_tensor(&b, "output.weight", EMBED, 1, GB_TYPE_Q8_0);
  gb_tensor_at(&b, "d2t", 1, (const uint64_t[]){1}, GGUF_I64, b.data_size + (32 - b.data_size % 32) % 32);
  b.data_size += 64;
  gb_end(&b);
  return b;
}

static void open_changed(const uint8_t *changes, size_t size) {
  gguf_builder b = right_head();
  head_file *h;
  err e = {0};
  for (size_t i = 0; i + 2 < size; i += 3)
    b.bytes[(changes[i] | (size_t)changes[i + 1] << 8) % b.size] = changes[i + 2];
  int rc = head_file_open_memory(&h, b.bytes, b.size, &target, &e);
  if (rc && (h || rc != e.code || !e.text[0])) abort();
  if (!rc) check_head(h), check_map(h);
  if (rc && size < 3) abort(); /* the right one */
  head_file_close(h);
  gb_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 1) return 0;
  if (data[0] == 0)
    read_config((const char *)data + 1, size - 1);
  else if (data[0] == 1)
    continue_config(data + 1, size - 1);
  else
    open_changed(data + 1, size - 1);
  return 0;
}
