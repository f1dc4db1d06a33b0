#include "common/speculative/tree.h"

#include "common/base/err.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NONE (-1)

/* --- slots --- */

/* A free slot holds nothing but its stamp and the link of the free list. */
static void slot_clear(tree *t, int32_t slot) {
  uint32_t stamp = t->nodes[slot].stamp;
  t->nodes[slot] = (tree_node){.parent = NONE, .first_child = NONE, .sibling = t->free_slot, .stamp = stamp};
  t->free_slot = slot;
}

static void slot_free(tree *t, int32_t slot) {
  t->nodes[slot].stamp++;
  slot_clear(t, slot);
  t->live_count--;
}

int tree_init(tree *t, int32_t capacity) {
  *t = (tree){.first_child = NONE, .free_slot = NONE};
  if (capacity < 1 || capacity > TREE_NODE_MAX) return ERR_ARG;
  t->nodes = calloc((size_t)capacity, sizeof *t->nodes);
  if (!t->nodes) return ERR_NOMEM;
  t->capacity = capacity;
  for (int32_t slot = capacity - 1; slot >= 0; slot--) slot_clear(t, slot);
  return ERR_OK;
}

void tree_fini(tree *t) {
  free(t->nodes);
  *t = (tree){.first_child = NONE, .free_slot = NONE};
}

void tree_reset(tree *t) {
  for (int32_t slot = t->capacity - 1; slot >= 0; slot--)
    if (t->nodes[slot].live) slot_free(t, slot);
  t->first_child = NONE;
  t->next_order = 0;
}

static bool is_live(const tree *t, int32_t slot) {
  return slot >= 0 && slot < t->capacity && t->nodes[slot].live;
}

/* Where the first child of `parent` is written. */
static int32_t *children_of(tree *t, int32_t parent) {
  assert(parent == TREE_ROOT || is_live(t, parent));
  return parent == TREE_ROOT ? &t->first_child : &t->nodes[parent].first_child;
}

/* The next node in depth-first order below `top` (TREE_ROOT: of the whole tree), or NONE. */
static int32_t next_below(const tree *t, int32_t slot, int32_t top) {
  if (t->nodes[slot].first_child != NONE) return t->nodes[slot].first_child;
  while (slot != top && t->nodes[slot].sibling == NONE) slot = t->nodes[slot].parent;
  return slot == top ? NONE : t->nodes[slot].sibling;
}

/* --- growing --- */

static float clamp_score(float score) {
  if (!(score >= TREE_SCORE_MIN)) return TREE_SCORE_MIN; /* a NaN too */
  return score > 0 ? 0 : score;
}

int32_t tree_add(tree *t, int32_t parent, int32_t token, float score, bool *fresh) {
  int32_t *link = children_of(t, parent);
  if (fresh) *fresh = false;
  for (; *link != NONE; link = &t->nodes[*link].sibling)
    if (t->nodes[*link].token == token) return *link;

  int32_t depth = parent == TREE_ROOT ? 1 : t->nodes[parent].depth + 1;
  if (depth > TREE_DEPTH_MAX) return ERR_LIMIT;
  if (t->free_slot == NONE) return ERR_FULL;
  int32_t slot = t->free_slot;
  tree_node *n = &t->nodes[slot];
  t->free_slot = n->sibling;
  *n = (tree_node){.token = token,
                   .parent = parent,
                   .first_child = NONE,
                   .sibling = NONE,
                   .depth = depth,
                   .score = clamp_score(score),
                   .order = t->next_order++,
                   .stamp = n->stamp,
                   .live = true};
  n->total = n->score + (parent == TREE_ROOT ? 0 : t->nodes[parent].total);
  *link = slot;
  t->live_count++;
  if (fresh) *fresh = true;
  return slot;
}

/* Takes the newest node back as if it had never been: nobody has seen its slot, so the stamp stays. */
static void take_back(tree *t, int32_t slot) {
  assert(t->nodes[slot].first_child == NONE && t->nodes[slot].order == t->next_order - 1);
  int32_t *link = children_of(t, t->nodes[slot].parent);
  while (*link != slot) link = &t->nodes[*link].sibling;
  *link = NONE; /* the newest is the last child */
  slot_clear(t, slot);
  t->live_count--;
  t->next_order--;
}

int32_t tree_child(const tree *t, int32_t parent, int32_t token) {
  assert(parent == TREE_ROOT || is_live(t, parent));
  int32_t slot = parent == TREE_ROOT ? t->first_child : t->nodes[parent].first_child;
  while (slot != NONE && t->nodes[slot].token != token) slot = t->nodes[slot].sibling;
  return slot;
}

/* --- advancing --- */

