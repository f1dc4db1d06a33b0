/* tokenizer.h - turns text into ids and back, by byte-pair encoding, from a GGUF or a tokenizer.json.
 *
 * There are two kinds: byte-level (GPT-2, Llama 3, Qwen, SmolLM, tekken), where a symbol is a byte, and
 * SentencePiece (Llama 2, Mistral), where a symbol is a character, a blank is spelt U+2581, and a character
 * without a token becomes its bytes. Added tokens are found first, then the text is split into words
 * (pre_tokenizer.h), then merged (bpe.h): near-linear on any input. Immutable after open: any thread may use
 * it. Source: Sennrich et al. 2016; Radford et al. 2019 (byte alphabet); Kudo and Richardson 2018. */
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
 * pre-tokenizer kind and those that are supported), ERR_LIMIT, ERR_NOMEM. */
int tokenizer_open(tokenizer **out, const gguf *g, err *e);

/* From the path of a tokenizer.json as transformers writes it, and, where they lie beside it,
 * tokenizer_config.json, generation_config.json (beginning, ends) and chat_template.jinja. Ids up to size_min
 * - 1 (rows of the model's embedding) are unused tokens if they are no others. ERR_IO (no tokenizer.json: the
 * model takes prompt_ids only) and the errors above. */
int tokenizer_open_json(tokenizer **out, const char *path, int32_t size_min, err *e);

typedef struct tokenizer_texts { /* the same from memory; each NULL: there is none */
  const char *tokenizer, *config, *generation, *chat_template;
  size_t tokenizer_size, config_size, generation_size, chat_template_size;
} tokenizer_texts;
int tokenizer_open_texts(tokenizer **out, const tokenizer_texts *texts, int32_t size_min, err *e);

void tokenizer_close(tokenizer *t); /* NULL is allowed */

typedef struct tokenizer_ids { /* grows; free with tokenizer_ids_fini */
  int32_t *ids;
  size_t count, capacity;
  size_t dropped_bytes; /* bytes that have no token in this vocabulary */
} tokenizer_ids;
void tokenizer_ids_fini(tokenizer_ids *ids);
int tokenizer_ids_add(tokenizer_ids *ids, int32_t id); /* ERR_NOMEM */

/* How a text is encoded. */
enum {
  TOKENIZER_SPECIAL = 1, /* special tokens written in the text become their ids */
  TOKENIZER_INSIDE = 2   /* this text continues another one, so it gets no blank that only a beginning gets */
};

/* Appends the ids of text[size] (any bytes that are valid UTF-8; ERR_FORMAT with the byte offset otherwise).
 * Added tokens that are not special are found in any text. Characters that have no token are dropped before
 * the merges, and counted. PCRE2 decides which characters are letters, digits and blanks, so its Unicode
 * version matters for new characters. An error changes nothing. */
int tokenizer_encode(const tokenizer *t, const char *text, size_t size, unsigned flags, tokenizer_ids *out,
                     err *e);

/* Bytes of one token, NULL for an id outside the vocabulary. Special tokens: their text. Until close. */
const char *tokenizer_piece(const tokenizer *t, int32_t id, size_t *size);
/* The token as the vocabulary spells it (for `tandem tokenize`). */
const char *tokenizer_spelling(const tokenizer *t, int32_t id, size_t *size);
bool tokenizer_is_special(const tokenizer *t, int32_t id); /* a mark of the model, not text */
bool tokenizer_strips_blank(
    const tokenizer *t); /* encoding puts a blank before a text, which decoding has to drop */

int32_t tokenizer_size(const tokenizer *t);
int32_t tokenizer_eos(const tokenizer *t); /* -1: none */
int32_t tokenizer_bos(const tokenizer *t);
bool tokenizer_adds_bos(const tokenizer *t);
/* A sentence about what was taken otherwise than the file says; "": there is none. */
const char *tokenizer_doubt(const tokenizer *t);
/* The tokens that end a completion, the file's end token first; *count of them. */
const int32_t *tokenizer_stops(const tokenizer *t, int32_t *count);
const char *tokenizer_template(const tokenizer *t, size_t *size); /* the file's chat template, NULL: none */
int32_t tokenizer_find(const tokenizer *t, const char *text,
                       size_t size); /* an added token by its text, or -1 */
/* The first special token in text[size], with its offset in *at, or -1. */
int32_t tokenizer_first_special(const tokenizer *t, const char *text, size_t size, size_t *at,
                                size_t *token_size);
hash16 tokenizer_hash(const tokenizer *t); /* vocabulary_hash's */
