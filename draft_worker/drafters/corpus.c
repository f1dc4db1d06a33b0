#include "draft_worker/drafters/corpus.h"

#include "common/base/min.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define KEYS     4
#define STEPS    48 /* along the occurrences of one key */
#define TEXT_END (-1)

static const int32_t key_lengths[KEYS] = {2, 4, 8, 16};

/* A position counts the tokens that came before it, modulo 2^32: what is found is compared, so that a number
 * which comes again does no harm. Position 0 is none. */
struct corpus {
  uint32_t mask;    /* room - 1 */
  uint32_t end;     /* the position of the next token */
  uint32_t size;    /* positions [end - size, end) are here */
  uint32_t text;    /* where the last text begins */
  int bucket_shift; /* of a hash of 64 bits */
  int32_t *tokens;  /* [room], by position & mask */
  uint32_t *newest; /* [KEYS][room]: the last position that follows a key of this bucket */
  uint32_t *older;  /* [KEYS][room]: the position before that one, by position & mask */
};

int corpus_open(corpus **out, int32_t room, err *e) {
  assert(room >= 64 && (room & (room - 1)) == 0);
  corpus *c = *out = calloc(1, sizeof *c);
  if (c) {
    c->mask = (uint32_t)room - 1;
    c->end = c->text = 1;
    c->bucket_shift = 64 - __builtin_ctz((unsigned)room);
    c->tokens = calloc((size_t)room, sizeof *c->tokens);
    c->newest = calloc((size_t)room * KEYS, sizeof *c->newest);
    c->older = calloc((size_t)room * KEYS, sizeof *c->older);
  }
  if (c && c->tokens && c->newest && c->older) return ERR_OK;
  corpus_close(c);
  *out = NULL;
  return err_set(e, ERR_NOMEM, "no memory for the corpus");
}

void corpus_close(corpus *c) {
  if (!c) return;
  free(c->tokens);
  free(c->newest);
  free(c->older);
  free(c);
}

int32_t corpus_size(const corpus *c) {
  return (int32_t)c->size;
}

/* --- keys --- */

static uint64_t mix(uint64_t h, int32_t token) {
  h = (h + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint32_t)token;
  return (h ^ h >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
}

static uint32_t *newest_of(const corpus *c, int key, uint64_t hash) {
  return &c->newest[(size_t)key * (c->mask + 1) + (hash >> c->bucket_shift)];
}

static uint32_t *older_of(const corpus *c, int key, uint32_t position) {
  return &c->older[(size_t)key * (c->mask + 1) + (position & c->mask)];
}

static bool is_here(const corpus *c, uint32_t position) {
  return position != 0 && c->end - position - 1 < c->size;
}

static int32_t token_at(const corpus *c, uint32_t position) {
  return c->tokens[position & c->mask];
}

/* --- adding --- */

/* The token at `position` has so many of its text before it. */
static void index_position(corpus *c, uint32_t position, int32_t before) {
  uint64_t hash = 0;
  int32_t n = 0;
  for (int key = 0; key < KEYS && key_lengths[key] <= before; key++) {
    for (; n < key_lengths[key]; n++) hash = mix(hash, token_at(c, position - 1 - (uint32_t)n));
    uint32_t *newest = newest_of(c, key, hash);
    *older_of(c, key, position) = *newest;
    *newest = position;
  }
}

static void push(corpus *c, int32_t token) {
  c->tokens[c->end & c->mask] = token;
  c->end++;
  if (c->size <= c->mask) c->size++;
}

/* How many tokens the last text has, as far as it is all here. */
static int32_t text_length(const corpus *c) {
  uint32_t length = c->end - c->text;
  return length <= c->size ? (int32_t)length : 0;
}

/* How many of the first tokens are the whole of the last text; else 0. */
static int32_t goes_on(const corpus *c, const int32_t *tokens, int32_t count) {
  int32_t length = text_length(c);
  if (length > count) return 0;
  for (int32_t i = 0; i < length; i++)
    if (tokens[i] != token_at(c, c->text + (uint32_t)i)) return 0;
  return length;
}

void corpus_add(corpus *c, const int32_t *tokens, int32_t count) {
  int32_t most = (int32_t)c->mask; /* one is for the end of the text before */
  int32_t first = 0, from = goes_on(c, tokens, count);
  if (from == 0 && c->size > 0) push(c, TEXT_END);
  if (from == 0) c->text = c->end;
  if (count - from > most) first = from = count - most;
  for (int32_t i = from; i < count; i++) {
    index_position(c, c->end, i - first);
    push(c, tokens[i]);
  }
}

/* --- finding --- */

/* How many of the ending's tokens come before `position`. */
static int32_t matching(const corpus *c, uint32_t position, const int32_t *ending, int32_t count) {
  int32_t n = 0;
  for (; n < count && is_here(c, position - 1 - (uint32_t)n); n++)
    if (token_at(c, position - 1 - (uint32_t)n) != ending[n]) break;
  return n;
}

/* Keeps the longest first; of equally long ones the one that came first stays first. A full list loses its
 * last one, if that is shorter. */
static int32_t insert(corpus_found *list, int32_t count, corpus_found x) {
  if (count == CORPUS_FOUND_MAX && list[count - 1].length >= x.length) return count;
  int32_t now = count < CORPUS_FOUND_MAX ? count + 1 : count, at = now - 1;
  for (; at > 0 && list[at - 1].length < x.length; at--) list[at] = list[at - 1];
  list[at] = x;
  return now;
}

/* Occurrences of [least, most] tokens. */
static int32_t find_by_key(const corpus *c, int key, uint64_t hash, const int32_t *ending, int32_t count,
                           corpus_found *out, int32_t found) {
  int32_t least = key_lengths[key], most = key + 1 < KEYS ? key_lengths[key + 1] - 1 : CORPUS_ENDING_MAX;
  uint32_t position = *newest_of(c, key, hash);
  if (found == CORPUS_FOUND_MAX) return found; /* of longer ones */
  for (int step = 0; step < STEPS && is_here(c, position); step++) {
    int32_t length = matching(c, position, ending, count);
    if (length >= least && length <= most) /* less: another key of this bucket; more: found by a longer key */
      found = insert(out, found, (corpus_found){token_at(c, position), length});
    position = *older_of(c, key, position);
  }
  return found;
}

int32_t corpus_find(const corpus *c, const int32_t *ending, int32_t count,
                    corpus_found out[CORPUS_FOUND_MAX]) {
  uint64_t hashes[KEYS], hash = 0;
  int32_t n = 0, found = 0;
  int keys = 0;
  count = min_i32(count, CORPUS_ENDING_MAX);
  for (; keys < KEYS && key_lengths[keys] <= count; keys++) {
    for (; n < key_lengths[keys]; n++) hash = mix(hash, ending[n]);
    hashes[keys] = hash;
  }
  while (--keys >= 0) found = find_by_key(c, keys, hashes[keys], ending, count, out, found);
  return found;
}