static void free_subtree(tree *t, int32_t top) {
  for (int32_t slot = top;;) {
    while (t->nodes[slot].first_child != NONE) slot = t->nodes[slot].first_child;
    int32_t next = t->nodes[slot].sibling, parent = t->nodes[slot].parent;
    slot_free(t, slot);
    if (slot == top) return;
    if (next == NONE) t->nodes[parent].first_child = NONE; /* its children are gone: a leaf now */
    slot = next == NONE ? parent : next;
  }
}

/* The root steps to its child `keep`: the other children die, keep's children become the root's. */
static void step_root(tree *t, int32_t keep) {
  for (int32_t slot = t->first_child, next; slot != NONE; slot = next) {
    next = t->nodes[slot].sibling;
    if (slot != keep) free_subtree(t, slot);
  }
  t->first_child = keep == NONE ? NONE : t->nodes[keep].first_child;
  for (int32_t slot = t->first_child; slot != NONE; slot = t->nodes[slot].sibling)
    t->nodes[slot].parent = TREE_ROOT;
  if (keep != NONE) slot_free(t, keep);
}

/* Sums are made anew from the top, never by subtraction: they do not depend on how often the root moved. */
static void sum_again(tree *t) {
  for (int32_t slot = t->first_child; slot != NONE; slot = next_below(t, slot, TREE_ROOT)) {
    tree_node *n = &t->nodes[slot];
    const tree_node *parent = n->parent == TREE_ROOT ? NULL : &t->nodes[n->parent];
    n->depth = parent ? parent->depth + 1 : 1;
    n->total = n->score + (parent ? parent->total : 0);
  }
}

void tree_raise(tree *t, int32_t slot, float score) {
  tree_node *n = &t->nodes[slot];
  if (!(clamp_score(score) > n->score)) return;
  n->score = clamp_score(score);
  sum_again(t);
}

int32_t tree_advance(tree *t, const int32_t *tokens, int32_t count) {
  int32_t walked = 0;
  bool on_tree = true;
  for (int32_t i = 0; i < count && on_tree; i++) {
    int32_t keep = tree_child(t, TREE_ROOT, tokens[i]);
    on_tree = keep != NONE;
    walked += on_tree;
    step_root(t, keep);
  }
  if (walked) sum_again(t);
  return walked;
}

/* --- choosing --- */

typedef struct candidate {
  int32_t slot, parent_index;
} candidate;

typedef struct frontier { /* a binary heap, best first */
  candidate items[TREE_NODE_MAX];
  int32_t count;
} frontier;

/* A child never beats its parent: its total is not above, its order is later. So best-first is closed. */
static bool better(const tree *t, candidate a, candidate b) {
  const tree_node *x = &t->nodes[a.slot], *y = &t->nodes[b.slot];
  return x->total != y->total ? x->total > y->total : x->order < y->order;
}

static void frontier_push(const tree *t, frontier *f, candidate c) {
  int32_t i = f->count++;
  for (; i > 0 && better(t, c, f->items[(i - 1) / 2]); i = (i - 1) / 2) f->items[i] = f->items[(i - 1) / 2];
  f->items[i] = c;
}

static candidate frontier_pop(const tree *t, frontier *f) {
  candidate best = f->items[0], last = f->items[--f->count];
  int32_t i = 0;
  for (int32_t child; (child = 2 * i + 1) < f->count; i = child) {
    if (child + 1 < f->count && better(t, f->items[child + 1], f->items[child])) child++;
    if (!better(t, f->items[child], last)) break;
    f->items[i] = f->items[child];
  }
  f->items[i] = last;
  return best;
}

static void frontier_push_all(const tree *t, frontier *f, int32_t slot, int32_t parent_index) {
  for (; slot != NONE; slot = t->nodes[slot].sibling) frontier_push(t, f, (candidate){slot, parent_index});
}

int32_t tree_select(const tree *t, int32_t count, int32_t depth_max, int32_t *slots, int32_t *parents) {
  frontier f;
  f.count = 0;
  int32_t written = 0;
  if (depth_max >= 1) frontier_push_all(t, &f, t->first_child, NONE);
  while (written < count && f.count) {
    candidate best = frontier_pop(t, &f);
    const tree_node *n = &t->nodes[best.slot];
    if (n->depth < depth_max) frontier_push_all(t, &f, n->first_child, written);
    slots[written] = best.slot;
    parents[written++] = best.parent_index;
  }
  return written;
}

/* --- digest --- */

