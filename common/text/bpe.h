/* bpe.h - the merge loop of byte-pair encoding. It merges the neighbouring pair of the lowest rank, and of
 * equal ranks the leftmost, until no pair can merge. O(n log n) for n symbols. Source: Sennrich et al. 2016.
 */
#pragma once

#include "common/base/err.h"
#include <stddef.h>
#include <stdint.h>

typedef struct bpe bpe; /* the table of merges; immutable once filled */

int bpe_alloc(bpe **out, uint32_t merges_max); /* ERR_NOMEM */
void bpe_free(bpe *b);                         /* NULL is allowed */
/* left, right >= 0 become merged; rank < UINT32_MAX. Several pairs may have one rank. A pair that is there
 * already keeps its first rank. */
void bpe_add(bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t merged);

typedef struct bpe_symbol { /* one of the symbols of a text being merged; a linked list */
  int32_t id;
  uint32_t rank;  /* of the pair with the next symbol; UINT32_MAX: none */
  int32_t merged; /* what the pair becomes */
  uint32_t previous, next;
} bpe_symbol;

typedef struct bpe_scratch { /* zeroed at first; kept from text to text; one thread */
  bpe_symbol *symbols;
  uint64_t *heap;
  size_t symbol_capacity, heap_capacity, heap_size;
} bpe_scratch;
void bpe_scratch_fini(bpe_scratch *s);

/* Merges ids[*count] in place, *count < 2^32 - 1. ERR_NOMEM: ids hold the symbols as they were. */
int bpe_merge(const bpe *b, bpe_scratch *s, int32_t *ids, size_t *count);
