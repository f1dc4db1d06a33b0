#include "tests/sim/rest.h"

#include "draft_worker/draft_state.h"

/* NODES that a draft has just sent may be under way: it was opened during the rest, say, and grows its tree.
 */
#define UNDER_WAY_US 20000

/* The target's node that stands for the draft's; -1: there is none. */
static int32_t twin_of(const tree *theirs, const tree *own, int32_t slot) {
  const tree_node *n = &own->nodes[slot];
  if (n->parent == TREE_ROOT) return tree_child(theirs, TREE_ROOT, n->token);
  int32_t parent = twin_of(theirs, own, n->parent);
  return parent < 0 ? -1 : tree_child(theirs, parent, n->token);
}

/* A draft that sends its tree as a whole keeps to itself what grows, until it is done. */
static bool is_kept(const draft_session *d, int32_t slot) {
  return !d->done && !tree_ids_of(&d->ids, &d->expansion.live, slot);
}

static void mark_twins(world *w, const tree *theirs, const draft_session *d, bool *has_twin) {
  const tree *own = &d->expansion.live;
  for (int32_t i = 0; i < own->capacity; i++) {
    if (!own->nodes[i].live || is_kept(d, i)) continue;
    int32_t twin = twin_of(theirs, own, i);
    if (twin < 0)
      world_fail(w, "at rest the two sides hold different live sets: a draft's node is not at the target");
    else
      has_twin[twin] = true;
  }
}

static void compare_draft(world *w, const session *s, const draft_session *d, bool *has_twin) {
  w->totals->rests_compared++;
  if (d->committed.length != s->committed.length)
    world_fail(w, "at rest the two sides know different lengths");
  else if (!prefix_has(&s->committed, d->committed.length, prefix_hash(&d->committed)))
    world_fail(w, "at rest the two sides know different tokens");
  else
    mark_twins(w, &s->drafts.tree, d, has_twin);
}

void rest_compare(world *w, const session *s) {
  bool has_twin[TREE_NODE_MAX] = {false};
  int32_t drafts = 0;
  for (int d = DRAFT_A; d <= DRAFT_B; d++) {
    const attachment *a = w->nodes[d].draft ? draft_state_find(w->nodes[d].draft, s->id) : NULL;
    if (!a || a->state != ATTACHMENT_ATTACHED || a->epoch != s->epoch) continue;
    if (net_clock(w->net, d) - a->sent_us < UNDER_WAY_US) return;
    drafts++;
    compare_draft(w, s, &a->session, has_twin);
  }
  w->totals->rests_of_several += drafts > 1;
  w->totals->live_nodes += (uint64_t)s->drafts.tree.live_count;
  if (drafts != session_draft_count(s)) return; /* one of them has left, and the target is to hear of it */
  for (int32_t i = 0; i < s->drafts.tree.capacity; i++)
    if (s->drafts.tree.nodes[i].live && !has_twin[i])
      world_fail(w, "at rest the two sides hold different live sets: a target's node is no draft's");
}
