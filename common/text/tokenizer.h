/* tokenizer.h - byte-level BPE from a GGUF: text to ids and back.
 *
 * Pre-tokenizer `smollm`: every digit (\p{N}) alone, then GPT-2's pattern on the stretches between. Merges by
 * rank with a heap: near-linear on any input. Immutable after open: any thread may use it. Source: Sennrich
 * et al. 2016; Radford et al. 2019 (byte alphabet). */
#pragma once

#include "common/base/err.h"
#include "common/base/hash.h"
#include "common/file/gguf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOKENIZER_TEXT_MAX (16u << 20) /* bytes of one text */

typedef struct tokenizer tokenizer;

/* Copies what it needs: `g` may be closed afterwards. ERR_FORMAT, ERR_UNSUPPORTED (names the model or
 * pre-tokenizer kind and what is supported), ERR_NOMEM. */
int tokenizer_open(tokenizer **out, const gguf *g, err *e);
void tokenizer_close(tokenizer *t);

typedef struct tokenizer_ids { /* grows; free with tokenizer_ids_fini */
  int32_t *ids;
  size_t count, capacity;
  size_t dropped_bytes; /* bytes that have no token in this vocabulary */
} tokenizer_ids;
void tokenizer_ids_fini(tokenizer_ids *ids);
int tokenizer_ids_add(tokenizer_ids *ids, int32_t id); /* ERR_NOMEM */

/* Bytes without a token fall out before the merges (and are counted). Which characters are letters, digits
 * and blanks is PCRE2's word: its Unicode version decides for characters that are newer than some PCRE2.
 * Appends the ids of text[size] (any bytes that are valid UTF-8; ERR_FORMAT with the byte offset otherwise).
 * `special`: special tokens written in the text become their ids. An error changes nothing. */
int tokenizer_encode(const tokenizer *t, const char *text, size_t size, bool special, tokenizer_ids *out,
                     err *e);

/* Bytes of one token, NULL for an id outside the vocabulary. Special tokens: their text. Until close. */
const char *tokenizer_piece(const tokenizer *t, int32_t id, size_t *size);
/* The token as the vocabulary spells it (for `tandem tokenize`). */
const char *tokenizer_spelling(const tokenizer *t, int32_t id, size_t *size);
bool tokenizer_is_special(const tokenizer *t, int32_t id); /* control or user-defined */

int32_t tokenizer_size(const tokenizer *t);
int32_t tokenizer_eos(const tokenizer *t); /* -1: none */
int32_t tokenizer_bos(const tokenizer *t);
bool tokenizer_adds_bos(const tokenizer *t);
int32_t tokenizer_find(const tokenizer *t, const char *text,
                       size_t size);       /* a special token by its text, or -1 */
hash16 tokenizer_hash(const tokenizer *t); /* gguf_vocabulary_hash's */
