/* expansion.h - the draft tree of one session as it grows, the most probable node first, and what each
 * drafter has said of each node. Where a function takes a node it is a slot of the tree, or TREE_ROOT. Pure.
 */
#pragma once

#include "common/speculative/tree.h"
#include "draft_worker/drafters/drafter.h"

/* What one drafter has said of one node, and how much of that stands in the tree. */
typedef struct expansion_entry {
  uint32_t mark;   /* stamp + 1 of the slot's node when it was queried; the root's: 1; 0: it was not */
  uint64_t handle; /* of the query while its reply is outstanding; else 0 */
  int32_t count;
  int32_t next; /* the first candidate that is not in the tree */
  draft_candidate list[DRAFTER_CANDIDATES_MAX];
} expansion_entry;

typedef struct expansion {
  tree live;
  int32_t drafter_count;
  expansion_entry *entries; /* [drafter_count][live.capacity + 1]: of each slot, and of the root */
} expansion;                /* zeroed at first */

int expansion_init(expansion *x, int32_t capacity, int32_t drafter_count); /* ERR_NOMEM: for expansion_fini */
void expansion_fini(expansion *x);
void expansion_reset(expansion *x);

float expansion_total(const expansion *x, int32_t node); /* log of its path probability */
/* Tokens of the path to a node; returns its depth. */
int32_t expansion_path(const expansion *x, int32_t node, int32_t *path);

/* --- queries --- */

expansion_entry *expansion_entry_of(expansion *x, int32_t by, int32_t node);
bool expansion_queried(expansion *x, int32_t by, int32_t node); /* with or without a reply by now */
bool expansion_replied(expansion *x, int32_t by, int32_t node);
/* The handle of a query about a node; number: another one for each query, > 0. */
uint64_t expansion_handle(const expansion *x, int32_t node, uint64_t number);
/* The node is queried with that handle. */
void expansion_query(expansion *x, int32_t by, int32_t node, uint64_t handle);
/* Whose reply this is; NULL: the node is gone. */
expansion_entry *expansion_outstanding(expansion *x, int32_t by, uint64_t handle);

/* The nodes whose candidates have not been queried yet: the most probable ones of one tree or of several, the
 * best first. */
#define EXPANSION_FRONTIER_MAX 32
typedef struct expansion_frontier {
  struct expansion_frontier_node {
    expansion *of;
    int32_t node;
    float total;
  } list[EXPANSION_FRONTIER_MAX];
  int32_t count, room; /* room <= EXPANSION_FRONTIER_MAX */
} expansion_frontier;

/* Adds the frontier of this tree as one drafter sees it, down to a total of `least`; where there is no room
 * the least probable nodes go. */
void expansion_frontier_add(expansion_frontier *f, expansion *x, int32_t by, float least);

/* --- growing --- */

/* How a drafter's part of a tree is weighed. hope (<= 0): log of how much less probable than its node the
 * best of an outstanding reply is taken to be; at 0 nothing is added that a reply could still surpass, so
 * that the tree does not depend on when replies come. A node below `least` is not queried. */
typedef struct expansion_limits {
  float hope, least;
} expansion_limits;

/* What the tree could gain next: a reply about a node, or the next candidate of a reply. */
typedef struct expansion_step {
  bool any, query;
  int32_t by, node;
  int64_t order; /* of the node: the older one of equals */
  float total;
} expansion_step;

/* The best of them. limits: [drafter_count] */
expansion_step expansion_best(expansion *x, const expansion_limits *limits);

/* C is about to grow by these tokens: what a drafter whose replies last has said of the node where they end
 * is said of the root then; of any other drafter the root is queried again. Call it before tree_commit. */
void expansion_reroot(expansion *x, int32_t by, bool lasting, const int32_t *tokens, int32_t count);
