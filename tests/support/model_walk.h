/* model_walk.h - one numerics class for all positions: the logits of a committed position are the same bits
 * however they were computed. The reference is plain decoding, one row a forward; everything else is compared
 * with it by memcmp: prefills in any chunking, and a random walk of appends, verified trees with siblings,
 * commits, rollbacks and replays, with other sequences in the batch; over a virtual cache, the reference's is
 * static. For test_model_bits*.c. */
#pragma once

#include "tests/support/models.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LENGTH 300
#else
#define LENGTH 1500
#endif

#define TREE_MAX  64
#define SEQUENCES 3
#define WIDTHS    6

static const int32_t widths[WIDTHS] = {1, 2, 3, 8, 17, 64};

typedef struct text {
  int32_t vocab, length[SEQUENCES]; /* the companions' are shorter */
  int32_t tokens[SEQUENCES][LENGTH];
  float *logits[SEQUENCES]; /* [length][vocab], by plain decoding */
} text;

typedef struct walk {
  const text *t;
  model *m;
  kv_cache *k;
  int32_t seq[SEQUENCES];
  uint64_t random;
  int32_t compared, trees, tree_rows, rollbacks, companions; /* what it covered */
} walk;

void compare(walk *w, int32_t text_index, int32_t position, const float *logits);

/* --- the reference --- */

void free_text(text *t);

/* --- prefill in any chunking --- */

void check_prefill(walk *w, int32_t chunk, bool random_chunks);

/* --- the random walk --- */

/* A tree at the end of a text: chain[0..chain_count) are the rows that hold the text's own next tokens. */
typedef struct tree_delta {
  int32_t count, chain_count;
  int32_t tokens[TREE_MAX], parents[TREE_MAX], chain[TREE_MAX];
} tree_delta;

/* One sequence's part of a batch, and what to do after the forward. */
typedef struct part {
  model_segment segment;
  tree_delta tree;
  int32_t text, at;
} part;

/* Sequence 0 goes on by `rows`; the others join now and then, by less, and begin again at their end. */
void step(walk *w, int32_t rows);

void random_walk(walk *w);

/* --- the cases --- */

typedef struct bits_case {
  const model_file *g;
  ops_math math;
  kv_type type;
} bits_case;

walk open_walk(const bits_case *c, const text *t, const char *name, int32_t threads);

void close_walk(walk *w);

void report(const walk *w, const bits_case *c, int32_t threads);

text *reference(const bits_case *c, const char *name, int32_t length, int32_t threads);

/* --- all of it --- */

/* Everything on one device with one number of threads. */
void check_device(const bits_case *c, const text *t, const char *name, int32_t threads);
