#include "draft_worker/expansion.h"

#include "common/base/err.h"
#include <assert.h>
#include <stdlib.h>

int expansion_init(expansion *x, int32_t capacity, int32_t drafter_count) {
  size_t count = (size_t)drafter_count * ((size_t)capacity + 1);
  *x = (expansion){.drafter_count = drafter_count, .entries = calloc(count, sizeof *x->entries)};
  return x->entries ? tree_init(&x->live, capacity) : ERR_NOMEM;
}

void expansion_fini(expansion *x) {
  tree_fini(&x->live);
  free(x->entries);
  *x = (expansion){0};
}

void expansion_reset(expansion *x) {
  tree_reset(&x->live);
  for (int32_t i = 0; i < x->drafter_count * (x->live.capacity + 1); i++) x->entries[i].mark = 0;
}

float expansion_total(const expansion *x, int32_t node) {
  return node == TREE_ROOT ? 0 : x->live.nodes[node].total;
}

int32_t expansion_path(const expansion *x, int32_t node, int32_t *path) {
  int32_t depth = node == TREE_ROOT ? 0 : x->live.nodes[node].depth;
  for (int32_t i = depth; i > 0; i--) {
    path[i - 1] = x->live.nodes[node].token;
    node = x->live.nodes[node].parent;
  }
  return depth;
}

/* --- queries --- */

static int32_t index_of(const expansion *x, int32_t node) {
  return node == TREE_ROOT ? x->live.capacity : node;
}

expansion_entry *expansion_entry_of(expansion *x, int32_t by, int32_t node) {
  return &x->entries[by * (x->live.capacity + 1) + index_of(x, node)];
}

static uint32_t mark_of(const expansion *x, int32_t node) {
  return node == TREE_ROOT ? 1 : x->live.nodes[node].stamp + 1;
}

bool expansion_queried(expansion *x, int32_t by, int32_t node) {
  return expansion_entry_of(x, by, node)->mark == mark_of(x, node);
}

bool expansion_replied(expansion *x, int32_t by, int32_t node) {
  return expansion_queried(x, by, node) && !expansion_entry_of(x, by, node)->handle;
}

#define HANDLE_NODES (TREE_NODE_MAX + 1)

uint64_t expansion_handle(const expansion *x, int32_t node, uint64_t number) {
  return number * HANDLE_NODES + (uint64_t)index_of(x, node);
}

void expansion_query(expansion *x, int32_t by, int32_t node, uint64_t handle) {
  expansion_entry *e = expansion_entry_of(x, by, node);
  e->mark = mark_of(x, node);
  e->handle = handle;
  e->count = e->next = 0;
}

/* An entry stays where its node is, but for that of a node which has become the root. */
expansion_entry *expansion_outstanding(expansion *x, int32_t by, uint64_t handle) {
  int32_t node = (int32_t)(handle % HANDLE_NODES);
  bool live = node < x->live.capacity && x->live.nodes[node].live;
  if (live && expansion_queried(x, by, node) && expansion_entry_of(x, by, node)->handle == handle)
    return expansion_entry_of(x, by, node);
  expansion_entry *root = expansion_entry_of(x, by, TREE_ROOT);
  return root->handle == handle && expansion_queried(x, by, TREE_ROOT) ? root : NULL;
}

static bool is_queried_below(const expansion *x, int32_t node) {
  return node == TREE_ROOT || x->live.nodes[node].depth < TREE_DEPTH_MAX - 1;
}

static void frontier_insert(expansion_frontier *f, expansion *x, int32_t node, float total) {
  if (f->count == f->room && !(f->count > 0 && total > f->list[f->count - 1].total)) return;
  int32_t i = f->count < f->room ? f->count++ : f->count - 1;
  for (; i > 0 && total > f->list[i - 1].total; i--) f->list[i] = f->list[i - 1];
  f->list[i] = (struct expansion_frontier_node){x, node, total};
}

