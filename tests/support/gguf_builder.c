#include "tests/support/gguf_builder.h"

void gb_put(gguf_builder *b, const void *data, size_t size) {
  if (b->size + size > b->capacity) {
    b->capacity = 2 * (b->size + size) + 64;
    b->bytes = realloc(b->bytes, b->capacity);
    if (!b->bytes) abort();
  }
  if (size) memcpy(b->bytes + b->size, data, size);
  b->size += size;
}

void gb_number(gguf_builder *b, uint64_t v, int bytes) {
  uint8_t p[8];
  for (int i = 0; i < bytes; i++) p[i] = (uint8_t)(v >> (8 * i));
  gb_put(b, p, (size_t)bytes);
}

void gb_string(gguf_builder *b, const char *text, size_t size) {
  gb_number(b, size, 8);
  gb_put(b, text, size);
}

gguf_builder gb_begin(uint32_t version) {
  gguf_builder b = {.alignment = 32};
  gb_put(&b, "GGUF", 4);
  gb_number(&b, version, 4);
  gb_number(&b, 0, 8); /* counts: gb_end */
  gb_number(&b, 0, 8);
  return b;
}

void gb_key(gguf_builder *b, const char *key, uint32_t kind) {
  b->keys++;
  gb_string(b, key, strlen(key));
  gb_number(b, kind, 4);
}

void gb_array(gguf_builder *b, const char *key, uint32_t element, uint64_t count) {
  gb_key(b, key, GB_ARRAY);
  gb_number(b, element, 4);
  gb_number(b, count, 8);
}

void gb_key_u32(gguf_builder *b, const char *key, uint32_t v) {
  gb_key(b, key, GB_U32);
  gb_number(b, v, 4);
}

void gb_key_bool(gguf_builder *b, const char *key, int v) {
  gb_key(b, key, GB_BOOL);
  gb_number(b, (uint64_t)v, 1);
}

void gb_f32(gguf_builder *b, float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  gb_number(b, bits, 4);
}

void gb_f64(gguf_builder *b, double v) {
  uint64_t bits;
  memcpy(&bits, &v, 8);
  gb_number(b, bits, 8);
}

void gb_key_f32(gguf_builder *b, const char *key, float v) {
  gb_key(b, key, GB_F32);
  gb_f32(b, v);
}

void gb_key_text(gguf_builder *b, const char *key, const char *text) {
  gb_key(b, key, GB_STRING);
  gb_string(b, text, strlen(text));
}

void gb_tensor_at(gguf_builder *b, const char *name, uint32_t dims, const uint64_t *shape, uint32_t type,
                  uint64_t offset) {
  b->tensors++;
  gb_string(b, name, strlen(name));
  gb_number(b, dims, 4);
  for (uint32_t i = 0; i < dims; i++) gb_number(b, shape[i], 8);
  gb_number(b, type, 4);
  gb_number(b, offset, 8);
}

uint64_t gb_bytes(uint32_t type, uint64_t weights) {
  static const struct {
    uint32_t type, weights, bytes; /* of a block */
  } blocks[] = {{2, 32, 18},    {3, 32, 20},    {6, 32, 22},    {7, 32, 24},    {8, 32, 34}, {10, 256, 84},
                {11, 256, 110}, {12, 256, 144}, {13, 256, 176}, {14, 256, 210}, {20, 32, 18}};
  for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
    if (blocks[i].type == type)
      return (weights + blocks[i].weights - 1) / blocks[i].weights * blocks[i].bytes;
  return (weights + 31) / 32 * 32 * 4;
}

void gb_tensor(gguf_builder *b, const char *name, uint64_t columns, uint64_t rows, uint32_t type) {
  const uint64_t shape[2] = {columns, rows}, weights = columns * (rows ? rows : 1);
  uint64_t bytes = type == GB_TYPE_F32 ? weights * 4 : gb_bytes(type, weights);
  b->data_size = (b->data_size + b->alignment - 1) / b->alignment * b->alignment;
  gb_tensor_at(b, name, rows ? 2 : 1, shape, type, b->data_size);
  b->data_size += bytes;
}

void gb_end(gguf_builder *b) {
  gguf_builder counts = {0};
  gb_number(&counts, b->tensors, 8);
  gb_number(&counts, b->keys, 8);
  memcpy(b->bytes + 8, counts.bytes, 16);
  free(counts.bytes);
  while (b->data_size && b->size % b->alignment) gb_put(b, "", 1);
  for (uint64_t i = 0; i < b->data_size; i++) gb_put(b, "", 1);
}

