/* special_set.h - the added tokens of a vocabulary, special or not, found in text: at each position the
 * longest. The work is at most the text's length times the longest token's, whatever their number. */
#pragma once

#include "common/base/err.h"
#include <stddef.h>
#include <stdint.h>

#define SPECIAL_BYTES_MAX 256 /* of one special token's text */

/* How a token is found, by the names of tokenizer.json. */
enum {
  ADDED_SPECIAL = 1,    /* a mark of the model's, no text */
  ADDED_LSTRIP = 2,     /* takes in the blanks before it */
  ADDED_RSTRIP = 4,     /* and after it */
  ADDED_SINGLE_WORD = 8 /* only where no word's character is beside it */
};

typedef struct special_token {
  char *text; /* owned; not empty */
  uint32_t size;
  int32_t id;
  unsigned flags;
} special_token;

typedef struct special_set {
  special_token *tokens; /* [count], by text, then by id */
  size_t count, capacity;
  size_t first[257]; /* tokens that begin with byte c: [first[c], first[c + 1]) */
} special_set;       /* zeroed at first */

void special_set_fini(special_set *s);
/* Copies the text. ERR_NOMEM. */
int special_set_add(special_set *s, const char *text, uint32_t size, int32_t id, unsigned flags);
void special_set_sort(special_set *s); /* after the last add, before find */

/* The first occurrence in text[size], the longest there, the lowest id of equal texts; *at: its offset. NULL:
 * none. */
const special_token *special_set_find(const special_set *s, const char *text, size_t size, size_t *at);
/* The token of exactly this text, or NULL. */
const special_token *special_set_exact(const special_set *s, const char *text, size_t size);
