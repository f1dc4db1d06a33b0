#include "tests/support/models.h"
#include "tests/support/random.h"

model_file *support_open_file(void) {
  err e = {0};
  model_file *g;
  char path[SUPPORT_PATH_MAX];
  snprintf(path, sizeof path, "%s/" SUPPORT_MODEL, source_folder());
  if (model_file_open(&g, path, &e) != ERR_OK) {
    fail_msg("%s; run scripts/get_model.sh to fetch the default model", e.text);
  }
  return g;
}

const char *support_device(void) {
  const char *name = getenv("TANDEM_TEST_DEVICE");
  return name && *name ? name : "cpu";
}

const char *support_device_at(int32_t i) {
  if (strcmp(support_device(), "cpu") == 0) return devices_name(i);
  return i == 0 ? support_device() : NULL;
}

device *support_open_device(const char *name, ops_math math, int32_t threads, mem *m) {
  err e = {0};
  device *d;
  const device_options o = {.math = math, .threads = threads};
  if (device_open(&d, name, &o, m, &e) != ERR_OK) fail_msg("%s", e.text);
  return d;
}

model *support_open_model(const model_file *g, ops_math math, const char *name, int32_t threads) {
  err e = {0};
  model *m;
  device *d = support_open_device(name, math, threads, NULL);
  if (model_open(&m, g, d, &(model_options){0}, NULL, &e) != ERR_OK) fail_msg("%s", e.text);
  return m;
}

void support_close_model(model *m) {
  device *d = model_device(m);
  model_close(m);
  d->table->close(d);
}

kv_cache *support_open_cache(const model *m, int32_t sequences, int32_t context, kv_type type) {
  err e = {0};
  kv_cache *k;
  kv_options o = {.sequences = sequences, .context = context, .type = type};
  if (kv_open(&k, model_device(m), model_shape(m), &o, NULL, &e) != ERR_OK) fail_msg("%s", e.text);
  return k;
}

int32_t support_argmax(const model *m, int32_t segment, int32_t row) {
  const float *logits = model_logits(m, segment, row);
  int32_t best = logits ? 0 : -1;
  for (int32_t id = 1; logits && id < model_shape(m)->vocab; id++)
    if (logits[id] > logits[best]) best = id;
  return best;
}

/* Numbers of the array that follows "key": in a line of JSON; returns how many. */
static int32_t support_numbers(const char *line, const char *key, double *out) {
  char name[64];
  snprintf(name, sizeof name, "\"%s\": [", key);
  const char *p = strstr(line, name);
  if (!p) fail_msg("no array %s in the golden line", key);
  p += strlen(name);
  int32_t n = 0;
  while (*p != ']') {
    char *end;
    assert_true(n < SUPPORT_IDS_MAX);
    out[n++] = strtod(p, &end);
    assert_true(end != p);
    p = end + strspn(end, ", ");
  }
  return n;
}

static void support_parse_golden(const char *line, support_golden *g) {
  double numbers[SUPPORT_IDS_MAX];
  g->id = atoi(strstr(line, "\"id\": ") + 6);
  g->prompt_count = support_numbers(line, "prompt_ids", numbers);
  for (int32_t i = 0; i < g->prompt_count; i++) g->prompt[i] = (int32_t)numbers[i];
  g->output_count = support_numbers(line, "output_ids", numbers);
  for (int32_t i = 0; i < g->output_count; i++) g->output[i] = (int32_t)numbers[i];
  assert_int_equal(support_numbers(line, "margins", g->margins), g->output_count);
}

int32_t support_each_golden(void (*body)(const support_golden *g, void *context), void *context) {
  char path[SUPPORT_PATH_MAX];
  snprintf(path, sizeof path, "%s/" SUPPORT_GOLDEN "smollm2_greedy.jsonl", source_folder());
  FILE *f = fopen(path, "r");
  if (!f) fail_msg("tests/golden/smollm2_greedy.jsonl is missing");
  char *line = malloc(SUPPORT_LINE_MAX);
  support_golden *g = malloc(sizeof *g);
  int32_t count = 0;
  for (; fgets(line, SUPPORT_LINE_MAX, f); count++) {
    support_parse_golden(line, g);
    body(g, context);
  }
  free(g);
  free(line);
  fclose(f);
  return count;
}

void support_prefill(model *m, kv_cache *k, int32_t seq, const int32_t *tokens, int32_t count, int32_t step) {
  for (int32_t at = 0; at < count; at += step) {
    int32_t n = count - at < step ? count - at : step;
    model_segment s = {
        .seq = seq, .kind = MODEL_APPEND, .count = n, .tokens = tokens + at, .no_logits = at + n < count};
    assert_int_equal(model_forward(m, k, &s, 1), ERR_OK);
  }
}

/* --- a small model with random weights: every weight type, GQA, sizes that fill no group --- */