/* Finaliser of SplitMix64 (Steele et al. 2014): every input bit reaches every output bit. */
static uint64_t scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t tree_digest(const tree *t) {
  uint64_t paths[TREE_NODE_MAX], sum = 0;
  for (int32_t slot = t->first_child; slot != NONE; slot = next_below(t, slot, TREE_ROOT)) {
    const tree_node *n = &t->nodes[slot];
    uint64_t above = n->parent == TREE_ROOT ? 0 : paths[n->parent];
    paths[slot] = scramble(above ^ scramble((uint32_t)n->token));
    sum += scramble(paths[slot]); /* a sum does not know the order */
  }
  return sum;
}

/* --- ids --- */

int tree_ids_init(tree_ids *ids) {
  *ids = (tree_ids){.oldest = 1, .next = 1};
  ids->ring = calloc(TREE_IDS_MAX, sizeof *ids->ring);
  ids->by_slot = calloc(TREE_NODE_MAX, sizeof *ids->by_slot);
  if (ids->ring && ids->by_slot) return ERR_OK;
  tree_ids_fini(ids);
  return ERR_NOMEM;
}

void tree_ids_fini(tree_ids *ids) {
  free(ids->ring);
  free(ids->by_slot);
  *ids = (tree_ids){0};
}

void tree_ids_reset(tree_ids *ids, uint32_t generation) {
  ids->oldest = ids->next = 1;
  ids->generation = generation;
}

static tree_id *entry(const tree_ids *ids, uint64_t id) {
  return &ids->ring[id % TREE_IDS_MAX];
}

static bool is_known(const tree_ids *ids, uint64_t id) {
  return id >= ids->oldest && id < ids->next;
}

static bool same_slot(const tree *t, const tree_id *e) {
  return e->state == TREE_ID_LIVE && t->nodes[e->slot].live && t->nodes[e->slot].stamp == e->stamp;
}

static tree_id id_dead(void) {
  return (tree_id){.slot = NONE, .position = NONE, .state = TREE_ID_DEAD};
}

static tree_id id_trunk(int32_t position) {
  return (tree_id){.slot = NONE, .position = position, .state = TREE_ID_TRUNK};
}

static tree_id id_live(const tree *t, int32_t slot) {
  return (tree_id){.slot = slot, .stamp = t->nodes[slot].stamp, .position = NONE, .state = TREE_ID_LIVE};
}

uint64_t tree_ids_of(const tree_ids *ids, const tree *t, int32_t slot) {
  assert(is_live(t, slot));
  uint64_t id = ids->by_slot[slot];
  if (!is_known(ids, id)) return 0;
  const tree_id *e = entry(ids, id);
  return e->slot == slot && same_slot(t, e) ? id : 0;
}

static void remember(tree_ids *ids, const tree *t, tree_id e) {
  uint64_t id = ids->next;
  /* The first id of a slot keeps it, so that taking a delta back needs no undo here. */
  if (e.state == TREE_ID_LIVE && tree_ids_of(ids, t, e.slot) == 0) ids->by_slot[e.slot] = id;
  *entry(ids, id) = e;
  ids->next++;
}

uint64_t tree_ids_give(tree_ids *ids, const tree *t, int32_t slot) {
  assert(is_live(t, slot));
  if (ids->next - ids->oldest >= TREE_IDS_MAX) return 0;
  remember(ids, t, id_live(t, slot));
  return ids->next - 1;
}

int32_t tree_ids_live(const tree_ids *ids, const tree *t) {
  int32_t n = 0;
  for (int32_t slot = 0; slot < t->capacity; slot++)
    n += t->nodes[slot].live && tree_ids_of(ids, t, slot) != 0;
  return n;
}

static bool is_named(const tree *t, int32_t slot, tree_ids *const *maps, int32_t map_count) {
  for (int32_t m = 0; m < map_count; m++)
    if (tree_ids_of(maps[m], t, slot) != 0) return true;
  return false;
}

/* Who names a node names those above it, so nothing is lost with what goes below one that nobody names. */
void tree_keep_named(tree *t, tree_ids *const *maps, int32_t map_count) {
  for (int32_t slot = 0; slot < t->capacity; slot++) {
    if (!t->nodes[slot].live || is_named(t, slot, maps, map_count)) continue;
    int32_t *link = children_of(t, t->nodes[slot].parent);
    while (*link != slot) link = &t->nodes[*link].sibling;
    *link = t->nodes[slot].sibling;
    free_subtree(t, slot);
  }
}

void tree_ids_trim(tree_ids *ids, const tree *t, int32_t base) {
  for (; ids->oldest < ids->next; ids->oldest++) {
    const tree_id *e = entry(ids, ids->oldest);
    if (same_slot(t, e) || (e->state == TREE_ID_TRUNK && e->position >= base - 1)) return;
  }
}

