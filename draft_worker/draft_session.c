#include "draft_worker/draft_session.h"

#include <assert.h>
#include <math.h>

#define NODES_MAX (DRAFT_AHEAD * WIRE_BUDGET_MAX + 1) /* live ones */

bool draft_by_batches(const draft_method *m) {
  return !m->kind->candidates;
}

int draft_session_init(draft_session *p, int32_t capacity, uint64_t hash_seed) {
  *p = (draft_session){.slot = p->slot};
  bool room = prefix_init(&p->committed, capacity, hash_seed) == ERR_OK &&
              expansion_init(&p->grown, NODES_MAX) == ERR_OK && tree_ids_init(&p->ids) == ERR_OK;
  if (!room) draft_session_fini(p, NULL);
  return room ? ERR_OK : ERR_NOMEM;
}

void draft_session_fini(draft_session *p, const draft_method *m) {
  if (p->guess) m->kind->close(p->guess);
  prefix_fini(&p->committed);
  expansion_fini(&p->grown);
  tree_ids_fini(&p->ids);
  *p = (draft_session){.slot = p->slot};
}

/* --- OPEN --- */

static void adopt_prefix(draft_session *p, const msg_open *o) {
  if (p->committed.seed != o->hash_seed) prefix_reset(&p->committed, o->hash_seed);
  prefix_truncate(&p->committed, o->base_length);
  if (p->told > o->base_length) p->told = o->base_length;
  int rc = prefix_append(&p->committed, o->tokens, o->token_count);
  assert(rc == ERR_OK);
  (void)rc;
}

int draft_session_open(draft_session *p, draft_method *m, const msg_open *o) {
  expansion_reset(&p->grown);
  tree_ids_reset(&p->ids, 0);
  adopt_prefix(p, o);
  p->called = false;
  p->prompt_length = o->prompt_length;
  p->options = o->options;
  p->options.stops = NULL; /* not ours to keep, nor needed */
  p->options.stop_count = 0;
  if (draft_by_batches(m)) return ERR_OK;
  if (p->guess) m->kind->close(p->guess);
  p->guess = m->kind->open(m->shared, &p->committed, p->prompt_length, &o->options);
  return p->guess ? ERR_OK : ERR_NOMEM;
}

/* --- growing --- */

int32_t draft_session_goal(const draft_session *p, const draft_method *m) {
  int32_t goal = p->options.budget;
  if (goal > 0 && !p->options.lockstep) goal = goal * (draft_by_batches(m) ? 1 : DRAFT_AHEAD) + 1;
  return goal < p->grown.live.capacity ? goal : p->grown.live.capacity;
}

float draft_session_score(float score) {
  if (!(score >= TREE_SCORE_MIN)) return TREE_SCORE_MIN;
  return score > 0 ? 0 : score;
}

static void ask(draft_session *p, const draft_method *m, int32_t place) {
  int32_t path[TREE_DEPTH_MAX] = {0}, depth = expansion_path(&p->grown, place, path);
  expansion_ask(&p->grown, place, 0);
  asked *a = expansion_of(&p->grown, place);
  a->count = m->kind->candidates(p->guess, path, depth, a->list);
  for (int32_t i = 0; i < a->count; i++) a->list[i].score = draft_session_score(a->list[i].score);
}

static bool takes_turns(const draft_session *p, const draft_method *m) {
  return m->turns && !p->options.lockstep;
}

bool draft_session_reads(const draft_session *p, const draft_method *m) {
  return draft_session_goal(p, m) > 0 && (p->called || !takes_turns(p, m));
}

bool draft_session_keeps(const draft_session *p, const draft_method *m) {
  return takes_turns(p, m) && !p->done;
}

static void want(draft_session *p, const draft_method *m, int32_t place, wanted *w) {
  const struct wanted_place x = {p, place, expansion_total(&p->grown, place)};
  if (expansion_known(&p->grown, place) || x.total < DRAFT_LEAST) return;
  if (place != TREE_ROOT && p->grown.live.nodes[place].depth >= TREE_DEPTH_MAX - 1) return;
  if (w->count == m->rows && !(x.total > w->list[w->count - 1].total)) return;
  int32_t i = w->count < m->rows ? w->count++ : w->count - 1;
  for (; i > 0 && x.total > w->list[i - 1].total; i--) w->list[i] = w->list[i - 1];
  w->list[i] = x;
}

void draft_session_wants(draft_session *p, const draft_method *m, wanted *w) {
  const tree *live = &p->grown.live;
  if (p->told < p->committed.length || live->live_count >= draft_session_goal(p, m) || (m->turns && p->done))
    return;
  want(p, m, TREE_ROOT, w);
  for (int32_t i = 0; i < live->capacity; i++)
    if (live->nodes[i].live) want(p, m, i, w);
}

/* The target waits for the tree, and another forward for it would cost more than it promises. What follows C
 * itself is always asked. */