void gb_free(gguf_builder *b) {
  free(b->bytes);
  *b = (gguf_builder){0};
}

/* ---- a small vocabulary: markers, every byte but those dropped, a few merges ---- */

size_t gb_spell_byte(int byte, char out[3]) {
  int code = 0x100;
  for (int i = 0; i <= byte; i++) {
    int itself = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
    if (i == byte && itself)
      code = byte;
    else if (i < byte && !itself)
      code++;
  }
  if (code < 0x80) {
    out[0] = (char)code;
    return 1;
  }
  out[0] = (char)(0xc0 | code >> 6);
  out[1] = (char)(0x80 | (code & 0x3f));
  return 2;
}

void gb_vocabulary(gguf_builder *b, int dropped_below) {
  const uint64_t count = GB_SPECIAL_COUNT + 256 + GB_MERGE_COUNT;
  char text[64];
  gb_key_text(b, "tokenizer.ggml.model", "gpt2");
  gb_key_text(b, "tokenizer.ggml.pre", "smollm");
  gb_array(b, "tokenizer.ggml.tokens", GB_STRING, count);
  for (int i = 0; i < GB_SPECIAL_COUNT; i++) gb_string(b, GB_SPECIALS[i], strlen(GB_SPECIALS[i]));
  for (int i = 0; i < 256; i++) {
    size_t size = gb_spell_byte(i, text);
    if (i < dropped_below) size = (size_t)snprintf(text, sizeof text, "missing %d", i);
    gb_string(b, text, size);
  }
  for (int i = 0; i < GB_MERGE_COUNT; i++) {
    int size = snprintf(text, sizeof text, "%s%s", GB_MERGES[i][0], GB_MERGES[i][1]);
    gb_string(b, text, (size_t)size);
  }
  gb_array(b, "tokenizer.ggml.token_type", GB_I32, count);
  for (uint64_t i = 0; i < count; i++)
    gb_number(b, i >= GB_SPECIAL_COUNT ? 1 : i == GB_USER_TOKEN ? 4 : 3, 4);
  gb_array(b, "tokenizer.ggml.merges", GB_STRING, GB_MERGE_COUNT);
  for (int i = 0; i < GB_MERGE_COUNT; i++) {
    int size = snprintf(text, sizeof text, "%s %s", GB_MERGES[i][0], GB_MERGES[i][1]);
    gb_string(b, text, (size_t)size);
  }
  gb_key_u32(b, "tokenizer.ggml.eos_token_id", 2);
  gb_key_u32(b, "tokenizer.ggml.bos_token_id", 1);
  gb_key_bool(b, "tokenizer.ggml.add_bos_token", 0);
}

/* ---- a small vocabulary of SentencePiece's: <unk>, <s>, </s>, the bytes, pieces with scores ---- */

void gb_vocabulary_pieces(gguf_builder *b, uint64_t scores, float score) {
  const uint64_t count = GC_PIECE + GC_PIECE_COUNT;
  char text[8];
  gb_key_text(b, "tokenizer.ggml.model", "llama");
  gb_array(b, "tokenizer.ggml.tokens", GB_STRING, count);
  gb_string(b, "<unk>", 5), gb_string(b, "<s>", 3), gb_string(b, "</s>", 4);
  for (int i = 0; i < 256; i++) gb_string(b, text, (size_t)snprintf(text, sizeof text, "<0x%02X>", i));
  for (int i = 0; i < GC_PIECE_COUNT; i++) gb_string(b, GC_PIECES[i], strlen(GC_PIECES[i]));
  gb_array(b, "tokenizer.ggml.token_type", GB_I32, count);
  for (uint64_t i = 0; i < count; i++)
    gb_number(b, i == 0 ? 2 : i < GC_SPECIAL_COUNT ? 3 : i < GC_PIECE ? 6 : 1, 4);
  gb_array(b, "tokenizer.ggml.scores", GB_F32, scores);
  for (uint64_t i = 0; i < scores; i++) gb_f32(b, i == 0 ? score : i == GC_PIECE + 4 ? -3.0f : -(float)i);
  gb_key_u32(b, "tokenizer.ggml.bos_token_id", 1);
  gb_key_u32(b, "tokenizer.ggml.eos_token_id", 2);
}