/* Another drafter may have proposed a node whose parent this one has not computed yet. */
static bool is_reached(expansion *x, int32_t by, int32_t node) {
  return node == TREE_ROOT || expansion_replied(x, by, x->live.nodes[node].parent);
}

static void frontier_consider(expansion_frontier *f, expansion *x, int32_t by, int32_t node, float least) {
  float total = expansion_total(x, node);
  bool queried = expansion_queried(x, by, node) || !is_queried_below(x, node);
  if (!queried && !(total < least) && is_reached(x, by, node)) frontier_insert(f, x, node, total);
}

void expansion_frontier_add(expansion_frontier *f, expansion *x, int32_t by, float least) {
  assert(f->room <= EXPANSION_FRONTIER_MAX);
  frontier_consider(f, x, by, TREE_ROOT, least);
  for (int32_t i = 0; i < x->live.capacity; i++)
    if (x->live.nodes[i].live) frontier_consider(f, x, by, i, least);
}

/* --- growing --- */

static bool is_better(const expansion_step *a, const expansion_step *b) {
  if (!b->any || a->total != b->total) return !b->any || a->total > b->total;
  return a->query != b->query ? a->query : a->order < b->order;
}

static void consider(expansion *x, int32_t by, int32_t node, const expansion_limits *l,
                     expansion_step *best) {
  const tree_node *n = node == TREE_ROOT ? NULL : &x->live.nodes[node];
  const expansion_entry *e = expansion_entry_of(x, by, node);
  bool queried = expansion_queried(x, by, node);
  expansion_step s = {.any = true,
                      .query = !queried || e->handle,
                      .by = by,
                      .node = node,
                      .order = n ? (int64_t)n->order : -1,
                      .total = expansion_total(x, node)};
  if (!queried && n && (!is_queried_below(x, node) || n->total < l->least)) return;
  if (s.query ? l->absent : e->next == e->count) return;
  s.total += s.query ? l->hope : e->list[e->next].score;
  if (is_better(&s, best)) *best = s;
}

expansion_step expansion_best(expansion *x, const expansion_limits *limits) {
  expansion_step best = {0};
  for (int32_t d = 0; d < x->drafter_count; d++) {
    consider(x, d, TREE_ROOT, &limits[d], &best);
    for (int32_t i = 0; i < x->live.capacity; i++)
      if (x->live.nodes[i].live) consider(x, d, i, &limits[d], &best);
  }
  return best;
}

int32_t expansion_add(expansion *x, const expansion_step *s, int32_t vocabulary) {
  expansion_entry *e = expansion_entry_of(x, s->by, s->node);
  draft_candidate k = e->list[e->next++];
  bool fresh = false;
  if (k.token < 0 || (vocabulary > 0 && k.token >= vocabulary)) return -1;
  int32_t slot = tree_add(&x->live, s->node, k.token, k.score, &fresh);
  if (slot >= 0 && !fresh) tree_raise(&x->live, slot, k.score);
  return fresh ? slot : -1;
}

static void forget_replies(expansion *x, int32_t by) {
  for (int32_t i = 0; i < x->live.capacity; i++) expansion_entry_of(x, by, i)->mark = 0;
}

void expansion_reroot(expansion *x, int32_t by, drafter_replies replies, const int32_t *tokens,
                      int32_t count) {
  int32_t node = TREE_ROOT;
  for (int32_t i = 0; i < count && (i == 0 || node >= 0); i++) node = tree_child(&x->live, node, tokens[i]);
  expansion_entry *root = expansion_entry_of(x, by, TREE_ROOT);
  bool kept = replies == DRAFTER_REPLIES_LAST && count > 0 && node >= 0 && expansion_queried(x, by, node);
  if (kept) *root = *expansion_entry_of(x, by, node);
  root->mark = kept ? mark_of(x, TREE_ROOT) : 0;
  if (replies == DRAFTER_REPLIES_ARE_GUESSES) forget_replies(x, by);
}
