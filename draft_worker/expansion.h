/* expansion.h - the draft tree of one session as it grows, the most probable node first, with each drafter's
 * reply about each node. A `node` is always a slot of the tree or TREE_ROOT. A `spot` is a node, or a
 * candidate that a drafter was queried about although it is not in the tree (EXPANSION_SPOT_AHEAD). Pure. */
#pragma once

#include "common/base/limit.h"
#include "common/speculative/tree.h"
#include "draft_worker/drafters/drafter.h"

/* One drafter's reply about one node, and how much of it is in the tree. */
typedef struct expansion_entry {
  uint32_t mark; /* the node's stamp + 1, taken when it was queried; for the root 1; 0: it was not queried */
  uint64_t handle; /* of the query while its reply is outstanding; else 0 */
  int32_t count;
  int32_t next;   /* the first candidate that is not in the tree */
  uint8_t joined; /* bit i: its scores are joint ones with drafter i's (expansion_join), which a reply that
                     lasts keeps */
  draft_candidate list[DRAFT_CANDIDATES_MAX];
} expansion_entry;

/* A reply about a candidate that is not in the tree yet: a forward with room for more rows than the tree asks
 * for computes those that it will probably ask for next. When the candidate enters the tree, the reply is
 * its node's. Its parent may be such a candidate, too, so that a level of the tree is there before the tree
 * gets to it. */
#define EXPANSION_AHEAD_MAX     LIMIT(64, 4)
#define EXPANSION_SPOT_AHEAD(i) (TREE_NODE_MAX + (i)) /* the spot of ahead[i] */
typedef struct expansion_ahead {
  expansion_entry entry;     /* mark: of the parent; handle: as there */
  int32_t by, parent, token; /* parent: a spot */
  float score;               /* given its parent */
  uint32_t stamp;            /* different for each use of this record */
  int32_t node;              /* that the candidate has become while its reply is outstanding; -1: none */
  bool used;                 /* by a reply that is outstanding, or that nobody has asked for yet */
} expansion_ahead;

typedef struct expansion {
  tree live;
  int32_t drafter_count;
  expansion_entry *entries; /* [drafter_count][live.capacity + 1]: of each slot, and of the root */
  expansion_ahead ahead[EXPANSION_AHEAD_MAX];
} expansion; /* zeroed at first */

int expansion_init(expansion *x, int32_t capacity, int32_t drafter_count); /* ERR_NOMEM: for expansion_fini */
void expansion_fini(expansion *x);
void expansion_reset(expansion *x);

float expansion_total(const expansion *x, int32_t spot); /* log of its path probability */
/* Tokens of the path to a spot; returns its depth. */
int32_t expansion_path(const expansion *x, int32_t spot, int32_t *path);

/* --- queries --- */

expansion_entry *expansion_entry_of(expansion *x, int32_t by, int32_t node);
int32_t expansion_node(const expansion *x, int32_t by, const expansion_entry *e); /* the entry's node */
bool expansion_queried(expansion *x, int32_t by, int32_t node); /* also before the reply has come */
bool expansion_replied(expansion *x, int32_t by, int32_t node);
/* Notes that the node is queried, and returns the query's handle; number: > 0, different for each query. */
uint64_t expansion_query(expansion *x, int32_t by, int32_t node, uint64_t number);
/* The same for a candidate of the drafter's reply about that spot, which is not in the tree; 0: there are too
 * many of these. */
uint64_t expansion_query_ahead(expansion *x, int32_t by, int32_t spot, const draft_candidate *c,
                               uint64_t number);
/* The query could not be made. */
void expansion_unquery(expansion *x, int32_t by, uint64_t handle);
/* Finds the entry to which the reply with that handle belongs; NULL: the node is gone. in_tree: it is that of
 * a node, and not of a candidate. */
expansion_entry *expansion_outstanding(expansion *x, int32_t by, uint64_t handle, bool *in_tree);

/* Two drafters have replied about one node, one that computes and one that looks up what was written before.
 * Scores of candidates that are not in the tree yet become those of both replies together: the looked-up
 * probability q counts as q^3, and a token that both propose gets 1 - (1 - p)(1 - q^3). `by`: the drafter
 * that looks up. */
void expansion_join(expansion_entry *computed, expansion_entry *looked_up, int32_t by);

/* What has not been queried yet: the most probable nodes of one tree or of several, the best first; and
 * behind them, the most probable candidates that are not in the tree. */
#define EXPANSION_FRONTIER_MAX LIMIT(32, 8)
typedef struct expansion_frontier_node {
  expansion *of;
  int32_t spot;
  draft_candidate candidate; /* of the reply about this spot; token -1: it is the spot itself, a node */
  float total;
} expansion_frontier_node;

typedef struct expansion_frontier {
  expansion_frontier_node list[EXPANSION_FRONTIER_MAX];
  int32_t count, nodes, room; /* nodes: how many are in the tree; room <= EXPANSION_FRONTIER_MAX */
} expansion_frontier;

/* Which nodes one drafter is queried about, and how its candidates are weighed. A node with a total below
 * `least` is not queried, nor is one of depth `reach` or more (0: of any depth). hope (<= 0): the expected
 * log probability of the best candidate of an outstanding reply, given its node; with 0, no node is added
 * that a reply could still surpass, so the tree does not depend on when replies come. */
typedef struct expansion_limits {
  float hope, least;
  int32_t reach;
  bool absent; /* nobody waits for its replies */
} expansion_limits;

/* Adds the nodes of this tree that drafter `by` was not queried about and may be, and whose parent it has
 * replied about; when there is no room, the least probable nodes are dropped. */
void expansion_frontier_add(expansion_frontier *f, expansion *x, int32_t by, const expansion_limits *limits);
/* Adds candidates of its replies, after the nodes of all trees. */
void expansion_frontier_add_ahead(expansion_frontier *f, expansion *x, int32_t by,
                                  const expansion_limits *limits);

/* --- growing --- */

/* A possible next step of growth: to query a node, or to add the next candidate of a reply. */
typedef struct expansion_step {
  bool any, query;
  int32_t by, node;
  int64_t order; /* of the node: among equals the older one wins */
  float total;
} expansion_step;

/* The best possible step. limits: [drafter_count] */
expansion_step expansion_best(expansion *x, const expansion_limits *limits);
/* Adds the next candidate of such a reply, unless it is no token of the target's vocabulary (size; 0: not
 * known), for which the target would refuse the draft. A node that another drafter has added before keeps the
 * better score of the two. Returns the slot of the new node; -1: none was added.
 */
int32_t expansion_add(expansion *x, const expansion_step *s, int32_t vocabulary);

/* C is about to grow by these tokens. If the drafter's replies last, its reply about the node at which these
 * tokens end becomes its reply about the root; otherwise the root will be queried again, and if they are
 * guesses, all other nodes too. Call it before tree_commit. */
void expansion_reroot(expansion *x, int32_t by, drafter_replies replies, const int32_t *tokens,
                      int32_t count);
