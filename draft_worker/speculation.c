#include "draft_worker/speculation.h"

#include <assert.h>

#define NODES_MAX (DRAFT_AHEAD * WIRE_BUDGET_MAX + 1) /* live ones */

bool draft_by_batches(const draft_method *m) {
  return !m->kind->candidates;
}

int speculation_init(speculation *p, int32_t capacity, uint64_t hash_seed) {
  *p = (speculation){.slot = p->slot};
  bool room = prefix_init(&p->committed, capacity, hash_seed) == ERR_OK && growth_init(&p->grown, NODES_MAX) == ERR_OK &&
              tree_ids_init(&p->ids) == ERR_OK;
  if (!room) speculation_fini(p, NULL);
  return room ? ERR_OK : ERR_NOMEM;
}

void speculation_fini(speculation *p, const draft_method *m) {
  if (p->guess) m->kind->close(p->guess);
  prefix_fini(&p->committed);
  growth_fini(&p->grown);
  tree_ids_fini(&p->ids);
  *p = (speculation){.slot = p->slot};
}

/* --- OPEN --- */

static void adopt_prefix(speculation *p, const msg_open *o) {
  if (p->committed.seed != o->hash_seed) prefix_reset(&p->committed, o->hash_seed);
  prefix_truncate(&p->committed, o->base_length);
  if (p->told > o->base_length) p->told = o->base_length;
  int rc = prefix_append(&p->committed, o->tokens, o->token_count);
  assert(rc == ERR_OK);
  (void)rc;
}

int speculation_open(speculation *p, draft_method *m, const msg_open *o) {
  growth_reset(&p->grown);
  tree_ids_reset(&p->ids, 0);
  adopt_prefix(p, o);
  p->prompt_length = o->prompt_length;
  p->options = o->options;
  p->options.stops = NULL; /* not ours to keep, nor needed */
  p->options.stop_count = 0;
  if (draft_by_batches(m)) return ERR_OK;
  if (p->guess) m->kind->close(p->guess);
  p->guess = m->kind->open(m->shared, &p->committed, p->prompt_length, &p->options);
  return p->guess ? ERR_OK : ERR_NOMEM;
}

/* --- growing --- */

int32_t speculation_goal(const speculation *p, const draft_method *m) {
  int32_t goal = p->options.budget;
  if (goal > 0 && !p->options.lockstep) goal = goal * (draft_by_batches(m) ? 1 : DRAFT_AHEAD) + 1;
  return goal < p->grown.live.capacity ? goal : p->grown.live.capacity;
}

float speculation_score(float score) {
  if (!(score >= TREE_SCORE_MIN)) return TREE_SCORE_MIN;
  return score > 0 ? 0 : score;
}

static void ask(speculation *p, const draft_method *m, int32_t place) {
  int32_t path[TREE_DEPTH_MAX] = {0}, depth = growth_path(&p->grown, place, path);
  growth_ask(&p->grown, place, 0);
  asked *a = growth_of(&p->grown, place);
  a->count = m->kind->candidates(p->guess, path, depth, a->list);
  for (int32_t i = 0; i < a->count; i++) a->list[i].score = speculation_score(a->list[i].score);
}

static gain next_gain(speculation *p, const draft_method *m) {
  if (!draft_by_batches(m)) return growth_best(&p->grown, 0, TREE_DEPTH_MAX * TREE_SCORE_MIN);
  return growth_best(&p->grown, p->options.lockstep ? 0 : DRAFT_HOPE, DRAFT_LEAST);
}

/* The next candidate of a place; 1: it is new in the tree, and has an id; -1: ids are used up. */
static int32_t add_candidate(speculation *p, int32_t place, int32_t vocabulary) {
  asked *a = growth_of(&p->grown, place);
  draft_candidate k = a->list[a->next++];
  bool fresh = false;
  if (k.token < 0 || (vocabulary > 0 && k.token >= vocabulary)) return 0; /* it would refuse the draft with it */
  int32_t slot = tree_add(&p->grown.live, place, k.token, k.score, &fresh);
  if (slot < 0 || !fresh) return 0;
  return tree_ids_give(&p->ids, &p->grown.live, slot) ? 1 : -1;
}

int32_t speculation_grow(speculation *p, const draft_method *m, int32_t vocabulary, uint64_t *first_id) {
  int32_t added = 0, goal = speculation_goal(p, m);
  *first_id = p->ids.next;
  p->done = true;
  while (p->grown.live.live_count < goal) {
    gain best = next_gain(p, m);
    if (!best.any) break;
    if (best.ask && draft_by_batches(m)) {
      p->done = false;
      break;
    }
    if (best.ask) {
      ask(p, m, best.place);
      continue;
    }
    int32_t more = add_candidate(p, best.place, vocabulary);
    if (more < 0) return -1;
    added += more;
  }
  return added;
}

/* --- C grows --- */

/* What a model has said of the places on the way of these tokens is compared with them, and of their end it stays true. In
 * lockstep nothing is learnt, so that counts repeat. */
static void keep_answers(speculation *p, match_table *matches, const int32_t *tokens, int32_t count) {
  int32_t place = TREE_ROOT;
  for (int32_t i = 0; i < count && !p->options.lockstep; i++) {
    const asked *a = growth_of(&p->grown, place);
    if (growth_known(&p->grown, place) && !a->serial) match_learn(matches, a->list, a->cases, a->count, tokens[i]);
    place = tree_child(&p->grown.live, place, tokens[i]);
    if (place < 0) break;
  }
  growth_keep_root(&p->grown, tokens, count);
}

void speculation_commit(speculation *p, draft_method *m, int32_t count) {
  int32_t before = p->committed.length - count;
  const int32_t *tokens = p->committed.tokens + before;
  tree_ids *maps[1] = {&p->ids};
  if (draft_by_batches(m)) keep_answers(p, &m->matches, tokens, count);
  else growth_of(&p->grown, TREE_ROOT)->mark = 0; /* it may know more now */
  tree_commit(&p->grown.live, maps, 1, before, tokens, count);
  tree_ids_trim(&p->ids, &p->grown.live, p->committed.length);
  if (p->guess) m->kind->advance(p->guess, &p->committed);
}

/* --- on the wire --- */

void speculation_rename(speculation *p, uint32_t generation) {
  int32_t slots[NODES_MAX], parents[NODES_MAX];
  tree_ids_reset(&p->ids, generation);
  int32_t n = tree_select(&p->grown.live, NODES_MAX, TREE_DEPTH_MAX, slots, parents);
  for (int32_t i = 0; i < n; i++) tree_ids_give(&p->ids, &p->grown.live, slots[i]);
}

int32_t speculation_nodes(const speculation *p, uint64_t first_id, uint64_t *parents, int32_t *tokens, float *scores) {
  int32_t n = 0;
  for (uint64_t id = first_id; id < p->ids.next; id++, n++) {
    const tree_id *entry = &p->ids.ring[id % TREE_IDS_MAX];
    const tree_node *node = &p->grown.live.nodes[entry->slot];
    assert(entry->state == TREE_ID_LIVE && n < WIRE_NODES_MAX);
    parents[n] = node->parent == TREE_ROOT ? 0 : tree_ids_of(&p->ids, &p->grown.live, node->parent);
    tokens[n] = node->token;
    scores[n] = node->score;
  }
  return n;
}
