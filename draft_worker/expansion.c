#include "draft_worker/expansion.h"

#include "common/base/err.h"
#include <stdlib.h>

int expansion_init(expansion *g, int32_t capacity) {
  *g = (expansion){.asked = calloc((size_t)capacity + 1, sizeof *g->asked)};
  return g->asked ? tree_init(&g->live, capacity) : ERR_NOMEM;
}

void expansion_fini(expansion *g) {
  tree_fini(&g->live);
  free(g->asked);
  *g = (expansion){0};
}

void expansion_reset(expansion *g) {
  tree_reset(&g->live);
  for (int32_t i = 0; i <= g->live.capacity; i++) g->asked[i].mark = 0;
}

asked *expansion_of(expansion *g, int32_t place) {
  return &g->asked[place == TREE_ROOT ? g->live.capacity : place];
}

static uint32_t mark_of(const expansion *g, int32_t place) {
  return place == TREE_ROOT ? 1 : g->live.nodes[place].stamp + 1;
}

bool expansion_known(expansion *g, int32_t place) {
  return expansion_of(g, place)->mark == mark_of(g, place);
}

void expansion_ask(expansion *g, int32_t place, uint64_t serial) {
  asked *a = expansion_of(g, place);
  a->mark = mark_of(g, place);
  a->serial = serial;
  a->count = a->next = 0;
}

bool expansion_awaits(expansion *g, uint64_t serial, int32_t *place) {
  for (int32_t i = 0; i <= g->live.capacity; i++) {
    *place = i < g->live.capacity ? i : TREE_ROOT;
    bool there = i == g->live.capacity || g->live.nodes[i].live;
    if (there && g->asked[i].serial == serial && expansion_known(g, *place)) return true;
  }
  return false;
}

float expansion_total(const expansion *g, int32_t place) {
  return place == TREE_ROOT ? 0 : g->live.nodes[place].total;
}

int32_t expansion_path(const expansion *g, int32_t place, int32_t *path) {
  int32_t depth = place == TREE_ROOT ? 0 : g->live.nodes[place].depth;
  for (int32_t i = depth; i > 0; i--) {
    path[i - 1] = g->live.nodes[place].token;
    place = g->live.nodes[place].parent;
  }
  return depth;
}

static bool is_better(const gain *a, const gain *b) {
  if (!b->any || a->total != b->total) return !b->any || a->total > b->total;
  return a->ask != b->ask ? a->ask : a->order < b->order;
}

static void consider(expansion *g, int32_t place, float hope, float least, gain *best) {
  const tree_node *n = place == TREE_ROOT ? NULL : &g->live.nodes[place];
  const asked *a = expansion_of(g, place);
  bool known = expansion_known(g, place);
  gain x = {.any = true, .ask = !known || a->serial, .place = place, .order = n ? (int64_t)n->order : -1};
  x.total = expansion_total(g, place);
  if (!known && n && (n->depth >= TREE_DEPTH_MAX - 1 || n->total < least)) return;
  if (!x.ask && a->next == a->count) return;
  x.total += x.ask ? hope : a->list[a->next].score;
  if (is_better(&x, best)) *best = x;
}

gain expansion_best(expansion *g, float hope, float least) {
  gain best = {0};
  consider(g, TREE_ROOT, hope, least, &best);
  for (int32_t i = 0; i < g->live.capacity; i++)
    if (g->live.nodes[i].live) consider(g, i, hope, least, &best);
  return best;
}

void expansion_keep_root(expansion *g, const int32_t *tokens, int32_t count) {
  int32_t place = TREE_ROOT;
  for (int32_t i = 0; i < count && (i == 0 || place >= 0); i++)
    place = tree_child(&g->live, place, tokens[i]);
  asked *root = expansion_of(g, TREE_ROOT);
  bool known = count > 0 && place >= 0 && expansion_known(g, place);
  if (known) *root = *expansion_of(g, place);
  root->mark = known ? mark_of(g, TREE_ROOT) : 0;
}