int32_t tree_commit(tree *t, tree_ids *const *maps, int32_t map_count, int32_t length, const int32_t *tokens,
                    int32_t count) {
  int32_t positions[TREE_NODE_MAX]; /* by slot: where in C a node of the walked path now stands */
  memset(positions, 0xff, sizeof positions);
  int32_t slot = TREE_ROOT;
  for (int32_t i = 0; i < count && (slot = tree_child(t, slot, tokens[i])) != NONE; i++)
    positions[slot] = length + i;

  int32_t walked = tree_advance(t, tokens, count);
  for (int32_t m = 0; m < map_count; m++) {
    for (uint64_t id = maps[m]->oldest; id < maps[m]->next; id++) {
      tree_id *e = entry(maps[m], id);
      if (e->state != TREE_ID_LIVE || same_slot(t, e)) continue;
      bool freed_now = e->stamp + 1 == t->nodes[e->slot].stamp;
      bool walked_over = freed_now && positions[e->slot] != NONE;
      *e = walked_over ? id_trunk(positions[e->slot]) : id_dead();
    }
  }
  return walked;
}

/* --- receiving --- */

static bool delta_valid(const tree_delta *b) {
  if (b->first_id < 1 || b->count < 0) return false;
  for (int32_t i = 0; i < b->count; i++)
    if (b->parents[i] >= b->first_id + (uint64_t)i) return false;
  return true;
}

/* What a parent id stands for now. Unknown is dead: what was forgotten was dead or behind the draft's base.
 */
static tree_id resolve(const tree *t, const tree_ids *ids, uint64_t parent, int32_t base) {
  if (parent == 0) return id_trunk(base - 1);
  if (!is_known(ids, parent)) return id_dead();
  const tree_id *e = entry(ids, parent);
  return e->state == TREE_ID_LIVE && !same_slot(t, e) ? id_dead() : *e;
}

/* Decides one node by its token path alone. Returns ERR_OK, or tree_add's error. */
static int add_node(tree *t, tree_id parent, const int32_t *tokens, int32_t length, int32_t token,
                    float score, tree_id *out, bool *fresh) {
  *fresh = false;
  *out = id_dead();
  if (parent.state == TREE_ID_DEAD) return ERR_OK;
  if (parent.state == TREE_ID_TRUNK && parent.position < length - 1) {
    if (tokens[parent.position + 1] == token) *out = id_trunk(parent.position + 1);
    return ERR_OK;
  }
  int32_t under = parent.state == TREE_ID_TRUNK ? TREE_ROOT : parent.slot;
  int32_t slot = tree_add(t, under, token, score, fresh);
  if (slot < 0) return slot;
  *out = id_live(t, slot);
  return ERR_OK;
}

/* Newest first: each fresh node was made by exactly one id of the delta. */
static void undo(tree *t, tree_ids *ids, uint64_t next, uint64_t next_order) {
  while (ids->next > next) {
    const tree_id *e = entry(ids, --ids->next);
    bool newest = e->state == TREE_ID_LIVE && t->next_order > next_order && t->nodes[e->slot].live &&
                  t->nodes[e->slot].order == t->next_order - 1;
    if (newest) take_back(t, e->slot);
  }
  assert(t->next_order == next_order);
}

tree_verdict tree_receive(tree *t, tree_ids *ids, const int32_t *tokens, int32_t length,
                          const tree_delta *delta, int32_t *added) {
  assert(delta->base >= 1 && delta->base <= length);
  *added = 0;
  if (!delta_valid(delta)) return TREE_INVALID;
  if (delta->first_id > ids->next) return TREE_GAP;
  uint64_t seen = ids->next - delta->first_id; /* a repetition, whole or in part */
  if (seen >= (uint64_t)delta->count) return TREE_TAKEN;
  uint64_t fresh_ids = (uint64_t)delta->count - seen;
  if (ids->next - ids->oldest + fresh_ids > TREE_IDS_MAX) tree_ids_trim(ids, t, delta->base);
  if (ids->next - ids->oldest + fresh_ids > TREE_IDS_MAX) return TREE_GAP;

  const uint64_t next = ids->next;
  const uint64_t next_order = t->next_order;
  for (int32_t i = (int32_t)seen; i < delta->count; i++) {
    tree_id parent = resolve(t, ids, delta->parents[i], delta->base), e;
    bool fresh;
    if (add_node(t, parent, tokens, length, delta->tokens[i], delta->scores[i], &e, &fresh)) {
      undo(t, ids, next, next_order);
      *added = 0;
      return TREE_OVERFLOW;
    }
    remember(ids, t, e);
    *added += fresh;
  }
  return TREE_TAKEN;
}
