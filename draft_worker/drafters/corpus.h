/* corpus.h - tokens of earlier texts, and where an ending has occurred among them. It holds the newest
 * tokens, as many as it has room for, in memory that is taken once: 36 bytes a token. To find an ending takes
 * a bounded number of steps, however large the corpus is. One thread.
 *
 * Endings of 2, 4, 8 and 16 tokens are found by a hash, the last 48 occurrences of each, and then compared to
 * their whole length: of those, the longest count. A suffix tree finds the longest of all, for more memory.
 * Source of the method: G. Oliaro, Z. Jia, D. Campos, A. Qiao, "SuffixDecoding" (2024). */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stdint.h>

#define CORPUS_TOKENS_MAX (1 << 20) /* room of a worker's: 36 MiB */
#define CORPUS_ENDING_MAX 64        /* tokens of the longest ending that is compared */
#define CORPUS_FOUND_MAX  16        /* occurrences of one ending that are looked at */

typedef struct corpus corpus;

typedef struct corpus_found {
  int32_t token;  /* that followed there */
  int32_t length; /* of the ending's last tokens that came before it */
} corpus_found;

/* room: a power of two of tokens, 64 or more. ERR_NOMEM. */
int corpus_open(corpus **out, int32_t room, err *e);
void corpus_close(corpus *c); /* NULL is allowed */

/* Adds a text of tokens >= 0; the oldest tokens make room for it. A text that goes on where the last one
 * ended only adds what is new of it. Endings do not reach from one text into another. */
void corpus_add(corpus *c, const int32_t *tokens, int32_t count);
/* How many tokens it holds, ends of texts among them. */
int32_t corpus_size(const corpus *c);

/* What followed the ending, its last token first: the longest occurrences first, of equally long ones the
 * most recent. Those of one token are not looked for. Returns how many. */
int32_t corpus_find(const corpus *c, const int32_t *ending, int32_t count,
                    corpus_found out[CORPUS_FOUND_MAX]);
