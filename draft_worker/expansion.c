#include "draft_worker/expansion.h"

#include "common/base/err.h"
#include <assert.h>
#include <math.h>
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
  for (int32_t i = 0; i < EXPANSION_AHEAD_MAX; i++) x->ahead[i].used = false;
}

/* NULL: the spot is a node. */
static const expansion_ahead *ahead_at(const expansion *x, int32_t spot) {
  return spot >= TREE_NODE_MAX ? &x->ahead[spot - TREE_NODE_MAX] : NULL;
}

static int32_t depth_of(const expansion *x, int32_t spot) {
  int32_t above = 0;
  for (; ahead_at(x, spot); spot = ahead_at(x, spot)->parent) above++;
  return above + (spot == TREE_ROOT ? 0 : x->live.nodes[spot].depth);
}

float expansion_total(const expansion *x, int32_t spot) {
  float total = 0;
  for (; ahead_at(x, spot); spot = ahead_at(x, spot)->parent) total += ahead_at(x, spot)->score;
  return spot == TREE_ROOT ? total : total + x->live.nodes[spot].total;
}

int32_t expansion_path(const expansion *x, int32_t spot, int32_t *path) {
  int32_t depth = depth_of(x, spot);
  for (int32_t i = depth; i > 0; i--) {
    const expansion_ahead *a = ahead_at(x, spot);
    path[i - 1] = a ? a->token : x->live.nodes[spot].token;
    spot = a ? a->parent : x->live.nodes[spot].parent;
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

int32_t expansion_node(const expansion *x, int32_t by, const expansion_entry *e) {
  int32_t i = (int32_t)(e - x->entries) - by * (x->live.capacity + 1);
  return i == x->live.capacity ? TREE_ROOT : i;
}

static uint32_t mark_of(const expansion *x, int32_t spot) {
  if (ahead_at(x, spot)) return ahead_at(x, spot)->stamp;
  return spot == TREE_ROOT ? 1 : x->live.nodes[spot].stamp + 1;
}

bool expansion_queried(expansion *x, int32_t by, int32_t node) {
  return expansion_entry_of(x, by, node)->mark == mark_of(x, node);
}

bool expansion_replied(expansion *x, int32_t by, int32_t node) {
  return expansion_queried(x, by, node) && !expansion_entry_of(x, by, node)->handle;
}

/* A handle holds the query's number, and the entry's index or, behind all of these, that of a candidate. */
#define HANDLE_NODES   (TREE_NODE_MAX + 1)
#define HANDLE_ENTRIES (HANDLE_NODES + EXPANSION_AHEAD_MAX)

uint64_t expansion_query(expansion *x, int32_t by, int32_t node, uint64_t number) {
  uint64_t handle = number * HANDLE_ENTRIES + (uint64_t)index_of(x, node);
  *expansion_entry_of(x, by, node) = (expansion_entry){.mark = mark_of(x, node), .handle = handle};
  return handle;
}

/* An entry stays where its node is, but for that of a node which has become the root. */
static expansion_entry *waiting_entry(expansion *x, int32_t by, int32_t node, uint64_t handle) {
  bool live = node < x->live.capacity && x->live.nodes[node].live;
  if (live && expansion_queried(x, by, node) && expansion_entry_of(x, by, node)->handle == handle)
    return expansion_entry_of(x, by, node);
  expansion_entry *root = expansion_entry_of(x, by, TREE_ROOT);
  return root->handle == handle && expansion_queried(x, by, TREE_ROOT) ? root : NULL;
}

/* --- candidates that are not in the tree --- */

/* Is it in use? One whose parent is gone, or one further up, is not. */
static bool is_ahead(const expansion *x, const expansion_ahead *a) {
  for (; a->used && a->node < 0; a = ahead_at(x, a->parent)) {
    if (mark_of(x, a->parent) != a->entry.mark) return false;
    if (!ahead_at(x, a->parent)) return a->parent == TREE_ROOT || x->live.nodes[a->parent].live;
  }
  return a->used;
}

static expansion_ahead *find_ahead(expansion *x, int32_t by, int32_t spot, int32_t token) {
  for (expansion_ahead *a = x->ahead; a < x->ahead + EXPANSION_AHEAD_MAX; a++)
    if (a->by == by && a->parent == spot && a->token == token && a->node < 0 && is_ahead(x, a)) return a;
  return NULL;
}

uint64_t expansion_query_ahead(expansion *x, int32_t by, int32_t spot, const draft_candidate *c,
                               uint64_t number) {
  expansion_ahead *a = x->ahead, *end = a + EXPANSION_AHEAD_MAX;
  while (a < end && is_ahead(x, a)) a++;
  if (a == end) return 0;
  uint64_t handle = number * HANDLE_ENTRIES + HANDLE_NODES + (uint64_t)(a - x->ahead);
  *a = (expansion_ahead){.entry = {.mark = mark_of(x, spot), .handle = handle},
                         .by = by,
                         .parent = spot,
                         .token = c->token,
                         .score = c->score,
                         .stamp = a->stamp + 1,
                         .node = -1,
                         .used = true};
  return handle;
}

/* What hangs below one spot hangs below another one. */
static void move_ahead(expansion *x, int32_t by, int32_t from, int32_t to) {
  for (expansion_ahead *a = x->ahead; a < x->ahead + EXPANSION_AHEAD_MAX; a++) {
    if (a->by != by || a->parent != from || a->node >= 0 || !is_ahead(x, a)) continue;
    a->parent = to;
    a->entry.mark = mark_of(x, to);
  }
}

/* A new node that was queried as a candidate has its reply, or waits for it. */
static void take_ahead(expansion *x, int32_t parent, int32_t token, int32_t node) {
  for (int32_t by = 0; by < x->drafter_count; by++) {
    expansion_ahead *a = find_ahead(x, by, parent, token);
    if (!a) continue;
    expansion_entry *e = expansion_entry_of(x, by, node);
    *e = a->entry;
    e->mark = mark_of(x, node);
    move_ahead(x, by, EXPANSION_SPOT_AHEAD((int32_t)(a - x->ahead)), node);
    a->node = node;
    a->used = e->handle != 0;
  }
}

/* Those below the old root are gone; those below a node that becomes the root are below it. */
static void reroot_ahead(expansion *x, int32_t by, bool kept, int32_t node) {
  for (expansion_ahead *a = x->ahead; a < x->ahead + EXPANSION_AHEAD_MAX; a++)
    if (a->by == by && a->node < 0 && (!kept || a->parent == TREE_ROOT)) a->used = false;
  if (kept && node >= 0) move_ahead(x, by, node, TREE_ROOT);
}

static expansion_entry *outstanding_ahead(expansion *x, int32_t by, uint64_t handle, bool *in_tree) {
  expansion_ahead *a = &x->ahead[handle % HANDLE_ENTRIES - HANDLE_NODES];
  if (!is_ahead(x, a) || a->by != by || a->entry.handle != handle) return NULL;
  *in_tree = a->node >= 0;
  if (!*in_tree) return &a->entry;
  a->used = false;
  return waiting_entry(x, by, a->node, handle);
}

expansion_entry *expansion_outstanding(expansion *x, int32_t by, uint64_t handle, bool *in_tree) {
  *in_tree = true;
  int32_t at = (int32_t)(handle % HANDLE_ENTRIES);
  return at < HANDLE_NODES ? waiting_entry(x, by, at, handle) : outstanding_ahead(x, by, handle, in_tree);
}

void expansion_unquery(expansion *x, int32_t by, uint64_t handle) {
  bool in_tree;
  expansion_entry *e = expansion_outstanding(x, by, handle, &in_tree);
  if (in_tree)
    e->mark = 0;
  else
    x->ahead[handle % HANDLE_ENTRIES - HANDLE_NODES].used = false;
}

/* --- two replies about one node --- */

#define LOOKED_UP_POWER 3

/* Of two candidates that are independent: log(1 - (1 - e^a)(1 - e^b)). */
static float either(float a, float b) {
  return fmaxf(fmaxf(a, b),
               log1pf(-(1 - expf(a)) * (1 - expf(b)))); /* of tiny ones the sum is rounded away */
}

static draft_candidate *find_token(expansion_entry *e, int32_t token) {
  for (int32_t i = 0; i < e->count; i++)
    if (e->list[i].token == token) return &e->list[i];
  return NULL;
}

/* What is in the tree already stays in front. */
static void sort_rest(expansion_entry *e) {
  for (int32_t i = e->next + 1; i < e->count; i++) {
    draft_candidate x = e->list[i];
    int32_t at = i;
    for (; at > e->next && e->list[at - 1].score < x.score; at--) e->list[at] = e->list[at - 1];
    e->list[at] = x;
  }
}

void expansion_join(expansion_entry *computed, expansion_entry *looked_up, int32_t by) {
  bool anew = !(computed->joined >> by & 1);
  if (computed->count == 0 || looked_up->count == 0) return; /* one knows nothing of this node */
  for (int32_t i = 0; i < looked_up->count; i++) {
    draft_candidate *other = &looked_up->list[i], *own = find_token(computed, other->token);
    other->score *= LOOKED_UP_POWER;
    if (!own) continue;
    if (anew) own->score = either(own->score, other->score);
    other->score = fmaxf(own->score, other->score);
  }
  computed->joined |= (uint8_t)(1u << by);
  sort_rest(computed);
  sort_rest(looked_up);
}

static bool depth_may_be_queried(int32_t depth, const expansion_limits *l) {
  return depth < TREE_DEPTH_MAX - 1 && (l->reach == 0 || depth < l->reach);
}

static bool may_be_queried(const expansion *x, int32_t node, const expansion_limits *l) {
  if (node == TREE_ROOT) return true;
  const tree_node *n = &x->live.nodes[node];
  return depth_may_be_queried(n->depth, l) && !(n->total < l->least);
}

/* Does one with this total get in, behind the `first` that stay? */
static bool frontier_takes(const expansion_frontier *f, int32_t first, float total) {
  return f->count < f->room || (f->count > first && total > f->list[f->count - 1].total);
}

/* The list from `first` on is in order. */
static void frontier_insert(expansion_frontier *f, int32_t first, expansion_frontier_node n) {
  if (!frontier_takes(f, first, n.total)) return;
  int32_t i = f->count < f->room ? f->count++ : f->count - 1;
  for (; i > first && n.total > f->list[i - 1].total; i--) f->list[i] = f->list[i - 1];
  f->list[i] = n;
}

/* Another drafter may have proposed a node whose parent this one has not computed yet. */
static bool is_reached(expansion *x, int32_t by, int32_t node) {
  return node == TREE_ROOT || expansion_replied(x, by, x->live.nodes[node].parent);
}

static void frontier_consider(expansion_frontier *f, expansion *x, int32_t by, int32_t node,
                              const expansion_limits *l) {
  if (!expansion_queried(x, by, node) && may_be_queried(x, node, l) && is_reached(x, by, node))
    frontier_insert(f, 0, (expansion_frontier_node){x, node, {.token = -1}, expansion_total(x, node)});
}

void expansion_frontier_add(expansion_frontier *f, expansion *x, int32_t by, const expansion_limits *limits) {
  assert(f->room <= EXPANSION_FRONTIER_MAX);
  frontier_consider(f, x, by, TREE_ROOT, limits);
  for (int32_t i = 0, left = x->live.live_count; left > 0; i++) {
    if (!x->live.nodes[i].live) continue;
    frontier_consider(f, x, by, i, limits);
    left--;
  }
  f->nodes = f->count;
}

static void consider_candidates(expansion_frontier *f, expansion *x, int32_t by, int32_t spot,
                                const expansion_entry *e, const expansion_limits *l) {
  float above = expansion_total(x, spot);
  if (!depth_may_be_queried(depth_of(x, spot) + 1, l)) return;
  for (int32_t i = e->next; i < e->count; i++) {
    float total = above + e->list[i].score;
    if (total < l->least || !frontier_takes(f, f->nodes, total)) continue;
    bool in_tree = !ahead_at(x, spot) && tree_child(&x->live, spot, e->list[i].token) >= 0;
    if (in_tree || find_ahead(x, by, spot, e->list[i].token)) continue;
    frontier_insert(f, f->nodes, (expansion_frontier_node){x, spot, e->list[i], total});
  }
}

static void consider_candidates_of_node(expansion_frontier *f, expansion *x, int32_t by, int32_t node,
                                        const expansion_limits *l) {
  if (expansion_replied(x, by, node)) consider_candidates(f, x, by, node, expansion_entry_of(x, by, node), l);
}

void expansion_frontier_add_ahead(expansion_frontier *f, expansion *x, int32_t by,
                                  const expansion_limits *limits) {
  if (f->nodes == f->room) return;
  consider_candidates_of_node(f, x, by, TREE_ROOT, limits);
  for (int32_t i = 0, left = x->live.live_count; left > 0; i++) {
    if (!x->live.nodes[i].live) continue;
    consider_candidates_of_node(f, x, by, i, limits);
    left--;
  }
  for (int32_t i = 0; i < EXPANSION_AHEAD_MAX; i++) {
    const expansion_ahead *a = &x->ahead[i];
    if (a->by == by && a->node < 0 && !a->entry.handle && is_ahead(x, a))
      consider_candidates(f, x, by, EXPANSION_SPOT_AHEAD(i), &a->entry, limits);
  }
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
  if (!queried && !may_be_queried(x, node, l)) return;
  if (s.query ? l->absent : e->next == e->count) return;
  s.total += s.query ? l->hope : e->list[e->next].score;
  if (is_better(&s, best)) *best = s;
}

expansion_step expansion_best(expansion *x, const expansion_limits *limits) {
  expansion_step best = {0};
  for (int32_t d = 0; d < x->drafter_count; d++) {
    consider(x, d, TREE_ROOT, &limits[d], &best);
    for (int32_t i = 0, left = x->live.live_count; left > 0; i++) {
      if (!x->live.nodes[i].live) continue;
      consider(x, d, i, &limits[d], &best);
      left--;
    }
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
  if (fresh) take_ahead(x, s->node, k.token, slot);
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
  reroot_ahead(x, by, replies != DRAFTER_REPLIES_ARE_GUESSES, count > 0 ? node : TREE_ROOT);
  if (replies == DRAFTER_REPLIES_ARE_GUESSES) forget_replies(x, by);
}
