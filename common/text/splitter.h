/* splitter.h - text to words before the merges of BPE ("pre-tokenizer"): stages of patterns, each of which
 * splits the words of the one before. By PCRE2 with Unicode; near-linear on any text for the patterns that
 * are built in. Source: the patterns that GPT-2, Llama 3, Qwen2, SmolLM and Mistral's tekken publish with
 * their vocabularies. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPLITTER_STAGES_MAX  8
#define SPLITTER_PATTERN_MAX 4096 /* bytes */

typedef struct splitter splitter; /* immutable once filled: any thread may use it */

/* What becomes of a match; between matches is always a word. */
typedef enum {
  SPLIT_ISOLATED,      /* a word */
  SPLIT_WITH_PREVIOUS, /* joins the word before, a further match is one of its own */
  SPLIT_WITH_NEXT      /* joins the word after, likewise */
} split_behaviour;

int splitter_alloc(splitter **out); /* ERR_NOMEM; without stages a text is one word */
void splitter_free(splitter *s);    /* NULL is allowed */

/* A further stage. `pattern` is of Oniguruma's syntax, as tokenizer.json has it: \s, \d and \w are Unicode's.
 * invert: what is between matches counts as a match. ERR_UNSUPPORTED, ERR_LIMIT, ERR_NOMEM. */
int splitter_add(splitter *s, const char *pattern, size_t size, split_behaviour b, bool invert, err *e);

/* ---- those that GGUF names (tokenizer.ggml.pre) ---- */

enum {
  SPLITTER_IGNORE_MERGES = 1, /* a word that is a token is that token, whatever the merges say */
  SPLITTER_NFC = 2,           /* text is normalised to NFC first */
  SPLITTER_ADDS_BOS = 4       /* unless the file says otherwise */
};

/* Adds the stages of a name. ERR_UNSUPPORTED: unknown, the text names those known. */
int splitter_add_named(splitter *s, const char *name, size_t size, unsigned *options, err *e);

/* ---- use ---- */

typedef struct splitter_scratch {
  void *matches[SPLITTER_STAGES_MAX];
  void *limits;
} splitter_scratch; /* zeroed at first; kept from text to text; one thread */
void splitter_scratch_fini(splitter_scratch *x);

typedef int splitter_each(void *context, const char *word, size_t size);

/* Calls `each` with every word of text[size], valid UTF-8, in order; none is empty, and together they are the
 * text. Stops at the first that does not return ERR_OK, and returns that. ERR_NOMEM; ERR_LIMIT: a pattern
 * took too long. */
int splitter_run(const splitter *s, splitter_scratch *x, const char *text, size_t size, splitter_each *each,
                 void *context);