void support_tiny_layer(gguf_builder *b, int32_t layer) {
  const struct {
    const char *suffix;
    uint64_t columns, rows;
    uint32_t type;
  } tensors[] = {
      {"attn_norm", SUPPORT_TINY_EMBED, 0, GGUF_F32},
      {"attn_q", SUPPORT_TINY_EMBED, SUPPORT_TINY_HEADS * SUPPORT_TINY_DIM, GGUF_Q4_1},
      {"attn_k", SUPPORT_TINY_EMBED, SUPPORT_TINY_KV_HEADS * SUPPORT_TINY_DIM, GGUF_Q8_0},
      {"attn_v", SUPPORT_TINY_EMBED, SUPPORT_TINY_KV_HEADS * SUPPORT_TINY_DIM, GGUF_F16},
      {"attn_output", SUPPORT_TINY_HEADS * SUPPORT_TINY_DIM, SUPPORT_TINY_EMBED, GGUF_BF16},
      {"ffn_norm", SUPPORT_TINY_EMBED, 0, GGUF_F32},
      {"ffn_gate", SUPPORT_TINY_EMBED, SUPPORT_TINY_FFN, GGUF_Q4_0},
      {"ffn_up", SUPPORT_TINY_EMBED, SUPPORT_TINY_FFN, GGUF_F32},
      {"ffn_down", SUPPORT_TINY_FFN, SUPPORT_TINY_EMBED, GGUF_Q8_0},
  };
  for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", layer, tensors[i].suffix);
    gb_tensor(b, name, tensors[i].columns, tensors[i].rows, tensors[i].type);
  }
}

/* A random f16 of about 2^-6 to 2^-3, either sign; as its bits. */
static uint16_t support_random_half(uint64_t *state) {
  return (uint16_t)((random_next(state) & 0x83ff) | (9 + random_below(state, 3)) << 10);
}

void support_fill_tensor(const gguf_tensor *t, uint64_t *state) {
  uint8_t *p = (uint8_t *)(uintptr_t)t->data; /* the builder's own bytes */
  size_t plain = t->type == GGUF_F32 ? 4 : t->type == GGUF_F16 || t->type == GGUF_BF16 ? 2 : 0;
  size_t block = plain ? plain : gb_bytes(t->type, 1);
  for (size_t at = 0; at < t->bytes; at += block) {
    uint16_t half = support_random_half(state), small = (uint16_t)(half - (3 << 10));
    for (size_t i = 0; i < block; i++) p[at + i] = (uint8_t)random_next(state);
    float f =
        t->dims == 1 ? 1.0f + (float)(half & 255) / 256.0f : (float)((int)(half & 1023) - 512) / 2048.0f;
    if (t->type == GGUF_F32)
      memcpy(p + at, &f, 4);
    else if (t->type == GGUF_BF16)
      p[at + 1] = (uint8_t)((p[at + 1] & 0x80) | 0x3d); /* about 2^-4 */
    else
      memcpy(p + at, t->type == GGUF_F16 ? &half : &small, 2);
    if (t->type == GGUF_Q8_0) memcpy(p + at, &(uint16_t){(uint16_t)(half - (6 << 10))}, 2);
    if (t->type == GGUF_Q4_1) memcpy(p + at + 2, &small, 2);
  }
}

void support_tiny_keys(gguf_builder *b) {
  gb_key_text(b, "general.architecture", "llama");
  gb_key_u32(b, "llama.block_count", SUPPORT_TINY_LAYERS);
  gb_key_u32(b, "llama.embedding_length", SUPPORT_TINY_EMBED);
  gb_key_u32(b, "llama.feed_forward_length", SUPPORT_TINY_FFN);
  gb_key_u32(b, "llama.attention.head_count", SUPPORT_TINY_HEADS);
  gb_key_u32(b, "llama.attention.head_count_kv", SUPPORT_TINY_KV_HEADS);
  gb_key_u32(b, "llama.context_length", 2048);
  gb_key_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

model_file *support_tiny_file(gguf_builder *b) {
  *b = gb_begin(3);
  support_tiny_keys(b);
  gb_key_f32(b, "llama.rope.freq_base", 10000.0f);
  gb_tensor(b, "token_embd.weight", SUPPORT_TINY_EMBED, SUPPORT_TINY_VOCAB, GGUF_Q8_0);
  for (int32_t i = 0; i < SUPPORT_TINY_LAYERS; i++) support_tiny_layer(b, i);
  gb_tensor(b, "output_norm.weight", SUPPORT_TINY_EMBED, 0, GGUF_F32);
  gb_tensor(b, "output.weight", SUPPORT_TINY_EMBED, SUPPORT_TINY_VOCAB, GGUF_Q4_1);
  gb_end(b);
  err e = {0};
  gguf *g;
  model_file *f;
  if (gguf_open_memory(&g, b->bytes, b->size, &e) != ERR_OK) fail_msg("%s", e.text);
  uint64_t state = 42;
  for (int32_t i = 0; i < gguf_tensor_count(g); i++) support_fill_tensor(gguf_tensor_at(g, i), &state);
  gguf_close(g);
  if (model_file_open_memory(&f, b->bytes, b->size, &e) != ERR_OK) fail_msg("%s", e.text);
  return f;
}
