/* vocabulary.h - the tokens of a model: how each is spelt and of what kind it is, from a GGUF or a
 * tokenizer.json, and the vocabulary's identity: two programs agree on what a token id means when their
 * hashes are equal. */
#pragma once

#include "common/file/gguf.h"
#include <jansson.h>

#define VOCABULARY_MAX (1 << 20) /* tokens */

/* Numbers are GGUF's (tokenizer.ggml.token_type). */
typedef enum {
  TOKEN_NORMAL = 1,
  TOKEN_UNKNOWN, /* stands for text that has no token */
  TOKEN_CONTROL, /* the model's own marks: never made from a message's text */
  TOKEN_USER,    /* an added token that is text: found in any text, before all else */
  TOKEN_UNUSED,  /* an id without a token */
  TOKEN_BYTE,    /* spelt <0xNN>: one byte */
  TOKEN_KIND_END
} vocabulary_kind;

typedef struct vocabulary {
  int32_t count;
  char *spellings; /* of all tokens, one after the other */
  size_t *ends;    /* [count]: where each ends */
  uint8_t *kinds;  /* [count] of vocabulary_kind */
} vocabulary;      /* zeroed at first */

/* Token `id`, 0 to count - 1. */
const char *vocabulary_spelling(const vocabulary *v, int32_t id, size_t *size);

/* Reads tokenizer.ggml.tokens and .token_type; without the latter all tokens are normal. A file without
 * tokens gives an empty vocabulary. After ERR_FORMAT, ERR_LIMIT or ERR_NOMEM *v is empty. */
int vocabulary_read_gguf(vocabulary *v, const gguf *g, err *e);
/* "model.vocab" and "added_tokens" of a tokenizer.json. Ids up to size_min - 1 that have no token are spelt
 * [PADn] and unused, as converters to GGUF write them. The same errors. */
int vocabulary_read_json(vocabulary *v, const json_t *root, int32_t size_min, err *e);
/* A tokenizer.json by its path. ERR_IO: there is none. */
int vocabulary_read_path(vocabulary *v, const char *path, int32_t size_min, err *e);
void vocabulary_fini(vocabulary *v);

/* XXH3_128 over every token in order: size of its spelling (u32, little-endian), its kind (one byte), its
 * spelling. *out is zero for no tokens. ERR_NOMEM. */
int vocabulary_hash(const vocabulary *v, hash16 *out, err *e);
/* The hash of a file's vocabulary: of a GGUF; of a tokenizer.json by its path (ERR_IO: there is none). */
int vocabulary_hash_gguf(const gguf *g, hash16 *out, err *e);
int vocabulary_hash_json(const char *path, int32_t size_min, hash16 *out, err *e);
