/* pre_tokenizer.h - splits text into words before the merges of BPE, in stages of patterns, each of which
 * splits the words of the stage before. It uses PCRE2 with Unicode, and is near-linear on any text for the
 * built-in patterns. Source: the patterns that GPT-2, Llama 3, Qwen2, SmolLM and Mistral's tekken publish
 * with their vocabularies. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PRE_TOKENIZER_STAGES_MAX  8
#define PRE_TOKENIZER_PATTERN_MAX 4096 /* bytes */

typedef struct pre_tokenizer pre_tokenizer; /* immutable once filled: any thread may use it */

/* What becomes of a match. The text between matches always is a word. */
typedef enum {
  SPLIT_ISOLATED,      /* a word */
  SPLIT_WITH_PREVIOUS, /* joins the word before, a further match is one of its own */
  SPLIT_WITH_NEXT      /* joins the word after, likewise */
} pre_tokenizer_match;

int pre_tokenizer_alloc(pre_tokenizer **out); /* ERR_NOMEM; without stages a text is one word */
void pre_tokenizer_free(pre_tokenizer *s);    /* NULL is allowed */

/* Adds a stage. `pattern` has Oniguruma's syntax, as in tokenizer.json: \s, \d and \w are Unicode's. With
 * `invert`, the text between matches counts as the match. ERR_UNSUPPORTED, ERR_LIMIT, ERR_NOMEM. */
int pre_tokenizer_add(pre_tokenizer *s, const char *pattern, size_t size, pre_tokenizer_match b, bool invert,
                      err *e);

/* ---- the stages that a GGUF names (tokenizer.ggml.pre) ---- */

enum {
  PRE_TOKENIZER_IGNORE_MERGES = 1, /* a word that is a token is that token, whatever the merges say */
  PRE_TOKENIZER_NFC = 2,           /* text is normalised to NFC first */
  PRE_TOKENIZER_ADDS_BOS = 4       /* unless the file says otherwise */
};

/* Adds the stages of a name. ERR_UNSUPPORTED: unknown, the text names those known. */
int pre_tokenizer_add_named(pre_tokenizer *s, const char *name, size_t size, unsigned *options, err *e);

/* ---- use ---- */

typedef struct pre_tokenizer_scratch {
  void *matches[PRE_TOKENIZER_STAGES_MAX];
  void *limits;
} pre_tokenizer_scratch; /* zeroed at first; kept from text to text; one thread */
void pre_tokenizer_scratch_fini(pre_tokenizer_scratch *x);

typedef int pre_tokenizer_each(void *context, const char *word, size_t size);

/* Calls `each` with every word of text[size], valid UTF-8, in order; none is empty, and together they are the
 * text. Stops at the first that does not return ERR_OK, and returns that. ERR_NOMEM; ERR_LIMIT: a pattern
 * took too long. */
int pre_tokenizer_run(const pre_tokenizer *s, pre_tokenizer_scratch *x, const char *text, size_t size,
                      pre_tokenizer_each *each, void *context);
