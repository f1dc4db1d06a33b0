/* commit_policy.h - ways in which the rows of a verified tree can come into the committed cache, each played
 * with the real model and cache of a step_bench (`tandem bench kv`).
 *
 * Staging is what a target does: rows go to the staging pool, and the accepted ones are copied from there.
 *
 * With write-through, rows go straight behind the committed ones, and the rejected ones are rewound, as vLLM
 * does it. It is for chains, whose accepted rows lie where they belong.
 *
 * With copy on accept, a tree's rows go there in the order of its nodes, and those of the accepted ones that
 * do not lie where they belong are copied there, as Medusa and EAGLE do it. The cache has no operation that
 * moves committed rows: here as many rows are copied out of the staging pool. And here each row attends to
 * all rows before it, where a mask would show it its path. */
#pragma once

#include "bench/step.h"

typedef enum { COMMIT_STAGING, COMMIT_WRITE_THROUGH, COMMIT_COPY, COMMIT_POLICIES } commit_policy;
/* TREE: two candidates at each depth, of which the first one goes on */
typedef enum { COMMIT_CHAIN, COMMIT_TREE, COMMIT_SHAPES } commit_shape;

extern const char *const commit_policy_names[COMMIT_POLICIES], *const commit_shape_names[COMMIT_SHAPES];

#define COMMIT_NODES_MAX (STEP_ROWS_MAX - 1)

typedef struct commit_round {
  commit_policy policy;
  commit_shape shape;
  int32_t nodes;    /* beside the root, at most COMMIT_NODES_MAX */
  int32_t accepted; /* at most commit_depth */
} commit_round;

typedef struct commit_cost {
  uint64_t ns;                     /* of the forward, and of what follows until the next one could begin */
  uint64_t committed_bytes, bytes; /* written to committed rows, and anywhere */
} commit_cost;

int32_t commit_depth(commit_shape shape, int32_t nodes);
bool commit_is_possible(commit_policy policy, commit_shape shape);
/* One round at sequence 0, which is as before afterwards. A device may carry copies out as late as the next
 * forward: so play the same round before the one that counts. */
int commit_play(step_bench *b, const commit_round *r, commit_cost *cost);