static bool turn_is_over(draft_session *p, const draft_method *m) {
  const tree *live = &p->grown.live;
  wanted w = {.count = 0};
  double tokens = 1, more = 0;
  if (!takes_turns(p, m) || !expansion_known(&p->grown, TREE_ROOT) ||
      expansion_of(&p->grown, TREE_ROOT)->serial)
    return false;
  draft_session_wants(p, m, &w);
  for (int32_t i = 0; i < w.count; i++) more += exp((double)w.list[i].total);
  for (int32_t i = 0; i < live->capacity; i++)
    if (live->nodes[i].live) tokens += exp((double)live->nodes[i].total);
  return !pacing_goes_on(&p->turn, &m->costs, tokens, more);
}

/* over: of its turn; what has not been asked about is not hoped for. */
static gain next_gain(draft_session *p, const draft_method *m, bool over) {
  if (!draft_by_batches(m)) return expansion_best(&p->grown, 0, TREE_DEPTH_MAX * TREE_SCORE_MIN);
  float hope = p->options.lockstep ? 0 : over ? TREE_DEPTH_MAX * TREE_SCORE_MIN : DRAFT_HOPE;
  return expansion_best(&p->grown, hope, DRAFT_LEAST);
}

/* Ids for the nodes that have none, parents first. Returns how many; -1: ids are used up. */
static int32_t name_nodes(draft_session *p) {
  int32_t slots[NODES_MAX], parents[NODES_MAX], named = 0;
  int32_t count = tree_select(&p->grown.live, NODES_MAX, TREE_DEPTH_MAX, slots, parents);
  for (int32_t i = 0; i < count; i++) {
    if (tree_ids_of(&p->ids, &p->grown.live, slots[i])) continue;
    if (tree_ids_give(&p->ids, &p->grown.live, slots[i]) == 0) return -1;
    named++;
  }
  return named;
}

/* The next candidate of a place; 1: it is new in the tree, with an id if `name`; -1: ids are used up. */
static int32_t add_candidate(draft_session *p, int32_t place, int32_t vocabulary, bool name) {
  asked *a = expansion_of(&p->grown, place);
  draft_candidate k = a->list[a->next++];
  bool fresh = false;
  if (k.token < 0 || (vocabulary > 0 && k.token >= vocabulary))
    return 0; /* it would refuse the draft with it */
  int32_t slot = tree_add(&p->grown.live, place, k.token, k.score, &fresh);
  if (slot < 0 || !fresh) return 0;
  return !name || tree_ids_give(&p->ids, &p->grown.live, slot) ? 1 : -1;
}

int32_t draft_session_grow(draft_session *p, const draft_method *m, int32_t vocabulary, uint64_t *first_id) {
  int32_t added = 0, goal = draft_session_goal(p, m);
  bool over = false, keeps = takes_turns(p, m);
  *first_id = p->ids.next;
  p->done = false;
  while (p->grown.live.live_count < goal) {
    gain best = next_gain(p, m, over);
    if (!best.any || (best.ask && over)) break;
    if (best.ask && draft_by_batches(m)) {
      over = turn_is_over(p, m);
      if (!over) return keeps ? 0 : added;
      continue;
    }
    if (best.ask) {
      ask(p, m, best.place);
      continue;
    }
    int32_t more = add_candidate(p, best.place, vocabulary, !keeps);
    if (more < 0) return -1;
    added += more;
  }
  p->done = true;
  return keeps ? name_nodes(p) : added;
}

/* --- C grows --- */

/* What a model has said of the places on the way of these tokens is compared with them, and of their end it
 * stays true. In lockstep nothing is learnt, so that counts repeat. */
static void keep_answers(draft_session *p, calibration_table *matches, const int32_t *tokens, int32_t count) {
  int32_t place = TREE_ROOT;
  for (int32_t i = 0; i < count && !p->options.lockstep; i++) {
    const asked *a = expansion_of(&p->grown, place);
    if (expansion_known(&p->grown, place) && !a->serial)
      calibration_learn(matches, a->list, a->cases, a->count, tokens[i]);
    place = tree_child(&p->grown.live, place, tokens[i]);
    if (place < 0) break;
  }
  expansion_keep_root(&p->grown, tokens, count);
}

void draft_session_commit(draft_session *p, draft_method *m, int32_t count) {
  int32_t before = p->committed.length - count;
  const int32_t *tokens = p->committed.tokens + before;
  p->called = true;
  tree_ids *maps[1] = {&p->ids};
  if (draft_by_batches(m))
    keep_answers(p, &m->matches, tokens, count);
  else
    expansion_of(&p->grown, TREE_ROOT)->mark = 0; /* it may know more now */
  tree_commit(&p->grown.live, maps, 1, before, tokens, count);
  tree_ids_trim(&p->ids, &p->grown.live, p->committed.length);
  if (p->guess) m->kind->advance(p->guess, &p->committed);
}

/* --- on the wire --- */

void draft_session_rename(draft_session *p, uint32_t generation) {
  tree_ids_reset(&p->ids, generation);
  name_nodes(p);
}

int32_t draft_session_nodes(const draft_session *p, uint64_t first_id, uint64_t *parents, int32_t *tokens,
                            float *scores) {
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
