/* gguf_builder.h - writes GGUF files into memory, for tests and fuzzing: right ones, and wrong ones on
 * purpose.
 *
 * Order: gb_begin, keys, tensors, gb_end. Out of memory ends the program. Source: ggml's docs/gguf.md. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  GB_U8,
  GB_I8,
  GB_U16,
  GB_I16,
  GB_U32,
  GB_I32,
  GB_F32,
  GB_BOOL,
  GB_STRING,
  GB_ARRAY,
  GB_U64,
  GB_I64,
  GB_F64
};
enum { GB_TYPE_F32 = 0, GB_TYPE_Q4_0 = 2, GB_TYPE_Q4_1 = 3, GB_TYPE_Q8_0 = 8 };

typedef struct gguf_builder {
  uint8_t *bytes;
  size_t size, capacity;
  uint64_t keys, tensors, data_size;
  uint64_t alignment; /* of tensor data; the key is the caller's to write */
} gguf_builder;

void gb_put(gguf_builder *b, const void *data, size_t size);

/* `bytes` low bytes of v, little-endian. */
void gb_number(gguf_builder *b, uint64_t v, int bytes);

void gb_string(gguf_builder *b, const char *text, size_t size);

gguf_builder gb_begin(uint32_t version);

/* A key and its kind; the value is to follow. */
void gb_key(gguf_builder *b, const char *key, uint32_t kind);

/* The head of an array; its elements are to follow. */
void gb_array(gguf_builder *b, const char *key, uint32_t element, uint64_t count);

void gb_key_u32(gguf_builder *b, const char *key, uint32_t v);

void gb_key_bool(gguf_builder *b, const char *key, int v);

void gb_f32(gguf_builder *b, float v);

void gb_f64(gguf_builder *b, double v);

void gb_key_f32(gguf_builder *b, const char *key, float v);

void gb_key_text(gguf_builder *b, const char *key, const char *text);

/* A row of the tensor table with an offset of the caller's. */
void gb_tensor_at(gguf_builder *b, const char *name, uint32_t dims, const uint64_t *shape, uint32_t type,
                  uint64_t offset);

/* Bytes of so many weights, whole blocks; of the plain types the most. */
uint64_t gb_bytes(uint32_t type, uint64_t weights);

/* columns x rows (rows 0: a vector) of a readable type, after the tensors before it. */
void gb_tensor(gguf_builder *b, const char *name, uint64_t columns, uint64_t rows, uint32_t type);

/* Counts into the header, zero bytes for padding and data. */
void gb_end(gguf_builder *b);

void gb_free(gguf_builder *b);

/* ---- a small vocabulary: markers, every byte but those dropped, a few merges ---- */

static const char *const GB_SPECIALS[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im", "<tool>"};
enum { GB_SPECIAL_COUNT = 5, GB_USER_TOKEN = 4 /* of kind user-defined; the others are control */ };
#define GB_SPELL_BLANK "\xc4\xa0"
static const char *const GB_MERGES[][2] = {
    {"h", "e"}, {"l", "l"},   {"he", "ll"}, {"hell", "o"}, {GB_SPELL_BLANK, "w"},
    {"a", "a"}, {"aa", "aa"}, {"a", "b"},   {"b", "b"},    {"1", "2"}};
enum { GB_MERGE_COUNT = 10 };

/* The character that spells a byte, UTF-8, into out[3]: printable Latin-1 itself, the others from U+0100 on.
 */
size_t gb_spell_byte(int byte, char out[3]);

/* Ids: specials 0 to 4, byte B at 5 + B (spelt "missing B" when B < dropped_below, so that it has no token),
 * then what the merges make. Keys of the tokenizer, no chat template. */
void gb_vocabulary(gguf_builder *b, int dropped_below);

/* ---- a small vocabulary of SentencePiece's: <unk>, <s>, </s>, the bytes, pieces with scores ---- */

enum { GC_SPECIAL_COUNT = 3, GC_PIECE = GC_SPECIAL_COUNT + 256 /* the first piece */ };
#define GC_BLANK "\xe2\x96\x81"
static const char *const GC_PIECES[] = {GC_BLANK,
                                        "a",
                                        "b",
                                        "ab",
                                        "aa",
                                        GC_BLANK "a",
                                        "aab",
                                        "\xc3\xa9"
                                        "b",
                                        "xy",
                                        GC_BLANK GC_BLANK};
enum { GC_PIECE_COUNT = 10 }; /* "xy" and "\xc3\xa9b" of characters that are no pieces */

/* Keys of the tokenizer. `scores`: how many are written; `score`: that of the first token. */
void gb_vocabulary_pieces(gguf_builder *b, uint64_t scores, float score);
