/* tokenizer_parts.h - the inside of a tokenizer, for the files that build one (tokenizer_gguf.c,
 * tokenizer_json.c) and the one that uses it (tokenizer.c). */
#pragma once

#include "common/file/vocabulary.h"
#include "common/text/bpe.h"
#include "common/text/added_tokens.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/tokenizer.h"

#define BLANK      "\xe2\x96\x81" /* U+2581, how SentencePiece spells a blank */
#define BLANK_SIZE 3

typedef enum {
  PREFIX_NONE,
  PREFIX_ALWAYS,       /* a blank before every stretch between added tokens */
  PREFIX_UNLESS_THERE, /* unless it begins with one */
  PREFIX_FIRST         /* likewise, and only where the whole text begins */
} tokenizer_prefix_rule;

typedef struct tokenizer_text_rule { /* what is done to text, in this order */
  bool nfc;
  tokenizer_prefix_rule prefix;
  bool escape; /* blanks become BLANK */
} tokenizer_text_rule;

typedef struct tokenizer_index {
  int32_t *ids; /* [mask + 1], -1: empty */
  size_t mask;
} tokenizer_index;

#define TOKENIZER_STOPS_MAX 16

struct tokenizer {
  vocabulary v;
  tokenizer_index index; /* of all spellings; of equal ones the lowest id */
  size_t longest;        /* bytes of the longest spelling */
  char *pieces;          /* of all tokens, one after the other */
  size_t *piece_ends;    /* [v.count] */

  tokenizer_text_rule before; /* on a stretch without the added tokens of `raw` */
  tokenizer_text_rule after;  /* on one without those of `normal` */
  added_tokens raw, normal;
  pre_tokenizer *split;

  bool bytes;            /* a symbol is a byte, spelt in the byte alphabet; else a character */
  uint16_t code_of[256]; /* the byte alphabet's code points */
  /* The token of a byte, of bytes as symbols or of characters that have none; -1: none. */
  int32_t byte_ids[256];
  int32_t unknown;   /* of a character that has none of these, or -1: it is dropped */
  bool fuse_unknown; /* one for several in a row */
  bool ignore_merges;
  bpe *merges;

  bool strips_blank; /* decoding leaves out the blank that encoding put before the text */
  int32_t eos, bos, stops[TOKENIZER_STOPS_MAX], stop_count;
  bool adds_bos;
  char doubt[160]; /* what the file says that cannot be meant; "": nothing */
  char *template;  /* the chat template's text, or NULL */
  size_t template_size;
  hash16 hash;
};

/* ---- for the readers, in this order, after t->v and t->bytes are set ---- */

/* The index, the pieces, the tokens of bytes, the identity. ERR_FORMAT, ERR_NOMEM. */
int tokenizer_prepare(tokenizer *t, err *e);
/* The token of this spelling, or -1. */
int32_t tokenizer_spelt(const tokenizer *t, const char *text, size_t size);
/* The symbol of a piece of a SentencePiece token while text is merged: a token, or, for a single character
 * that is no token, count + its code point; -1: neither. */
int32_t tokenizer_part(const tokenizer *t, const char *text, size_t size);
/* Adds id to the tokens that end a completion. It is ignored if it is there already, outside the vocabulary,
 * or one too many. */
void tokenizer_add_stop(tokenizer *t, int64_t id);
int tokenizer_set_template(tokenizer *t, const char *text, size_t size, err *e);

/* ---- text ---- */

/* Bytes in the byte alphabet, into out[2 * size]; returns its size. */
size_t tokenizer_spell_bytes(const tokenizer *t, const char *bytes, size_t size, char *out);

/* text[size] by the rule; `first`: it begins the whole text. *made: what to free; NULL: *out is text itself.
 * ERR_NOMEM. */
int tokenizer_text_rule_apply(const tokenizer_text_rule *r, const char *text, size_t size, bool first,
                              const char **out, size_t *out_size, char **made);
