/* expansion.h - the tree of one session as it grows, the most probable node first, and what its drafter has
 * said of each place. A place is a node's slot, or TREE_ROOT. Pure. */
#pragma once

#include "common/speculative/tree.h"
#include "draft_worker/drafters/drafter.h"

/* What is known of a place, and how much of it stands in the tree already. */
typedef struct asked {
  uint32_t mark;   /* stamp + 1 of the slot's node when it was asked; the root's: 1; 0: not asked */
  uint64_t serial; /* of the question, as long as its answer is awaited; else 0 */
  int32_t count, next;
  draft_candidate list[DRAFTER_CANDIDATES_MAX];
  uint8_t cases[DRAFTER_CANDIDATES_MAX]; /* of calibration.h, where the answer came from a model */
} asked;

typedef struct expansion {
  tree live;
  asked *asked; /* [live.capacity + 1]: of each slot, and of the root */
} expansion;    /* zeroed at first */

int expansion_init(expansion *g, int32_t capacity); /* ERR_NOMEM: for expansion_fini */
void expansion_fini(expansion *g);
void expansion_reset(expansion *g);

asked *expansion_of(expansion *g, int32_t place);
bool expansion_known(expansion *g, int32_t place); /* asked, answered or not */
/* The place was asked just now. */
void expansion_ask(expansion *g, int32_t place, uint64_t serial);
/* The place that awaits this answer; false: none does. */
bool expansion_awaits(expansion *g, uint64_t serial, int32_t *place);
float expansion_total(const expansion *g, int32_t place); /* log of its probability */
/* Tokens of the path to a place; returns its depth. */
int32_t expansion_path(const expansion *g, int32_t place, int32_t *path);

/* What the tree could gain next: the answer of a place that has not given one, or the next candidate of one
 * that has. */
typedef struct gain {
  bool any, ask;
  int32_t place;
  int64_t order; /* of the place: the older one of equals */
  float total;
} gain;

/* The best of them. hope (<= 0): log of how much less probable than its place the best of an answer that is
 * not there is taken to be; at 0 nothing is added that an answer could still surpass, so that the tree
 * depends on no moment. A place below `least` is not asked. */
gain expansion_best(expansion *g, float hope, float least);

/* C grew by these tokens, none of which a drafter without memory of C has to be asked for again: what is
 * known of the place where they end is known of the root. Before tree_commit. */
void expansion_keep_root(expansion *g, const int32_t *tokens, int32_t count);
