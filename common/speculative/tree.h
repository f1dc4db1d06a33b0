/* tree.h - the live token tree of one session, held alike by the draft and by the target.
 *
 * A node is its token path. With C the committed tokens: a node is trunk if its path is a prefix of C, live
 * if C is a proper prefix of its path, else dead. Only live nodes are stored. The root is C's last token; it
 * is not a node (slot TREE_ROOT). Two children of one parent never have the same token: a second one is an
 * alias of the first. Nothing allocates after tree_init. One thread owns a tree. */
#pragma once

#include "common/base/limit.h"
#include <stdbool.h>
#include <stdint.h>

#define TREE_NODE_MAX  LIMIT(1024, 52) /* live nodes of one session, over all attached drafts */
#define TREE_DEPTH_MAX LIMIT(256, 12)  /* depth of a live node below the root */
#define TREE_IDS_MAX   LIMIT(4096, 44) /* ids remembered per attached draft */
#define TREE_ROOT      (-1)
#define TREE_SCORE_MIN (-100.0f) /* scores are clamped to [this, 0] */

typedef struct tree_node {
  int32_t token;
  int32_t parent;               /* slot, or TREE_ROOT */
  int32_t first_child, sibling; /* slots, or -1; children in order of arrival */
  int32_t depth;                /* 1 for a child of the root */
  float score;                  /* log of its own match probability, given its parent; <= 0 */
  float total;                  /* sum of scores from the root's child to here */
  uint32_t stamp;               /* grows each time the slot is freed: tells a reused slot */
  uint64_t order;               /* arrival number, which breaks ties of `total` */
  bool live;
} tree_node;

typedef struct tree {
  tree_node *nodes; /* [capacity] */
  int32_t capacity, live_count;
  int32_t first_child; /* of the root, or -1 */
  int32_t free_slot;   /* head of the free list through `sibling` */
  uint64_t next_order; /* 64 bits, because a hostile draft could make 32 bits wrap */
} tree;

int tree_init(tree *t, int32_t capacity); /* capacity <= TREE_NODE_MAX; ERR_NOMEM, ERR_ARG */
void tree_fini(tree *t);
void tree_reset(tree *t); /* no live node is left */

/* Adds a child with `token` under `parent` (slot or TREE_ROOT), or finds it (an alias: score kept, *fresh
 * false). Returns the slot, ERR_FULL at capacity or ERR_LIMIT at TREE_DEPTH_MAX; `fresh` may be NULL. */
int32_t tree_add(tree *t, int32_t parent, int32_t token, float score, bool *fresh);

/* The score of a live node becomes `score` if that is higher; the totals below it follow. */
void tree_raise(tree *t, int32_t slot, float score);

/* Child of `parent` with that token, or -1. */
int32_t tree_child(const tree *t, int32_t parent, int32_t token);

/* C grew by these tokens: the subtree below them stays, the rest dies, and totals are computed anew. Returns
 * the length of the longest prefix of `tokens` that was a path of nodes from the root. */
int32_t tree_advance(tree *t, const int32_t *tokens, int32_t count);

/* Writes the best `count` live nodes by total (ties: lower order first), parents before children, to slots[];
 * parents[i] is the index in slots[] of i's parent, or -1 for the root. Nodes deeper than depth_max are left
 * out. The ancestors of a written node are always written too. Returns how many were written. Deterministic.
 */
int32_t tree_select(const tree *t, int32_t count, int32_t depth_max, int32_t *slots, int32_t *parents);

/* Order-free digest of the set of live token paths (0 for none): equal on both sides at rest. */
uint64_t tree_digest(const tree *t);

/* --- ids: what one attached draft calls the nodes of one tree generation --- */

typedef struct tree_id {
  int32_t slot; /* live: slot with this stamp */
  uint32_t stamp;
  int32_t position; /* trunk: index in C; -1 otherwise */
  uint8_t state;    /* TREE_ID_LIVE, TREE_ID_TRUNK, TREE_ID_DEAD */
} tree_id;
enum { TREE_ID_DEAD, TREE_ID_LIVE, TREE_ID_TRUNK };

typedef struct tree_ids {
  tree_id *ring;     /* [TREE_IDS_MAX], at the id modulo TREE_IDS_MAX; ids [oldest, next) are remembered */
  uint64_t *by_slot; /* [TREE_NODE_MAX]: the first id that a slot was given; valid if the ring agrees */
  uint64_t oldest, next;
  uint32_t generation;
} tree_ids;

int tree_ids_init(tree_ids *ids); /* ERR_NOMEM */
void tree_ids_fini(tree_ids *ids);
void tree_ids_reset(tree_ids *ids, uint32_t generation); /* next id is 1 */

/* Does what tree_advance does and keeps every map of maps[map_count] in step. C had `length` tokens before.
 */
int32_t tree_commit(tree *t, tree_ids *const *maps, int32_t map_count, int32_t length, const int32_t *tokens,
                    int32_t count);

/* The nodes of one NODES message. parents[i] is an id of this generation, or 0 for trunk position base - 1.
 */
typedef struct tree_delta {
  int32_t base;      /* committed length that the draft knew; 1 <= base */
  uint64_t first_id; /* >= 1 */
  int32_t count;
  const uint64_t *parents;
  const int32_t *tokens;
  const float *scores;
} tree_delta;

typedef enum {
  TREE_TAKEN,   /* applied; also a repetition of ids already seen, which changes nothing */
  TREE_GAP,     /* an id is missing, or more than TREE_IDS_MAX would have to be remembered: TREE_RESET */
  TREE_INVALID, /* a parent id >= its own id: protocol error; nothing changed */
  TREE_OVERFLOW /* no slot is free, or a node is too deep: an error, and none of these nodes is kept */
} tree_verdict;

/* For the target: adds the nodes of one message, where C = tokens[length]. The caller has checked (base,
 * hash) against C and that base <= length. Ids that have been seen already are skipped. When the ids would
 * not fit, older ones are forgotten first (tree_ids_trim with delta->base), because a later message never
 * names a trunk parent below that base. *added counts nodes that became live and were not aliases. */
tree_verdict tree_receive(tree *t, tree_ids *ids, const int32_t *tokens, int32_t length,
                          const tree_delta *delta, int32_t *added);

/* For the draft: gives the next id of this generation to a live slot and returns it; 0: more than
 * TREE_IDS_MAX ids would have to be remembered, so the draft needs a new generation. */
uint64_t tree_ids_give(tree_ids *ids, const tree *t, int32_t slot);
/* The id of a live slot, or 0. */
uint64_t tree_ids_of(const tree_ids *ids, const tree *t, int32_t slot);
/* How many live nodes this draft has named. */
int32_t tree_ids_live(const tree_ids *ids, const tree *t);
/* Frees the live nodes that no map of maps[map_count] names: the draft that sent them has left, or has
 * forgotten them. */
void tree_keep_named(tree *t, tree_ids *const *maps, int32_t map_count);
/* Forgets dead ids, and trunk ids below position base - 1, oldest first. */
void tree_ids_trim(tree_ids *ids, const tree *t, int32_t base);
