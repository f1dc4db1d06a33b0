/* added_tokens.h - finds the added tokens of a vocabulary, special or not, in text; at each position the
 * longest one. The work is at most the text's length times that of the longest token, however many tokens
 * there are. */
#pragma once

#include "common/base/err.h"
#include <stddef.h>
#include <stdint.h>

#define ADDED_TOKEN_BYTES_MAX 256 /* of one special token's text */

/* How a token is found, by the names of tokenizer.json. */
enum {
  ADDED_SPECIAL = 1,    /* a mark of the model, not text */
  ADDED_LSTRIP = 2,     /* takes in the blanks before it */
  ADDED_RSTRIP = 4,     /* and after it */
  ADDED_SINGLE_WORD = 8 /* only where no character of a word is next to it */
};

typedef struct added_token {
  char *text; /* owned; not empty */
  uint32_t size;
  int32_t id;
  unsigned flags;
} added_token;

typedef struct added_tokens {
  added_token *tokens; /* [count], by text, then by id */
  size_t count, capacity;
  size_t first[257]; /* tokens that begin with byte c: [first[c], first[c + 1]) */
} added_tokens;      /* zeroed at first */

void added_tokens_fini(added_tokens *s);
/* Copies the text. ERR_NOMEM. */
int added_tokens_add(added_tokens *s, const char *text, uint32_t size, int32_t id, unsigned flags);
void added_tokens_sort(added_tokens *s); /* after the last add, before find */

/* The first occurrence in text[size], the longest there, the lowest id of equal texts; *at: its offset. NULL:
 * none. */
const added_token *added_tokens_find(const added_tokens *s, const char *text, size_t size, size_t *at);
/* The token of exactly this text, or NULL. */
const added_token *added_tokens_exact(const added_tokens *s, const char *text, size_t size);
