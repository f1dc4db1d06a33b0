/* grammar_vocabulary.h - the tokens of a vocabulary as a tree of their bytes, so that tokens that begin alike
 * are looked at together. */
#pragma once

#include "common/base/err.h"
#include "common/text/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

#define GRAMMAR_TOKEN_MAX 256 /* bytes of a token; a longer one is no part of any answer with a grammar */

/* Nodes in the order of a walk: each node's children stand behind it, up to `next`. */
typedef struct grammar_node {
  uint8_t byte;
  uint16_t depth;       /* bytes up to this one, from 1 */
  int32_t next;         /* the first node that does not begin with this one's bytes */
  int32_t first, count; /* of `ordered`: the tokens that end here */
} grammar_node;

typedef struct grammar_vocabulary { /* immutable */
  int32_t token_count, node_count;
  grammar_node *nodes;
  int32_t *ordered; /* tokens by their bytes */
  size_t *ends;     /* [token_count]: where each token's bytes end */
  uint8_t *bytes;   /* none for those that are no text */
} grammar_vocabulary;

/* The bytes of token `id`, size 0: it is none that a grammar may allow. NULL for size 0 is right. */
typedef const char *(*grammar_piece)(const void *context, int32_t id, size_t *size);

/* `count` tokens. ERR_NOMEM. */
int grammar_vocabulary_make(grammar_vocabulary **out, int32_t count, grammar_piece piece, const void *context,
                            err *e);
/* Of a tokenizer, whose special tokens are no text; `count` is the model's, which may be larger. */
int grammar_vocabulary_open(grammar_vocabulary **out, const tokenizer *t, int32_t count, err *e);
void grammar_vocabulary_free(grammar_vocabulary *v); /* NULL is allowed */

const uint8_t *grammar_vocabulary_bytes(const grammar_vocabulary *v, int32_t id, size_t *size);
