#include "common/text/bpe.h"

#include <assert.h>
#include <stdlib.h>

#define NONE UINT32_MAX

typedef struct slot { /* open addressing, linear probing */
  uint64_t pair;      /* left << 32 | right */
  uint32_t rank;      /* NONE: empty */
  int32_t merged;
} slot;

struct bpe {
  slot *slots;
  size_t mask;
  uint32_t count, max;
};

int bpe_alloc(bpe **out, uint32_t merges_max) {
  size_t size = 16;
  while (size < 2 * (size_t)merges_max) size *= 2;
  bpe *b = calloc(1, sizeof *b);
  *out = NULL;
  if (!b) return ERR_NOMEM;
  b->slots = malloc(size * sizeof *b->slots);
  if (!b->slots) {
    bpe_free(b);
    return ERR_NOMEM;
  }
  for (size_t i = 0; i < size; i++) b->slots[i] = (slot){0, NONE, -1};
  b->mask = size - 1;
  b->max = merges_max;
  *out = b;
  return ERR_OK;
}

void bpe_free(bpe *b) {
  if (!b) return;
  free(b->slots);
  free(b);
}

/* The pair's slot, or the empty one where it would stand. */
static slot *find_slot(const bpe *b, int32_t left, int32_t right) {
  uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
  uint64_t h =
      (pair ^ pair >> 29) * 0x9e3779b97f4a7c15u; /* 2^64 over the golden ratio: spreads ids that are close */
  size_t i = (h ^ h >> 32) & b->mask;
  while (b->slots[i].rank != NONE && b->slots[i].pair != pair) i = (i + 1) & b->mask;
  return &b->slots[i];
}

void bpe_add(bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t merged) {
  assert(b->count < b->max && left >= 0 && right >= 0 && rank != NONE);
  slot *s = find_slot(b, left, right);
  if (s->rank == NONE) *s = (slot){(uint64_t)(uint32_t)left << 32 | (uint32_t)right, rank, merged};
  b->count++;
}

void bpe_scratch_fini(bpe_scratch *s) {
  free(s->symbols);
  free(s->heap);
  *s = (bpe_scratch){0};
}

/* ---- a binary min-heap of rank << 32 | position of the left symbol ---- */

static int heap_reserve(bpe_scratch *s, size_t capacity) {
  if (capacity <= s->heap_capacity) return ERR_OK;
  if (capacity < 2 * s->heap_capacity) capacity = 2 * s->heap_capacity;
  uint64_t *heap = realloc(s->heap, capacity * sizeof *heap);
  if (!heap) return ERR_NOMEM;
  s->heap = heap;
  s->heap_capacity = capacity;
  return ERR_OK;
}

static void sift_down(bpe_scratch *s, size_t i) {
  uint64_t key = s->heap[i];
  for (size_t child; (child = 2 * i + 1) < s->heap_size; i = child) {
    if (child + 1 < s->heap_size && s->heap[child + 1] < s->heap[child]) child++;
    if (key <= s->heap[child]) break;
    s->heap[i] = s->heap[child];
  }
  s->heap[i] = key;
}

static uint64_t heap_pop(bpe_scratch *s) {
  uint64_t least = s->heap[0];
  s->heap[0] = s->heap[--s->heap_size];
  if (s->heap_size) sift_down(s, 0);
  return least;
}

static int heap_push(bpe_scratch *s, uint64_t key) {
  if (heap_reserve(s, s->heap_size + 1)) return ERR_NOMEM;
  size_t i = s->heap_size++;
  for (; i > 0 && s->heap[(i - 1) / 2] > key; i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
  s->heap[i] = key;
  return ERR_OK;
}

/* ---- merging ---- */

static void look_up(const bpe *b, bpe_symbol *symbol, int32_t next) {
  const slot *s = find_slot(b, symbol->id, next);
  symbol->rank = s->rank;
  symbol->merged = s->merged;
}

static int begin(const bpe *b, bpe_scratch *s, const int32_t *ids, size_t count) {
  if (count > s->symbol_capacity) {
    size_t capacity = count < 64 ? 64 : count;
    bpe_symbol *symbols = realloc(s->symbols, capacity * sizeof *symbols);
    if (!symbols) return ERR_NOMEM;
    s->symbols = symbols;
    s->symbol_capacity = capacity;
  }
  if (heap_reserve(s, count)) return ERR_NOMEM;
  s->heap_size = 0;
  for (size_t i = 0; i < count; i++) {
    bpe_symbol *symbol = &s->symbols[i];
    *symbol =
        (bpe_symbol){ids[i], NONE, 0, i ? (uint32_t)i - 1 : NONE, i + 1 < count ? (uint32_t)i + 1 : NONE};
    if (i + 1 < count) look_up(b, symbol, ids[i + 1]);
    if (symbol->rank != NONE) s->heap[s->heap_size++] = (uint64_t)symbol->rank << 32 | i;
  }
  for (size_t i = s->heap_size / 2; i-- > 0;) sift_down(s, i);
  return ERR_OK;
}

/* The rank of the symbol's pair after one of the two has changed. */
static int refresh(const bpe *b, bpe_scratch *s, uint32_t at) {
  bpe_symbol *symbol = &s->symbols[at];
  symbol->rank = NONE;
  if (symbol->next != NONE) look_up(b, symbol, s->symbols[symbol->next].id);
  return symbol->rank == NONE ? ERR_OK : heap_push(s, (uint64_t)symbol->rank << 32 | at);
}

/* The symbol at `at` takes in its right neighbour. */
static int merge_at(const bpe *b, bpe_scratch *s, uint32_t at) {
  bpe_symbol *left = &s->symbols[at], *right = &s->symbols[left->next];
  left->id = left->merged;
  left->next = right->next;
  right->rank = NONE; /* what the heap still holds of it is void */
  if (left->next != NONE) s->symbols[left->next].previous = at;
  if (refresh(b, s, at)) return ERR_NOMEM;
  return left->previous == NONE ? ERR_OK : refresh(b, s, left->previous);
}

int bpe_merge(const bpe *b, bpe_scratch *s, int32_t *ids, size_t *count) {
  assert(*count < NONE);
  if (*count < 2) return ERR_OK;
  if (begin(b, s, ids, *count)) return ERR_NOMEM;
  while (s->heap_size) {
    uint64_t key = heap_pop(s);
    uint32_t at = (uint32_t)key;
    /* An entry of a pair that is gone, if its rank is the present pair's, stands for that one as well. */
    if (s->symbols[at].rank == key >> 32 && merge_at(b, s, at)) return ERR_NOMEM;
  }
  *count = 0;
  for (uint32_t i = 0; i != NONE; i = s->symbols[i].next) ids[(*count)++] = s->symbols[i].id;
  return ERR_OK;
}
